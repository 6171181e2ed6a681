"""The command `kaishare-agent`.

Exit status: 0 fine, 1 the answer is no, 2 bad input or output, 3 start me again.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from gpuagent.actions.eviction_settings import Budget, EvictionMode
from gpuagent.ledger.slack import Slack
from kai.own_labels import EXCLUDED_NAMESPACES, OVER_SHARE, OVER_SHARE_GRACE
from kai.version import Version
from service.command import Parser, UsageError, names, read_by, run_command
from service.documents import DocumentError
from service.http.host_names import parse_host_name
from service.text import quoted
from service.units import parse_duration
from service.version import version

_SHORTEST_SECONDS: Final = 0.1
_SIMULATED: Final = "simulated:"


class _Command(Protocol):
    def __call__(self, arguments: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return run_command("kaishare-agent", lambda: _run(argv), unusable=(DocumentError,))


def _run(argv: Sequence[str] | None) -> int:
    arguments = _parser().parse_args(argv)
    run: _Command = arguments.run
    return run(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kaishare-agent",
        description="Shows which pod holds how much memory of which GPU of this node, against its share.",
    )
    parser.add_argument("--version", action="version", version=f"kaishare {version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    of_node = _node_options()
    serving = commands.add_parser("serve", parents=[of_node], help="measure, judge, and serve metrics")
    serving.add_argument(
        "--listen",
        default="127.0.0.1:9445",
        metavar="HOST:PORT",
        help="metrics, API, health; :9445 is every address (default %(default)s)",
    )
    serving.add_argument(
        "--host-name",
        action="append",
        type=read_by(parse_host_name),
        default=[],
        metavar="NAME",
        help="another host name that requests may carry, such as a Service's; may be given several times."
        " IP addresses, localhost, the node's name, $POD_NAME and $HOSTNAME are always answered",
    )
    serving.add_argument(
        "--interval",
        type=read_by(_duration),
        default="5s",
        metavar="DURATION",
        help="time between two samples in the mean; each differs by up to 20%% (default %(default)s)",
    )
    serving.add_argument(
        "--grace",
        type=read_by(_duration),
        default="2m",
        metavar="DURATION",
        help="how long a pod may be over before it is flagged: time over adds up, and time within its share"
        " takes half of its length away (default %(default)s)",
    )
    for name, default, which in (("--grace-min", "30s", "shortest"), ("--grace-max", "24h", "longest")):
        serving.add_argument(
            name,
            type=read_by(_duration),
            default=default,
            metavar="DURATION",
            help=f"the {which} grace that a namespace gets by {OVER_SHARE_GRACE} (default %(default)s)",
        )
    serving.add_argument(
        "--slack",
        type=read_by(Slack.parse),
        default="256Mi,5%",
        metavar="BYTES,PERCENT%",
        help="how much more than the share is not over, the larger of both (default 256Mi,5%%)",
    )
    serving.add_argument(
        "--exclude-namespaces",
        type=names,
        default=EXCLUDED_NAMESPACES,
        metavar="A,B",
        help="no pod without a share is flagged there; replaces " + ",".join(sorted(EXCLUDED_NAMESPACES)),
    )
    serving.add_argument(
        "--events",
        choices=("true", "false"),
        help="whether a flag becomes an Event on its pod (default true, with --pods cluster only)",
    )
    serving.add_argument(
        "--eviction",
        choices=tuple(EvictionMode),
        default=EvictionMode.OFF,
        help=f"the most that a namespace gets by {OVER_SHARE}=evict; dry-run decides, counts and logs,"
        " and asks the API server for nothing (default %(default)s)",
    )
    serving.add_argument(
        "--eviction-budget",
        type=read_by(Budget.parse),
        default="1/10m",
        metavar="N/DURATION",
        help="evictions of this node in a time (default %(default)s)",
    )
    serving.set_defaults(run=_serve)

    showing = commands.add_parser(
        "top",
        help="show the figures of a running agent",
        description="Shows GPUs and pods, those furthest over their share first: on a terminal until Ctrl-C,"
        " piped once and whole.",
    )
    showing.add_argument(
        "--url",
        default="http://127.0.0.1:9445",
        metavar="URL",
        help="where the agent serves (default %(default)s)",
    )
    often = showing.add_mutually_exclusive_group()
    often.add_argument("--once", action="store_false", dest="watch", help="as plain text, and end")
    often.add_argument(
        "--watch", action="store_true", help="go on, also when piped, and while the agent does not answer"
    )
    showing.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="(default %(default)s)"
    )
    showing.set_defaults(run=_top, watch=None)

    examining = commands.add_parser(
        "doctor",
        parents=[of_node],
        help="find out what keeps the agent from telling the truth here",
        description="Checks driver, PID namespace, /proc, devices, rights, pods and KAI, and says what to do."
        " For a second or so it holds a little memory of a GPU, to find itself again. Exit status 1:"
        " something is wrong. No option is required: without --pods it asks the cluster, if there is one.",
    )
    examining.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="(default %(default)s)"
    )
    examining.set_defaults(run=_doctor)
    return parser


def _node_options() -> Parser:
    """What every command needs that looks at this node itself."""
    options = Parser(add_help=False)
    options.add_argument(
        "--gpus",
        default="nvml",
        metavar="nvml|simulated:FILE",
        help="the node's driver, or a made-up node with pods and /proc of its own (default %(default)s)",
    )
    options.add_argument(
        "--pods", metavar="FILE", help="a v1 PodList or List, YAML or JSON, as kubectl get -o json prints it"
    )
    options.add_argument("--node", metavar="NAME", help="name of this node (default $NODE_NAME)")
    options.add_argument(
        "--proc-root", type=Path, metavar="DIR", help="where the host's /proc is (default /proc)"
    )
    options.add_argument(
        "--reservation-namespace",
        default="kai-resource-reservation",
        metavar="NAMESPACE",
        help="where KAI keeps its reservation pods (default %(default)s)",
    )
    options.add_argument(
        "--read-kai-configmaps",
        action="store_true",
        help="also read KAI's ConfigMaps from the cluster; those of a pods file count without it",
    )
    options.add_argument(
        "--kai-version",
        type=read_by(Version.parse),
        metavar="X.Y.Z",
        help="KAI's release; unset counts as a current one",
    )
    return options


def _duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds < _SHORTEST_SECONDS:
        raise ValueError(f'"{text}" is too short; allowed: 100ms and more')
    return seconds


def _serve(arguments: argparse.Namespace) -> int:
    # Imported here: --help and a mistyped option need no server.
    from gpuagent.serve import Settings, run  # noqa: PLC0415
    from gpuagent.verdicts.over_share import GraceBounds  # noqa: PLC0415
    from service.http.listeners import Address  # noqa: PLC0415

    scenario = _scenario(arguments)
    is_cluster = scenario is None and arguments.pods in (None, "cluster")
    eviction = EvictionMode(arguments.eviction)
    if eviction is not EvictionMode.OFF and not is_cluster:
        raise UsageError(f"--eviction={eviction} needs --pods cluster: evictions are asked of the API server")
    if arguments.events == "true" and not is_cluster:
        raise UsageError("--events=true needs --pods cluster: Events are written to the API server")
    node = arguments.node or os.environ.get("NODE_NAME", "")
    if scenario is None and not node:
        raise UsageError("--node is missing: name this node, or set NODE_NAME")
    try:
        listen = Address.parse(arguments.listen)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if arguments.grace_min > arguments.grace_max:
        raise UsageError("--grace-min is longer than --grace-max")
    return run(
        Settings(
            scenario=scenario,
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
            read_config_maps=arguments.read_kai_configmaps,
        )
    )


def _own_names() -> tuple[str, ...]:
    """Names of the agent's own pod, where it runs in one."""
    return tuple(name for variable in ("POD_NAME", "HOSTNAME") if (name := os.environ.get(variable)))


