"""Servers of asyncio's streams that end at once, whatever their clients do."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection


@contextlib.asynccontextmanager
async def ending_at_once(
    server: asyncio.Server, writers: Collection[asyncio.StreamWriter]
) -> AsyncIterator[asyncio.Server]:
    """Close a server and its connections at the end.

    From Python 3.12.1 on, `async with server` waits for clients to close theirs.
    """
    try:
        yield server
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await server.wait_closed()
