"""The command `kaishare-agent`.

Exit status: 0 success, 1 a check failed, 2 invalid input or unusable output, 3 restart required.
"""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gpuagent.actions.eviction_settings import Budget, EvictionMode
from gpuagent.ledger.slack import Slack
from gpuagent.server.page.links import NODE, PageLinks, parse_address, parse_runbooks
from gpuagent.shares.limits import GpuSharingMode
from kai.own_labels import AGENT_EXCLUDED_NAMESPACES, OVER_SHARE, OVER_SHARE_GRACE
from kai.version import Version
from service.command import (
    TOKENS,
    Parser,
    UsageError,
    add_authentication,
    add_log_level,
    namespace_name,
    namespace_names,
    read_by,
    run_chosen,
    run_command,
)
from service.document_error import DocumentError
from service.http.host_names import parse_host_name
from service.names import is_dns_subdomain
from service.text import quoted
from service.units import parse_duration
from service.version import version

_SHORTEST_SECONDS: Final = 0.1
_SIMULATED: Final = "simulated:"
_SIMULATED_CLUSTER: Final = "simulated:cluster"


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

    of_node = _node_options()
    serving = commands.add_parser(
        "serve",
        parents=[of_node],
        help="measure GPU memory and serve metrics",
        description="Samples the GPUs of this node, compares each pod's memory with its share, and serves"
        " metrics, a JSON API, a page and health checks. Optionally writes Events and evicts pods.",
    )
    serving.add_argument(
        "--listen",
        default="127.0.0.1:9445",
        metavar="HOST:PORT",
        help="address of metrics, API, page and health checks; :9445 listens on every address"
        " (default %(default)s)",
    )
    serving.add_argument(
        "--host-name",
        action="append",
        type=read_by(parse_host_name),
        default=[],
        metavar="NAME",
        help="additional host name that the server accepts in requests, such as a Service's; repeatable."
        " IP addresses, localhost, the node's name, $POD_NAME and $HOSTNAME are always accepted",
    )
    add_authentication(serving)
    serving.add_argument(
        "--show-processes",
        action="store_true",
        help="list the pods' processes (PID, name, memory) at /api/v1/processes for every reader of the port;"
        " with --authentication=tokens they are listed for users with the right to this path",
    )
    serving.add_argument(
        "--certs",
        type=Path,
        metavar="DIR",
        help="serve TLS with tls.crt and tls.key of this directory, which are read again when they change"
        " (default: no TLS)",
    )
    serving.add_argument(
        "--interval",
        type=read_by(_duration),
        default="5s",
        metavar="DURATION",
        help="mean time between two samples; each one varies by up to 20%% (default %(default)s)",
    )
    serving.add_argument(
        "--gpu-sharing-mode",
        type=read_by(GpuSharingMode.parse),
        metavar="MODE",
        help=(
            "global.gpuSharingMode of KAI's chart; it decides whether a memory limit above the share counts:"
            f" {', '.join(GpuSharingMode)} (default: unknown; such pods are flagged and not evicted)"
        ),
    )
    serving.add_argument(
        "--grace",
        type=read_by(_duration),
        default="2m",
        metavar="DURATION",
        help="time above its share after which a pod is flagged; time above the share adds up, and time"
        " within the share subtracts half of its length (default %(default)s)",
    )
    for name, default, which in (("--grace-min", "30s", "shortest"), ("--grace-max", "24h", "longest")):
        serving.add_argument(
            name,
            type=read_by(_duration),
            default=default,
            metavar="DURATION",
            help=f"{which} grace that a namespace can set with {OVER_SHARE_GRACE} (default %(default)s)",
        )
    serving.add_argument(
        "--slack",
        type=read_by(Slack.parse),
        default="256Mi,5%",
        metavar="BYTES,PERCENT%",
        help="tolerance above a share: the larger of a byte count and a percentage (default 256Mi,5%%)",
    )
    serving.add_argument(
        "--exclude-namespaces",
        type=read_by(namespace_names),
        default=AGENT_EXCLUDED_NAMESPACES,
        metavar="A,B",
        help="namespaces where pods without a share are not flagged and no pod is evicted; replaces "
        + ",".join(sorted(AGENT_EXCLUDED_NAMESPACES)),
    )
    serving.add_argument(
        "--events",
        choices=("true", "false"),
        help="write an Event on the pod for each flag; needs --pods cluster (default true)",
    )
    serving.add_argument(
        "--eviction",
        choices=tuple(mode.value for mode in EvictionMode),
        default=EvictionMode.OFF.value,
        help=f"effect of the namespace label {OVER_SHARE}=evict: off ignores it; dry-run counts and logs the"
        " decisions without evicting; on evicts through the API server (default %(default)s)",
    )
    serving.add_argument(
        "--eviction-budget",
        type=read_by(Budget.parse),
        default="1/10m",
        metavar="N/DURATION",
        help="maximum number of evictions of this node in a period (default %(default)s)",
    )
    serving.add_argument(
        "--runbooks",
        type=read_by(parse_runbooks),
        default="",
        metavar="URL",
        help="address under which your users read docs/runbooks.md, such as"
        " https://git.example.com/kaishare/blob/main/; the page links to its sections there (default: the"
        " texts are on the page)",
    )
    serving.add_argument(
        "--fleet-url",
        type=read_by(parse_address),
        default="",
        metavar="URL",
        help=f"address of a page of all nodes, such as a dashboard, to which the page links; {NODE} in it"
        " stands for the node's name (default: no link)",
    )
    add_log_level(serving)
    serving.set_defaults(run=_serve)

    showing = commands.add_parser(
        "top",
        help="show the GPUs and pods of a running agent",
        description="Shows GPUs and pods, flagged pods first. On a terminal the display is"
        " refreshed until Ctrl-C; piped, everything is printed once.",
    )
    showing.add_argument(
        "--url",
        default="http://127.0.0.1:9445",
        metavar="URL",
        help="address of the agent (default %(default)s)",
    )
    showing.add_argument(
        "--token-file",
        default="",
        metavar="FILE|-",
        help="file with a token for the audience kaishare-agent, needed where the agent asks for tokens; -"
        " reads standard input",
    )
    often = showing.add_mutually_exclusive_group()
    often.add_argument("--once", action="store_false", dest="watch", help="print once as plain text and exit")
    often.add_argument(
        "--watch",
        action="store_true",
        help="keep refreshing, also when piped and while the agent does not respond",
    )
    showing.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="output format (default %(default)s)"
    )
    showing.set_defaults(run=_top, watch=None)

    examining = commands.add_parser(
        "doctor",
        parents=[of_node],
        help="check that the agent works on this node",
        description="Checks driver, PID namespace, /proc, devices, RBAC rights, pods and KAI, and suggests a"
        " remedy for each problem. A self-test allocates a little GPU memory for about a second. No option is"
        " required; without --pods the cluster is checked if there is one. Exit status 1 means a problem.",
    )
    examining.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="output format (default %(default)s)"
    )
    examining.set_defaults(run=_doctor)
    return parser


