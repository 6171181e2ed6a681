"""Waits for the end of TLS connections, before an event loop stops."""

import asyncio
from typing import Final

_SECONDS: Final = 0.5


async def until_ended() -> None:
    """Wait until TLS connections that were closed have ended; call this after their session is closed.
    The end of a TLS connection needs an answer of the server, and aiohttp's session does not wait for it (aiohttp,
    "Graceful Shutdown"). A loop that stops before leaves sockets open, which a later test reports."""
    await asyncio.sleep(_SECONDS)
