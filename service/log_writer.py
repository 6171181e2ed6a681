"""Writes log lines from a thread with a bounded queue, and captures the messages of libraries."""

import logging
import os
import select
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Final

from service.log import ERROR, INFO, WARNING, JsonLog, LimitedLog, encode_line

QUEUE_BYTES: Final = 1024 * 1024
QUEUE_LINES: Final = 8192
_PAUSE_SECONDS: Final = 0.02


class LogWriter:
    """Writes whole lines in order from a thread; callers never block.

    Lines beyond the queue's limits are dropped, and so are lines that cannot be written, because the reader
    is gone or the disk is full. The line `log lines lost` has their count once writing works again.

    A single line is written immediately. Under load the thread writes the lines of 20 ms together, because
    each wake-up takes Python's global lock from the thread that serves requests.

    The thread calls `os.write` instead of using `sys.stderr`: the interpreter aborts at exit if a daemon
    thread holds the lock of that buffer. The descriptor stays blocking, since other processes share it.
    """

    def __init__(
        self, descriptor: int, *, queue_bytes: int = QUEUE_BYTES, queue_lines: int = QUEUE_LINES
    ) -> None:
        self._descriptor = descriptor
        self._queue_bytes = queue_bytes
        self._queue_lines = queue_lines
        # Re-entrant lock and queue: a destructor may log while its thread is in `write`.
        self._lock = threading.RLock()
        self._queue: SimpleQueue[bytes] = SimpleQueue()  # lines, and an empty one at the end
        self._lines = 0
        self._bytes = 0
        self._is_closed = False
        self._lines_lost = 0
        self._lines_reported = 0
        self._is_torn = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    @property
    def lines_lost(self) -> int:
        """Number of lines that were dropped or could not be written."""
        return self._lines_lost

    def write(self, line: bytes) -> None:
        """Queue a line, whose only newline is its last byte; drop and count it if the queue is full."""
        with self._lock:
            fits = self._lines < self._queue_lines and self._bytes + len(line) <= self._queue_bytes
            if not fits or self._is_closed:
                self._lines_lost += 1
                return
            self._lines += 1
            self._bytes += len(line)
            self._queue.put(line)

    def close(self, seconds: float) -> bool:
        """Accept no more lines, and wait until the queued lines are written; False if that takes too long."""
        with self._lock:
            self._is_closed = True
            self._queue.put(b"")
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        is_open = True
        while is_open:
            lines = [self._queue.get()]
            lines += [self._queue.get() for _ in range(self._queue.qsize())]
            is_open = b"" not in lines
            if not is_open:
                lines.remove(b"")
            lost = len(lines) - self._write_lines(lines) if lines else 0
            with self._lock:
                self._lines -= len(lines)
                self._bytes -= sum(map(len, lines))
                self._lines_lost += lost
            if not lost and self._lines_lost > self._lines_reported:
                self._write_lines(())  # report the losses now; the next line may be far away
            if is_open:
                time.sleep(_PAUSE_SECONDS)

    def _write_lines(self, lines: Sequence[bytes]) -> int:
        """Write lines, preceded by a notice of lost ones; return the number of completely written lines."""
        unreported = self._lines_lost - self._lines_reported
        notice = encode_line("log lines lost", WARNING, {"count": unreported}, now=time.time())
        data = b"".join((notice, *lines) if unreported else lines)
        if self._is_torn:
            data = b"\n" + data
        sent = data[: _write(self._descriptor, data)]
        if not sent:
            return 0
        whole = sent.count(b"\n") - self._is_torn
        self._is_torn = not sent.endswith(b"\n")
        if unreported and whole:
            self._lines_reported += unreported
            whole -= 1
        return whole


def _write(descriptor: int, data: bytes) -> int:
    """Write all data; return the number of bytes written, fewer after an error."""
    written = 0
    while written < len(data):
        try:
            written += os.write(descriptor, memoryview(data)[written:])
        except BlockingIOError:  # another process has put the shared descriptor into non-blocking mode
            select.select((), (descriptor,), ())
        except OSError:
            break
    return written


CLOSE_SECONDS: Final = 1.0  # longest wait for the last lines when the process ends

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
    """Open a service's log on standard error, from a least severe level on, and flush it at the end.

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
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, _STANDARD_ERROR)
            os.close(null)


@contextmanager
def _captured_interpreter(log: JsonLog) -> Iterator[None]:
    """Log the messages that the interpreter would print to standard error, which may block."""

    def on_thread(arguments: threading.ExceptHookArgs) -> None:
        if issubclass(arguments.exc_type, SystemExit):  # a normal end, as for threading.excepthook
            return
        name = arguments.thread.name if arguments.thread else ""
        _log_exception(log, "thread ended with an exception", arguments, thread=name)

    def on_unraisable(arguments: "sys.UnraisableHookArgs") -> None:
        source = arguments.object  # Python 3.14 names a destructor in `err_msg` only
        name = arguments.err_msg if source is None else type(source).__name__
        where = getattr(source, "__qualname__", name)
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


def _message_of(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - wrong arguments for the template, or a failing __str__
        template = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        return f"{template[:_TEMPLATE_CHARACTERS]} ({type(error).__name__} in its arguments)"
