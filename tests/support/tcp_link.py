"""A TCP link on loopback with faults of networks: silence, loss of the far end, reset.

Every control is safe to call from another thread and takes effect at the next turn of the link's event loop.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

_CHUNK_BYTES = 65536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: closing the socket sends RST, not FIN."""
_TURNS_TO_CLOSE = 5
"""Turns of the event loop in which clients in the same loop close their sockets, and connections that were
accepted last are closed."""


@dataclass(eq=False)
class _Connection:
    """A client's connection, and whether its far end was closed."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_half_open: asyncio.Event = field(default_factory=asyncio.Event)


class TcpLink:
    """Forwards TCP connections to a port on loopback; a FIN arrives as FIN, a RST as RST."""

    def __init__(self, *, to_port: int) -> None:
        self.port = 0
        self.connections = 0
        """Number of connections that were accepted."""
        self._to_port = to_port
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_down = False
        self._open: dict[_Connection, asyncio.Task[None]] = {}

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for _ in range(_TURNS_TO_CLOSE):  # a connection that was just accepted has no task yet
            tasks = list(self._open.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)

    def fall_silent(self) -> None:
        """Hold all bytes on old and new connections without closing any."""
        self._soon(self._flows.clear)

    def half_open(self) -> None:
        """Close the far end of every connection without notifying the client; new connections work."""
        self._soon(self._lose_all)

    def lose(self) -> None:
        """Do as `half_open`, and hold all bytes on new connections."""

        def lose() -> None:
            self._lose_all()
            self._flows.clear()

        self._soon(lose)

    def reset(self) -> None:
        """Reset all connections; new connections work."""
        self._soon(self._reset_all)

    def go_down(self) -> None:
        """Reset all connections, including new ones."""

        def down() -> None:
            self._is_down = True
            self._reset_all()

        self._soon(down)

    def recover(self) -> None:
        """Forward again. Bytes held by `fall_silent` are sent late."""

        def up() -> None:
            self._is_down = False
            self._flows.set()

        self._soon(up)

    def _soon(self, control: Callable[[], object]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(control)

    def _lose_all(self) -> None:
        for connection in self._open:
            connection.is_half_open.set()

    def _reset_all(self) -> None:
        for connection in self._open:
            reset(connection.writer.transport)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = _Connection(reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._open[connection] = task
        try:
            await self._flows.wait()
            if self._is_down:
                reset(writer.transport)
            else:
                await self._forward(connection)
            writer.close()  # sends what is still buffered
            await writer.wait_closed()
        except (OSError, asyncio.CancelledError):
            return
        finally:
            writer.transport.abort()
            del self._open[connection]

    async def _forward(self, connection: _Connection) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        ends = {
            asyncio.create_task(self._pass_on(connection.reader, writer)),
            asyncio.create_task(self._pass_on(reader, connection.writer)),
            asyncio.create_task(connection.is_half_open.wait()),
        }
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writer.transport.abort()
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        if connection.is_half_open.is_set():
            while await connection.reader.read(_CHUNK_BYTES):
                pass

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
            await self._flows.wait()
            return
        reset(writer.transport)


def reset(transport: asyncio.BaseTransport) -> None:
    assert isinstance(transport, asyncio.WriteTransport)
    if not transport.is_closing():
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()
