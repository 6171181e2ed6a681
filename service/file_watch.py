"""Noticing that files changed, by looking: a mounted ConfigMap or Secret swaps links under any watcher."""

import time
from pathlib import Path
from typing import Final

LOOK_EVERY_SECONDS: Final = 1.0

_SETTLED_NS = 50_000_000
"""What was written less than this ago may be half written, or change again under the same time stamp (those
tick every 4 ms)."""

_Look = dict[Path, tuple[int, ...] | str]
"""Of each file its size, inode and times; or why there are none."""


class FileWatch:
    """Some files, or the files right inside a directory."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen, _ = self._look()

    def changed(self) -> bool:
        """Whether anything is different from when this last said so, or was made.

        What is being written at this moment is said at the next look.
        """
        now, newest = self._look()
        if now == self._seen or 0 <= time.time_ns() - newest < _SETTLED_NS:
            return False
        self._seen = now
        return True

    def _look(self) -> tuple[_Look, int]:
        """What the files are like, and when the newest of them changed, in nanoseconds."""
        found: _Look = {}
        newest = 0
        for path in self._paths:
            try:
                entries = [path, *path.iterdir()] if path.is_dir() else [path]
            except OSError as error:
                found[path] = str(error)
                continue
            for entry in entries:
                try:
                    status = entry.stat()
                except OSError as error:
                    found[entry] = str(error)
                else:
                    # Not the time of writing alone: copies keep that, and permissions do not touch it.
                    newest = max(newest, status.st_ctime_ns)
                    found[entry] = (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        return found, newest
