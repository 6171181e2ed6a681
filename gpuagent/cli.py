"""The command `kaishare-agent`.

Exit status: 0 success, 1 internal error, 2 invalid input or unusable output, 3 restart required.
"""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuagent.serve_options import add_options, read_settings
from kai.releases import Version
from service.command import (
    Parser,
    UsageError,
    add_kubeconfig,
    namespace_name,
    read_by,
    run_chosen,
    run_command,
)
from service.documents import DocumentError
from service.names import is_dns_subdomain
from service.text import quoted
from service.version import version

if TYPE_CHECKING:
    from gpuagent.node import NodeSettings

_SIMULATED: Final = "simulated"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run_command(
        "kaishare-agent", lambda: run_chosen(_parser().parse_args(argv)), unusable=(DocumentError,)
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kaishare-agent",
        description="Reports the GPU memory that each pod of this node uses, compared with its share.",
    )
    parser.add_argument("--version", action="version", version=f"kaishare-agent {version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    serving = commands.add_parser(
        "serve",
        help="measure GPU memory and serve metrics",
        description="Samples the GPUs of this node, compares each pod's memory with its share, and serves"
        " metrics, a JSON API, a page and health checks. Optionally writes Events and evicts pods.",
    )
    _add_node_options(serving)
    add_options(serving)
    serving.set_defaults(run=_serve)

    return parser


def _add_node_options(options: argparse.ArgumentParser) -> None:
    """Add the options about the node: its GPUs, pods and processes."""
    options.add_argument(
        "--gpus",
        choices=("nvml", _SIMULATED),
        default="nvml",
        help="source of the GPUs: the node's driver; or, on a node without GPUs, synthetic figures of the"
        " pods that KAI placed there, by their annotation kaishare.dev/simulate (default %(default)s)",
    )
    options.add_argument(
        "--pods",
        metavar="cluster|FILE",
        help="source of the pods: the API server, or a v1 PodList or List in YAML or JSON, as kubectl get"
        " -o json prints it (default cluster)",
    )
    add_kubeconfig(
        options, default="the pod's service account, else $KUBECONFIG, else ~/.kube/config", has_context=False
    )
    options.add_argument(
        "--node",
        type=read_by(_node_name),
        metavar="NAME",
        help="name of this node's Node object (default $NODE_NAME)",
    )
    options.add_argument(
        "--proc-root", type=Path, metavar="DIR", help="mount point of the host's /proc (default /proc)"
    )
    options.add_argument(
        "--reservation-namespace",
        type=read_by(namespace_name),
        default="kai-resource-reservation",
        metavar="NAMESPACE",
        help="namespace of KAI's reservation pods (default %(default)s)",
    )
    options.add_argument(
        "--kai-version",
        type=read_by(Version.parse),
        metavar="X.Y.Z",
        help="KAI's release (default: a current one)",
    )


def _node_name(text: str) -> str:
    """Check the name of a Node; an empty text stands for none.

    Raises:
        ValueError: no Node can have the name.
    """
    if text and not is_dns_subdomain(text):
        raise ValueError(f"{quoted(text)} is not the name of a Node; allowed: a-z, 0-9, - and .")
    return text


def _node_variable() -> str:
    """Return the node's name from the environment; empty without one.

    Raises:
        UsageError: no Node can have the name.
    """
    try:
        return _node_name(os.environ.get("NODE_NAME", ""))
    except ValueError as error:
        raise UsageError(f"NODE_NAME: {error}") from None


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Exit with 0 on SIGTERM before the server has its own handler; the kernel ignores SIGTERM for PID 1."""
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@_ending_on_sigterm()
def _serve(arguments: argparse.Namespace) -> int:
    settings = read_settings(arguments, node=_node_settings(arguments))
    # Imported here: --help and a mistyped option need no server.
    from gpuagent.serve import run  # noqa: PLC0415

    return run(settings)


def _node_settings(arguments: argparse.Namespace) -> "NodeSettings":
    """Return what the options and the environment say about the node.

    Raises:
        UsageError: the options contradict one another, or NODE_NAME names no Node.
    """
    from gpuagent.node import NodeSettings  # noqa: PLC0415

    is_simulated = arguments.gpus == _SIMULATED
    if is_simulated and arguments.proc_root is not None:
        raise UsageError("--proc-root cannot be combined with --gpus simulated, which makes up /proc")
    return NodeSettings(
        is_simulated=is_simulated,
        pods=None if arguments.pods in (None, "cluster") else Path(arguments.pods),
        kubeconfig=arguments.kubeconfig,
        node=arguments.node or _node_variable(),
        proc_root=arguments.proc_root or Path("/proc"),
        reservation_namespace=arguments.reservation_namespace,
        kai_version=arguments.kai_version,
    )


if __name__ == "__main__":
    sys.exit(main())
