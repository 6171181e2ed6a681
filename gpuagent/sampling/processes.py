"""Finds the container of each process by its files in /proc, in a thread with a deadline.

A process is a PID; a thread is a path below it, such as `1/task/2`.

No other source is used: workloads can forge environment, mounts and host name.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Final

from msgspec import Struct

from gpuagent.gpus.driver import CallTimedOut, ThreadNotStarted, explained
from gpuagent.gpus.gpu_reading import Gpu, GpuProcess, GpuReading
from gpuagent.gpus.supervised_call import SupervisedCall
from gpuagent.problems import Cause, Problem
from gpuagent.sampling.cgroups import CgroupNames, MalformedCgroup, read_names
from gpuagent.sampling.sample import LookupResult, Origin

_MOST_BYTES: Final = 1 << 16  # 13 hierarchies with paths of PATH_MAX
_EXITING: Final = 0x4  # PF_EXITING in the kernel's task flags
_SETTLED_NANOSECONDS: Final = 1_000_000_000
"""Age from which a file's change time is unique. Time stamps of files are several milliseconds apart, so a
younger file could change once more at the same time stamp."""

FileIdentity = tuple[int, int, int]
"""Device, inode and change time of a file."""


class ProcDenied(Exception):
    """A file of a process is not readable or malformed; the message has the details."""


Program = tuple[bytes, bytes]
"""Start of a process in ticks since boot, as in /proc/<pid>/stat (field 22), and the name of its program.
Another process or program under the same PID is not equal."""


def ticks_since_boot() -> int:
    """Return the time since boot in the unit of a Program's start; it includes the time of suspensions."""
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

    def started_after(self, ticks: int | None) -> bool:
        """Whether the process started after a time in ticks since boot; False if the time is None."""
        start = self.program[0]
        return ticks is not None and start.isdigit() and int(start) > ticks


class ProcFiles:
    """The files below one /proc. `stat` and `cgroup` return None if the process or thread does not exist.

    A method that reads a file raises ProcDenied if the file is not readable or malformed, or if the agent has
    reached a limit of files or memory.
    """

    def __init__(self, root: Path, *, clock: Callable[[], int] = time.time_ns) -> None:
        """Set the root of /proc, and the clock of its files in nanoseconds of Unix time."""
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
        return ProcStat((fields[19], head.partition(b"(")[2]), fields[0], fields[6])

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
            return _decoded(stat.program[1]) if stat else ""
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
            if str(Path(f"{self.root}/self").readlink()) != str(os.getpid()):
                return False
        except OSError:
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # the process is alive, and belongs to another user
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


_GONE, _DENIED = Origin(result=LookupResult.GONE), Origin(result=LookupResult.DENIED)
THREADS_OF_A_PROCESS: Final = 64
THREADS_OF_A_SAMPLE: Final = 1024
"""Maximum of threads to read per process, and per sample, for processes whose main thread has exited. A
tenant may have 30,000 threads; reading one takes about 20 µs."""
_PID_MOST: Final = 1 << 22  # the kernel's PID_MAX_LIMIT
_HIDDEN_EVIDENCE_BYTES: Final = 1 << 30
_HIDDEN: Final = (
    "the driver lists no process, but a GPU has over 1 GiB in use or does not report its memory:"
    " the agent must run with hostPID: true"
)
_SAMPLES_PER_READ: Final = 12
"""Samples after which stat is read again, since an exec does not change the identity of the file."""


class _KnownProcess(Struct, frozen=True, gc=False):
    """A process whose origin is known."""

    program: Program
    origin: Origin
    file: FileIdentity | None = None
    """The stat file before it was last read; None if unknown."""


