"""Runs servers in a thread, and waits for the end of TLS connections before an event loop stops."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Final, TypeVar

_SECONDS: Final = 0.5
_T = TypeVar("_T")


async def until_ended() -> None:
    """Wait until TLS connections that were closed have ended; call this after their session is closed.
    The end of a TLS connection needs an answer of the server, and aiohttp's session does not wait for it (aiohttp,
    "Graceful Shutdown"). A loop that stops before leaves sockets open, which a later test reports."""
    await asyncio.sleep(_SECONDS)


@contextmanager
def in_a_thread(server: AbstractAsyncContextManager[_T]) -> Iterator[_T]:
    """Run a server in an event loop of its own, for tests that block."""
    started: queue.Queue[tuple[_T, Callable[[], object]]] = queue.Queue()

    async def serve() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        async with server as running:
            started.put((running, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()
        await until_ended()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    running, stop = started.get(timeout=30)
    try:
        yield running
    finally:
        stop()
        thread.join()
