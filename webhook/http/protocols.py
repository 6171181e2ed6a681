"""The two layers of a connection, aiohttp's and asyncio's TLS, made to tell how they fare."""

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from typing import Any, Final, Protocol, cast

from aiohttp import web
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler

LARGEST_HEAD: Final = 32 * 1024
"""Bytes of a request that has no whole head yet. An API server's heads are below one KiB."""

HANDSHAKE_SECONDS: Final = 10

_TLS_BUFFER = 32 * 1024
_TLS_FAREWELL_SECONDS = 1.0

_PIECES = 16
_BYTES_A_PIECE = 128
"""How small the pieces of a head or body may be on average, once there were that many. Each costs some
0.1 ms: a few thousand clients who send a byte at a time would leave no time for anybody else."""


class Keeper(Protocol):
    """Who keeps account of connections."""

    def handshake_begun(self, connection: "Connection", transport: asyncio.Transport) -> None:
        """Hear of a TCP connection."""

    def handshake_over(self, connection: "Connection") -> None:
        """Hear that it ended."""

    def head_arrived(self, connection: "Connection") -> None:
        """Hear that a connection has a whole request head to answer."""

    def is_stuck(self, connection: "Connection") -> None:
        """Hear that a connection waits for the rest of a head, or for room for an answer."""

    def is_free(self, connection: "Connection") -> None:
        """Hear that it waits no longer."""

    def drop(self, connection: "Connection") -> None:
        """Close it without a farewell."""

    def refuse(self, status: int, error: BaseException | None) -> web.StreamResponse:
        """Answer what is no HTTP request."""


class Connection(RequestHandler):
    """aiohttp's side of a connection, that tells when a whole request head has arrived."""

    __slots__ = ("_body", "_bytes", "_keeper", "_pieces", "_was_in_head")

    def __init__(self, keeper: Keeper, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._keeper = keeper
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
        if self._manager is None:  # the connection is lost
            return
        if self._messages:
            self._body = self._messages[-1][1]
            self._pieces = self._bytes = 0
            self._keeper.head_arrived(self)
        elif data:
            if is_in_head is not self._was_in_head:
                self._pieces = self._bytes = 0
            self._pieces += 1
            self._bytes += len(data)
            is_dribble = self._pieces > _PIECES and self._bytes < self._pieces * _BYTES_A_PIECE
            if is_dribble or (is_in_head and self._bytes > LARGEST_HEAD):
                self._keeper.drop(self)
            elif is_in_head:
                self._keeper.is_stuck(self)
        self._was_in_head = is_in_head

    def pause_writing(self) -> None:
        """Wait with the next answer."""
        super().pause_writing()
        self._keeper.is_stuck(self)

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        self._keeper.is_free(self)

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
        is_half_answered = request.writer.output_size > 0
        if self._manager is None or isinstance(exc, ConnectionError) or is_half_answered:
            raise ConnectionResetError
        return self._keeper.refuse(status, exc)


class TlsConnection(SSLProtocol):
    """asyncio's TLS, with a smaller buffer, that tells when its connection begins and ends."""

    max_size = _TLS_BUFFER  # asyncio's 256 KiB would be every connection's, idle or not: 2,000 held 600 MiB

    def __init__(self, keeper: Keeper, inner: Connection, context: ssl.SSLContext) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            inner,
            context,
            cast("asyncio.Future[None]", None),  # nobody waits for the handshake
            server_side=True,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=_TLS_FAREWELL_SECONDS,
        )
        self._keeper = keeper
        self._inner = inner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake."""
        self._keeper.handshake_begun(self._inner, cast(asyncio.Transport, transport))
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self._keeper.handshake_over(self._inner)
        super().connection_lost(exc)
