"""JSON lines on standard error, one an event. Nothing from a pod's env, args or volumes is ever logged."""

import asyncio
import logging
import sys
import threading
import time
import traceback
from functools import lru_cache
from typing import Any, BinaryIO, Final

import orjson

INFO: Final = "info"
WARNING: Final = "warning"
ERROR: Final = "error"


class JsonLog:
    """Writes events, a whole line at a time, from any thread.

    In an event loop, lines of one turn of the loop go out together at its end: under load that saves most of
    the system calls, and an idle server still writes at once.
    """

    def __init__(self, stream: BinaryIO | None = None) -> None:
        self._stream = stream or sys.stderr.buffer
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._lost = 0

    def __call__(self, message: str, level: str = INFO, **fields: Any) -> None:
        """Write one event with its fields."""
        line = _encoded(message, level, fields)
        with self._lock:
            self._waiting.append(line)
            is_first = len(self._waiting) == 1
        if is_first:
            try:
                asyncio.get_running_loop().call_soon(self.flush)
            except RuntimeError:  # no loop in this thread
                self.flush()

    def flush(self) -> None:
        """Write what waits.

        What cannot be written is lost, and counted in a line of its own once writing works again: nobody
        else could be told, and no request fails for it.
        """
        with self._lock:
            lines, self._waiting = self._waiting, []
            if self._lost:
                lines.insert(0, _encoded("log lines lost", WARNING, {"count": self._lost}))
            try:
                self._stream.write(b"".join(lines))
                self._stream.flush()
            except (OSError, ValueError):  # the reader of a pipe is gone, the disk is full, or it is closed
                self._lost += len(lines) - bool(self._lost)
            else:
                self._lost = 0

    def failure(self, message: str, error: BaseException, **fields: Any) -> None:
        """Write an error of ours with its traceback as one string."""
        self(message, ERROR, **fields, traceback="".join(traceback.format_exception(error)))


class LibraryLog(logging.Handler):
    """Sends what libraries log, warnings and worse, down the same stream."""

    def __init__(self, log: JsonLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        fields = {"logger": record.name}
        if record.exc_info and record.exc_info[1]:
            self._log.failure(record.getMessage(), record.exc_info[1], **fields)
        else:
            self._log(record.getMessage(), record.levelname.lower(), **fields)


def capture_libraries(log: JsonLog) -> None:
    """Make the log the only place where libraries' warnings go."""
    logging.getLogger().handlers[:] = [LibraryLog(log)]


def _encoded(message: str, level: str, fields: dict[str, Any]) -> bytes:
    line = {"time": _timestamp(time.time()), "level": level, "message": message, **fields}
    return orjson.dumps(line, default=str, option=orjson.OPT_APPEND_NEWLINE)


def _timestamp(now: float) -> str:
    whole = int(now)
    return f"{_formatted_second(whole)}.{int((now - whole) * 1000):03d}Z"


@lru_cache(maxsize=2)
def _formatted_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
