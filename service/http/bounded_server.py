"""An HTTP server with a limited number of connections, each with limited memory and time.

Only this module uses private parts of aiohttp and asyncio; tests/service/http/test_private_parts.py lists
them.

An API server keeps about 25 idle connections, and no request fails when an idle one is closed (verified on
Kubernetes 1.36.3). Thousands of connections come from other clients.
"""

import asyncio
import contextlib
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, TypeVar, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from service.http.fair_queue import FairQueue, peer_of
from service.http.limits import Address, ConnectionLimits, open_listeners
from service.log import WARNING, JsonLog, LimitedLog

ConnectionT = TypeVar("ConnectionT", bound=Hashable)

_MOST_READINGS: Final = 6
"""Number of times for reading that one answer may take in all. A client that reads a little within each time
could otherwise keep its place, and the answer in memory, for as long as it likes."""


class ConnectionTable(Generic[ConnectionT]):
    """The states of one port's connections. All times are passed in, as seconds of one monotonic clock.

    A connection is busy while a request is being answered, and quiet otherwise. A busy connection is closed
    only if its client exceeds a time limit, or for a peer that has fewer connections.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        """Limits of number and time; they may be replaced."""
        self._peers: dict[ConnectionT, str] = {}  # connections and their peers
        self._counts: Counter[str] = Counter()  # number of connections by peer
        self._quiet: dict[ConnectionT, float] = {}
        """Quiet connections and the start of that state; the oldest first."""
        self._busy: dict[ConnectionT, None] = {}  # busy connections in the order of their requests
        self._heads: dict[ConnectionT, float] = {}
        """Connections with an incomplete head, and the time of its first byte."""
        self._stalled: dict[ConnectionT, float] = {}
        """Connections whose client does not read an answer, and the time since when."""
        self._reading: dict[ConnectionT, float] = {}
        """Connections whose answer once filled the write buffer, and the time of the first such moment."""

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[ConnectionT]:
        yield from (*self._quiet, *self._busy)

    def __contains__(self, connection: object) -> bool:
        return connection in self._peers

    @property
    def busy_count(self) -> int:
        """Number of connections with a request that is being answered."""
        return len(self._busy)

    def opened(self, connection: ConnectionT, now: float, peer: str = "") -> None:
        """Add a new connection of a peer."""
        self._peers[connection] = peer
        self._counts[peer] += 1
        self._quiet[connection] = now

    def closed(self, connection: ConnectionT) -> None:
        """Remove a connection; ignore an unknown one."""
        peer = self._peers.pop(connection, None)
        if peer is not None:
            self._counts[peer] -= 1
            if not self._counts[peer]:
                del self._counts[peer]
        for connections in (self._quiet, self._busy, self._heads, self._stalled, self._reading):
            connections.pop(connection, None)

    def head_started(self, connection: ConnectionT, now: float) -> None:
        """Record bytes of an incomplete head; the first call for a head sets its time."""
        if connection in self:
            self._heads.setdefault(connection, now)

    def head_arrived(self, connection: ConnectionT) -> None:
        """Record a complete head: the connection is busy."""
        if connection in self:
            self._quiet.pop(connection, None)
            self._heads.pop(connection, None)
            self._busy.setdefault(connection)

    def answered(self, connection: ConnectionT, now: float) -> None:
        """Record the end of an answer."""
        self._reading.pop(connection, None)
        if connection in self._busy:
            del self._busy[connection]
            self._quiet[connection] = now

    def stalled(self, connection: ConnectionT, now: float) -> None:
        """Record that an answer fills the write buffer."""
        if connection in self:
            self._stalled[connection] = now
            self._reading.setdefault(connection, now)

    def resumed(self, connection: ConnectionT) -> None:
        """Record that the write buffer has room again."""
        self._stalled.pop(connection, None)

    def is_within_busy_limit(self, connection: ConnectionT) -> bool:
        """Whether a busy connection is one of the first `max_busy`."""
        places = self.limits.max_busy
        return len(self._busy) <= places or connection in islice(self._busy, places)

    def connection_to_drop(self) -> ConnectionT | None:
        """Return the connection to close for the newest one; None if each one is busy.

        It is the longest quiet one of the peers with most connections. If all others are busy, it is the last
        busy one of the peer with most connections, or the newest connection if no peer has more than its own.
        """
        quiet = max(self._quiet, key=self._connections_of_peer, default=None)
        if quiet is None or len(self._quiet) > 1:
            return quiet
        return max((quiet, *reversed(self._busy)), key=self._connections_of_peer)

    def _connections_of_peer(self, connection: ConnectionT) -> int:
        return self._counts[self._peers[connection]]

    def overdue(self, now: float) -> list[ConnectionT]:
        """Return the connections that exceed a time limit."""
        limits = self.limits
        reading = limits.seconds_for_reading(len(self._stalled))
        return [
            *_until(self._heads, now - limits.head_seconds),
            *(
                connection
                for connection, since in self._stalled.items()
                if since <= now - reading or self._reading[connection] <= now - _MOST_READINGS * reading
            ),
            *_until(self._quiet, now - limits.idle_seconds),
        ]


def _until(times: Mapping[ConnectionT, float], moment: float) -> Iterator[ConnectionT]:
    return (connection for connection, since in times.items() if since <= moment)


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
"""asyncio gives 256 KiB to every connection, idle or not: 2,000 connections used 600 MiB. A client in this
process needs 0.05 s more CPU for 100 MB (measured)."""


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
        self._wire: asyncio.Transport | None = None  # the transport, also once aiohttp has begun to close it
        self._body: StreamReader | None = None  # body of the last request whose head is complete
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
        new = (message for message, _ in list(self._messages)[count:])
        heads = (message.raw_headers for message in new if isinstance(message, RawRequestMessage))
        return any(sum(len(name) + len(value) for name, value in head) > MAX_HEAD_BYTES for head in heads)

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

        ConnectionResetError if the connection is lost, or a part of an answer is written.
        """
        self._server.table.answered(self, self._now())
        is_partly_written = request.writer.output_size > 0
        if not self.connected or isinstance(exc, ConnectionError) or is_partly_written:
            raise ConnectionResetError
        response = self._server.refuse(*_refusal(status, exc))
        response.force_close()
        return response


