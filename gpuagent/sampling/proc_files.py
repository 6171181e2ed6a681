"""Reads the files of a process or thread in /proc: cgroup, comm, stat, and the identity of stat.

A process is a PID; a thread is a path below it, such as `1/task/2`.
"""

import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from msgspec import Struct

from gpuagent.sampling.cgroups import CgroupNames, MalformedCgroup, read_names

_MOST_BYTES: Final = 1 << 16  # 13 hierarchies with paths of PATH_MAX
_EXITING: Final = 0x4  # PF_EXITING in the kernel's task flags
_SETTLED_NANOSECONDS: Final = 1_000_000_000
"""Age from which a file's change time is unique. Time stamps of files are several milliseconds apart, so a
younger file could change once more at the same time stamp."""

FileIdentity = tuple[int, int, int]
"""Device, inode and change time of a file."""


class ProcDenied(Exception):
    """A file of a process is not readable or malformed; the message has the details."""


class Program(Struct, frozen=True, gc=False):
    """A program that a process executes. Another process or program under the same PID is not equal."""

    start: bytes
    """Start of the process in ticks since boot, as in /proc/<pid>/stat (field 22)."""
    name: bytes

    def started_after(self, ticks: int | None) -> bool:
        """Whether the process started after a time in ticks since boot; False if the time is None."""
        return ticks is not None and self.start.isdigit() and int(self.start) > ticks


def ticks_since_boot() -> int:
    """Return the time since boot in the unit of `Program.start`; it includes the time of suspensions."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


class ProcStat(Struct, frozen=True, gc=False):
    """Relevant fields of /proc/<pid>/stat, in the form of the file."""

    program: Program
    state: bytes
    flags: bytes

    @property
    def is_exiting(self) -> bool:
        """Whether the main thread of the process exits or has exited."""
        return self.state in b"ZXx" or bool(int(self.flags) & _EXITING)


class ProcFiles:
    """The files below one /proc. `stat` and `cgroup` return None if the process or thread does not exist.

    A method that reads a file raises ProcDenied if the file is not readable or malformed, or if the agent has
    reached a limit of files or memory.
    """

    def __init__(self, root: Path, *, clock: Callable[[], int] = time.time_ns) -> None:
        """Set the root of /proc, and the clock of its files in nanoseconds of Unix time."""
        self._root_path = root
        self.root = str(root)
        self._clock = clock
        self._settled_before = 0

    def begin_sample(self) -> None:
        """Read the clock. A file is settled or not for a whole sample."""
        self._settled_before = self._clock() - _SETTLED_NANOSECONDS

    def identity(self, pid: int) -> FileIdentity | None:
        """Return the identity of the stat file; None if it is unknown, or may still change unnoticed.

        Two processes with the same PID have different identities: Linux takes the inode number of each
        process from a counter (fs/proc/base.c `proc_pid_make_inode`; seen with 40 processes that had one PID
        after the other, Linux 6.18). An exec does not change the identity.
        """
        try:
            status = os.stat(f"{self.root}/{pid}/stat")  # noqa: PTH116 - a Path takes three times as long
        except OSError:
            return None
        changed_at = status.st_ctime_ns
        return (status.st_dev, status.st_ino, changed_at) if changed_at < self._settled_before else None

    def stat(self, pid: int | str) -> ProcStat | None:
        """Return the fields of stat."""
        data = self._read(pid, "stat")
        if data is None:
            return None
        head, closing, tail = data.rpartition(b")")
        fields = tail.split(maxsplit=20)
        if not closing or len(fields) < 20 or not fields[6].isdigit():
            raise ProcDenied(f"{self.root}/{pid}/stat: not of the form <pid> (<name>) <state> and 49 numbers")
        return ProcStat(Program(fields[19], head.partition(b"(")[2]), fields[0], fields[6])

    def cgroup(self, pid: int | str) -> CgroupNames | None:
        """Return the pods and the container that cgroup names."""
        data = self._read(pid, "cgroup")
        if data is None:
            return None
        try:
            return read_names(_decoded(data))
        except MalformedCgroup as error:
            raise ProcDenied(f"{self.root}/{pid}/cgroup: {error}") from None

    def name(self, pid: int, stat: ProcStat | None) -> str:
        """Return the name from comm or else from stat, which escapes line breaks; empty without both."""
        data = self._read(pid, "comm")
        if data is None:
            return _decoded(stat.program.name) if stat else ""
        return _decoded(data).removesuffix("\n")

    def threads(self, pid: int, most: int) -> list[str]:
        """Return at most so many threads of a process, without its main thread."""
        path = f"{self.root}/{pid}/task"
        try:
            with os.scandir(path) as entries:
                names = [entry.name for entry in islice(entries, most + 1) if entry.name != str(pid)]
        except (FileNotFoundError, ProcessLookupError):
            return []
        except OSError as error:
            raise ProcDenied(f"{path}: {error.strerror}") from None
        return [f"{pid}/task/{name}" for name in names[:most]]

    def hides(self, pid: int) -> bool:
        """Whether a process that /proc does not show is alive. hidepid=2 hides it, but not from signals.

        Works only with /proc of the agent's own PID namespace.
        """
        try:
            if str((self._root_path / "self").readlink()) != str(os.getpid()):
                return False
        except OSError:
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True  # the process is alive, and belongs to another user
        return True

    def _read(self, pid: int | str, name: str) -> bytes | None:
        path = f"{self.root}/{pid}/{name}"
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.read(file, _MOST_BYTES)
            finally:
                os.close(file)
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError as error:
            raise ProcDenied(f"{path}: {error.strerror}") from None
        if len(data) == _MOST_BYTES:
            return data[: data.rfind(b"\n") + 1]
        return data


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")
