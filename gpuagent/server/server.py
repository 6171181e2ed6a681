"""The agent's one port, in the clear: it names every tenant's pods and is for the host's administrators."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from gpuagent.server.api import shares_json
from gpuagent.server.metrics import Metrics
from gpuagent.server.page import HEADERS, STATIC, page
from gpuagent.status import Status
from service.http.host_names import HostNames
from service.http.limits import ConnectionLimits, plain_port_limits
from service.http.listeners import Address
from service.http.page_server import Page, PageServer, Render, text_page
from service.log import JsonLog

AGENT_CONNECTIONS: Final = plain_port_limits(256)
FORWARDED_PATHS: Final = frozenset({"/api/v1/shares", "/healthz", "/readyz"})
"""What the API server's proxy to pods may ask for under the API server's own host name."""

_JSON: Final = {"Content-Type": "application/json"}
_HTML: Final = {**HEADERS, "Content-Type": "text/html; charset=utf-8"}
_PROMETHEUS: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
_FINISH_SECONDS: Final = 1.0


class HttpServer:
    """Serves the page at `/`, `/metrics`, `/api/v1/shares`, `/healthz` and `/readyz`."""

    def __init__(
        self,
        *,
        status: Callable[[], Status],
        unhealthy_reason: Callable[[], str],
        metrics: Metrics,
        node: str,
        is_simulated: bool,
        log: JsonLog,
        interval: float = 5.0,
    ) -> None:
        """Take where to read; `unhealthy_reason` says in one line why a restart is needed, or nothing.

        `interval` is seconds between samples: how often the page asks again.
        """
        self._status = status
        self._unhealthy_reason = unhealthy_reason
        self._metrics = metrics
        self._node = node
        self._is_simulated = is_simulated
        self._interval = interval
        self._server = PageServer(
            {
                "/": self._page,
                "/page.css": _static("page.css", "text/css"),
                "/page.js": _static("page.js", "text/javascript"),
                "/metrics": self._scrape,
                "/api/v1/shares": self._shares,
                "/healthz": self._alive,
                "/readyz": self._ready,
            },
            not_found="not found; available paths: /, /metrics, /api/v1/shares, /healthz, /readyz",
            method_not_allowed="Method Not Allowed",
            log=log,
        )

    async def start(
        self,
        address: Address,
        limits: ConnectionLimits = AGENT_CONNECTIONS,
        host_names: Iterable[str] = (),
    ) -> Address:
        """Listen; return the address that came of it.

        Args:
            address: where to listen.
            limits: what connections may cost.
            host_names: hosts that are answered beside IP addresses, localhost and the node's name.

        Raises:
            OSError: the address cannot be listened on.
        """
        names = frozenset(name.removesuffix(".").lower() for name in (self._node, *host_names)) - {""}
        return await self._server.start(
            address, limits, HostNames(names=names, forwarded_paths=FORWARDED_PATHS)
        )

    async def stop(self) -> None:
        """Stop listening and close."""
        await self._server.stop(_FINISH_SECONDS)

    async def _page(self) -> Page:
        text = page(
            self._status(),
            node=self._node,
            is_simulated=self._is_simulated,
            now=time.time(),
            interval=self._interval,
        )
        return Page(body=text.encode(), headers=_HTML)

    async def _scrape(self) -> Page:
        return Page(body=self._metrics.text(), headers=_PROMETHEUS)

    async def _shares(self) -> Page:
        body = shares_json(self._status(), node=self._node, is_simulated=self._is_simulated)
        return Page(body=body, headers=_JSON)

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
