"""How the caller reaches a cluster or a server: options, kubeconfig, address, and the token of a file."""

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from service.command import UsageError, add_kubeconfig, namespace_name, read_by
from service.http.authentication import is_token
from service.text import quoted
from webhook.policy.labels import read_default_mode
from webhook.settings.decision_options import NAMESPACE

if TYPE_CHECKING:
    from kube.access import Access
    from kube.kubeconfig import KubeConfig

FOR_AGENTS: Final = "create one with kubectl create token --audience kaishare-agent"
_MOST_TOKEN: Final = 1 << 16  # characters that are read; tokens of service accounts have about 1000
_LONGEST_URL: Final = 2000  # characters


def add_cluster_options(command: argparse.ArgumentParser) -> None:
    """Add the options `--kubeconfig` and `--context`."""
    add_kubeconfig(command, default="$KUBECONFIG, else ~/.kube/config")


async def cluster_access(arguments: argparse.Namespace) -> "KubeConfig":
    """Return the access by `--kubeconfig` and `--context`, or raise AccessError.

    A pod's service account is never used.
    """
    from kube.kubeconfig import KubeConfig  # noqa: PLC0415 - explain with files loads no client

    return await KubeConfig.load(arguments.kubeconfig, arguments.context)


async def pod_or_cluster_access(arguments: argparse.Namespace) -> "Access":
    """Return the access of `doctor`, which `helm test` runs in a pod: as kubectl, without a kubeconfig there.

    Raises AccessError.
    """
    is_chosen = arguments.kubeconfig is not None or arguments.context is not None
    if "KUBERNETES_SERVICE_HOST" in os.environ and not is_chosen and not has_kubeconfig():
        from kube.access import InCluster  # noqa: PLC0415 - as above

        return InCluster()
    return await cluster_access(arguments)


def has_kubeconfig() -> bool:
    """Whether there is a kubeconfig that kubectl would read without an option."""
    return "KUBECONFIG" in os.environ or Path("~/.kube/config").expanduser().exists()


def add_output(command: argparse.ArgumentParser, *formats: str, note: str = "") -> None:
    """Add the option `--output`; the first format is the default, and the note is a part of the help."""
    text = f"output format{note} (default %(default)s)"
    command.add_argument("-o", "--output", choices=formats, default=formats[0], help=text)


def add_settings_namespace(command: argparse.ArgumentParser) -> None:
    """Add the option `--settings-namespace`."""
    command.add_argument(
        "--settings-namespace",
        type=read_by(namespace_name),
        default=NAMESPACE,
        metavar="NAMESPACE",
        help="namespace of the ConfigMap kaishare-settings, from which the webhook's settings are read"
        " (default %(default)s)",
    )


def add_running_default_mode(command: argparse.ArgumentParser) -> None:
    """Add the option `--default-mode` to a command that reads it from the running webhook otherwise."""
    command.add_argument(
        "--default-mode",
        type=read_by(read_default_mode),
        metavar="default|observe|off",
        help="the webhook's --default-mode (default: read from the cluster)",
    )


def default_kubeconfig() -> str:
    """Return the kubeconfig that kubectl reads without an option."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def read_token(file: str, advice: str = FOR_AGENTS) -> str:
    """Read a token from a file, or from standard input if the file is `-`, or raise UsageError.

    `advice` is the end of the message about a file without a token.
    """
    name = "standard input" if file == "-" else file
    try:
        with nullcontext(sys.stdin) if file == "-" else Path(file).open(encoding="ascii") as stream:
            text = stream.read(_MOST_TOKEN)
    except OSError as error:
        raise UsageError(f"{name}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{name}: not a token: not ASCII") from None
    token = text.strip()
    if not is_token(token):
        raise UsageError(f"{name}: not a token; {advice}")
    return token


def parse_url(text: str) -> str:
    """Read an address, or raise ValueError, whose message does not repeat user and password."""
    is_valid = len(text) <= _LONGEST_URL and text.isprintable() and " " not in text
    try:
        parts = urlsplit(text)
        is_valid = is_valid and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        text.encode()
        (parts.hostname or "").encode("idna")
    except ValueError:  # UnicodeError is one
        is_valid = False
    if is_valid and "@" in parts.netloc:
        raise ValueError("a user or password in the address is not allowed; use --token-file or --header")
    if not is_valid or parts.query or parts.fragment:
        subject = "the text" if "@" in text else quoted(text)
        raise ValueError(
            f"{subject} is not an address; allowed: http:// or https://, host and path, such as"
            " http://localhost:9090"
        )
    return text.rstrip("/").removesuffix("/api/v1")
