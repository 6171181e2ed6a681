"""The log: one JSON line for each event. Callers never pass a pod's env, args or volumes."""

import time
import traceback
from collections.abc import Callable
from typing import Any, Final, Protocol

from service.backoff import TokenBucket
from service.log_line import DEBUG, ERROR, INFO, LEVELS, WARNING, encode_line, shortened_traceback

__all__ = ["DEBUG", "ERROR", "INFO", "LEVELS", "WARNING", "JsonLog", "LineStream"]


class LineStream(Protocol):
    """Accepts whole lines from any thread: a `LogWriter`, or a stream in memory."""

    def write(self, line: bytes, /) -> object:
        """Accept one line without blocking and without raising."""


class JsonLog:
    """Writes events to a stream, one bounded JSON line each, from any thread."""

    def __init__(
        self, stream: LineStream, *, lines_lost: Callable[[], int] = lambda: 0, least: str = INFO
    ) -> None:
        """Set the stream.

        Args:
            stream: receives the lines.
            lines_lost: number of lines that the stream has dropped.
            least: least severe level that is written, one of `LEVELS`.
        """
        self._stream = stream
        self._lines_lost = lines_lost
        self._skipped = frozenset(LEVELS[: LEVELS.index(least)])

    @property
    def lines_lost(self) -> int:
        """Number of lines that the stream has dropped."""
        return self._lines_lost()

    def writes(self, level: str) -> bool:
        """Whether events of this level are written."""
        return level not in self._skipped

    def __call__(self, message: str, level: str = INFO, **fields: Any) -> None:
        """Write one event with its fields, unless its level is skipped."""
        if level in self._skipped:
            return
        self._stream.write(encode_line(message, level, fields, now=time.time()))

    def failure(self, message: str, error: BaseException, **fields: Any) -> None:
        """Write an internal error; its traceback is one field."""
        self(message, ERROR, **fields, traceback=_traceback(error))


def _traceback(error: BaseException) -> str:
    try:
        return shortened_traceback(traceback.format_exception(error))
    except Exception as again:  # noqa: BLE001 - such as a RecursionError close to the recursion limit
        return f"{type(error).__name__}; no traceback: {type(again).__name__}"


LINES_PER_SECOND: Final = 1.0
BURST: Final = 20


class LimitedLog:
    """Passes lines to a log at a bounded rate; the next passed line has the count of suppressed ones."""

    def __init__(self, log: JsonLog, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._bucket = TokenBucket(per_second=LINES_PER_SECOND, burst=BURST, clock=clock)
        self._suppressed = 0

    def __call__(self, message: str, level: str = INFO, **fields: Any) -> None:
        """Write one event with its fields, or count it as suppressed."""
        if self._log.writes(level) and self._passes(fields):
            self._log(message, level, **fields)

    def failure(self, message: str, error: BaseException, **fields: Any) -> None:
        """Write an error with its traceback, or count it as suppressed."""
        if self._passes(fields):
            self._log.failure(message, error, **fields)

    def _passes(self, fields: dict[str, Any]) -> bool:
        if not self._bucket.take():
            self._suppressed += 1
            return False
        if self._suppressed:
            fields["suppressed"] = self._suppressed
            self._suppressed = 0
        return True
