"""HTTP server of the agent.

It shows all tenants' pods, and is for administrators of the host.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final

from gpuagent.api_types import SHARES_PATH
from gpuagent.evaluation.status import Status
from gpuagent.server.api import shares_json
from gpuagent.server.exposition import Metrics, SampleText
from gpuagent.server.page.page_links import NO_LINKS, PageLinks
from gpuagent.server.page.renderer import HEADERS, STATIC, PageRenderer
from service.http.authentication import HEALTH_PATHS
from service.http.host_names import HostNames
from service.http.limits import Address, ConnectionLimits, plain_port_limits
from service.http.page_server import (
    OPEN_PORT,
    Page,
    PageServer,
    PortSecurity,
    Render,
    text_page,
)
from service.log import JsonLog

AGENT_CONNECTIONS: Final = plain_port_limits(256)
FORWARDED_PATHS: Final = HEALTH_PATHS | {SHARES_PATH}
"""Paths that the API server's pod proxy may request under the API server's host name."""
AUDIENCE: Final = "kaishare-agent"
"""Audience of the tokens in X-Kaishare-Token."""

_JSON: Final = {"Content-Type": "application/json"}
_PROMETHEUS: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
_FINISH_SECONDS: Final = 1.0


class HttpServer:
    """Serves the page at `/`, `/metrics`, `/api/v1/shares`, `/healthz` and `/readyz`."""

    def __init__(  # noqa: PLR0913 - the parts of the answers meet here
        self,
        *,
        status: Callable[[], Status],
        unhealthy_reason: Callable[[], str],
        metrics: Metrics,
        node: str,
        is_simulated: bool,
        log: JsonLog,
        interval: float = 5.0,
        page_links: PageLinks = NO_LINKS,
    ) -> None:
        """Set the sources of the responses.

        `unhealthy_reason` returns one line if the agent must restart, else an empty string. `interval` is the
        number of seconds between samples, and between reloads of the page. `page_links` are addresses outside
        of the agent to which the page links.
        """
        self._status = status
        self._unhealthy_reason = unhealthy_reason
        self._metrics = metrics
        self._node = node
        self._metrics_text = SampleText(metrics.sample_parts)
        self._shares_text = SampleText(
            lambda status: (shares_json(status, node=node, is_simulated=is_simulated),)
        )
        self._renderer = PageRenderer(
            node=node, is_simulated=is_simulated, interval=interval, links=page_links
        )
        self._server = PageServer(
            {
                "/": self._page,
                "/page.css": _static("page.css", "text/css"),
                "/page.js": _static("page.js", "text/javascript"),
                "/metrics": self._scrape,
                SHARES_PATH: self._shares,
                "/healthz": self._alive,
                "/readyz": self._ready,
            },
            not_found=f"not found; available paths: /, /metrics, {SHARES_PATH}, /healthz, /readyz",
            method_not_allowed="Method Not Allowed",
            log=log,
        )

    async def start(
        self,
        address: Address,
        limits: ConnectionLimits = AGENT_CONNECTIONS,
        host_names: Iterable[str] = (),
        security: PortSecurity = OPEN_PORT,
    ) -> Address:
        """Listen, and return the actual address.

        Args:
            address: address to listen on.
            limits: maximum cost of connections.
            host_names: accepted host names beside IP addresses, localhost and the node's name.
            security: TLS, and the check of tokens.

        Raises:
            OSError: the address is not available.
        """
        names = frozenset(name.removesuffix(".").lower() for name in (self._node, *host_names)) - {""}
        return await self._server.start(
            address, limits, HostNames(names=names, forwarded_paths=FORWARDED_PATHS), security
        )

    async def stop(self) -> None:
        """Stop listening and close."""
        await self._server.stop(_FINISH_SECONDS)

    async def _page(self) -> Page:
        return await self._renderer.page(self._status, now=time.time)

    async def _scrape(self) -> Page:
        status = self._status()
        text = self._metrics_text.at(status)
        return Page(body=text, after=self._metrics.agent_text(status), headers=_PROMETHEUS)

    async def _shares(self) -> Page:
        return Page(body=self._shares_text.at(self._status()), headers=_JSON)

    async def _alive(self) -> Page:
        unhealthy_reason = self._unhealthy_reason()
        return text_page(f"{unhealthy_reason}\n", status=503) if unhealthy_reason else text_page("ok\n")

    async def _ready(self) -> Page:
        reasons = self._status().unready
        text = "".join(f"{reason}\n" for reason in reasons)
        return text_page(text, status=503) if reasons else text_page("ok\n")


def _static(name: str, media_type: str) -> Render:
    static = Page(
        body=(STATIC / name).read_bytes(),
        headers={**HEADERS, "Content-Type": f"{media_type}; charset=utf-8"},
    )

    async def serve() -> Page:
        return static

    return serve