def _node_options() -> Parser:
    """Make the options that `serve` and `doctor` share."""
    options = Parser(add_help=False)
    options.add_argument(
        "--gpus",
        default="nvml",
        metavar="nvml|simulated:FILE|simulated:cluster",
        help="source of the GPUs: the node's driver; a scenario file that also brings pods and /proc; or, in"
        " a cluster without GPUs, the pods that KAI placed, with synthetic figures (default %(default)s)",
    )
    options.add_argument(
        "--pods",
        metavar="cluster|FILE",
        help="source of the pods: the API server, or a v1 PodList or List in YAML or JSON, as kubectl get"
        " -o json prints it (default cluster)",
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
        "--read-kai-configmaps",
        action="store_true",
        help="also read KAI's ConfigMaps from the cluster; those in a pods file are always read",
    )
    options.add_argument(
        "--kai-version",
        type=read_by(Version.parse),
        metavar="X.Y.Z",
        help="KAI's release (default: a current one)",
    )
    return options


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


def _duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds < _SHORTEST_SECONDS:
        raise ValueError(f'"{text}" is too short; allowed: 100ms and more')
    return seconds


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
    # Imported here: --help and a mistyped option need no server.
    from gpuagent.serve import Settings, run  # noqa: PLC0415
    from gpuagent.verdicts.over_share import GraceBounds  # noqa: PLC0415
    from service.http.listeners import Address  # noqa: PLC0415

    scenario = _scenario(arguments)
    simulates_cluster = arguments.gpus == _SIMULATED_CLUSTER
    is_cluster = scenario is None and arguments.pods in (None, "cluster")
    eviction = EvictionMode(arguments.eviction)
    if eviction is not EvictionMode.OFF and not is_cluster:
        raise UsageError(f"--eviction={eviction} needs --pods cluster: evictions need the API server")
    if arguments.events == "true" and not is_cluster:
        raise UsageError("--events=true needs --pods cluster: Events are written to the API server")
    if arguments.authentication == TOKENS and not is_cluster:
        raise UsageError("--authentication=tokens needs --pods cluster: the API server checks the tokens")
    node = arguments.node or _node_variable()
    if scenario is None and not node:
        raise UsageError("--node is missing: set --node or NODE_NAME")
    try:
        listen = Address.parse(arguments.listen)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from None
    if arguments.grace_min > arguments.grace_max:
        raise UsageError("--grace-min is longer than --grace-max")
    return run(
        Settings(
            scenario=scenario,
            simulates_cluster=simulates_cluster,
            grace_bounds=GraceBounds(shortest=arguments.grace_min, longest=arguments.grace_max),
            pods=None if arguments.pods in (None, "cluster") else Path(arguments.pods),
            eviction=eviction,
            eviction_budget=arguments.eviction_budget,
            events=arguments.events != "false",
            node=arguments.node if scenario is not None else node,
            listen=listen,
            host_names=(*arguments.host_name, *_own_names()),
            interval=arguments.interval,
            grace=arguments.grace,
            slack=arguments.slack,
            proc_root=arguments.proc_root or Path("/proc"),
            reservation_namespace=arguments.reservation_namespace,
            excluded_namespaces=arguments.exclude_namespaces,
            kai_version=arguments.kai_version,
            gpu_sharing_mode=arguments.gpu_sharing_mode,
            read_config_maps=arguments.read_kai_configmaps,
            authenticates=arguments.authentication == TOKENS,
            shows_processes=arguments.show_processes,
            certificate_directory=arguments.certs,
            page_links=PageLinks(runbooks=arguments.runbooks, fleet=arguments.fleet_url),
            log_level=arguments.log_level,
        )
    )