class Processes:
    """Looks up the processes of a reading, and remembers living ones. Not thread-safe.

    The result for a process is valid until the process ends or executes another program. Only root on the
    host could move a living process to another pod's cgroup.

    The stat file of a process in a pod is read in every twelfth sample only, and whenever its identity has
    changed, which shows the end of the process. Reading it each time would take three times as long, since
    the kernel then adds up the times of all threads. The program of such a process serves only to recognise
    an MPS server. Other processes are read each time: a runtime's child executes the container's program
    after its move to the pod's cgroup.

    A process that is missing in /proc, or whose cgroup is hidden while it exits, may just have ended; in one
    sample that is no problem. If the driver lists the process again in the next sample, the process has not
    ended, and its owner counts as unknown (`proc-denied`).
    """

    def __init__(self, *, proc_root: Path, clock: Callable[[], int] = time.time_ns) -> None:
        self._files = ProcFiles(proc_root, clock=clock)
        self._known: dict[int, _KnownProcess] = {}
        self._samples = 0
        self._unplaced: frozenset[int] = frozenset()
        self._threads_left = 0
        self._began: int | None = None

    def look_up(
        self, reading: GpuReading, *, began: int | None = None
    ) -> tuple[dict[int, Origin], tuple[Problem, ...]]:
        """Return the origin of every process of the reading, and the problems of the look-up.

        `began` is the start of the reading in ticks since boot. A process that started later may not be the
        one that the driver listed under its PID, and counts as gone in this sample. None to accept all.
        """
        origins: dict[int, Origin] = {}
        reasons: dict[int, str] = {}
        known: dict[int, _KnownProcess] = {}
        problems: list[Problem] = []
        self._samples += 1
        self._began = began
        self._files.begin_sample()
        self._threads_left = THREADS_OF_A_SAMPLE
        for gpu in reading.gpus:
            pids = dict.fromkeys(process.pid for process in processes_of(gpu))
            for pid in pids:
                if pid in origins:
                    continue
                try:
                    unchanged = self._unchanged(pid)
                    if unchanged is not None:
                        known[pid] = unchanged
                        origins[pid] = unchanged.origin
                    else:
                        origins[pid] = self._place(pid, known)
                except ProcDenied as error:
                    origins[pid] = _DENIED
                    reasons[pid] = str(error)
            if denied := [pid for pid in pids if pid in reasons] if reasons else []:
                more = f", and {len(denied) - 1} more" if len(denied) > 1 else ""
                problems.append(Problem(Cause.PROC_DENIED, gpu.uuid, f"{reasons[denied[0]]}{more}"))
        self._known = known
        # A process that was denied for this reason stays denied until its owner is found.
        lost = (LookupResult.GONE, LookupResult.DENIED)
        self._unplaced = frozenset(pid for pid, origin in origins.items() if origin.result in lost)
        if self._hides_processes(reading):
            problems.append(Problem(Cause.PID_NAMESPACE, "", _HIDDEN))
        return origins, tuple(problems)

    def _place(self, pid: int, known: dict[int, _KnownProcess]) -> Origin:
        """Return the origin; raise ProcDenied if it is unknown, as for a process that is GONE twice."""
        origin = self._find(pid, known)
        if origin.result is LookupResult.GONE and pid in self._unplaced:
            raise ProcDenied(
                f"the driver lists process {pid}, but {self._files.root} does not show its owner"
            )
        return origin

    def _find(self, pid: int, known: dict[int, _KnownProcess]) -> Origin:
        for _ in range(2 if 0 < pid <= _PID_MOST else 0):  # again if another process took over the PID
            before = self._files.stat(pid)
            names = self._files.cgroup(pid)
            if names is None:
                if self._files.hides(pid):
                    raise ProcDenied(f"process {pid} is alive, but {self._files.root} hides it (hidepid)")
                return _GONE
            name = self._files.name(pid, before)
            after = self._files.stat(pid)
            if after is None:
                return _origin(names, name) if before is None else _GONE
            if after.started_after(self._began):
                return _GONE
            if before is None or before.program[0] != after.program[0]:
                continue
            if after.is_exiting and names.hides_exiting and not names.pod_uids:
                living = self._of_living_thread(pid)
                if living is None:
                    return _GONE
                names = living
                now = self._files.stat(pid)
                if now is None or now.program[0] != before.program[0]:
                    continue
            origin = _origin(names, name)
            if before.program == after.program:
                known[pid] = _KnownProcess(after.program, origin)
            return origin
        return _GONE

    def _unchanged(self, pid: int) -> _KnownProcess | None:
        """Return the known process with this PID; None if the PID has none, or another one now."""
        known = self._known.get(pid)
        if known is None:
            return None
        file = self._files.identity(pid)
        is_read_due = (pid + self._samples) % _SAMPLES_PER_READ == 0
        if known.origin.pod_uids and file is not None and file == known.file and not is_read_due:
            return known
        stat = self._files.stat(pid)
        if stat is None or stat.program != known.program:
            return None
        return _KnownProcess(known.program, known.origin, file)

    def _of_living_thread(self, pid: int) -> CgroupNames | None:
        """Return the cgroup names of a living thread, which alone shows them after the main thread's exit."""
        most = min(THREADS_OF_A_PROCESS, self._threads_left)
        for thread in self._files.threads(pid, most):
            self._threads_left -= 1
            names = self._files.cgroup(thread)
            if names is None:
                continue
            if names.pod_uids or not names.hides_exiting:
                return names
            stat = self._files.stat(thread)
            if stat is not None and not stat.is_exiting:
                return names
        return None

    def _hides_processes(self, reading: GpuReading) -> bool:
        if not any(map(_may_hold_much, reading.gpus)):
            return False
        lists = [gpu.processes for gpu in reading.gpus]
        lists += [part.processes for gpu in reading.gpus for part in gpu.instances]
        if any(processes is None or processes for processes in lists):
            return False
        try:
            return self._files.name(2, None) != "kthreadd"
        except ProcDenied:
            return True


