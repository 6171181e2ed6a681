"""An HTTP server with a limited number of connections, each with limited memory and time.

An API server keeps about 25 idle connections, and no request fails when an idle one is closed (verified on
Kubernetes 1.36.3). Thousands of connections come from other clients.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, cast

from aiohttp import web

from service.http.connection_table import ConnectionTable
from service.http.fair_queue import FairQueue, peer_of
from service.http.limits import ConnectionLimits
from service.http.listeners import Address, open_listeners
from service.http.protocols import HttpConnection, limit_tls_buffers
from service.log import WARNING, JsonLog, LimitedLog

ACCEPTED_AT_ONCE: Final = 8
"""New connections per iteration of the event loop; more with TLS, whose handshakes wait for their turns. As
many accepted ones and as many aborted ones may briefly hold a descriptor, beside the open connections."""

_HANDSHAKE_BYTES: Final = 16 * 1024
"""Bytes of a review that cost as much as a TLS handshake, about 0.7 ms."""

_RETRY_SECONDS: Final = 0.2
"""Pause before accepting again while no descriptor is free."""

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

        Args:
            answer: answers a request, and handles its own errors except those of the connection.
            refuse: builds the answer to bytes that are not an HTTP request, from a status and one line.
            limits: limits of connections.
            log: receives problems of accepting connections.
            context: TLS; None for a port without TLS.
        """
        self._loop = asyncio.get_running_loop()
        self._manager = web.Server(self._answer)
        self._handler = answer
        self.refuse = refuse
        self._limits = limits
        self._log = LimitedLog(log)
        self._tls: dict[str, Any] = {}
        """TLS options of a connection."""
        if context is not None:
            limit_tls_buffers()
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
        """Listen on an address; return the address in use (port 0 selects a free port).

        Raises:
            OSError: listening on the address fails.
        """
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
        second may still send a request.

        Args:
            seconds: longest wait for requests in flight.

        Returns:
            number of requests that were aborted after that time.
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
            self._drop_least_needed()

    @staticmethod
    def peer_of(request: web.BaseRequest) -> str:
        """Return the peer of a request's connection."""
        return _connection_of(request).peer

    def has_place(self, request: web.BaseRequest) -> bool:
        """Whether a request is one of the first `max_busy` that are being answered."""
        return self.table.has_place(_connection_of(request))

    def drop(self, connection: HttpConnection) -> None:
        """Abort a connection."""
        self.table.closed(connection)
        connection.abort()

    def _drop_least_needed(self) -> None:
        connection = self.table.least_needed()
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
        self._drop_least_needed()
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
