"""Redirects messages of libraries and of the interpreter to the service's log."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from service.log import ERROR, INFO, WARNING, JsonLog
from service.log_writer import LogWriter

CLOSE_SECONDS: Final = 1.0
"""Longest wait for the last lines when the process ends."""

RECORDS_A_MINUTE: Final = 10
"""Records per minute that are written of one logger and one message."""

_STANDARD_ERROR: Final = 2
_WINDOW_SECONDS: Final = 60.0
_MOST_WINDOWS: Final = 256
_KEY_CHARACTERS: Final = 120
_OTHERS: Final = ("", "")


@dataclass(slots=True)
class _Window:
    """Counts of one kind of record within a minute."""

    began: float
    admitted: int = 0
    suppressed: int = 0


class LibraryLog(logging.Handler):
    """Writes warnings and errors of libraries to the log, at a bounded rate.

    Records with the same logger and the same first line of the message template are one kind. asyncio, for
    example, reports `socket.accept() out of system resource` thousands of times a second.
    """

    def __init__(self, log: JsonLog, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._clock = clock
        self._windows: dict[tuple[str, str], _Window] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, or count it as suppressed; a record that cannot be formatted raises no error."""
        now = self._clock()
        self._end_windows(now)
        key = _kind_of(record)
        if key not in self._windows and len(self._windows) >= _MOST_WINDOWS:
            key = _OTHERS
        window = self._windows.setdefault(key, _Window(began=now))
        if window.admitted >= RECORDS_A_MINUTE:
            window.suppressed += 1
            return
        window.admitted += 1
        message = _message_of(record)
        if record.exc_info and record.exc_info[1]:
            self._log.failure(message, record.exc_info[1], logger=record.name)
        else:
            self._log(message, record.levelname.lower(), logger=record.name)

    def close(self) -> None:
        """Report the suppressed records that are not reported yet."""
        self._end_windows(float("inf"))
        super().close()

    def _end_windows(self, now: float) -> None:
        for key, window in list(self._windows.items()):
            if now - window.began < _WINDOW_SECONDS:
                break  # the remaining windows began later
            del self._windows[key]
            if window.suppressed:
                logger, start = key
                self._log(
                    "repeated messages suppressed",
                    WARNING,
                    logger=logger,
                    start=start,
                    count=window.suppressed,
                )


def capture_libraries(log: JsonLog) -> LibraryLog:
    """Replace all handlers of the root logger by the service's log; return the new handler."""
    handler = LibraryLog(log)
    logging.getLogger().handlers[:] = [handler]
    return handler


@contextmanager
def standard_error_log(least: str = INFO) -> Iterator[JsonLog]:
    """Open a service's log on standard error, and flush it at the end.

    `least` is the least severe level that is written.

    Python's warnings and the exceptions of threads and destructors become lines of the log meanwhile.
    Standard error is replaced by /dev/null if it blocks at the end, since the interpreter would wait for it
    at exit.
    """
    writer = LogWriter(_STANDARD_ERROR)
    log = JsonLog(writer, lines_lost=lambda: writer.lines_lost, least=least)
    libraries = capture_libraries(log)
    try:
        with _captured_interpreter(log):
            yield log
    finally:
        libraries.close()
        if not writer.close(CLOSE_SECONDS):
            _discard_standard_error()


@contextmanager
def _captured_interpreter(log: JsonLog) -> Iterator[None]:
    """Log the messages that the interpreter would print to standard error, which may block."""

    def on_thread(arguments: threading.ExceptHookArgs) -> None:
        if issubclass(arguments.exc_type, SystemExit):  # a normal end, as for threading.excepthook
            return
        name = arguments.thread.name if arguments.thread else ""
        _log_exception(log, "thread ended with an exception", arguments, thread=name)

    def on_unraisable(arguments: "sys.UnraisableHookArgs") -> None:
        # Python 3.14 names a destructor in `err_msg` only.
        source = arguments.object
        where = (
            arguments.err_msg if source is None else getattr(source, "__qualname__", type(source).__name__)
        )
        _log_exception(log, "exception ignored", arguments, where=where)

    thread_hook, unraisable_hook = threading.excepthook, sys.unraisablehook
    threading.excepthook, sys.unraisablehook = on_thread, on_unraisable
    logging.captureWarnings(capture=True)
    try:
        yield
    finally:
        logging.captureWarnings(capture=False)
        threading.excepthook, sys.unraisablehook = thread_hook, unraisable_hook


def _log_exception(
    log: JsonLog, message: str, arguments: "threading.ExceptHookArgs | sys.UnraisableHookArgs", **fields: Any
) -> None:
    if arguments.exc_value is not None:
        log.failure(message, arguments.exc_value, **fields)
    else:
        log(message, ERROR, error=arguments.exc_type.__name__, **fields)


def _discard_standard_error() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, _STANDARD_ERROR)
    os.close(null)


def _kind_of(record: logging.LogRecord) -> tuple[str, str]:
    """Return the logger and the start of the message template."""
    template = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
    return record.name, template[:_KEY_CHARACTERS].partition("\n")[0]


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - wrong arguments for the template, or a failing __str__
        return f"{_kind_of(record)[1]} ({type(error).__name__} in its arguments)"
