"""Time limits of requests, kept by one sweep.

Every review has one, and nearly none ever meets it. A timer for each (asyncio.timeout) costs as much CPU as
deciding about the pod; an entry in a table costs next to nothing, and a tenth of a second late harms nobody.
"""

import asyncio
from typing import Final

SWEEP_SECONDS: Final = 0.1
"""How much later than its time a deadline may be kept."""


class Deadline:
    """The time limit of one task: when it is over, whatever the task waits for is cancelled."""

    __slots__ = ("_is_over", "_task", "at", "since")

    def __init__(self, task: "asyncio.Task[None]", since: float, seconds: float) -> None:
        self._task = task
        self._is_over = False
        self.since = since
        self.at = since + seconds
        """On the loop's clock."""

    def end(self) -> None:
        """Cancel the task now."""
        if not self._is_over:
            self._is_over = True
            self._task.cancel()

    def caused(self) -> bool:
        """Ask, on CancelledError, whether it came from here; then the task goes on as if never cancelled."""
        if self._is_over:
            self._task.uncancel()
        return self._is_over


class Deadlines:
    """Every deadline that runs."""

    def __init__(self) -> None:
        self._running: dict[Deadline, None] = {}

    def begin(self, seconds: float) -> Deadline:
        """Start one for the current task."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline needs a task")
        deadline = Deadline(task, loop.time(), seconds)
        self._running[deadline] = None
        return deadline

    def finish(self, deadline: Deadline) -> None:
        """Forget one that was met, or passed."""
        del self._running[deadline]

    async def sweep(self) -> None:
        """Cancel what is late, until cancelled itself."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = loop.time()
            for deadline in [each for each in self._running if each.at <= now]:
                deadline.end()
