"""How the caller reaches a cluster: the options, the kubeconfig, and the token of `--token-file`."""

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from kube.access import KubeConfig
from service.command import UsageError, add_kubeconfig
from service.http.authentication import is_token

DEFAULT_KUBECONFIG: Final = "$KUBECONFIG, else ~/.kube/config"


def add_cluster_options(command: argparse.ArgumentParser) -> None:
    """Add the options `--kubeconfig` and `--context`."""
    add_kubeconfig(command, default=DEFAULT_KUBECONFIG)


async def cluster_access(arguments: argparse.Namespace) -> KubeConfig:
    """Return the access by `--kubeconfig` and `--context`; a pod's service account is never used.

    Raises:
        AccessError: the kubeconfig cannot be read, or its login fails.
    """
    return await KubeConfig.load(arguments.kubeconfig, arguments.context)


def use_own_kubeconfig(arguments: argparse.Namespace) -> None:
    """Name the caller's kubeconfig where `--kubeconfig` is not given.

    The commands of `kaishare-webhook` would otherwise use a pod's service account, which is a service's.
    """
    if "kubeconfig" in arguments and arguments.kubeconfig is None:
        arguments.kubeconfig = default_kubeconfig()


def default_kubeconfig() -> str:
    """Return the kubeconfig that kubectl reads without an option."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


_MOST_TOKEN: Final = 1 << 16
"""Characters that are read; tokens of service accounts have about 1000."""


FOR_AGENTS: Final = "create one with kubectl create token --audience kaishare-agent"
"""Advice for a file without a token of the agents' audience."""


def read_token(file: str, advice: str = FOR_AGENTS) -> str:
    """Read a token from a file, or from standard input if the file is `-`.

    Args:
        file: name of the file, or `-`.
        advice: the end of the message about a file without a token.

    Raises:
        UsageError: the file cannot be read, or contains no token.
    """
    name = "standard input" if file == "-" else file
    try:
        if file == "-":
            text = sys.stdin.read(_MOST_TOKEN)
        else:
            with Path(file).open(encoding="ascii") as stream:
                text = stream.read(_MOST_TOKEN)
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name}: not a token: not ASCII") from None
    token = text.strip()
    if not is_token(token):
        raise UsageError(f"{name}: not a token; {advice}")
    return token
