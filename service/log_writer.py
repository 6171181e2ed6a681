"""Writes log lines to a file descriptor from a thread with a bounded queue."""

import os
import select
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Final

from service.log_line import WARNING, encode_line

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
        self._queue: SimpleQueue[bytes] = SimpleQueue()
        """Lines, and an empty one at the end."""
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
        """Accept no more lines, and wait until the queued lines are written or lost.

        Returns:
            False if the wait exceeds `seconds`, because a write blocks.
        """
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
        parts = [_notice(unreported), *lines] if unreported else lines
        data = b"".join(parts)
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


def _notice(count: int) -> bytes:
    return encode_line("log lines lost", WARNING, {"count": count}, now=time.time())
