"""The simulated API server in a thread of its own, so that a command can run in this one."""

import asyncio
import json
import queue
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.golden import product
from tests.support.api_server import ObjectServer, object_server, says


def hold(
    server: ObjectServer,
    date: datetime,
    items: list[Any],
    *,
    forbidden: Any = lambda _path: False,
    unserved: tuple[str, ...] = (),
    answers: dict[str, tuple[int, Any]] | None = None,
    create: Any = lambda _path, sent: (201, sent),
) -> None:
    """Let a server have the objects of one moment; `answers` are status and body by path."""
    server.objects = {}
    server.add(*items)
    server.date, server.forbidden, server.create = date, forbidden, create
    server.unserved = tuple(f"/apis/{group}/" for group in unserved)
    server.refusals = {
        rf"^{re.escape(path)}(\?|$)": says(body if isinstance(body, str) else json.dumps(body), status=status)
        for path, (status, body) in (answers or {}).items()
    }


@contextmanager
def api_server(folder: Path) -> Iterator[ObjectServer]:
    """Run a server; its credentials are in the folder."""
    running: queue.Queue[tuple[ObjectServer, Any]] = queue.Queue()

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with object_server(folder, *product.certificates(folder)) as server:
            running.put((server, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    server, stop = running.get(timeout=30)
    try:
        yield server
    finally:
        stop()
        thread.join()
