"""Cgroups of pods in the kernel of this machine, with the names that systemd and containerd give them."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.proc_files import in_pod

_WITHOUT_SETTINGS: Final = ("name=systemd", "memory", "pids")
"""Hierarchies of cgroup v1 that take a process without further settings."""


class PodCgroups:
    """The cgroups of some pods. Creating them needs root and a writable hierarchy."""

    def __init__(self) -> None:
        self._roots = [root for root in _hierarchies() if _is_writable(root)]
        self._folders: set[Path] = set()

    @property
    def are_possible(self) -> bool:
        return bool(self._roots)

    def move(self, pid: int, uid: str, container: str = "0f" * 32) -> None:
        self._move(pid, Path(in_pod(uid, container).partition("::/")[2]))

    def move_to_child(self, pid: int, uid: str, name: str, container: str = "0f" * 32) -> None:
        """Move a process of a pod into a cgroup that a tenant creates below the container's."""
        self._move(pid, Path(in_pod(uid, container).partition("::/")[2], name))

    def _move(self, pid: int, path: Path) -> None:
        for root in self._roots:
            (root / path).mkdir(parents=True, exist_ok=True)
            self._folders |= {root / parent for parent in (path, *path.parents) if parent.name}
            (root / path / "cgroup.procs").write_text(f"{pid}\n")

    def remove(self) -> None:
        """Remove the cgroups, innermost first; their processes must have ended."""
        for folder in sorted(self._folders, key=lambda path: len(path.parts), reverse=True):
            for _ in range(50):  # the kernel lets go of an ended process a moment later
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.02)
                else:
                    break


@contextlib.contextmanager
def pod_cgroups() -> Iterator[PodCgroups]:
    """Yield the cgroups; remove them at the end."""
    made = PodCgroups()
    try:
        yield made
    finally:
        made.remove()


def _hierarchies() -> Iterator[Path]:
    """Yield the mount points of cgroup v2, and of those of v1 that need no settings."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        if kind == "cgroup2" or (
            kind == "cgroup" and any(name in options.split(",") for name in _WITHOUT_SETTINGS)
        ):
            yield Path(mount.split(" ")[4])


def _is_writable(root: Path) -> bool:
    probe = root / "kaishare-probe"
    try:
        probe.mkdir(exist_ok=True)
        probe.rmdir()
    except OSError:
        return False
    return True
