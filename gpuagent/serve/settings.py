"""Settings of `serve`."""

from dataclasses import dataclass
from pathlib import Path

from gpuagent.actions.eviction_budget import Budget
from gpuagent.actions.eviction_rules import EvictionMode
from gpuagent.ledger.slack import Slack
from gpuagent.node import NodeSettings
from gpuagent.server.page.links import NO_LINKS, PageLinks
from gpuagent.verdicts.over_share import GraceBounds
from kai.installation import SharingMode
from service.http.listeners import Address
from service.log import INFO


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
    gpu_sharing_mode: SharingMode | None = None
    """None if the administrator has not stated it."""
    events: bool = True
    """Whether to write Events for flags, if pods come from the API server."""
    eviction: EvictionMode = EvictionMode.OFF
    eviction_budget: Budget
    authenticates: bool = False
    """Whether the port asks for a token, which the API server checks."""
    shows_processes: bool = False
    """Whether every reader of the port may list the pods' processes. With tokens it is a right."""
    certificate_directory: Path | None = None
    """Directory of tls.crt and tls.key; None for a port without TLS."""
    page_links: PageLinks = NO_LINKS
    """Addresses to which the page links."""
    log_level: str = INFO
    """Least severe level of the log."""
