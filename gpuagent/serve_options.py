"""Options of `kaishare-agent serve`, and the settings that they make."""

import argparse
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuagent.actions.eviction_rules import Budget, EvictionMode
from gpuagent.ledger.slack import Slack
from gpuagent.node import NodeSettings
from gpuagent.server.api import NO_LINKS, NODE, PageLinks
from kai.installation import SharingMode
from kai.kaishare_keys import AGENT_EXCLUDED_NAMESPACES, OVER_SHARE, OVER_SHARE_GRACE
from kai.releases import Version
from service.command import (
    TOKENS,
    UsageError,
    add_authentication,
    add_kubeconfig,
    add_log_level,
    namespace_name,
    namespace_names,
    read_by,
)
from service.http.host_names import parse_host_name
from service.http.limits import Address
from service.log import INFO
from service.names import is_dns_subdomain
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
    shortest_grace: float
    longest_grace: float
    slack: Slack
    excluded_namespaces: frozenset[str]
    cgroup_root: Path = Path("/sys/fs/cgroup")
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
    log_level: str = INFO


_SIMULATED: Final = "simulated"
_SHORTEST_SECONDS: Final = 0.1
_HELP: Final = {
    "--gpus": "source of the GPUs: the node's driver; or, on a node without GPUs, synthetic figures of the"
    " pods that KAI placed there, by their annotation kaishare.dev/simulate (default %(default)s)",
    "--pods": "source of the pods: the API server, or a v1 PodList or List in YAML or JSON, as kubectl get"
    " -o json prints it (default cluster)",
    "--node": "name of this node's Node object (default $NODE_NAME)",
    "--proc-root": "mount point of the host's /proc (default /proc)",
    "--reservation-namespace": "namespace of KAI's reservation pods (default %(default)s)",
    "--kai-version": "KAI's release (default: a current one)",
    "--listen": "address of metrics, API, page and health checks; :9445 listens on every address"
    " (default %(default)s)",
    "--host-name": "additional host name that the server accepts in requests, such as a Service's;"
    " repeatable. IP addresses, localhost, the node's name, $POD_NAME and $HOSTNAME are always accepted",
    "--certs": "serve TLS with tls.crt and tls.key of this directory, which are read again when they change"
    " (default: no TLS)",
    "--interval": "mean time between two samples, which are random: 0.2 to 2.5 times it"
    " (default %(default)s)",
    "--cgroup-root": "mount point of the host's cgroup tree, in which the driver names the containers that it"
    " limits (default %(default)s)",
    "--gpu-sharing-mode": "global.gpuSharingMode of KAI's chart; it decides whether a memory limit above the"
    f" share counts: {', '.join(SharingMode)} (default: unknown; no pod is evicted then)",
    "--grace": "time above its share after which a pod is flagged; time above the share adds up, and time"
    " within the share subtracts half of its length (default %(default)s)",
    "--grace-min": f"shortest grace that a namespace can set with {OVER_SHARE_GRACE} (default %(default)s)",
    "--grace-max": f"longest grace that a namespace can set with {OVER_SHARE_GRACE} (default %(default)s)",
    "--slack": "tolerance above a share: the larger of a byte count and a percentage (default 256Mi,5%%)",
    "--exclude-namespaces": "namespaces where pods without a share are not flagged and no pod is evicted;"
    f" replaces {','.join(sorted(AGENT_EXCLUDED_NAMESPACES))}",
    "--resource-claims": "read the ResourceClaims of the node's pods and the node's ResourceSlices, and"
    " compare pods with the memory of their claims; needs --pods cluster, and the rights (default"
    " %(default)s: pods with claims are not judged)",
    "--events": "write an Event on the pod for each flag; needs --pods cluster (default true)",
    "--eviction": f"effect of the namespace label {OVER_SHARE}=evict: off ignores it; dry-run counts and logs"
    " the decisions without evicting; on evicts through the API server (default %(default)s)",
    "--eviction-budget": "maximum number of evictions of this node in a period (default %(default)s)",
    "--state": "directory where balances, flags and first-seen shares survive a restart of the agent; they"
    " are dropped after a reboot of the node (default: a restart forgets them)",
    "--runbooks": "address under which your users read docs/runbooks.md, such as"
    " https://git.example.com/kaishare/blob/main/; the page links to its sections there (default: it names"
    " the section)",
    "--fleet-url": "address of a page of all nodes, such as a dashboard, to which the page links;"
    f" {NODE} in it stands for the node's name (default: no link)",
}


