"""Waits until something holds, by looking again and again.
A condition that looks for something that is not there yet (LookupError) does not hold yet."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

PATIENCE_SECONDS: Final = 45.0
"""Longest wait for a condition on a loaded machine."""
_FIRST_PAUSE_SECONDS: Final = 0.005
"""Pause within the first second: what a simulated server does is over soon."""
_PAUSE_SECONDS: Final = 0.02


class _Wait:
    def __init__(self, what: Callable[[], object] | object, seconds: float) -> None:
        self._what = what
        self._seconds = seconds
        self._began = time.monotonic()

    def go_on(self, error: LookupError | None) -> None:
        if time.monotonic() > self._began + self._seconds:
            what = self._what() if callable(self._what) else self._what
            raise AssertionError(f"still not after {self._seconds:g} s: {what}") from error

    @property
    def pause(self) -> float:
        return _FIRST_PAUSE_SECONDS if time.monotonic() < self._began + 1 else _PAUSE_SECONDS


async def until(
    condition: Callable[[], Awaitable[Any] | Any],
    what: Callable[[], object] | object = "",
    seconds: float = PATIENCE_SECONDS,
) -> Any:
    wait = _Wait(what, seconds)
    while True:
        error = None
        try:
            result = condition()
            if isinstance(result, Awaitable):
                result = await result
        except LookupError as missing:
            result, error = None, missing
        if result:
            return result
        wait.go_on(error)
        await asyncio.sleep(wait.pause)


async def seconds_until(
    condition: Callable[[], Awaitable[Any] | Any],
    what: Callable[[], object] | object = "",
    seconds: float = PATIENCE_SECONDS,
) -> float:
    began = time.monotonic()
    await until(condition, what, seconds)
    return time.monotonic() - began


def wait_until(
    condition: Callable[[], Any],
    what: Callable[[], object] | object = "",
    seconds: float = PATIENCE_SECONDS,
    pause: float = _PAUSE_SECONDS,
) -> Any:
    """Wait for a condition without an event loop; return its value. Arguments as for `until`."""
    wait = _Wait(what, seconds)
    while True:
        error = None
        try:
            result = condition()
        except LookupError as missing:
            result, error = None, missing
        if result:
            return result
        wait.go_on(error)
        time.sleep(pause)


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run work that may not end before the block does; cancel it then."""
    task = asyncio.create_task(work)
    try:
        yield task
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
