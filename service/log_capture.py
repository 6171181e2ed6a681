"""Redirects messages of libraries and of the interpreter to the service's log."""

import logging
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from service.log import ERROR, INFO, JsonLog, LimitedLog
from service.log_writer import LogWriter

CLOSE_SECONDS: Final = 1.0
"""Longest wait for the last lines when the process ends."""

_STANDARD_ERROR: Final = 2
_TEMPLATE_CHARACTERS: Final = 120


class LibraryLog(logging.Handler):
    """Writes warnings and errors of libraries to the log, at a bounded rate for each logger."""

    def __init__(self, log: JsonLog, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._logs: defaultdict[str, LimitedLog] = defaultdict(lambda: LimitedLog(log, clock=clock))
        """By logger; libraries name their loggers after their modules."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, or count it as suppressed; a record that cannot be formatted raises no error."""
        log = self._logs[record.name]
        message = _message_of(record)
        if record.exc_info and record.exc_info[1]:
            log.failure(message, record.exc_info[1], logger=record.name)
        else:
            log(message, record.levelname.lower(), logger=record.name)


def capture_libraries(log: JsonLog) -> None:
    """Replace all handlers of the root logger by the service's log."""
    logging.getLogger().handlers[:] = [LibraryLog(log)]


def discard_library_logs() -> None:
    """Discard what libraries log, for a command that reports their errors itself."""
    logging.getLogger().handlers[:] = [logging.NullHandler()]


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
    capture_libraries(log)
    try:
        with _captured_interpreter(log):
            yield log
    finally:
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


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - wrong arguments for the template, or a failing __str__
        template = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        return f"{template[:_TEMPLATE_CHARACTERS]} ({type(error).__name__} in its arguments)"