def _top(arguments: argparse.Namespace) -> int:
    from gpuagent.top.command import TopSettings, run  # noqa: PLC0415

    return run(TopSettings(url=arguments.url, watch=arguments.watch, output=arguments.output))


def _doctor(arguments: argparse.Namespace) -> int:
    from gpuagent.doctor.command import DoctorSettings, run  # noqa: PLC0415

    scenario = _scenario(arguments)
    node = arguments.node or ""
    is_cluster = arguments.pods == "cluster"
    return run(
        DoctorSettings(
            scenario=scenario,
            pods=None if arguments.pods is None or is_cluster else Path(arguments.pods),
            needs_cluster=is_cluster,
            node=node if scenario is not None else node or os.environ.get("NODE_NAME", ""),
            proc_root=arguments.proc_root or Path("/proc"),
            reservation_namespace=arguments.reservation_namespace,
            reads_config_maps=arguments.read_kai_configmaps,
            kai_version=arguments.kai_version,
            output=arguments.output,
        )
    )


def _scenario(arguments: argparse.Namespace) -> Path | None:
    """The scenario's file; None for the real driver."""
    gpus: str = arguments.gpus
    if gpus == "nvml":
        return None
    if not gpus.startswith(_SIMULATED) or gpus == _SIMULATED:
        raise UsageError(f"--gpus {quoted(gpus)} is not allowed; allowed: nvml, or simulated:FILE")
    for option, value in (("--pods", arguments.pods), ("--proc-root", arguments.proc_root)):
        if value is not None:
            raise UsageError(f"{option} cannot be combined with --gpus simulated, which brings its own")
    return Path(gpus.removeprefix(_SIMULATED))


if __name__ == "__main__":
    sys.exit(main())
