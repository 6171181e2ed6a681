"""Detects changed files by polling; a mounted ConfigMap or Secret swaps links, which file watchers miss."""

import time
from pathlib import Path
from typing import Final

LOOK_EVERY_SECONDS: Final = 1.0

_SETTLED_NS = 50_000_000
"""Nanoseconds. A file changed more recently may be half written, or change again within the same time stamp,
whose resolution is 4 ms."""

_Look = dict[Path, tuple[int, ...] | str]
"""By file: size, inode and times, or the error of reading them."""


class FileWatch:
    """Watches files, and the files directly inside directories."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen, _ = self._look()

    def changed(self) -> bool:
        """Whether a file has changed since the last call that returned True, or since construction.

        A change of the last 50 ms is reported by a later call, since the file may be half written.
        """
        now, newest = self._look()
        if now == self._seen or 0 <= time.time_ns() - newest < _SETTLED_NS:
            return False
        self._seen = now
        return True

    def is_unchanged(self) -> bool:
        """Whether no file has changed since the last call of `changed` that returned True, even just now.

        Call it after reading the files: a file that was written meanwhile may have been read half written.
        """
        now, _ = self._look()
        return now == self._seen

    def _look(self) -> tuple[_Look, int]:
        """Return the state of the files, and the time of the last change in nanoseconds since 1970."""
        states: _Look = {}
        newest = 0
        for path in self._paths:
            try:
                entries = [path, *path.iterdir()] if path.is_dir() else [path]
            except OSError as error:
                states[path] = str(error)
                continue
            for entry in entries:
                try:
                    status = entry.stat()
                except OSError as error:
                    states[entry] = str(error)
                else:
                    # ctime too: a copy may keep the mtime, and a change of permissions does not set it.
                    newest = max(newest, status.st_ctime_ns)
                    states[entry] = (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        return states, newest