def _own_names() -> tuple[str, ...]:
    """Return the names of the agent's own pod; empty outside of a pod."""
    return tuple(name for variable in ("POD_NAME", "HOSTNAME") if (name := os.environ.get(variable)))


def _top(arguments: argparse.Namespace) -> int:
    from gpuagent.top.command import run  # noqa: PLC0415

    return run(
        url=arguments.url,
        watch=arguments.watch,
        output=arguments.output,
        token_file=arguments.token_file,
    )


def _doctor(arguments: argparse.Namespace) -> int:
    from gpuagent.doctor.command import run  # noqa: PLC0415
    from gpuagent.doctor.settings import DoctorSettings  # noqa: PLC0415

    scenario = _scenario(arguments)
    node = arguments.node or ""
    simulates_cluster = arguments.gpus == _SIMULATED_CLUSTER
    is_cluster = arguments.pods == "cluster"
    return run(
        DoctorSettings(
            scenario=scenario,
            simulates_cluster=simulates_cluster,
            pods=None if arguments.pods is None or is_cluster else Path(arguments.pods),
            needs_cluster=is_cluster or simulates_cluster,
            node=node if scenario is not None else node or _node_variable(),
            proc_root=arguments.proc_root or Path("/proc"),
            reservation_namespace=arguments.reservation_namespace,
            reads_config_maps=arguments.read_kai_configmaps,
            kai_version=arguments.kai_version,
            output=arguments.output,
        )
    )


def _scenario(arguments: argparse.Namespace) -> Path | None:
    """Return the scenario's file; None for the real driver and for a simulated cluster."""
    gpus: str = arguments.gpus
    if gpus == "nvml":
        return None
    if gpus == _SIMULATED_CLUSTER:
        if arguments.pods not in (None, "cluster"):
            raise UsageError(
                f"--gpus {gpus} needs --pods cluster: it makes up the processes of the cluster's pods"
            )
        if arguments.proc_root is not None:
            raise UsageError(f"--proc-root cannot be combined with --gpus {gpus}, which makes up /proc")
        return None
    if not gpus.startswith(_SIMULATED) or gpus == _SIMULATED:
        raise UsageError(
            f"--gpus {quoted(gpus)} is invalid; allowed: nvml, simulated:FILE or simulated:cluster"
        )
    for option, value in (("--pods", arguments.pods), ("--proc-root", arguments.proc_root)):
        if value is not None:
            raise UsageError(f"{option} cannot be combined with --gpus simulated, which brings its own")
    return Path(gpus.removeprefix(_SIMULATED))


if __name__ == "__main__":
    sys.exit(main())
