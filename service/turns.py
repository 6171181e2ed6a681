"""Letting requests in between the pieces of longer work."""

import asyncio
import time
from typing import Final

_TURN_SECONDS: Final = 0.0005


class Turns:
    """Counts how long a piece of work keeps the event loop, and gives the others their turn."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def give(self) -> None:
        """To be called often: lets others run if half a millisecond is over."""
        if time.perf_counter() - self._since >= _TURN_SECONDS:
            await asyncio.sleep(0)
            self._since = time.perf_counter()
