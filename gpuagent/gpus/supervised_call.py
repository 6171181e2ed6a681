"""Calls that may never return: those to the driver and to /proc."""

import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from gpuagent.gpus.driver import CallFailed, CallTimedOut, ThreadNotStarted
from service.backoff import Backoff

T = TypeVar("T")
_Calls = queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]

_STACK_BYTES: Final = 512 * 1024
"""Stack of a thread; without a limit each thread reserves 8 MiB of addresses."""


class SupervisedCall(Generic[T]):
    """Makes one call at a time, on a daemon thread of its own and with a deadline.

    A hanging call cannot be ended. It occupies this thread alone and does not delay the exit; until its
    answer no other call is made, and nothing waits for it. The answer is then discarded, since it is of an
    earlier time. With a back-off, the call after a late answer waits for it. The thread starts with its first
    call; a thread that cannot be started is tried again with the next call.
    """

    def __init__(self, name: str, *, deadline: float, retry: Backoff | None = None) -> None:
        """Set the name of the thread, the deadline of a call in seconds, and the wait after late answers."""
        self._name = name
        self._deadline = deadline
        self._retry = retry
        self._calls: _Calls = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Future[T] | None = None
        """The last call that was made."""
        self._current: Future[T] | None = None
        """The call whose answer is awaited."""
        self._ends_at = 0.0
        """Deadline of the current call in seconds of `time.monotonic`, as waiting takes real time."""
        self._began_at = 0.0
        """Begin of the current call, in seconds of the back-off's clock."""
        self.failure: CallFailed | None = None
        """Why the last call has no answer; None if it has one."""

    @property
    def is_unanswered(self) -> bool:
        """Whether a call is unanswered, so that no other one is made. Thread-safe."""
        return self._last is not None and not self._last.done()

    def begin(self, function: Callable[[], T], now: float = 0.0) -> Future[T] | None:
        """Begin a call, unless the last one is unanswered, or was late a short time ago; see `failure`.

        `now` is in seconds of the back-off's clock.
        """
        self._current = None
        if self.is_unanswered:
            self.failure = self._timed_out()
            return None
        if self._retry is not None and not self._retry.is_due(now):
            return None
        try:
            self._start_thread()
        except ThreadNotStarted as error:
            self.failure = error.with_traceback(None)
            return None
        self._ends_at, self._began_at = time.monotonic() + self._deadline, now
        self._current = self._last = Future()
        self._calls.put((function, self._current))
        return self._current

    def wait(self, seconds: float = math.inf) -> Future[T] | None:
        """Wait for the answer, at most until the deadline; return the call once it is answered."""
        left = min(seconds, self._ends_at - time.monotonic(), threading.TIMEOUT_MAX)
        try:
            if self._current is not None:
                self._current.exception(max(left, 0.0))
        except TimeoutError:
            return None
        return self._current

    def finish(self) -> Future[T] | None:
        """Wait until the deadline; return the answered call, None with a `failure` if there is no answer."""
        began, answered = self._current, self.wait()
        self._current = None
        if answered is not None:
            self.failure = None
            if self._retry is not None:
                self._retry.reset()
        elif began is not None:
            self.failure = self._timed_out()
            if self._retry is not None:
                self._retry.back_off(self._began_at)
        return answered

    def result(self, function: Callable[[], T], now: float = 0.0) -> T:
        """Make a call and return its result, or raise its exception.

        Raises:
            CallTimedOut: there was no answer in time, or the last call has none, or was late just before.
            ThreadNotStarted: the thread of the call could not be started.
        """
        self.begin(function, now)
        call = self.finish()
        if call is None:
            raise self.failure or self._timed_out()
        return call.result()

    def end_wait(self) -> None:
        """Make the next call without waiting after a late answer."""
        if self._retry is not None:
            self._retry.end_wait()

    def reset(self) -> None:
        """Forget all failures: the calls concern another device now."""
        self.failure = None
        if self._retry is not None:
            self._retry.reset()

    def stop(self) -> None:
        """End the thread after its last call, without waiting; a later call starts a new one."""
        if self._thread is not None:
            self._calls.put(None)
            self._calls = queue.SimpleQueue()
            self._thread = None

    def _timed_out(self) -> CallTimedOut:
        return CallTimedOut("", self._deadline)

    def _start_thread(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=_make_calls, args=(self._calls,), name=self._name, daemon=True)
        default = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        except RuntimeError:  # EAGAIN: the container or the node has no room for another thread
            raise ThreadNotStarted(self._name) from None
        finally:
            threading.stack_size(default)
        self._thread = thread


def _make_calls(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        function, answer = call
        try:
            answer.set_result(function())
        except BaseException as error:  # noqa: BLE001 - `result` raises it in the caller's thread
            answer.set_exception(error)
        del call, function, answer  # the result must not live until the next call
