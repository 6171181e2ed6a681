"""Deadlines of requests, enforced by one periodic sweep.

A timer for each review (asyncio.timeout) would cost as much CPU as the decision about the pod. An entry in a
table costs almost nothing, and a delay of a tenth of a second is harmless.
"""

import asyncio
from typing import Final

SWEEP_SECONDS: Final = 0.1
"""Interval of the sweep: the maximum delay of a deadline."""


class Deadline:
    """The deadline of one task. When it expires, the task is cancelled."""

    __slots__ = ("_is_expired", "_task", "at", "since")

    def __init__(self, task: "asyncio.Task[None]", since: float, seconds: float) -> None:
        self._task = task
        self._is_expired = False
        self.since = since
        self.at = since + seconds
        """The time of expiry, on the event loop's clock."""

    def end(self) -> None:
        """Cancel the task now."""
        if not self._is_expired:
            self._is_expired = True
            self._task.cancel()

    def caused(self) -> bool:
        """Return whether this deadline caused a CancelledError; if so, revoke the cancellation."""
        if self._is_expired:
            self._task.uncancel()
        return self._is_expired


class Deadlines:
    """The table of running deadlines."""

    def __init__(self) -> None:
        self._running: dict[Deadline, None] = {}

    def begin(self, seconds: float) -> Deadline:
        """Start a deadline for the current task."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline needs a task")
        deadline = Deadline(task, loop.time(), seconds)
        self._running[deadline] = None
        return deadline

    def finish(self, deadline: Deadline) -> None:
        """Remove a deadline whose task has ended or been cancelled."""
        del self._running[deadline]

    async def sweep(self) -> None:
        """Cancel the tasks of expired deadlines, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = loop.time()
            for expired in [deadline for deadline in self._running if deadline.at <= now]:
                expired.end()
