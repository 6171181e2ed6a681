"""Runs coroutines in virtual time: a sleep takes no real time, and the loop's clock jumps to its end."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Selector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Never waits; adds the time that it should wait to the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "no task can ever continue"
            self.now += max(timeout, 0.0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock that begins at 1,000 s."""

    def __init__(self) -> None:
        self._clock = _Selector()
        self._clock.now = 1000.0
        super().__init__(self._clock)

    def time(self) -> float:
        return float(self._clock.now)


def run_in_virtual_time(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine on a new loop; must not be called from a running loop."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
