"""An HTTP server with a limited number of connections, each with limited memory and time.

An API server keeps about 25 idle connections, and no request fails when an idle one is closed (verified on
Kubernetes 1.36.3). Thousands of connections come from other clients.
"""

import asyncio
import math
import socket
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from service.http.connection_table import ConnectionTable
from service.http.limits import ConnectionLimits
from service.http.listeners import Address, open_listeners
from service.http.protocols import HttpConnection, TlsConnection
from service.log import WARNING, JsonLog, LimitedLog
from service.tasks import LoopYield

ACCEPTED_PER_TURN: Final = 8
"""New connections per turn of the event loop; each takes about 0.3 ms. In addition to the open connections,
as many accepted ones and as many aborted ones may briefly hold a descriptor."""

_RETRY_SECONDS: Final = 0.2
"""Pause before accepting again while no descriptor is free."""

_SETTLE_SECONDS: Final = 0.02

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Refuse = Callable[[int, str], web.StreamResponse]


class BoundedServer(web.Server):
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
            log: receives unhandled errors.
            context: TLS; None for a port without TLS.
        """
        super().__init__(self._answer)
        self._event_loop = asyncio.get_running_loop()
        self._handler = answer
        self.refuse = refuse
        self._limits = limits
        self._log = LimitedLog(log)
        self._context = context
        self._handshakes: OrderedDict[web.RequestHandler, tuple[asyncio.Transport, float]] = OrderedDict()
        """TCP connections before the end of the TLS handshake, and their start; the oldest first."""
        self._transports: dict[web.RequestHandler, asyncio.Transport] = {}
        self.table: ConnectionTable[web.RequestHandler] = ConnectionTable(limits)
        """Connections after their TLS handshake; each one reports its own state."""
        self._last_opened = -math.inf
        self._listeners: list[socket.socket] = []
        self._setups: set[asyncio.Task[object]] = set()
        """Tasks of connections that were accepted in this turn of the event loop."""
        self._sweep: asyncio.Task[None] | None = None

    @property
    def has_recent_connections(self) -> bool:
        """Whether a client has connected within the last two seconds."""
        return self._last_opened > self._event_loop.time() - self._limits.recent_seconds

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
            self._event_loop.add_reader(listener, self._accept, listener)
        self._sweep = asyncio.create_task(self._drop_overdue())
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
        for listener in self._listeners:
            self._accept(listener)  # the kernel has completed these connections already
            self._event_loop.remove_reader(listener)
            listener.close()
        self._listeners = []
        if self._setups:
            await asyncio.wait(self._setups)
        end = self._event_loop.time() + seconds
        while (self.table or self._handshakes) and (now := self._event_loop.time()) < end:
            self._close_settled(now - self._limits.young_seconds)
            await asyncio.sleep(_SETTLE_SECONDS)
        cut_off = self.table.busy_count
        self._close_settled(math.inf)
        for transport in self._transports.values():
            transport.abort()
        await asyncio.sleep(0)
        return cut_off

    def handshake_started(self, connection: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Add a TCP connection; above the limit, close the oldest one."""
        self._last_opened = now = self._event_loop.time()
        self._handshakes[connection] = transport, now
        if len(self._handshakes) > self._limits.max_handshakes:
            _, (oldest, _) = self._handshakes.popitem(last=False)
            oldest.abort()

    def handshake_ended(self, connection: web.RequestHandler) -> None:
        """Remove a TCP connection that ended."""
        self._handshakes.pop(connection, None)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Add a connection; above the limit, close the least needed one."""
        self._handshakes.pop(handler, None)
        transport.set_write_buffer_limits(self._limits.write_buffer_bytes)
        self._transports[handler] = transport
        self._last_opened = now = self._event_loop.time()
        self.table.opened(handler, now)
        self._drop_if_any(self.table.surplus())

    def connection_lost(self, handler: web.RequestHandler, _exc: BaseException | None = None) -> None:
        """Remove a connection; the handler of its request may still be running."""
        self._transports.pop(handler, None)
        self.table.closed(handler)

    def failed(self, error: BaseException) -> None:
        """Log an unhandled error."""
        self._log.failure("connection failed", error)

    def drop(self, connection: web.RequestHandler) -> None:
        """Abort a connection without TLS close_notify; an unresponsive peer would delay it."""
        transport = self._transports.get(connection)
        self.connection_lost(connection)
        if transport is not None:
            transport.abort()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._handler(request)
        if "Upgrade" in request.headers:  # bytes after such a request are not counted as a request head
            response.force_close()
        return response

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._wait_for_descriptors(listener, error)
                return
            connection.setblocking(False)
            setup = asyncio.create_task(self._set_up(connection))
            self._setups.add(setup)
            setup.add_done_callback(self._setups.discard)

    async def _set_up(self, connection: socket.socket) -> None:
        try:
            await self._event_loop.connect_accepted_socket(self._new_protocol, connection)
        except OSError as error:
            connection.close()
            self._log.failure("connection failed", error)

    def _new_protocol(self) -> asyncio.BaseProtocol:
        connection = HttpConnection(self, self._limits)
        return TlsConnection(self, connection, self._context, self._limits) if self._context else connection

    def _wait_for_descriptors(self, listener: socket.socket, error: OSError) -> None:
        """Close a connection to free a descriptor, and pause accepting.

        asyncio's own server would log a traceback for each attempt: 12 MB per second under 1,100 connections.
        """
        self._log("cannot accept connections", WARNING, problem=error.strerror or str(error))
        self._drop_if_any(self.table.least_needed())
        self._event_loop.remove_reader(listener)
        self._event_loop.call_later(_RETRY_SECONDS, self._accept_again, listener)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._event_loop.add_reader(listener, self._accept, listener)

    def _drop_if_any(self, connection: web.RequestHandler | None) -> None:
        if connection is not None:
            self.drop(connection)

    async def _drop_overdue(self) -> None:
        """Close connections that exceed a time limit, until cancelled."""
        while True:
            await asyncio.sleep(self._limits.sweep_seconds)
            loop_yield = LoopYield()
            for connection in self.table.overdue(self._event_loop.time()):
                self.drop(connection)
                await loop_yield.maybe_yield()

    def _close_settled(self, before: float) -> None:
        """Close handshakes, incomplete heads, stalled answers and silent connections older than a time."""
        for transport, since in list(self._handshakes.values()):
            if since <= before:
                transport.abort()
        stuck, silent = self.table.settled(before)
        for connection in silent:
            connection.force_close()  # flushes, and sends TLS close_notify
        for connection in stuck:
            self.drop(connection)
