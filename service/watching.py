"""Noticing that files changed, by looking: a mounted ConfigMap or Secret swaps links under any watcher."""

from pathlib import Path
from typing import Final

LOOK_EVERY_SECONDS: Final = 1.0

_Fingerprint = tuple[tuple[str, int, int, int] | tuple[str, str], ...]


class Watched:
    """Some files, or the files right inside a directory."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether anything is different from when this was last asked, or made."""
        now = self._look()
        if now == self._seen:
            return False
        self._seen = now
        return True

    def _look(self) -> _Fingerprint:
        found: list[tuple[str, int, int, int] | tuple[str, str]] = []
        for path in self._paths:
            try:
                entries = [path, *sorted(path.iterdir())] if path.is_dir() else [path]
            except OSError as error:
                found.append((str(path), str(error)))
                continue
            for entry in entries:
                try:
                    status = entry.stat()
                except OSError as error:
                    found.append((str(entry), str(error)))
                else:
                    found.append((str(entry), status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)
