"""The cluster of the caller's kubeconfig: its options, and access to its API server."""

import argparse
import os
from typing import Final

from kube.access import KubeConfig
from service.command import add_kubeconfig

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