def _refusal(status: int, error: BaseException | None) -> tuple[int, str]:
    """Return status and message for bytes that are not an HTTP request."""
    if isinstance(error, LineTooLong):
        if error.args[1] == MAX_REQUEST_LINE_BYTES:
            return 414, f"the request line is longer than {MAX_REQUEST_LINE_BYTES} bytes"
        return 431, f"a header is longer than {MAX_FIELD_BYTES} bytes"
    if "Too many headers" in str(error):
        return 431, f"there are more than {MAX_FIELDS} headers"
    return status, f"not an HTTP request: {type(error).__name__}"


ACCEPTED_AT_ONCE: Final = 8
"""New connections per iteration of the event loop; more with TLS, whose handshakes wait for their turns. As
many accepted ones and as many aborted ones may briefly hold a descriptor, beside the open connections."""

_HANDSHAKE_BYTES: Final = 16 * 1024  # bytes of a review that cost as much as a TLS handshake, about 0.7 ms
_RETRY_SECONDS: Final = 0.2  # pause before accepting again while no descriptor is free
_TLS_SHUTDOWN_SECONDS: Final = 1.0
_STOP_SWEEP_SECONDS: Final = 0.02

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Refuse = Callable[[int, str], web.StreamResponse]


class BoundedServer:
    """aiohttp's low-level server with enforced `ConnectionLimits`."""

    def __init__(
        self,
        answer: Answer,
        *,
        refuse: Refuse,
        limits: ConnectionLimits,
        log: JsonLog,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Create a server; call `listen` to start it. Needs a running event loop.

        `answer` handles its own errors, except those of the connection. `refuse` builds the answer to bytes
        that are not an HTTP request, from a status and one line.
        """
        self._loop = asyncio.get_running_loop()
        self._manager = web.Server(self._answer)
        self._handler = answer
        self.refuse = refuse
        self._limits = limits
        self._log = LimitedLog(log)
        self._tls: dict[str, Any] = {}  # TLS options of a connection
        if context is not None:
            SSLProtocol.max_size = _TLS_BUFFER_BYTES  # of each later TLS connection of this process
            self._tls = {
                "ssl": context,
                "ssl_handshake_timeout": limits.head_seconds,
                "ssl_shutdown_timeout": _TLS_SHUTDOWN_SECONDS,
            }
        self._accepted_at_once = max(ACCEPTED_AT_ONCE, limits.max_handshakes // 8)
        self._setups: dict[asyncio.Task[None], str] = {}
        """TCP connections before the end of the TLS handshake, and their peers; the oldest first."""
        self.queue = FairQueue()
        """Turns of handshakes, and of what the answering function does."""
        self.table: ConnectionTable[HttpConnection] = ConnectionTable(limits)
        """Connections after their TLS handshake; each one reports its own state."""
        self._last_accepted = float("-inf")
        self._listeners: list[socket.socket] = []
        self._sweep: asyncio.Task[None] | None = None

    @property
    def has_recent_connections(self) -> bool:
        """Whether a client has connected within the last two seconds."""
        return self._last_accepted > self._loop.time() - self._limits.recent_seconds

    async def listen(self, address: Address) -> Address:
        """Listen on an address; return the address in use (port 0 selects a free port). May raise OSError."""
        try:
            self._listeners = await open_listeners(address, buffer_bytes=self._limits.socket_buffer_bytes)
        except OSError as error:
            error.filename = str(address)  # a service has several ports
            raise
        for listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)
        self._sweep = asyncio.create_task(self._keep_dropping_overdue())
        host, port = self._listeners[-1].getsockname()[:2]
        return Address(host, port)

    async def finish(self, seconds: float) -> int:
        """Stop listening, complete the requests in flight, and close all other connections.

        Answers must close their connections from now on. A connection that was opened or used within the last
        second may still send a request. Returns the number of requests that were aborted after `seconds`.
        """
        if self._sweep is not None:
            self._sweep.cancel()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            self._loop.remove_reader(listener)
            # Closing a listener resets the connections that the kernel has completed already.
            for _ in range(0, self._limits.max_connections, self._accepted_at_once):
                if not self._accept(listener):
                    break
                await asyncio.sleep(0)
            listener.close()
        self.table.limits = self._limits.stopping()
        for setup in self._setups:
            self._loop.call_later(self._limits.stopping_seconds, setup.cancel)
        end = self._loop.time() + seconds
        while (self.table or self._setups) and self._loop.time() < end:
            self._drop_overdue()
            await asyncio.sleep(_STOP_SWEEP_SECONDS)
        cut_off = self.table.busy_count
        for connection in self.table:
            self.drop(connection)
        for setup in self._setups:
            setup.cancel()
        await asyncio.sleep(0)
        return cut_off

    def opened(self, connection: HttpConnection) -> None:
        """Add a connection after its TLS handshake; above the limit, close the least needed one."""
        self.table.opened(connection, self._loop.time(), connection.peer)
        if len(self.table) > self._limits.max_connections:
            self._drop_surplus()

    @staticmethod
    def peer_of(request: web.BaseRequest) -> str:
        """Return the peer of a request's connection."""
        return _connection_of(request).peer

    def is_within_busy_limit(self, request: web.BaseRequest) -> bool:
        """Whether a request is one of the first `max_busy` that are being answered."""
        return self.table.is_within_busy_limit(_connection_of(request))

    def drop(self, connection: HttpConnection) -> None:
        """Abort a connection."""
        self.table.closed(connection)
        connection.abort()

    def _drop_surplus(self) -> None:
        connection = self.table.connection_to_drop()
        if connection is not None:
            self.drop(connection)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request; a connection is busy until its answer is written."""
        connection = _connection_of(request)
        self.table.head_arrived(connection)  # again, if it came together with a previous request
        try:
            response = await self._handler(request)
            if "Upgrade" in request.headers:  # bytes after such a request are not counted as a request head
                response.force_close()
            # An error would refer to the answer, and the answer to it, until the next garbage collection.
            with contextlib.suppress(ConnectionError):
                await response.prepare(request)
                await response.write_eof()
        finally:
            self.table.answered(connection, self._loop.time())
        return response

    def _accept(self, listener: socket.socket) -> bool:
        """Accept waiting connections; return False if no further one can be accepted now."""
        for _ in range(self._accepted_at_once):
            try:
                connection, address = listener.accept()
            except (InterruptedError, ConnectionAbortedError):
                break
            except BlockingIOError:
                return False
            except OSError as error:
                self._wait_for_descriptors(listener, error)
                return False
            connection.setblocking(False)
            self._last_accepted = self._loop.time()
            peer = peer_of(address[0])
            setup = asyncio.create_task(self._set_up(connection, peer))
            self._setups[setup] = peer
            setup.add_done_callback(lambda done: self._setups.pop(done, None))
            if self._tls and len(self._setups) > self._limits.max_handshakes:
                self._drop_handshake()
        return True

    def _drop_handshake(self) -> None:
        """Close the oldest connection of those peers that have most handshakes."""
        counts = Counter(self._setups.values())
        oldest = max(self._setups, key=lambda setup: counts[self._setups[setup]])
        del self._setups[oldest]
        self._loop.call_soon(oldest.cancel)  # a task that has not begun would leave its socket open

    async def _set_up(self, connection: socket.socket, peer: str) -> None:
        """Let aiohttp serve a connection once its TLS handshake has ended."""
        if self._tls:
            try:
                await self.queue.take(peer, _HANDSHAKE_BYTES)
            except asyncio.CancelledError:
                connection.close()
                raise
        protocol = partial(HttpConnection, self, self._manager, self._limits, peer)
        with contextlib.suppress(OSError):  # the handshake failed, or takes too long
            await self._loop.connect_accepted_socket(protocol, connection, **self._tls)

    def _wait_for_descriptors(self, listener: socket.socket, error: OSError) -> None:
        """Close a connection to free a descriptor, and pause accepting.

        asyncio's own server would log a traceback for each attempt: 12 MB per second under 1,100 connections.
        """
        self._log("cannot accept connections", WARNING, problem=error.strerror or str(error))
        self._drop_surplus()
        self._loop.remove_reader(listener)
        self._loop.call_later(_RETRY_SECONDS, self._accept_again, listener)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    async def _keep_dropping_overdue(self) -> None:
        while True:
            await asyncio.sleep(self._limits.sweep_seconds)
            self._drop_overdue()

    def _drop_overdue(self) -> None:
        for connection in self.table.overdue(self._loop.time()):
            self.drop(connection)


def _connection_of(request: web.BaseRequest) -> HttpConnection:
    return cast(HttpConnection, request.protocol)
