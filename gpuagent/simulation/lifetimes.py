"""Lifetimes of the processes of a simulated node."""

from collections import defaultdict
from dataclasses import dataclass

from gpuagent.simulation.scenario import Scenario, SimulatedProcess


class Contradiction(ValueError):
    """Two entries of a scenario contradict each other."""


@dataclass(frozen=True, slots=True)
class ProcessLifetime:
    """Start and end of one process, over all its GPUs."""

    pid: int
    start: float
    until: float | None
    owner: SimulatedProcess
    """The process's first entry; all its entries have the same owner."""

    def is_at(self, time: float) -> bool:
        """Whether the process is alive at a time."""
        return self.start <= time and (self.until is None or time < self.until)


def lives(scenario: Scenario) -> list[ProcessLifetime]:
    """Return all lifetimes. Entries of one PID and owner form one lifetime if they overlap or adjoin.

    Raises:
        Contradiction: one PID has two owners at a time, or is on one GPU twice.
    """
    by_pid: dict[int, list[SimulatedProcess]] = defaultdict(list)
    for process in scenario.processes:
        for pid in range(process.pid, process.pid + process.count):
            by_pid[pid].append(process)
    lifetimes: list[ProcessLifetime] = []
    for pid, entries in by_pid.items():
        ends: dict[int | str, float | None] = {}
        last: ProcessLifetime | None = None
        for entry in sorted(entries, key=lambda process: process.start):
            if entry.gpu in ends and _reaches(ends[entry.gpu], entry.start):
                raise Contradiction(
                    f"PID {pid} is on GPU {entry.gpu} twice at second {entry.start:g};"
                    " kinds of one process are joined, as in compute+graphics"
                )
            ends[entry.gpu] = entry.until
            if (
                last is not None
                and _is_same_owner(last.owner, entry)
                and (_reaches(last.until, entry.start) or last.until == entry.start)
            ):
                until = None if last.until is None or entry.until is None else max(last.until, entry.until)
                last = lifetimes[-1] = ProcessLifetime(pid, last.start, until, last.owner)
                continue
            if last is not None and _reaches(last.until, entry.start):
                raise Contradiction(f"PID {pid} belongs to two owners at second {entry.start:g}")
            last = ProcessLifetime(pid, entry.start, entry.until, entry)
            lifetimes.append(last)
    return lifetimes


def _reaches(until: float | None, time: float) -> bool:
    return until is None or until > time


def _is_same_owner(first: SimulatedProcess, second: SimulatedProcess) -> bool:
    return (first.pod, first.container, first.name, first.cgroup) == (
        second.pod,
        second.container,
        second.name,
        second.cgroup,
    )
