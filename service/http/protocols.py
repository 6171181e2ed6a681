"""The two layers of a connection, HTTP (aiohttp) and TLS (asyncio), which report their state to their server.

Only this module uses private attributes of aiohttp and asyncio; tests/service/http/test_private_parts.py
lists them.
"""

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler

from service.http.limits import ConnectionLimits

if TYPE_CHECKING:
    from service.http.bounded_server import BoundedServer

MAX_HEAD_BYTES: Final = 32 * 1024
"""Longest incomplete request head. The heads of an API server are shorter than one KiB."""

MAX_REQUEST_LINE_BYTES: Final = 8190
MAX_FIELD_BYTES: Final = 8191
"""Longest header field. Differs from `MAX_REQUEST_LINE_BYTES`, since aiohttp's error has only the limit."""

MAX_FIELDS: Final = 64

_TLS_BUFFER_BYTES = 32 * 1024
_TLS_SHUTDOWN_SECONDS = 1.0
_END_OF_HEAD = b"\r\n\r\n"


class HttpConnection(RequestHandler):
    """The HTTP layer of a connection."""

    __slots__ = ("_answering", "_body", "_head_bytes", "_limits", "_recent", "_server", "_written")

    def __init__(self, server: "BoundedServer", limits: ConnectionLimits) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=cast(Any, None),
            keepalive_timeout=limits.idle_seconds,
            lingering_time=limits.lingering_seconds,
            read_bufsize=limits.read_bytes,
            max_line_size=MAX_REQUEST_LINE_BYTES,
            max_field_size=MAX_FIELD_BYTES,
            max_headers=MAX_FIELDS,
            auto_decompress=False,  # a small body may expand to any size; API servers do not compress reviews
        )
        self._server = server
        self._limits = limits
        self._body = EMPTY_PAYLOAD
        """Body of the current request or of the last one."""
        self._head_bytes = 0
        """Bytes of the incomplete head, without those that came together with a previous request."""
        self._recent = b""
        """The last four bytes received, to detect the end of a head."""
        self._answering: web.BaseRequest | None = None
        """The request whose answer is being written."""
        self._written = 0
        """Bytes of the answers before that one."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Limit the size of a read: asyncio reads 256 KiB at once, and aiohttp buffers unprocessed bytes."""
        if transport.get_extra_info("sslcontext") is None:
            cast(Any, transport).max_size = self._limits.read_bytes
        super().connection_made(transport)

    async def start(self) -> None:
        """Serve the connection's requests, unless the connection is lost before this task begins.

        aiohttp 3 asserts that it is not; asyncio then logs the traceback of a task that is never awaited.
        """
        if self._manager is not None:
            await super().start()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and report complete and incomplete request heads.

        If a head begins in the same read as the end of a previous body, its time counts from the next read,
        because the parser does not report its position within a read.
        """
        is_in_head = self._body.is_eof()
        count = self._request_count
        super().data_received(data)
        self._recent = (self._recent + data[-len(_END_OF_HEAD) :])[-len(_END_OF_HEAD) :]
        if self._manager is None:  # the connection is lost
            return
        if self._request_count != count:
            self._body = self._messages[-1][1]
            self._head_bytes = 0
            self._server.table.head_arrived(self)
            if self._body is EMPTY_PAYLOAD and self._recent != _END_OF_HEAD:
                self._server.table.head_started(self, self._loop.time())
        elif data and is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._server.drop(self)
            else:
                self._server.table.head_started(self, self._loop.time())

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Write an answer and report its end."""
        self._answering = request
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._answering = None
            self._written += request.writer.output_size
            if not self._messages:
                self._server.table.answered(self, self._loop.time())
            elif not self.writing_paused:
                self._server.table.resumed(self)

    def pause_writing(self) -> None:
        """Pause the answer until the client has read more, and report the stall."""
        super().pause_writing()
        current = self._answering.writer.output_size if self._answering else 0
        self._server.table.stalled(self, self._written + current, self._loop.time())

    def resume_writing(self) -> None:
        """Resume writing."""
        super().resume_writing()
        if self._answering is None:
            self._server.table.resumed(self)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 - quotes the request, which may be a part of a pod
    ) -> web.StreamResponse:
        """Build the answer to bytes that are not HTTP; aiohttp's method logs and sends those bytes.

        Raises:
            ConnectionResetError: the connection is lost, or a part of an answer is written.
        """
        is_partly_written = request.writer.output_size > 0
        if self._manager is None or isinstance(exc, ConnectionError) or is_partly_written:
            raise ConnectionResetError
        response = self._server.refuse(*_refusal(status, exc))
        response.force_close()
        return response

    def log_exception(self, *_args: Any, exc_info: BaseException | None = None, **_options: Any) -> None:
        """Let the server log an error, within its limit."""
        if exc_info is not None:
            self._server.failed(exc_info)


class TlsConnection(SSLProtocol):
    """The TLS layer of a connection: asyncio's with a smaller buffer."""

    max_size = _TLS_BUFFER_BYTES
    """Buffer of every connection, idle or not. With asyncio's 256 KiB, 2,000 connections used 600 MiB."""

    def __init__(
        self,
        server: "BoundedServer",
        inner: HttpConnection,
        context: ssl.SSLContext,
        limits: ConnectionLimits,
    ) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            inner,
            context,
            cast("asyncio.Future[None]", None),  # no caller waits for the handshake
            server_side=True,
            ssl_handshake_timeout=cast(int, limits.handshake_seconds),
            ssl_shutdown_timeout=_TLS_SHUTDOWN_SECONDS,
        )
        self._server = server
        self._inner = inner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake."""
        self._server.handshake_started(self._inner, cast(asyncio.Transport, transport))
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Report the end of the connection."""
        self._server.handshake_ended(self._inner)
        super().connection_lost(exc)


def _refusal(status: int, error: BaseException | None) -> tuple[int, str]:
    """Return status and message for bytes that are not an HTTP request."""
    if isinstance(error, LineTooLong):
        if error.args[1] == MAX_REQUEST_LINE_BYTES:
            return 414, f"the request line is longer than {MAX_REQUEST_LINE_BYTES} bytes"
        return 431, f"a header is longer than {MAX_FIELD_BYTES} bytes"
    if "Too many headers" in str(error):
        return 431, f"there are more than {MAX_FIELDS} headers"
    return status, f"not an HTTP request: {type(error).__name__}"
