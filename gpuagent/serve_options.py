"""Options of `serve`, and the settings that they make."""

import argparse
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuagent.actions.eviction_rules import Budget, EvictionMode
from gpuagent.ledger.slack import Slack
from gpuagent.node import NodeSettings
from gpuagent.server.api import NO_LINKS, NODE, PageLinks
from gpuagent.verdicts.over_share import GraceBounds
from kai.installation import SharingMode
from kai.kaishare_keys import AGENT_EXCLUDED_NAMESPACES, OVER_SHARE, OVER_SHARE_GRACE
from service.command import TOKENS, UsageError, add_authentication, add_log_level, namespace_names, read_by
from service.http.host_names import parse_host_name
from service.http.limits import Address
from service.log import INFO
from service.text import quoted
from service.units import parse_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of `serve`. Times are in seconds."""

    node: NodeSettings
    listen: Address
    host_names: tuple[str, ...] = ()
    """Accepted host names beside the server's own."""
    interval: float
    grace: float
    grace_bounds: GraceBounds
    slack: Slack
    excluded_namespaces: frozenset[str]
    cgroup_root: Path = Path("/sys/fs/cgroup")
    """Root of the host's cgroup tree."""
    gpu_sharing_mode: SharingMode | None = None
    """None if the administrator has not stated it."""
    resource_claims: bool = False
    """Whether to read ResourceClaims, and the node's ResourceSlices."""
    events: bool = True
    """Whether to write Events for flags, if pods come from the API server."""
    eviction: EvictionMode = EvictionMode.OFF
    eviction_budget: Budget
    authenticates: bool = False
    """Whether the port asks for a token, which the API server checks."""
    certificate_directory: Path | None = None
    """Directory of tls.crt and tls.key; None for a port without TLS."""
    state: Path | None = None
    """Directory of the state that survives a restart; None to keep none."""
    page_links: PageLinks = NO_LINKS
    """Addresses to which the page links."""
    log_level: str = INFO
    """Least severe level of the log."""


if TYPE_CHECKING:
    from gpuagent.node import NodeSettings

_SHORTEST_SECONDS: Final = 0.1


def add_options(options: argparse.ArgumentParser) -> None:
    """Add the options that only `serve` has."""
    options.add_argument(
        "--listen",
        default="127.0.0.1:9445",
        metavar="HOST:PORT",
        help="address of metrics, API, page and health checks; :9445 listens on every address"
        " (default %(default)s)",
    )
    options.add_argument(
        "--host-name",
        action="append",
        type=read_by(parse_host_name),
        default=[],
        metavar="NAME",
        help="additional host name that the server accepts in requests, such as a Service's; repeatable."
        " IP addresses, localhost, the node's name, $POD_NAME and $HOSTNAME are always accepted",
    )
    add_authentication(options)
    options.add_argument(
        "--certs",
        type=Path,
        metavar="DIR",
        help="serve TLS with tls.crt and tls.key of this directory, which are read again when they change"
        " (default: no TLS)",
    )
    options.add_argument(
        "--interval",
        type=read_by(_duration),
        default="5s",
        metavar="DURATION",
        help="mean time between two samples, which are random: 0.2 to 2.5 times it (default %(default)s)",
    )
    options.add_argument(
        "--cgroup-root",
        type=Path,
        default=Path("/sys/fs/cgroup"),
        metavar="DIR",
        help="mount point of the host's cgroup tree, in which the driver names the containers that it"
        " limits (default %(default)s)",
    )
    options.add_argument(
        "--gpu-sharing-mode",
        type=read_by(parse_sharing_mode),
        metavar="MODE",
        help=(
            "global.gpuSharingMode of KAI's chart; it decides whether a memory limit above the share counts:"
            f" {', '.join(SharingMode)} (default: unknown; no pod is evicted then)"
        ),
    )
    options.add_argument(
        "--grace",
        type=read_by(_duration),
        default="2m",
        metavar="DURATION",
        help="time above its share after which a pod is flagged; time above the share adds up, and time"
        " within the share subtracts half of its length (default %(default)s)",
    )
    for name, default, which in (("--grace-min", "30s", "shortest"), ("--grace-max", "24h", "longest")):
        options.add_argument(
            name,
            type=read_by(_duration),
            default=default,
            metavar="DURATION",
            help=f"{which} grace that a namespace can set with {OVER_SHARE_GRACE} (default %(default)s)",
        )
    options.add_argument(
        "--slack",
        type=read_by(Slack.parse),
        default="256Mi,5%",
        metavar="BYTES,PERCENT%",
        help="tolerance above a share: the larger of a byte count and a percentage (default 256Mi,5%%)",
    )
    options.add_argument(
        "--exclude-namespaces",
        type=read_by(namespace_names),
        default=AGENT_EXCLUDED_NAMESPACES,
        metavar="A,B",
        help="namespaces where pods without a share are not flagged and no pod is evicted; replaces "
        + ",".join(sorted(AGENT_EXCLUDED_NAMESPACES)),
    )
    options.add_argument(
        "--resource-claims",
        choices=("true", "false"),
        default="false",
        help="read the ResourceClaims of the node's pods and the node's ResourceSlices, and compare pods with"
        " the memory of their claims; needs --pods cluster, and the rights (default %(default)s: pods with"
        " claims are not judged)",
    )
    options.add_argument(
        "--events",
        choices=("true", "false"),
        help="write an Event on the pod for each flag; needs --pods cluster (default true)",
    )
    options.add_argument(
        "--eviction",
        choices=tuple(mode.value for mode in EvictionMode),
        default=EvictionMode.OFF.value,
        help=f"effect of the namespace label {OVER_SHARE}=evict: off ignores it; dry-run counts and logs the"
        " decisions without evicting; on evicts through the API server (default %(default)s)",
    )
    options.add_argument(
        "--eviction-budget",
        type=read_by(Budget.parse),
        default="1/10m",
        metavar="N/DURATION",
        help="maximum number of evictions of this node in a period (default %(default)s)",
    )
    options.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        help="directory where balances, flags and first-seen shares survive a restart of the agent; they are"
        " dropped after a reboot of the node (default: a restart forgets them)",
    )
    options.add_argument(
        "--runbooks",
        type=read_by(parse_runbooks),
        default="",
        metavar="URL",
        help="address under which your users read docs/runbooks.md, such as"
        " https://git.example.com/kaishare/blob/main/; the page links to its sections there (default: it"
        " names the section)",
    )
    options.add_argument(
        "--fleet-url",
        type=read_by(parse_address),
        default="",
        metavar="URL",
        help=f"address of a page of all nodes, such as a dashboard, to which the page links; {NODE} in it"
        " stands for the node's name (default: no link)",
    )
    add_log_level(options)