def add_options(options: argparse.ArgumentParser) -> None:
    """Add all options of `serve`."""

    def add(name: str, metavar: str | None = None, **settings: Any) -> None:
        options.add_argument(name, metavar=metavar, help=_HELP[name], **settings)

    booleans, duration = ("true", "false"), read_by(_duration)
    add("--gpus", choices=("nvml", _SIMULATED), default="nvml")
    add("--pods", "cluster|FILE")
    add_kubeconfig(
        options, default="the pod's service account, else $KUBECONFIG, else ~/.kube/config", has_context=False
    )
    add("--node", "NAME", type=read_by(_node_name))
    add("--proc-root", "DIR", type=Path)
    namespace = "kai-resource-reservation"
    add("--reservation-namespace", "NAMESPACE", type=read_by(namespace_name), default=namespace)
    add("--kai-version", "X.Y.Z", type=read_by(Version.parse))
    add("--listen", "HOST:PORT", default="127.0.0.1:9445")
    add("--host-name", "NAME", type=read_by(parse_host_name), action="append", default=[])
    add_authentication(options)
    add("--certs", "DIR", type=Path)
    add("--interval", "DURATION", type=duration, default="5s")
    add("--cgroup-root", "DIR", type=Path, default=Path("/sys/fs/cgroup"))
    add("--gpu-sharing-mode", "MODE", type=read_by(parse_sharing_mode))
    add("--grace", "DURATION", type=duration, default="2m")
    add("--grace-min", "DURATION", type=duration, default="30s")
    add("--grace-max", "DURATION", type=duration, default="24h")
    add("--slack", "BYTES,PERCENT%", type=read_by(Slack.parse), default="256Mi,5%")
    excluded = AGENT_EXCLUDED_NAMESPACES
    add("--exclude-namespaces", "A,B", type=read_by(namespace_names), default=excluded)
    add("--resource-claims", choices=booleans, default="false")
    add("--events", choices=booleans)
    add("--eviction", choices=tuple(mode.value for mode in EvictionMode), default=EvictionMode.OFF.value)
    add("--eviction-budget", "N/DURATION", type=read_by(Budget.parse), default="1/10m")
    add("--state", "DIR", type=Path)
    add("--runbooks", "URL", type=read_by(parse_runbooks), default="")
    add("--fleet-url", "URL", type=read_by(parse_address), default="")
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


def _node_name(text: str) -> str:
    """Check the name of a Node; an empty text stands for none.

    Raises:
        ValueError: no Node can have the name.
    """
    if text and not is_dns_subdomain(text):
        raise ValueError(f"{quoted(text)} is not the name of a Node; allowed: a-z, 0-9, - and .")
    return text


_SAME: Final = ("interval", "grace", "slack", "eviction_budget", "gpu_sharing_mode", "cgroup_root", "state")
"""Options that are settings as they are."""


def read_settings(options: argparse.Namespace) -> Settings:
    """Return the settings that the options and the environment make.

    Raises:
        UsageError: the options contradict one another, or NODE_NAME names no Node.
    """
    is_simulated, eviction = options.gpus == _SIMULATED, EvictionMode(options.eviction)
    if is_simulated and options.proc_root is not None:
        raise UsageError("--proc-root cannot be combined with --gpus simulated, which makes up /proc")
    try:
        node = options.node or _node_name(os.environ.get("NODE_NAME", ""))
    except ValueError as error:
        raise UsageError(f"NODE_NAME: {error}") from None
    pods = None if options.pods in (None, "cluster") else Path(options.pods)
    for option, is_set, reason in (
        (f"--eviction={eviction}", eviction is not EvictionMode.OFF, "evictions need the API server"),
        ("--events=true", options.events == "true", "Events are written to the API server"),
        ("--resource-claims=true", options.resource_claims == "true", "claims come from the API server"),
        ("--authentication=tokens", options.authentication == TOKENS, "the API server checks the tokens"),
    ):
        if is_set and pods is not None:
            raise UsageError(f"{option} needs --pods cluster: {reason}")
    if not node:
        raise UsageError("--node is missing: set --node or NODE_NAME")
    if is_simulated and eviction is EvictionMode.ON:
        raise UsageError("--eviction=on is refused with --gpus simulated: its figures are synthetic")
    try:
        listen = Address.parse(options.listen)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from None
    if options.state is not None and not options.state.is_dir():
        raise UsageError(f"--state: {options.state} is not a directory")
    if options.grace_min > options.grace_max:
        raise UsageError("--grace-min is longer than --grace-max")
    return Settings(
        node=NodeSettings(
            is_simulated=is_simulated,
            pods=pods,
            kubeconfig=options.kubeconfig,
            node=node,
            proc_root=options.proc_root or Path("/proc"),
            reservation_namespace=options.reservation_namespace,
            kai_version=options.kai_version,
        ),
        shortest_grace=options.grace_min,
        longest_grace=options.grace_max,
        eviction=eviction,
        resource_claims=options.resource_claims == "true",
        events=options.events != "false",
        listen=listen,
        host_names=(*options.host_name, *filter(None, map(os.environ.get, ("POD_NAME", "HOSTNAME")))),
        excluded_namespaces=options.exclude_namespaces,
        authenticates=options.authentication == TOKENS,
        certificate_directory=options.certs,
        page_links=PageLinks(runbooks=options.runbooks, fleet=options.fleet_url),
        log_level=options.log_level,
        **{name: getattr(options, name) for name in _SAME},
    )
