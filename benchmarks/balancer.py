"""A TCP load balancer that treats connections like kube-proxy for a Service."""

import asyncio
from typing import cast

from service.http.limits import Address

_LEAST_REQUEST = 1024
"""Bytes from a client that count as a request. A review has more, the end of a TLS handshake fewer. The
first bytes of a handshake always count."""


class Balancer:
    """Assigns each new connection to the next endpoint; a removed endpoint keeps its connections.

    If an endpoint does not accept a connection, the balancer refuses the client's connection without trying
    another endpoint.
    """

    def __init__(self) -> None:
        self.refused = 0
        """Number of connections that an endpoint did not accept."""
        self.cut_off = 0
        """Number of connections that an endpoint ended while the client waited for an answer or sent a
        request."""
        self._endpoints: list[Address] = []
        self._turn = 0
        self._server: asyncio.Server | None = None
        self._open: set[_Front] = set()

    async def start(self) -> Address:
        """Listen on loopback; return the address."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Front(self), "127.0.0.1", 0, backlog=1024)
        return Address(*self._server.sockets[0].getsockname())

    async def stop(self) -> None:
        """Close all connections and stop listening."""
        if self._server is not None:
            self._server.close()
        for front in list(self._open):
            front.end()
        await asyncio.sleep(0)

    def add(self, endpoint: Address) -> None:
        """Add an endpoint for new connections."""
        self._endpoints.append(endpoint)

    def remove(self, endpoint: Address) -> None:
        """Stop assigning new connections to an endpoint."""
        self._endpoints.remove(endpoint)

    def opened(self, front: "_Front") -> Address | None:
        """Record a client's connection; return its endpoint."""
        self._open.add(front)
        if not self._endpoints:
            return None
        self._turn += 1
        return self._endpoints[self._turn % len(self._endpoints)]

    def closed(self, front: "_Front") -> None:
        """Record the end of a client's connection."""
        self._open.discard(front)


class _Side(asyncio.Protocol):
    """One of the two TCP connections of a forwarded connection."""

    def __init__(self, balancer: Balancer) -> None:
        self.balancer = balancer
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write_eof()
        return True  # the other direction goes on

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.other is not None and self.other.transport is not None:
            if exc is None:
                self.other.transport.close()
            else:
                self.other.transport.abort()

    def end(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class _Front(_Side):
    """The connection from a client."""

    def __init__(self, balancer: Balancer) -> None:
        super().__init__(balancer)
        self._dialling: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # The asyncio of Python 3.11.2 begins to read after this method, whatever it does.
        asyncio.get_running_loop().call_soon(cast(asyncio.Transport, transport).pause_reading)
        endpoint = self.balancer.opened(self)
        self._dialling = asyncio.create_task(self._dial(endpoint))

    async def _dial(self, endpoint: Address | None) -> None:
        back = _Back(self.balancer, self)
        try:
            if endpoint is None:
                raise ConnectionRefusedError
            await asyncio.get_running_loop().create_connection(lambda: back, endpoint.host, endpoint.port)
        except OSError:
            self.balancer.refused += 1
            self.end()
            return
        self.other = back
        if self.transport is None:
            back.end()
        else:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if isinstance(self.other, _Back):
            self.other.received_from_client(len(data))
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(self.other, _Back):
            self.other.forget()
        super().connection_lost(exc)
        self.balancer.closed(self)


class _Back(_Side):
    """The connection to an endpoint."""

    def __init__(self, balancer: Balancer, front: _Front) -> None:
        super().__init__(balancer)
        self.other = front
        self._unanswered = 0
        """Bytes from the client since the last answer."""
        self._has_answered = False
        self._has_ended = False
        self._is_counted = False

    def received_from_client(self, count: int) -> None:
        """Count bytes from the client, including those that arrive after the endpoint closed."""
        self._unanswered += count
        if self._has_ended:
            self._count()

    def forget(self) -> None:
        """Record that the client closed the connection."""
        self._is_counted = True

    def data_received(self, data: bytes) -> None:
        self._unanswered = 0
        self._has_answered = True
        super().data_received(data)

    def eof_received(self) -> bool:
        self._ended()
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
        super().connection_lost(exc)

    def _ended(self) -> None:
        self._has_ended = True
        self._count()

    def _count(self) -> None:
        is_awaited = self._unanswered >= (_LEAST_REQUEST if self._has_answered else 1)
        if is_awaited and not self._is_counted:
            self._is_counted = True
            self.balancer.cut_off += 1