_ADDRESS: Final = re.compile(r"https?://[^\s/?#@]+([/?#]\S*)?")
"""The chart's values.schema.json has the same pattern."""
_LONGEST_ADDRESS: Final = 2048


def parse_address(text: str) -> str:
    """Check the address of a web page; an empty text stands for none.

    Raises:
        ValueError: it is no address that begins with http:// or https://.
    """
    if text and not (len(text) <= _LONGEST_ADDRESS and text.isprintable() and _ADDRESS.fullmatch(text)):
        raise ValueError(f"{quoted(text)} is not an address; allowed: http:// or https:// with a host")
    return text


def parse_runbooks(text: str) -> str:
    """Check the address under which docs/runbooks.md is; an empty text stands for none.

    Raises:
        ValueError: it is no address of a web page, or does not end with a slash.
    """
    if text and not text.endswith("/"):
        raise ValueError(f"{quoted(text)} does not end with /; docs/runbooks.md is appended to it")
    return parse_address(text)


def parse_sharing_mode(text: str) -> SharingMode:
    """Parse the name of one of KAI's modes.

    Raises:
        ValueError: no mode has the name; the message lists the modes.
    """
    if text not in tuple(SharingMode):
        raise ValueError(f"{quoted(text)} is not a mode of GPU sharing; allowed: {', '.join(SharingMode)}")
    return SharingMode(text)


def _duration(text: str) -> float:
    seconds = parse_duration(text)
    if seconds < _SHORTEST_SECONDS:
        raise ValueError(f'"{text}" is too short; allowed: 100ms and more')
    return seconds


def read_settings(arguments: argparse.Namespace, *, node: "NodeSettings") -> "Settings":
    """Return the settings that the options make.

    Args:
        arguments: the options.
        node: which node the agent serves.

    Raises:
        UsageError: the options contradict one another.
    """
    # Imported here: --help and a mistyped option need no server.
    from gpuagent.verdicts.over_share import GraceBounds  # noqa: PLC0415
    from service.http.limits import Address  # noqa: PLC0415

    is_cluster = node.pods is None
    eviction = EvictionMode(arguments.eviction)
    if eviction is not EvictionMode.OFF and not is_cluster:
        raise UsageError(f"--eviction={eviction} needs --pods cluster: evictions need the API server")
    if arguments.events == "true" and not is_cluster:
        raise UsageError("--events=true needs --pods cluster: Events are written to the API server")
    if arguments.resource_claims == "true" and not is_cluster:
        raise UsageError("--resource-claims=true needs --pods cluster: claims come from the API server")
    if arguments.authentication == TOKENS and not is_cluster:
        raise UsageError("--authentication=tokens needs --pods cluster: the API server checks the tokens")
    if not node.node:
        raise UsageError("--node is missing: set --node or NODE_NAME")
    if node.is_simulated and eviction is EvictionMode.ON:
        raise UsageError("--eviction=on is refused with --gpus simulated: its figures are synthetic")
    try:
        listen = Address.parse(arguments.listen)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from None
    if arguments.state is not None and not arguments.state.is_dir():
        raise UsageError(f"--state: {arguments.state} is not a directory")
    if arguments.grace_min > arguments.grace_max:
        raise UsageError("--grace-min is longer than --grace-max")
    return Settings(
        node=node,
        grace_bounds=GraceBounds(shortest=arguments.grace_min, longest=arguments.grace_max),
        eviction=eviction,
        eviction_budget=arguments.eviction_budget,
        resource_claims=arguments.resource_claims == "true",
        events=arguments.events != "false",
        listen=listen,
        host_names=(*arguments.host_name, *_own_names()),
        interval=arguments.interval,
        grace=arguments.grace,
        slack=arguments.slack,
        excluded_namespaces=arguments.exclude_namespaces,
        cgroup_root=arguments.cgroup_root,
        gpu_sharing_mode=arguments.gpu_sharing_mode,
        authenticates=arguments.authentication == TOKENS,
        certificate_directory=arguments.certs,
        state=arguments.state,
        page_links=PageLinks(runbooks=arguments.runbooks, fleet=arguments.fleet_url),
        log_level=arguments.log_level,
    )


def _own_names() -> tuple[str, ...]:
    """Return the names of the agent's own pod; empty outside of a pod."""
    return tuple(name for variable in ("POD_NAME", "HOSTNAME") if (name := os.environ.get(variable)))
