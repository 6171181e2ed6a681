"""The agent's one port, in the clear: it names every tenant's pods and is for the host's administrators."""

import time
from collections.abc import Callable
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gpuagent.report.api import shares_json
from gpuagent.report.metrics import Metrics
from gpuagent.report.page import HEADERS, STATIC, page
from gpuagent.status import Status
from service.address import Address
from service.log import JsonLog

_PROMETHEUS: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
_LARGEST_REQUEST: Final = 4096  # bytes; nothing here reads a body
_SHUTDOWN_SECONDS: Final = 1.0


class Port:
    """Serves the page at `/`, `/metrics`, `/api/v1/shares`, `/healthz` and `/readyz`."""

    def __init__(
        self,
        *,
        status: Callable[[], Status],
        sickness: Callable[[], str],
        metrics: Metrics,
        node: str,
        is_simulated: bool,
        log: JsonLog,
        interval: float = 5.0,
    ) -> None:
        """Take where to read; `sickness` says in one line why a restart is needed, or nothing.

        `interval` is seconds between samples: how often the page asks again.
        """
        self._status = status
        self._sickness = sickness
        self._metrics = metrics
        self._node = node
        self._is_simulated = is_simulated
        self._log = log
        self._interval = interval
        self._runner: web.AppRunner | None = None

    async def start(self, address: Address) -> Address:
        """Listen; return the address that came of it.

        Raises:
            OSError: the address cannot be listened on.
        """
        app = web.Application(middlewares=[_plain_errors(self._log)], client_max_size=_LARGEST_REQUEST)
        app.router.add_get("/", self._page)
        for name, media_type in (("page.css", "text/css"), ("page.js", "text/javascript")):
            app.router.add_get(f"/{name}", _static(name, media_type))
        app.router.add_get("/metrics", self._scrape)
        app.router.add_get("/api/v1/shares", self._shares)
        app.router.add_get("/healthz", self._alive)
        app.router.add_get("/readyz", self._ready)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=_SHUTDOWN_SECONDS
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, address.host or None, address.port).start()
        host, port = self._runner.addresses[-1][:2]
        return Address(host, port)

    async def stop(self) -> None:
        """Stop listening and close."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _page(self, _request: web.Request) -> web.Response:
        text = page(
            self._status(),
            node=self._node,
            is_simulated=self._is_simulated,
            now=time.time(),
            interval=self._interval,
        )
        return web.Response(text=text, content_type="text/html", headers=HEADERS)

    async def _scrape(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers=_PROMETHEUS)

    async def _shares(self, _request: web.Request) -> web.Response:
        body = shares_json(self._status(), node=self._node, is_simulated=self._is_simulated)
        return web.Response(body=body, content_type="application/json")

    async def _alive(self, _request: web.Request) -> web.Response:
        sickness = self._sickness()
        return web.Response(status=503, text=f"{sickness}\n") if sickness else web.Response(text="ok\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        reasons = self._status().unready
        text = "".join(f"{reason}\n" for reason in reasons)
        return web.Response(status=503, text=text) if reasons else web.Response(text="ok\n")


def _static(name: str, media_type: str) -> Handler:
    body = (STATIC / name).read_bytes()

    async def serve(_request: web.Request) -> web.Response:
        return web.Response(body=body, headers={**HEADERS, "Content-Type": f"{media_type}; charset=utf-8"})

    return serve


def _plain_errors(log: JsonLog) -> Middleware:
    """Turn every error into a status and one line."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return web.Response(
                status=404, text="no such path; there are /, /metrics, /api/v1/shares, /healthz, /readyz\n"
            )
        except web.HTTPException as error:
            return web.Response(status=error.status, text=f"{error.reason}\n")
        except Exception as error:  # noqa: BLE001 - a traceback is for the log
            log.failure("internal error", error, path=request.path)
            return web.Response(status=500, text="internal error; the log has its traceback\n")

    return middleware
