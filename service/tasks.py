"""Background tasks that survive errors, and loops that let other tasks run."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

AGAIN_SECONDS: Final = 5.0
"""How long after an error the work is begun anew."""


async def restart_on_error(
    work: Callable[[], Awaitable[None]], *, on_error: Callable[[Exception], None]
) -> None:
    """Do the work until cancelled, anew after each error.

    Args:
        work: what to do; it ends by an error or by being cancelled.
        on_error: told the error.
    """
    while True:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - an error nobody thought of; what goes on can go on
            on_error(error)
        await asyncio.sleep(AGAIN_SECONDS)


_TURN_SECONDS: Final = 0.0005


class LoopYield:
    """Counts how long a piece of work keeps the event loop, and gives the others their turn."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def maybe_yield(self) -> None:
        """To be called often: lets others run if half a millisecond is over."""
        if time.perf_counter() - self._since >= _TURN_SECONDS:
            await asyncio.sleep(0)
            self._since = time.perf_counter()
