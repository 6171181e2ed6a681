"""Connections, bounded in number, in what each may hold, and in how long they may keep a server from ending.

An API server keeps some 25 idle connections and loses nothing when one of them is closed (verified on
Kubernetes 1.36.3); whoever opens thousands is somebody else.
"""

import asyncio
import math
import os
import socket
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from service.address import Address
from service.turns import Turns
from webhook.http.protocols import Connection, TlsConnection

STUCK_SECONDS: Final = 10.0
"""How long a request head may take to arrive, and an answer to be read. Silence before a head counts as idle:
an API server may keep a connection that it made and did not need."""

MOST_HANDSHAKES: Final = 512
"""TLS handshakes under way at once; the oldest gives way to a new one."""

MOST_UNUSED: Final = 256
"""Where more connections than these never sent a request, those get one second for it."""

_ACCEPTED_AT_ONCE = 8
"""New connections before requests get their turn; each takes some 0.3 ms."""

_BACKLOG = 1024
_READ_BUFFER = 64 * 1024
_WRITE_BUFFER = 64 * 1024
_LINGERING_SECONDS = 2.0
"""How long to read on after an answer that came before the end of its request, so that it is seen."""

_YOUNG_SECONDS = 1.0
"""On a connection made or used less than this ago a request may well be under way."""

_SOUGHT_SECONDS = 2.0
_LOOK_EVERY_SECONDS = 1.0
_SETTLE_SECONDS = 0.02

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Refuse = Callable[[int, BaseException | None], web.StreamResponse]


