"""Worker thread for a library whose calls may never return."""

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Hung(Exception):
    """A call did not return in time; later calls are not attempted."""


class Worker:
    """Makes calls one by one on one daemon thread, which does not delay the exit."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self.is_hung = False

    def call(self, function: Callable[[], T], *, seconds: float) -> T:
        """Make a call; return its result or raise its exception.

        Raises:
            Hung: the call exceeds the timeout.
        """
        if self.is_hung:
            raise Hung
        answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def job() -> None:
            try:
                answer.put((function(), None))
            except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
                answer.put((None, error))

        self._calls.put(job)
        try:
            value, error = answer.get(timeout=seconds)
        except queue.Empty:
            self.is_hung = True
            raise Hung from None
        if error is not None:
            raise error
        result: T = value
        return result

    def stop(self) -> None:
        """End the thread, unless a call hangs."""
        self._calls.put(None)
        if not self.is_hung:
            self._thread.join()

    def _run(self) -> None:
        while (job := self._calls.get()) is not None:
            job()
