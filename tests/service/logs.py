"""Log lines in memory, and descriptors that fail."""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE_SECONDS = 20.0


class Lines:
    """Takes log lines in memory."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []

    def write(self, line: bytes) -> None:
        self._lines.append(line)

    @property
    def decoded(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines]


class Reader:
    """Reads a descriptor in a thread until its end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._data = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while data := os.read(self._descriptor, 65536):
            self._data += data

    def rest(self) -> bytes:
        """Everything, once the other end is closed."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        return self._data


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe's reading and writing end; what is still open is closed."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            try:
                os.close(end)
            except OSError:
                continue
