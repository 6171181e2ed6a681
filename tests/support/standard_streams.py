"""Log lines in memory, failing descriptors, and processes with such standard streams."""

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.markers import nightly

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 20.0

NOT_READ = "stderr is a full pipe that is not read"
READER_GONE = "stderr is a pipe without a reader"
STREAMS = (NOT_READ, READER_GONE, "2>/dev/full", "2>&-", ">&-", ">/dev/full", ">&- 2>&- <&-")
"""Standard streams of a process: a redirection of the shell, or the state of a pipe on standard error."""

SERVED = [
    streams if streams in (NOT_READ, READER_GONE, STREAMS[-1]) else nightly(streams) for streams in STREAMS
]
"""Rows for a service; the others take the same way through its log, and are nightly."""

LOSING = tuple(streams for streams in STREAMS if "2>" in streams or streams == READER_GONE)
"""Streams that lose every log line."""

FOREIGN = ("socket:", "anon_inode:", "/tmp/")
"""Prefixes of targets that no standard descriptor may have: a connection, asyncio's poll, a file of the
program."""


class Lines:
    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self._lines.append(line)

    @property
    def decoded(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines]


class Reader:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._data = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while data := os.read(self._descriptor, 65536):
            self._data += data

    def rest(self) -> bytes:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        return self._data


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            try:
                os.close(end)
            except OSError:
                continue


def fill(descriptor: int) -> int:
    """Fill a pipe completely; return the number of bytes."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    filled = 0
    for size in (65536, 4096, 1):
        while True:
            try:
                filled += os.write(descriptor, b"\n" * size)
            except BlockingIOError:
                break
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return filled


@contextmanager
def process_with(streams: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python process with one of `STREAMS`; kill it at the end if it still runs."""
    with pipe() as (reading, writing):
        if streams == NOT_READ:
            fill(writing)
        elif streams == READER_GONE:
            os.close(reading)
        is_pipe = streams in (NOT_READ, READER_GONE)
        redirection = "" if is_pipe else streams
        process = subprocess.Popen(
            ["sh", "-c", f'exec "$0" "$@" {redirection}', sys.executable, *arguments], cwd=ROOT,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=writing if is_pipe else subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def standard_descriptors(process: subprocess.Popen[bytes]) -> list[str]:
    return [str(Path(f"/proc/{process.pid}/fd/{number}").readlink()) for number in range(3)]
