"""Background tasks that restart after errors, and loops that yield to other tasks."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

AGAIN_SECONDS: Final = 5.0  # pause between an error and the restart


async def restart_on_error(
    work: Callable[[], Awaitable[None]], *, on_error: Callable[[Exception], None]
) -> None:
    """Run `work` until cancelled; restart it 5 s after each error."""
    while True:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - an unexpected error must not stop the task
            on_error(error)
        await asyncio.sleep(AGAIN_SECONDS)


_TURN_SECONDS: Final = 0.0005


class LoopYield:
    """Lets other tasks run during a long piece of work on the event loop."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def maybe_yield(self) -> None:
        """Yield to other tasks if half a millisecond has passed since the last yield; call it often."""
        if time.perf_counter() - self._since >= _TURN_SECONDS:
            await asyncio.sleep(0)
            self._since = time.perf_counter()
