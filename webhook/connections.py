"""Connections, bounded in number, in what each may hold, and in how long they may keep a server from ending.

An API server keeps some 25 idle connections and loses nothing when one of them is closed (verified on
Kubernetes 1.36.3); whoever opens thousands is somebody else.
"""

import asyncio
import math
import os
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler

from service.address import Address
from webhook.turns import Turns

if TYPE_CHECKING:
    from aiohttp.http_parser import RawRequestMessage

STUCK_SECONDS: Final = 10.0
"""How long a request head may take to arrive, and an answer to be read. Silence before a head counts as idle:
an API server may keep a connection that it made and did not need."""

HANDSHAKE_SECONDS: Final = 10
MOST_HANDSHAKES: Final = 512
"""TLS handshakes under way at once; the oldest gives way to a new one."""

MOST_UNUSED: Final = 256
"""Where more connections than these never sent a request, those get one second for it."""

LARGEST_HEAD: Final = 32 * 1024
"""Bytes of a request that has no whole head yet. An API server's heads are below one KiB."""

_PIECES = 16
_BYTES_A_PIECE = 128
"""How small the pieces of a head or body may be on average, once there were that many. Each costs some
0.1 ms: a few thousand clients who send a byte at a time would leave no time for anybody else."""

_ACCEPTED_AT_ONCE = 8
"""New connections before requests get their turn; each takes some 0.3 ms."""

_BACKLOG = 1024
_TLS_BUFFER = 32 * 1024
_READ_BUFFER = 64 * 1024
_WRITE_BUFFER = 64 * 1024
_TLS_FAREWELL_SECONDS = 1.0
_LINGERING_SECONDS = 2.0
"""How long to read on after an answer that came before the end of its request, so that it is seen."""

_YOUNG_SECONDS = 1.0
"""On a connection made or used less than this ago a request may well be under way."""

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
        largest_body: int,
        keep_alive_seconds: float,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Make a server that does not listen yet; needs a running loop.

        Args:
            answer: answers a request; every error but one of the connection is its own affair.
            refuse: answers what is no HTTP request, given a status and the reason.
            most: connections; as many TLS handshakes may be under way, but no more than `MOST_HANDSHAKES`.
            largest_body: bytes.
            keep_alive_seconds: how long a connection may be idle.
            context: TLS; None: in the clear.
        """

        def request(
            message: "RawRequestMessage",
            payload: StreamReader,
            protocol: RequestHandler,
            writer: AbstractStreamWriter,
            task: "asyncio.Task[None]",
        ) -> web.BaseRequest:
            return web.BaseRequest(
                message, payload, protocol, writer, task, self._loop, client_max_size=largest_body
            )

        super().__init__(self._answer, request_factory=request)
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
        self._listener: asyncio.Server | None = None
        self._sweep: asyncio.Task[None] | None = None

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
        for transport in self._open.values():
            transport.abort()
        self._close_settled(math.inf)
        await asyncio.sleep(0)
        return cut_off

    def handshake_begun(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Take a TCP connection; where that makes one too many, close the oldest."""
        self._handshakes[handler] = transport, self._loop.time()
        if len(self._handshakes) > self._most_handshakes:
            _, (oldest, _) = self._handshakes.popitem(last=False)
            oldest.abort()

    def handshake_failed(self, handler: RequestHandler) -> None:
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
        connection = cast(_Connection, request.protocol)
        try:
            return await self._handler(request)
        finally:
            if connection in self._open and not connection.has_more:
                self._idle[connection] = self._loop.time()

    def _protocol(self) -> asyncio.BaseProtocol:
        handler = _Connection(self, loop=self._loop, **self._options)
        return _Tls(self, handler, self._context) if self._context else handler

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
        """Close what has been idle, or shaking hands, since before a time."""
        for transport, since in list(self._handshakes.values()):
            if since <= before:
                transport.abort()
        for handler, since in list(self._idle.items()):
            if since <= before:
                handler.force_close()  # says goodbye to TLS, and flushes


class _Connection(RequestHandler):
    """aiohttp's side of a connection, that tells when a whole request head has arrived."""

    __slots__ = ("_body", "_bytes", "_pieces", "_was_in_head")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._body = EMPTY_PAYLOAD
        """The body that arrives, or arrived last."""
        self._was_in_head = True
        self._pieces = self._bytes = 0
        """What has come of a head, or of a body."""

    @property
    def has_more(self) -> bool:
        """Whether another request is here already."""
        return bool(self._messages)

    def data_received(self, data: bytes) -> None:
        """Read what came."""
        is_in_head = self._body.is_eof()
        super().data_received(data)
        server = self._manager
        if not isinstance(server, BoundedServer):  # the connection is lost
            return
        if self._messages:
            self._body = self._messages[-1][1]
            self._pieces = self._bytes = 0
            server.head_arrived(self)
        elif data:
            if is_in_head is not self._was_in_head:
                self._pieces = self._bytes = 0
            self._pieces += 1
            self._bytes += len(data)
            is_dribble = self._pieces > _PIECES and self._bytes < self._pieces * _BYTES_A_PIECE
            if is_dribble or (is_in_head and self._bytes > LARGEST_HEAD):
                server.drop(self)
            elif is_in_head:
                server.is_stuck(self)
        self._was_in_head = is_in_head

    def pause_writing(self) -> None:
        """Wait with the next answer."""
        super().pause_writing()
        if isinstance(self._manager, BoundedServer):
            self._manager.is_stuck(self)

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        if isinstance(self._manager, BoundedServer):
            self._manager.is_free(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - quotes the request, which may be a piece of a pod
    ) -> web.StreamResponse:
        """Answer what could not be parsed.

        aiohttp's own would log and send the bytes it stumbled over.

        Raises:
            ConnectionResetError: nobody is there to be answered.
        """
        server = self._manager
        if not isinstance(server, BoundedServer) or isinstance(exc, ConnectionError):
            raise ConnectionResetError
        if request.writer.output_size > 0:  # half an answer is out
            raise ConnectionResetError
        return server.refuse(status, exc)


class _Tls(SSLProtocol):
    """asyncio's TLS, with a smaller buffer, that tells when its connection begins and ends."""

    max_size = _TLS_BUFFER  # asyncio's 256 KiB would be every connection's, idle or not: 2,000 held 600 MiB

    def __init__(self, server: BoundedServer, handler: _Connection, context: ssl.SSLContext) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            handler,
            context,
            cast("asyncio.Future[None]", None),  # nobody waits for the handshake
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=_TLS_FAREWELL_SECONDS,
        )
        self._server = server
        self._handler = handler

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._server.handshake_begun(self._handler, cast(asyncio.Transport, transport))
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self._server.handshake_failed(self._handler)
        super().connection_lost(exc)
