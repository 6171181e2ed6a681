"""Connections of the admission port, bounded: the one idle longest gives way to a new one.

An API server keeps some 25 idle connections and loses nothing when one of them is closed (verified on
Kubernetes 1.36.3); whoever opens thousands is somebody else.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

FIRST_REQUEST_SECONDS: Final = 10.0
"""How long a new connection may take to send a whole request head."""

HANDSHAKE_SECONDS: Final = 10.0
_LOOK_EVERY_SECONDS: Final = 1.0


Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class BoundedServer(web.Server):
    """aiohttp's low-level server that never holds more than `most` connections."""

    def __init__(self, handler: Answer, *, most: int, **options: Any) -> None:
        super().__init__(self._answer, **options)
        self._handler = handler
        self._most = most
        self._idle: OrderedDict[RequestHandler, float] = OrderedDict()
        """Connections without a request, and since when; the longest idle first."""
        self._unused: OrderedDict[RequestHandler, float] = OrderedDict()
        """Those of them that have sent no request yet."""

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Take a connection; where that makes one too many, close the one idle longest."""
        super().connection_made(handler, transport)
        self._idle[handler] = self._unused[handler] = self._loop.time()
        if len(self._connections) > self._most:
            self._drop(next(iter(self._idle)))  # the new one itself, if all others are at work

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Forget a connection."""
        super().connection_lost(handler, exc)
        self._idle.pop(handler, None)
        self._unused.pop(handler, None)

    async def close_silent(self) -> None:
        """Close, until cancelled, connections on which no request comes."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
            late = self._loop.time() - FIRST_REQUEST_SECONDS
            for handler in [handler for handler, since in self._unused.items() if since < late]:
                self._drop(handler)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        self._idle.pop(connection, None)
        self._unused.pop(connection, None)
        try:
            return await self._handler(request)
        finally:
            if connection in self._connections:
                self._idle[connection] = self._loop.time()

    def _drop(self, handler: RequestHandler) -> None:
        self._idle.pop(handler, None)
        self._unused.pop(handler, None)
        transport = self._connections.get(handler)
        if transport is not None:
            transport.abort()  # no farewell: whoever is silent would keep us waiting for his
