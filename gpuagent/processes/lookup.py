"""PID to container, by the kernel's word: /proc/<pid>/cgroup, guarded by the start time in /proc/<pid>/stat.

Nothing else is asked: environment, mounts and host name are the workload's own to forge.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuagent.gpus.reading import Gpu, GpuProcess, GpuReading
from gpuagent.problems import Cause, Problem
from gpuagent.processes.cgroups import CgroupNames, MalformedCgroup, read_names
from gpuagent.processes.origin import Found, Origin

_GONE = Origin(found=Found.GONE)
_MOST_BYTES: Final = 1 << 16  # 13 hierarchies with paths of PATH_MAX
_PID_MOST: Final = 1 << 22  # PID_MAX_LIMIT of the kernel
_EXITING: Final = 0x4  # PF_EXITING of the kernel's task flags
_HIDDEN_EVIDENCE_BYTES: Final = 1 << 30


class _Denied(Exception):
    """Something of a process may not be read, or not be understood; the text says what."""


@dataclass(frozen=True, slots=True)
class _Stat:
    """What counts of /proc/<pid>/stat."""

    start: str
    """Field 22, in ticks since boot."""
    name: str
    is_exiting: bool = field(compare=False)


class Processes:
    """Looks up the processes of a reading, and remembers those that live on. For one thread only.

    What was found of a process counts until it ends or runs another program: within its lifetime only root
    on the host could move it to another pod's cgroup.
    """

    def __init__(self, *, proc_root: Path) -> None:
        self._proc_root = proc_root
        self._root = str(proc_root)
        self._known: dict[int, tuple[_Stat, Origin]] = {}

    def look_up(self, reading: GpuReading) -> tuple[dict[int, Origin], tuple[Problem, ...]]:
        """Find the origin of every process of the reading, and say what could not be told."""
        origins: dict[int, Origin] = {}
        reasons: dict[int, str] = {}
        known: dict[int, tuple[_Stat, Origin]] = {}
        problems: list[Problem] = []
        for gpu in reading.gpus:
            denied: list[int] = []
            for process in _processes_of(gpu):
                pid = process.pid
                if pid not in origins:
                    try:
                        origins[pid] = self._find(pid, known)
                    except _Denied as error:
                        origins[pid] = Origin(found=Found.DENIED)
                        reasons[pid] = str(error)
                if pid in reasons:
                    denied.append(pid)
            if denied:
                more = f", and {len(set(denied)) - 1} more" if len(set(denied)) > 1 else ""
                problems.append(Problem(Cause.PROC_DENIED, gpu.uuid, f"{reasons[denied[0]]}{more}"))
        self._known = known
        if self._hides_processes(reading):
            problems.append(
                Problem(
                    Cause.PID_NAMESPACE,
                    detail="the driver names no process, yet a GPU holds more than 1 GiB: "
                    "the agent must run with hostPID: true",
                )
            )
        return origins, tuple(problems)

    def _find(self, pid: int, known: dict[int, tuple[_Stat, Origin]]) -> Origin:
        if not 0 < pid <= _PID_MOST:
            return _GONE
        for _ in range(2):  # a second time if the PID went to another process meanwhile
            before = self._stat(pid)
            remembered = self._known.get(pid)
            if before is not None and remembered is not None and remembered[0] == before:
                known[pid] = remembered
                return remembered[1]
            names = self._cgroup(pid)
            if names is None:
                if self._is_hidden(pid):
                    raise _Denied(f"process {pid} is alive, but {self._root} hides it (hidepid)")
                return _GONE
            name = self._comm(pid, before)
            after = self._stat(pid)
            if after is None:
                if before is not None:
                    return _GONE
                return _origin(names, name)
            if before is not None and before.start == after.start:
                if not names.pod_uids and not names.container_id and after.is_exiting:
                    # A cgroup v1 kernel shows an ending process in the root, wherever it was.
                    return _GONE
                found = _origin(names, name)
                if before.name == after.name:
                    known[pid] = (after, found)
                return found
        return _GONE

    def _stat(self, pid: int) -> _Stat | None:
        text = self._read(pid, "stat")
        if text is None:
            return None
        head, closing, tail = text.rpartition(")")
        fields = tail.split(maxsplit=20)
        if not closing or len(fields) < 20 or not fields[6].isdigit():
            raise _Denied(f"{self._root}/{pid}/stat: not of the form <pid> (<name>) <state> and 49 numbers")
        is_exiting = fields[0] in "ZXx" or bool(int(fields[6]) & _EXITING)
        return _Stat(fields[19], head.partition("(")[2], is_exiting)

    def _cgroup(self, pid: int) -> CgroupNames | None:
        text = self._read(pid, "cgroup")
        if text is None:
            return None
        try:
            return read_names(text)
        except MalformedCgroup as error:
            raise _Denied(f"{self._root}/{pid}/cgroup: {error}") from None

    def _comm(self, pid: int, stat: _Stat | None) -> str:
        """Return the name; stat has the same one, with line breaks escaped."""
        text = self._read(pid, "comm")
        if text is None:
            return stat.name if stat else ""
        return text.removesuffix("\n")

    def _read(self, pid: int, name: str) -> str | None:
        """Read a file of a process; None if there is no such process.

        Raises:
            _Denied: it may not be read; also when the agent has no more files or memory to read it with.
        """
        path = f"{self._root}/{pid}/{name}"
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.read(file, _MOST_BYTES)
            finally:
                os.close(file)
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError as error:
            raise _Denied(f"{path}: {error.strerror}") from None
        if len(data) == _MOST_BYTES:
            data = data[: data.rfind(b"\n") + 1]
        return data.decode("utf-8", "replace")

    def _is_hidden(self, pid: int) -> bool:
        """Whether a process that /proc does not show lives: hidepid=2 looks like an end, signals do not.

        Only /proc of the agent's own PID namespace can be asked this way.
        """
        try:
            if str((self._proc_root / "self").readlink()) != str(os.getpid()):
                return False
        except OSError:
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True  # it lives, and is somebody else's
        return True

    def _hides_processes(self, reading: GpuReading) -> bool:
        gpus = reading.gpus
        if not any(gpu.used_bytes > _HIDDEN_EVIDENCE_BYTES for gpu in gpus):
            return False
        lists = [gpu.processes for gpu in gpus] + [part.processes for gpu in gpus for part in gpu.instances]
        if any(processes is None or processes for processes in lists):
            return False
        try:
            return self._comm(2, None) != "kthreadd"
        except _Denied:
            return True


def _origin(names: CgroupNames, name: str) -> Origin:
    is_contained = names.pod_uids or names.container_id
    return Origin(
        found=Found.CONTAINER if is_contained else Found.HOST,
        pod_uids=names.pod_uids,
        container_id=names.container_id,
        name=name,
    )


def _processes_of(gpu: Gpu) -> Iterator[GpuProcess]:
    yield from gpu.processes or ()
    for instance in gpu.instances:
        yield from instance.processes or ()
