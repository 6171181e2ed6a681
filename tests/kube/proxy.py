"""A proxy on loopback that can stop forwarding without closing anything, as a dead link does."""

import asyncio


class Proxy:
    """Forwards TCP connections while it is told to."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._forwards = asyncio.Event()
        self._forwards.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.connections = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)

    def fall_silent(self) -> None:
        """Take everything, on old connections and new ones, and pass nothing on."""
        self._forwards.clear()

    def wake(self) -> None:
        """Forward again; what was taken meanwhile is passed on late."""
        self._forwards.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._forwards.wait()
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._to)
            self._writers.add(other_writer)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass_on(reader, other_writer))
                    both.create_task(self._pass_on(other_reader, writer))
            finally:
                other_writer.transport.abort()
                self._writers.discard(other_writer)
        except (OSError, ExceptionGroup):
            return
        except asyncio.CancelledError:
            return
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._forwards.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionAbortedError
