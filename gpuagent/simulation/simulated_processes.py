"""Processes of a simulated node: their lifetimes, and a /proc folder with them."""

import shutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuagent.simulation.scenario import FaultKind, Scenario, SimulatedProcess
from gpuagent.simulation.simulated_objects import PodIdentity


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


_TICKS_PER_SECOND: Final = 100
_UP_BEFORE: Final = 1000  # seconds between boot and the start of the simulation


class ProcFolder:
    """A folder of `<pid>/{cgroup,comm,stat}`, with the system's processes 1 and 2."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._written: dict[int, dict[str, str]] = {}

    def update(self, processes: Mapping[int, dict[str, str]], *, second: str = "kthreadd") -> None:
        """Make the folder contain these processes; write only changed files.

        Args:
            processes: the files of each process by PID, from `process_files`.
            second: name of process 2; the kernel's `kthreadd` on a real node.

        Raises:
            OSError: the folder cannot be written. The next update writes the missing files.
        """
        expected = {
            1: process_files(1, "systemd", 0, "0::/init.scope\n"),
            2: process_files(2, second, 0, "0::/\n"),
            **processes,
        }
        for pid in self._written.keys() - expected.keys():
            shutil.rmtree(self._root / str(pid), ignore_errors=True)
            del self._written[pid]
        for pid, files in expected.items():
            if self._written.get(pid) != files:
                folder = self._root / str(pid)
                folder.mkdir(parents=True, exist_ok=True)
                for name, text in files.items():
                    (folder / name).write_text(text, encoding="utf-8")
                self._written[pid] = files


class ProcTree:
    """Keeps a folder of processes at the state of a scenario."""

    def __init__(self, *, root: Path, scenario: Scenario, pods: dict[str, PodIdentity]) -> None:
        self._folder = ProcFolder(root)
        self._pods = pods
        self._lives = lives(scenario)
        self._hiding = [fault for fault in scenario.faults if fault.fault is FaultKind.PID_NAMESPACE]

    def show(self, time: float) -> None:
        """Update the folder to a time; writes only changed files."""
        is_hidden = any(fault.is_at(time) for fault in self._hiding)
        processes = {
            life.pid: process_files(life.pid, life.owner.name, life.start, self._cgroup(life))
            for life in self._lives
            if life.is_at(time) and not is_hidden
        }
        self._folder.update(processes, second="sh" if is_hidden else "kthreadd")

    def _cgroup(self, life: ProcessLifetime) -> str:
        owner = life.owner
        if owner.cgroup:
            return owner.cgroup if owner.cgroup.endswith("\n") else f"{owner.cgroup}\n"
        if not owner.pod:
            return f"0::/system.slice/{owner.name}.service\n"
        pod = self._pods[owner.pod]
        container = pod.containers.get(owner.container) or next(iter(pod.containers.values()), "")
        return pod_cgroup(pod.uid, container)


def pod_cgroup(uid: str, container: str) -> str:
    """Return the cgroup file of a process in a pod's container; without a container ID, of the pod itself."""
    slices = f"/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice"
    return f"0::{slices}/cri-containerd-{container}.scope\n" if container else f"0::{slices}\n"


def process_files(pid: int, name: str, start: float, cgroup: str) -> dict[str, str]:
    """Return the files of a process by name; `start` is in seconds since the simulation began."""
    name = name[:15]  # TASK_COMM_LEN
    ticks = int((_UP_BEFORE + start) * _TICKS_PER_SECOND) if pid > 2 else 1
    after_name = ["S", "1", *["0"] * 17, str(ticks), *["0"] * 30]  # fields 3 to 52; 22 is the start
    return {"cgroup": cgroup, "comm": f"{name}\n", "stat": f"{pid} ({name}) {' '.join(after_name)}\n"}
