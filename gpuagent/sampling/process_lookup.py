"""Looks processes up in a thread of its own, with a deadline: reading /proc may hang in the kernel."""

from gpuagent.gpus.calls import CallThread
from gpuagent.gpus.driver import ThreadNotStarted, explained
from gpuagent.gpus.reading import GpuReading
from gpuagent.problems import Cause, Problem
from gpuagent.sampling.processes import Processes, processes_of
from gpuagent.sampling.sample import LookupResult, Origin

Lookup = tuple[dict[int, Origin], tuple[Problem, ...]]
"""Origins by PID, and the problems of the look-up."""

_DENIED = Origin(result=LookupResult.DENIED)


class ProcessLookup:
    """Looks up the processes of a reading.

    Reading /proc/<pid>/cgroup waits for locks that all cgroups of the node share (kernel/cgroup/cgroup.c
    `proc_cgroup_show`). None of the files that are read waits for the process itself, as cmdline and environ
    do. While a look-up is unanswered, or its thread cannot be started, the owner of every process is unknown
    (`proc-denied`), and the figures of the GPUs remain.
    """

    def __init__(self, processes: Processes, *, deadline: float) -> None:
        """Set the seconds in which all processes of a sample must be looked up."""
        self._processes = processes
        self._deadline = deadline
        self._thread = CallThread("proc")

    def look_up(self, reading: GpuReading, *, began: int | None = None) -> Lookup:
        """Look up as `Processes.look_up`."""
        if not self._thread.is_busy:
            try:
                call = self._thread.begin(lambda: self._processes.look_up(reading, began=began))
            except ThreadNotStarted as error:
                return _unanswered(reading, f"/proc: {explained(error)}")
            if call.wait(self._deadline):
                return call.result()
        return _unanswered(
            reading, f"/proc: no answer within {self._deadline:g} s (see hung tasks in the kernel log)"
        )

    def close(self) -> None:
        """End the thread after its last call."""
        self._thread.stop()


def _unanswered(reading: GpuReading, detail: str) -> Lookup:
    problems = []
    origins: dict[int, Origin] = {}
    for gpu in reading.gpus:
        pids = [process.pid for process in processes_of(gpu)]
        if pids:
            problems.append(Problem(Cause.PROC_DENIED, gpu.uuid, detail))
            origins.update(dict.fromkeys(pids, _DENIED))
    return origins, tuple(problems)