def _origin(names: CgroupNames, name: str) -> Origin:
    is_contained = names.pod_uids or names.container_id
    return Origin(
        result=LookupResult.CONTAINER if is_contained else LookupResult.HOST,
        pod_uids=names.pod_uids,
        container_id=names.container_id,
        name=name,
        container_path=sys.intern(names.container_path),  # the processes of a container share one
    )


def _may_hold_much(gpu: Gpu) -> bool:
    """Whether the GPU must have a process with memory.

    True if neither the GPU nor its MIG devices report their memory.
    """
    if gpu.used_bytes is not None:
        return gpu.used_bytes > _HIDDEN_EVIDENCE_BYTES
    parts = [part.used_bytes for part in gpu.instances]
    return (not parts and not gpu.mig) or any(used is None or used > _HIDDEN_EVIDENCE_BYTES for used in parts)


def processes_of(gpu: Gpu) -> Iterable[GpuProcess]:
    """Return every process on a GPU, including those on its MIG devices."""
    if not gpu.instances:
        return gpu.processes or ()
    lists = [gpu.processes, *(instance.processes for instance in gpu.instances)]
    return chain.from_iterable(processes or () for processes in lists)


Lookup = tuple[dict[int, Origin], tuple[Problem, ...]]
"""Origins by PID, and the problems of the look-up."""


class ProcessLookup:
    """Looks up the processes of a reading.

    Reading /proc/<pid>/cgroup waits for locks that all cgroups of the node share (kernel/cgroup/cgroup.c
    `proc_cgroup_show`). None of the files that are read waits for the process itself, as cmdline and environ
    do. While a look-up is unanswered, or its thread cannot be started, the owner of every process is unknown
    (`proc-denied`), and the figures of the GPUs remain.
    """

    def __init__(self, look_up: Callable[..., Lookup], *, deadline: float) -> None:
        """Set the look-up, such as `Processes.look_up`, and the seconds that it may take."""
        self._look_up = look_up
        self._call: SupervisedCall[Lookup] = SupervisedCall("proc", deadline=deadline)

    def look_up(self, reading: GpuReading, *, began: int | None = None) -> Lookup:
        """Look up as `Processes.look_up`."""
        try:
            return self._call.result(partial(self._look_up, reading, began=began))
        except ThreadNotStarted as error:
            return _unanswered(reading, f"/proc: {explained(error)}")
        except CallTimedOut as error:
            return _unanswered(reading, f"/proc: {error} (see hung tasks in the kernel log)")

    def close(self) -> None:
        """End the thread after its last call."""
        self._call.stop()


def _unanswered(reading: GpuReading, detail: str) -> Lookup:
    problems = []
    origins: dict[int, Origin] = {}
    for gpu in reading.gpus:
        pids = [process.pid for process in processes_of(gpu)]
        if pids:
            problems.append(Problem(Cause.PROC_DENIED, gpu.uuid, detail))
            origins.update(dict.fromkeys(pids, _DENIED))
    return origins, tuple(problems)
