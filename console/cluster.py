"""The cluster of the caller's kubeconfig: its options, and access to its API server."""

import argparse
import os
from dataclasses import dataclass
from typing import Final

from kube.access import KubeConfig
from service.text import quoted
from webhook.policy.values import is_object_name

DEFAULT_KUBECONFIG: Final = "$KUBECONFIG, else ~/.kube/config"
_LONGEST_NAMESPACE: Final = 63


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options that select a cluster."""

    kubeconfig: str | None = None
    context: str | None = None

    async def access(self) -> KubeConfig:
        """Return the access by the caller's kubeconfig; a pod's service account is never used.

        Raises:
            AccessError: the kubeconfig cannot be read, or its login fails.
        """
        return await KubeConfig.load(self.kubeconfig, self.context)


def add_cluster_options(command: argparse.ArgumentParser) -> None:
    """Add the options `--kubeconfig` and `--context`."""
    command.add_argument(
        "--kubeconfig",
        metavar="FILE",
        help=f"kubeconfig of the cluster (default: {DEFAULT_KUBECONFIG})",
    )
    command.add_argument(
        "--context", metavar="NAME", help="context of the kubeconfig (default: the current context)"
    )


def parse_cluster_options(arguments: argparse.Namespace) -> ClusterOptions:
    """Return the values of `--kubeconfig` and `--context`."""
    return ClusterOptions(arguments.kubeconfig, arguments.context)


def use_own_kubeconfig(arguments: argparse.Namespace) -> None:
    """Name the caller's kubeconfig where `--kubeconfig` is not given.

    The commands of `kaishare-webhook` would otherwise use a pod's service account, which is a service's.
    """
    if "kubeconfig" in arguments and arguments.kubeconfig is None:
        arguments.kubeconfig = os.environ.get("KUBECONFIG") or "~/.kube/config"


def namespace_name(text: str) -> str:
    """Read the name of a namespace.

    Raises:
        ValueError: the text is no DNS-1123 label; the message is one line.
    """
    if "." in text or len(text) > _LONGEST_NAMESPACE or not is_object_name(text):
        raise ValueError(f"{quoted(text)} is not allowed; allowed: the name of a namespace")
    return text
