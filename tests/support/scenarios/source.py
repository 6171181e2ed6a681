"""A simulated node: GPUs, with a matching /proc folder and pods file."""

import json
import shutil
import tempfile
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuagent.gpus.gpu_reader import DEADLINE_SECONDS, NvmlGpus
from gpuagent.gpus.gpu_reading import GpuReading
from tests.support.nvml_stub.build import ANSWERS, Answers, cached_library, use_library
from tests.support.proc_files import ProcTree, in_pod
from tests.support.scenarios.objects import identity, node_objects
from tests.support.scenarios.scenario import FaultKind, Scenario, SimulatedProcess


@dataclass(frozen=True, slots=True)
class ProcessLifetime:
    pid: int
    start: float
    until: float | None
    owner: SimulatedProcess
    """The process's first entry; all its entries have the same owner."""

    def is_at(self, time: float) -> bool:
        return self.start <= time and (self.until is None or time < self.until)


def lives(scenario: Scenario) -> list[ProcessLifetime]:
    """Return all lifetimes. Entries of one PID and owner form one lifetime if they overlap or adjoin."""
    by_pid: dict[int, list[SimulatedProcess]] = defaultdict(list)
    for process in scenario.processes:
        for pid in range(process.pid, process.pid + process.count):
            by_pid[pid].append(process)
    lifetimes: list[ProcessLifetime] = []
    for pid, entries in by_pid.items():
        last: ProcessLifetime | None = None
        for entry in sorted(entries, key=lambda process: process.start):
            if last is not None and (last.until is None or last.until >= entry.start):
                until = None if last.until is None or entry.until is None else max(last.until, entry.until)
                last = lifetimes[-1] = ProcessLifetime(pid, last.start, until, last.owner)
                continue
            last = ProcessLifetime(pid, entry.start, entry.until, entry)
            lifetimes.append(last)
    return lifetimes


class Lifetimes:
    """Keeps a folder of processes at the state of a scenario."""

    def __init__(self, *, root: Path, scenario: Scenario) -> None:
        self._tree = ProcTree(root)
        self._tree.add(1, "0::/init.scope", name="systemd", start=1)
        self._lives = lives(scenario)
        self._shown: dict[int, ProcessLifetime] = {}
        self._hiding = [fault for fault in scenario.faults if fault.fault is FaultKind.PID_NAMESPACE]

    def show(self, time: float) -> None:
        """Update the folder to a time; writes only changed processes."""
        is_hidden = any(fault.is_at(time) for fault in self._hiding)
        before, self._shown = (
            self._shown,
            {life.pid: life for life in self._lives if life.is_at(time) and not is_hidden},
        )
        for pid in before.keys() - self._shown.keys():
            self._tree.end(pid)
        for pid, life in self._shown.items():
            if before.get(pid) is not life:
                start = int((1000 + life.start) * 100)  # the node has been up for a while
                self._tree.add(pid, self._cgroup(life), start=start, name=life.owner.name[:15])
        self._tree.add(2, "0::/", name="sh" if is_hidden else "kthreadd", start=1)

    def _cgroup(self, life: ProcessLifetime) -> str:
        owner = life.owner
        if not owner.pod:
            return f"0::/system.slice/{owner.name}.service"
        return in_pod(*identity(owner.pod))


class ScenarioGpus(NvmlGpus):
    """A GpuSource that reads a scenario like a driver; the simulation starts with its creation.

    It owns a temporary folder with the files, and removes the folder when it is closed or the process ends.
    """

    is_simulated = True

    def __init__(
        self,
        *,
        scenario: Scenario,
        clock: Callable[[], float] = time.monotonic,
        deadline: float = DEADLINE_SECONDS,
    ) -> None:
        self._time = clock
        self._since = clock()
        folder = Path(tempfile.mkdtemp(prefix="kaishare-simulated-"))
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.node = scenario.node.name
        """Name of the simulated node, used as `--node`."""
        self.proc_root = folder / "proc"
        """A folder in the form of /proc, at the state of the last read."""
        self.pods_file = folder / "pods.json"
        """A v1 List of the node's objects."""
        objects = node_objects(scenario)
        self.pods_file.write_text(
            json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}), encoding="utf-8"
        )
        self._tree = Lifetimes(root=self.proc_root, scenario=scenario)
        self._patch = pytest.MonkeyPatch()
        use_library(cached_library(), self._patch)
        self._library_answers = Answers(folder / "answers", scenario)
        self._patch.setenv(ANSWERS, str(self._library_answers.path))
        self._look()
        super().__init__(clock=clock, deadline=deadline)

    def read(self) -> GpuReading:
        """Update /proc to the current time, and read every GPU."""
        self._look()
        return super().read()

    def close(self) -> None:
        super().close()
        if self.is_hanging:
            return
        self._patch.undo()
        self._remove_folder()

    def _look(self) -> None:
        seconds = self._time() - self._since
        self._tree.show(seconds)
        self._library_answers.show(seconds)
