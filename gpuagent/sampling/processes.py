"""PID to container, by the kernel's word: /proc/<pid>/cgroup, guarded by the start time in /proc/<pid>/stat.

Nothing else is asked: environment, mounts and host name are the workload's own to forge.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from gpuagent.gpus.reading import Gpu, GpuProcess, GpuReading
from gpuagent.problems import Cause, Problem
from gpuagent.sampling.cgroups import CgroupNames, MalformedCgroup, read_names
from gpuagent.sampling.sample import LookupResult, Origin

_GONE = Origin(found=LookupResult.GONE)
THREADS_OF_A_PROCESS: Final = 64
THREADS_OF_A_SAMPLE: Final = 1024
"""How many threads are looked at for the sake of processes whose leader has exited: of each, and in all. A
tenant may have 30,000 of them; a look at one takes some 20 µs."""
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

    A process that is not in /proc, or whose cgroup is hidden since it exits, may just have ended: that is no
    problem in one sample. A process that the driver lists in the next sample, too, has not ended, and if it
    still cannot be placed its owner is unknown (`proc-denied`).
    """

    def __init__(self, *, proc_root: Path) -> None:
        self._proc_root = proc_root
        self._root = str(proc_root)
        self._known: dict[int, tuple[_Stat, Origin]] = {}
        self._unplaced: frozenset[int] = frozenset()
        self._threads_left = 0

    def look_up(self, reading: GpuReading) -> tuple[dict[int, Origin], tuple[Problem, ...]]:
        """Find the origin of every process of the reading, and say what could not be told."""
        origins: dict[int, Origin] = {}
        reasons: dict[int, str] = {}
        known: dict[int, tuple[_Stat, Origin]] = {}
        problems: list[Problem] = []
        self._threads_left = THREADS_OF_A_SAMPLE
        for gpu in reading.gpus:
            denied: list[int] = []
            for process in _processes_of(gpu):
                pid = process.pid
                if pid not in origins:
                    try:
                        origins[pid] = self._place(pid, known)
                    except _Denied as error:
                        origins[pid] = Origin(found=LookupResult.DENIED)
                        reasons[pid] = str(error)
                if pid in reasons:
                    denied.append(pid)
            if denied:
                more = f", and {len(set(denied)) - 1} more" if len(set(denied)) > 1 else ""
                problems.append(Problem(Cause.PROC_DENIED, gpu.uuid, f"{reasons[denied[0]]}{more}"))
        self._known = known
        # A process that was denied for this reason stays so for as long as it cannot be placed.
        lost = (LookupResult.GONE, LookupResult.DENIED)
        self._unplaced = frozenset(pid for pid, origin in origins.items() if origin.found in lost)
        if self._hides_processes(reading):
            problems.append(
                Problem(
                    Cause.PID_NAMESPACE,
                    detail="the driver lists no process, but a GPU has over 1 GiB in use, or hides it: "
                    "the agent must run with hostPID: true",
                )
            )
        return origins, tuple(problems)

    def _place(self, pid: int, known: dict[int, tuple[_Stat, Origin]]) -> Origin:
        """Return the origin; GONE only of a process that the sample before did not fail to place.

        Raises:
            _Denied: the owner is unknown.
        """
        origin = self._find(pid, known)
        if origin.found is LookupResult.GONE and pid in self._unplaced:
            raise _Denied(f"the driver lists process {pid}, but {self._root} does not show its owner")
        return origin

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
                if after.is_exiting and names.hides_exiting and not names.pod_uids:
                    living = self._of_living_thread(pid)
                    if living is None:
                        return _GONE
                    names = living
                    if self._start(pid) != before.start:
                        continue
                found = _origin(names, name)
                if before.name == after.name:
                    known[pid] = (after, found)
                return found
        return _GONE

    def _of_living_thread(self, pid: int) -> CgroupNames | None:
        """Return what the cgroup of a living thread names; None if no thread tells.

        A process whose main thread has exited goes on as long as another thread does; only that shows where
        it runs.
        """
        most = min(THREADS_OF_A_PROCESS, self._threads_left)
        path = f"{self._root}/{pid}/task"
        try:
            with os.scandir(path) as entries:
                threads = [entry.name for entry in islice(entries, most + 1) if entry.name != str(pid)][:most]
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError as error:
            raise _Denied(f"{path}: {error.strerror}") from None
        for thread in threads:
            self._threads_left -= 1
            name = f"{pid}/task/{thread}"
            names = self._cgroup(name)
            if names is None:
                continue
            if names.pod_uids or not names.hides_exiting:
                return names
            stat = self._stat(name)
            if stat is not None and not stat.is_exiting:
                return names
        return None

    def _start(self, pid: int) -> str:
        stat = self._stat(pid)
        return stat.start if stat else ""

    def _stat(self, pid: int | str) -> _Stat | None:
        text = self._read(pid, "stat")
        if text is None:
            return None
        head, closing, tail = text.rpartition(")")
        fields = tail.split(maxsplit=20)
        if not closing or len(fields) < 20 or not fields[6].isdigit():
            raise _Denied(f"{self._root}/{pid}/stat: not of the form <pid> (<name>) <state> and 49 numbers")
        is_exiting = fields[0] in "ZXx" or bool(int(fields[6]) & _EXITING)
        return _Stat(fields[19], head.partition("(")[2], is_exiting)

    def _cgroup(self, pid: int | str) -> CgroupNames | None:
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

    def _read(self, pid: int | str, name: str) -> str | None:
        """Read a file of a process or thread (`1/task/2`); None if there is none such.

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
        if not any(_may_hold_much(gpu) for gpu in gpus):
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
        found=LookupResult.CONTAINER if is_contained else LookupResult.HOST,
        pod_uids=names.pod_uids,
        container_id=names.container_id,
        name=name,
    )


def _may_hold_much(gpu: Gpu) -> bool:
    """Whether a process must hold memory here; in doubt yes, where neither GPU nor MIG devices tell."""
    if gpu.used_bytes is not None:
        return gpu.used_bytes > _HIDDEN_EVIDENCE_BYTES
    parts = [part.used_bytes for part in gpu.instances]
    return (not parts and not gpu.mig) or any(used is None or used > _HIDDEN_EVIDENCE_BYTES for used in parts)


def _processes_of(gpu: Gpu) -> Iterator[GpuProcess]:
    yield from gpu.processes or ()
    for instance in gpu.instances:
        yield from instance.processes or ()
