"""A connection that reports its state to its server.

Only this module uses private parts of aiohttp and asyncio; tests/service/http/test_private_parts.py lists
them.
"""

import asyncio
from asyncio.sslproto import SSLProtocol
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from service.http.limits import ConnectionLimits

if TYPE_CHECKING:
    from service.http.bounded_server import BoundedServer

MAX_HEAD_BYTES: Final = 16 * 1024
"""Longest request head, and most bytes that a client sends while several of its requests wait.

The heads of an API server are shorter than one KiB, and it sends the next request after the answer, as
Prometheus and browsers do. A parsed head takes up to five times its bytes.
"""

MAX_REQUEST_LINE_BYTES: Final = 8190
MAX_FIELD_BYTES: Final = 8191
"""Longest header field. Differs from `MAX_REQUEST_LINE_BYTES`, since aiohttp's error has only the limit."""

MAX_FIELDS: Final = 64

_TLS_BUFFER_BYTES: Final = 32 * 1024


def limit_tls_buffers() -> None:
    """Give each later TLS connection of this process a buffer of 32 KiB.

    asyncio gives 256 KiB to every connection, idle or not: 2,000 connections used 600 MiB. A client in this
    process needs 0.05 s more CPU for 100 MB (measured).
    """
    SSLProtocol.max_size = _TLS_BUFFER_BYTES


class HttpConnection(RequestHandler):
    """The HTTP layer of a connection."""

    __slots__ = ("_ahead_bytes", "_body", "_head_bytes", "_limits", "_now", "_server", "_wire", "peer")

    def __init__(
        self, server: "BoundedServer", manager: web.Server, limits: ConnectionLimits, peer: str
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(
            manager,
            loop=loop,
            access_log=cast(Any, None),
            lingering_time=limits.lingering_seconds,
            read_bufsize=limits.read_bytes,
            max_line_size=MAX_REQUEST_LINE_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            max_headers=MAX_FIELDS,
            auto_decompress=False,  # a small body may expand to any size; API servers do not compress reviews
        )
        self.peer = peer
        self._server = server
        self._limits = limits
        self._now = loop.time
        self._wire: asyncio.Transport | None = None
        """The transport, also once aiohttp has begun to close it."""
        self._body: StreamReader | None = None
        """Body of the last request whose head is complete."""
        self._head_bytes = 0
        """Bytes of the incomplete head, without those that came together with a previous request."""
        self._ahead_bytes = 0
        """Bytes received while more than one request waits."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the connection, and limit its buffer."""
        self._wire = cast(asyncio.Transport, transport)
        self._wire.set_write_buffer_limits(self._limits.write_buffer_bytes)
        super().connection_made(transport)
        self._server.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Report the end of the connection; the handler of its request may still be running."""
        self._server.table.closed(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Close the connection without TLS close_notify; an unresponsive peer would delay it."""
        if self._wire is not None:
            self._wire.abort()

    async def start(self) -> None:
        """Serve the connection's requests, unless the connection is lost before this task begins.

        aiohttp 3 asserts that it is not; asyncio then logs the traceback of a task that is never awaited.
        """
        if self.connected:
            await super().start()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and report complete and incomplete request heads.

        A client whose head is too long, or that sends many bytes of further requests without waiting for
        answers, loses its connection.

        If a head begins in the same read as the end of a previous request, its time counts from the next
        read, because the parser does not report its position within a read.
        """
        is_in_head = not self._upgraded and (self._body is None or self._body.is_eof())
        count = len(self._messages)
        super().data_received(data)
        is_ahead = len(self._messages) > 1 and isinstance(self._messages[-1][0], RawRequestMessage)
        self._ahead_bytes = self._ahead_bytes + len(data) if is_ahead else 0
        if self._ahead_bytes > MAX_HEAD_BYTES or self._has_long_head(count, len(data)):
            self._server.drop(self)
        elif len(self._messages) > count:
            self._body = self._messages[-1][1]
            self._head_bytes = 0
            self._server.table.head_arrived(self)
        elif data and is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._server.drop(self)
            else:
                self._server.table.head_started(self, self._now())

    def _has_long_head(self, count: int, received: int) -> bool:
        """Whether one of the messages after the first `count` has a head that is too long."""
        if self._head_bytes + received <= MAX_HEAD_BYTES:  # the usual case
            return False
        new = [message for message, _ in list(self._messages)[count:]]
        return any(_head_bytes(each) > MAX_HEAD_BYTES for each in new if isinstance(each, RawRequestMessage))

    def pause_writing(self) -> None:
        """Pause the answer until the client has read more, and report the stall."""
        super().pause_writing()
        self._server.table.stalled(self, self._now())

    def resume_writing(self) -> None:
        """Resume the answer, and report it."""
        super().resume_writing()
        self._server.table.resumed(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - quotes the request, which may be a part of a pod
    ) -> web.StreamResponse:
        """Build the last answer, to bytes that are not HTTP; aiohttp's method logs and sends those bytes.

        Raises:
            ConnectionResetError: the connection is lost, or a part of an answer is written.
        """
        self._server.table.answered(self, self._now())
        is_partly_written = request.writer.output_size > 0
        if not self.connected or isinstance(exc, ConnectionError) or is_partly_written:
            raise ConnectionResetError
        response = self._server.refuse(*_refusal(status, exc))
        response.force_close()
        return response


def _head_bytes(message: RawRequestMessage) -> int:
    return sum(len(name) + len(value) for name, value in message.raw_headers)


def _refusal(status: int, error: BaseException | None) -> tuple[int, str]:
    """Return status and message for bytes that are not an HTTP request."""
    if isinstance(error, LineTooLong):
        if error.args[1] == MAX_REQUEST_LINE_BYTES:
            return 414, f"the request line is longer than {MAX_REQUEST_LINE_BYTES} bytes"
        return 431, f"a header is longer than {MAX_FIELD_BYTES} bytes"
    if "Too many headers" in str(error):
        return 431, f"there are more than {MAX_FIELDS} headers"
    return status, f"not an HTTP request: {type(error).__name__}"