class BoundedServer(web.Server):
    """aiohttp's low-level server that never holds more than `most` connections.

    Where there is one too many, the one idle longest is closed, one that never sent a request before one
    that did. A connection is idle while no whole request head of it waits for an answer.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        refuse: Refuse,
        most: int,
        keep_alive_seconds: float,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Make a server that does not listen yet; needs a running loop.

        Args:
            answer: answers a request; every error but one of the connection is its own affair.
            refuse: answers what is no HTTP request, given a status and the reason.
            most: connections; as many TLS handshakes may be under way, but no more than `MOST_HANDSHAKES`.
            keep_alive_seconds: how long a connection may be idle.
            context: TLS; None: in the clear.
        """
        super().__init__(self._answer)
        self._options: dict[str, Any] = {
            "access_log": None,
            "keepalive_timeout": keep_alive_seconds,
            "lingering_time": _LINGERING_SECONDS,
            "read_bufsize": _READ_BUFFER,
            "max_headers": 64,
            "auto_decompress": False,  # a review is never compressed, and a bomb is
        }
        self._handler = answer
        self.refuse = refuse
        self._most = most
        self._most_handshakes = min(MOST_HANDSHAKES, most)
        self._context = context
        self._handshakes: OrderedDict[RequestHandler, tuple[asyncio.Transport, float]] = OrderedDict()
        """TCP connections that are no TLS connections yet, and since when; the oldest first."""
        self._open: dict[RequestHandler, asyncio.Transport] = {}
        self._idle: OrderedDict[RequestHandler, float] = OrderedDict()
        """Connections without a request, and since when; the longest idle first."""
        self._unused: OrderedDict[RequestHandler, float] = OrderedDict()
        """Those of them that have sent no request yet."""
        self._stuck: OrderedDict[RequestHandler, float] = OrderedDict()
        """Connections of which only a piece of a head has come, or that read no answers; and since when."""
        self._newest = -math.inf
        """When the last connection came."""
        self._listener: asyncio.Server | None = None
        self._sweep: asyncio.Task[None] | None = None

    @property
    def is_sought(self) -> bool:
        """Whether somebody has connected within the last two seconds."""
        return self._newest > self._loop.time() - _SOUGHT_SECONDS

    async def listen(self, address: Address) -> Address:
        """Listen; return the address that came of it (port 0 takes any free one).

        Raises:
            OSError: the address cannot be listened on.
        """
        self._listener = await self._loop.create_server(
            self._protocol, address.host or None, address.port, backlog=_ACCEPTED_AT_ONCE
        )
        for listening in self._listener.sockets:
            with socket.socket(fileno=os.dup(listening.fileno())) as same:
                same.listen(_BACKLOG)  # asyncio takes its one figure for both
        self._sweep = asyncio.create_task(self._close_stuck())
        host, port = self._listener.sockets[-1].getsockname()[:2]
        return Address(host, port)

    async def finish(self, seconds: float) -> int:
        """Stop listening, and let what has begun end; close what is idle.

        Answers should close their connections by now. A connection that was made or used within the last
        second may still send a request.

        Args:
            seconds: how long to wait for requests that are being answered.

        Returns:
            how many requests were cut off because that was not enough.
        """
        if self._sweep is not None:
            self._sweep.cancel()
        for _ in range(2):  # take what the kernel has already taken for us
            await asyncio.sleep(0)
        if self._listener is not None:
            self._listener.close()
        end = self._loop.time() + seconds
        while (self._open or self._handshakes) and (now := self._loop.time()) < end:
            self._close_settled(now - _YOUNG_SECONDS)
            await asyncio.sleep(_SETTLE_SECONDS)
        cut_off = len(self._open) - len(self._idle)
        self._close_settled(math.inf)
        for transport in self._open.values():
            transport.abort()
        await asyncio.sleep(0)
        return cut_off

    def handshake_begun(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Take a TCP connection; where that makes one too many, close the oldest."""
        self._newest = now = self._loop.time()
        self._handshakes[handler] = transport, now
        if len(self._handshakes) > self._most_handshakes:
            _, (oldest, _) = self._handshakes.popitem(last=False)
            oldest.abort()

    def handshake_over(self, handler: RequestHandler) -> None:
        """Forget a TCP connection that ended before it was a TLS connection, or after."""
        self._handshakes.pop(handler, None)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Take a connection; where that makes one too many, close one that is idle."""
        self._handshakes.pop(handler, None)
        transport.set_write_buffer_limits(_WRITE_BUFFER)
        now = self._loop.time()
        self._open[handler] = transport
        self._idle[handler] = self._unused[handler] = now
        if len(self._open) > self._most or len(self._unused) > MOST_UNUSED:
            oldest, since = next(iter(self._unused.items()))
            if since <= now - _YOUNG_SECONDS:
                self.drop(oldest)
            elif len(self._open) > self._most:
                self.drop(next(iter(self._idle)))  # the new one itself, if all others are at work

    def connection_lost(self, handler: RequestHandler, _exc: BaseException | None = None) -> None:
        """Forget a connection, though its request may still be being answered."""
        self._open.pop(handler, None)
        self.head_arrived(handler)

    def is_stuck(self, handler: RequestHandler) -> None:
        """Hear that a connection waits for the rest of a head, or for room for an answer."""
        self._stuck.setdefault(handler, self._loop.time())

    def is_free(self, handler: RequestHandler) -> None:
        """Hear that it waits no longer."""
        self._stuck.pop(handler, None)

    def head_arrived(self, handler: RequestHandler) -> None:
        """Hear that a connection has a whole request head to answer."""
        self._idle.pop(handler, None)
        self._unused.pop(handler, None)
        self._stuck.pop(handler, None)

    def drop(self, handler: RequestHandler) -> None:
        """Close a connection without a farewell: who is silent would keep us waiting for his."""
        transport = self._open.get(handler)
        self.connection_lost(handler)
        if transport is not None:
            transport.abort()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = cast(Connection, request.protocol)
        try:
            return await self._handler(request)
        finally:
            if connection in self._open and not connection.has_more:
                self._idle[connection] = self._loop.time()

    def _protocol(self) -> asyncio.BaseProtocol:
        handler = Connection(self, self, loop=self._loop, **self._options)
        return TlsConnection(self, handler, self._context) if self._context else handler

    async def _close_stuck(self) -> None:
        """Close, until cancelled, connections that have been stuck for too long."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
            late = self._loop.time() - STUCK_SECONDS
            turns = Turns()
            while self._stuck:
                handler, since = next(iter(self._stuck.items()))
                if since >= late:
                    break
                self.drop(handler)
                await turns.give()

    def _close_settled(self, before: float) -> None:
        """Close what has been idle, stuck, or shaking hands, since before a time."""
        for transport, since in list(self._handshakes.values()):
            if since <= before:
                transport.abort()
        for handler, since in list(self._stuck.items()):
            if since <= before:
                self.drop(handler)
        for handler, since in list(self._idle.items()):
            if since <= before:
                handler.force_close()  # says goodbye to TLS, and flushes
