"""Finds the container of each process by /proc/<pid>/cgroup; the start time in stat reveals a reused PID.

No other source is used: workloads can forge environment, mounts and host name.
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

_GONE = Origin(result=LookupResult.GONE)
THREADS_OF_A_PROCESS: Final = 64
THREADS_OF_A_SAMPLE: Final = 1024
"""Maximum of threads to read per process, and per sample, for processes whose main thread has exited. A
tenant may have 30,000 threads; reading one takes about 20 µs."""
_MOST_BYTES: Final = 1 << 16  # 13 hierarchies with paths of PATH_MAX
_PID_MOST: Final = 1 << 22  # the kernel's PID_MAX_LIMIT
_EXITING: Final = 0x4  # PF_EXITING in the kernel's task flags
_HIDDEN_EVIDENCE_BYTES: Final = 1 << 30


class _Denied(Exception):
    """A file of a process is not readable or malformed; the message has the details."""


@dataclass(frozen=True, slots=True)
class _Stat:
    """Relevant fields of /proc/<pid>/stat."""

    start: str
    """Field 22, in ticks since boot."""
    name: str
    is_exiting: bool = field(compare=False)


class Processes:
    """Looks up the processes of a reading, and remembers living ones. Not thread-safe.

    The result for a process is valid until the process ends or executes another program. Only root on the
    host could move a living process to another pod's cgroup.

    A process that is missing in /proc, or whose cgroup is hidden while it exits, may just have ended; in one
    sample that is no problem. If the driver lists the process again in the next sample, the process has not
    ended, and its owner counts as unknown (`proc-denied`).
    """

    def __init__(self, *, proc_root: Path) -> None:
        self._proc_root = proc_root
        self._root = str(proc_root)
        self._known: dict[int, tuple[_Stat, Origin]] = {}
        self._unplaced: frozenset[int] = frozenset()
        self._threads_left = 0

    def look_up(self, reading: GpuReading) -> tuple[dict[int, Origin], tuple[Problem, ...]]:
        """Return the origin of every process of the reading, and the problems of the look-up."""
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
                        origins[pid] = Origin(result=LookupResult.DENIED)
                        reasons[pid] = str(error)
                if pid in reasons:
                    denied.append(pid)
            if denied:
                more = f", and {len(set(denied)) - 1} more" if len(set(denied)) > 1 else ""
                problems.append(Problem(Cause.PROC_DENIED, gpu.uuid, f"{reasons[denied[0]]}{more}"))
        self._known = known
        # A process that was denied for this reason stays denied until its owner is found.
        lost = (LookupResult.GONE, LookupResult.DENIED)
        self._unplaced = frozenset(pid for pid, origin in origins.items() if origin.result in lost)
        if self._hides_processes(reading):
            problems.append(
                Problem(
                    Cause.PID_NAMESPACE,
                    detail="the driver lists no process, but a GPU has over 1 GiB in use or does not report"
                    " its memory: the agent must run with hostPID: true",
                )
            )
        return origins, tuple(problems)

    def _place(self, pid: int, known: dict[int, tuple[_Stat, Origin]]) -> Origin:
        """Return the origin; GONE only if the previous sample did not fail for the same process.

        Raises:
            _Denied: the owner is unknown.
        """
        origin = self._find(pid, known)
        if origin.result is LookupResult.GONE and pid in self._unplaced:
            raise _Denied(f"the driver lists process {pid}, but {self._root} does not show its owner")
        return origin

    def _find(self, pid: int, known: dict[int, tuple[_Stat, Origin]]) -> Origin:
        if not 0 < pid <= _PID_MOST:
            return _GONE
        for _ in range(2):  # again if another process took over the PID in the meantime
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
                origin = _origin(names, name)
                if before.name == after.name:
                    known[pid] = (after, origin)
                return origin
        return _GONE

    def _of_living_thread(self, pid: int) -> CgroupNames | None:
        """Return the cgroup names of a living thread; None if there is no such thread.

        A process whose main thread has exited continues while another thread lives. Only that thread shows
        its cgroup.
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
        """Return the name of the process, from comm or else from stat; stat escapes line breaks."""
        text = self._read(pid, "comm")
        if text is None:
            return stat.name if stat else ""
        return text.removesuffix("\n")

    def _read(self, pid: int | str, name: str) -> str | None:
        """Read a file of a process or thread (`1/task/2`); None if it does not exist.

        Raises:
            _Denied: the file is not readable, or the agent has reached a limit of files or memory.
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
        """Whether a process that /proc does not show is alive. hidepid=2 hides it, but not from signals.

        Works only with /proc of the agent's own PID namespace.
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
            return True  # the process is alive, and belongs to another user
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
        result=LookupResult.CONTAINER if is_contained else LookupResult.HOST,
        pod_uids=names.pod_uids,
        container_id=names.container_id,
        name=name,
    )


def _may_hold_much(gpu: Gpu) -> bool:
    """Whether the GPU must have a process with memory.

    True if neither the GPU nor its MIG devices report their memory.
    """
    if gpu.used_bytes is not None:
        return gpu.used_bytes > _HIDDEN_EVIDENCE_BYTES
    parts = [part.used_bytes for part in gpu.instances]
    return (not parts and not gpu.mig) or any(used is None or used > _HIDDEN_EVIDENCE_BYTES for used in parts)


def _processes_of(gpu: Gpu) -> Iterator[GpuProcess]:
    yield from gpu.processes or ()
    for instance in gpu.instances:
        yield from instance.processes or ()
