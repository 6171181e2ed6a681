"""A log for messages that a hostile client can cause at will."""

import time
from collections.abc import Callable
from typing import Any, Final

from service.bucket import TokenBucket
from service.log import INFO, JsonLog

LINES_PER_SECOND: Final = 1.0
BURST: Final = 20


class LimitedLog:
    """Passes lines to a log at a bounded rate; a line that passes counts those suppressed before it."""

    def __init__(self, log: JsonLog, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._bucket = TokenBucket(per_second=LINES_PER_SECOND, burst=BURST, clock=clock)
        self._suppressed = 0

    def __call__(self, message: str, level: str = INFO, **fields: Any) -> None:
        """Write one event with its fields, or count it as suppressed."""
        if self._passes(fields):
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
