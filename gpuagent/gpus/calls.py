"""Makes calls that may never return: each on a daemon thread that makes one call at a time."""

import queue
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from gpuagent.gpus.driver import ThreadNotStarted

T = TypeVar("T")

_STACK_BYTES: Final = 512 * 1024
"""Stack of a thread; without a limit each thread reserves 8 MiB of addresses."""


class Call(Generic[T]):
    """A call that a thread makes, and its result."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._value: Any = None
        self._error: BaseException | None = None
        self._running = threading.Lock()
        self._running.acquire()

    @property
    def is_answered(self) -> bool:
        """Whether the call has returned or raised."""
        return not self._running.locked()

    def wait(self, seconds: float) -> bool:
        """Wait until the call is answered; return False after a timeout."""
        if not self._running.acquire(timeout=max(0.0, seconds)):
            return False
        self._running.release()
        return True

    @property
    def error(self) -> BaseException | None:
        """The exception of an answered call; None if the call returned."""
        return self._error

    def result(self) -> T:
        """Return the result of an answered call, or raise its exception."""
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def run(self) -> None:
        """Make the call."""
        try:
            self._value = self._function()
        except BaseException as error:  # noqa: BLE001 - `result` raises it in the caller's thread
            self._error = error
        finally:
            self._running.release()


class CallThread:
    """A daemon thread that makes one call at a time, and none while a call is unanswered.

    A hanging driver call cannot be ended. The thread therefore does not delay the exit, and a hanging call
    occupies this thread alone. The thread starts with its first call.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Call[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: Call[Any] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a call is unanswered."""
        return self._last is not None and not self._last.is_answered

    def begin(self, function: Callable[[], T]) -> Call[T]:
        """Begin a call, without waiting for its answer.

        Raises:
            RuntimeError: the last call is unanswered.
            ThreadNotStarted: there is no thread for the call; a later call tries again to start one.
        """
        if self.is_busy:
            raise RuntimeError(f"the thread {self._name} makes a call already")
        if self._thread is None:
            thread = threading.Thread(target=_make_calls, args=(self._calls,), name=self._name, daemon=True)
            default = threading.stack_size(_STACK_BYTES)
            try:
                thread.start()
            except RuntimeError:  # EAGAIN: the container or the node has no room for another thread
                raise ThreadNotStarted(self._name) from None
            finally:
                threading.stack_size(default)
            self._thread = thread
        call = Call(function)
        self._last = call
        self._calls.put(call)
        return call

    def stop(self) -> None:
        """End the thread after its last call, without waiting; a later call starts a new one."""
        if self._thread is not None:
            self._calls.put(None)
            self._calls = queue.SimpleQueue()
            self._thread = None


def _make_calls(calls: "queue.SimpleQueue[Call[Any] | None]") -> None:
    while (call := calls.get()) is not None:
        call.run()
        del call  # its result must not live until the next call
