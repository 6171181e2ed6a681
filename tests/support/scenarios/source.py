"""A simulated node: GPUs by the simulated library of the driver, with a matching /proc folder and pods file."""

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

from gpuagent.gpus.gpu_reader import DEADLINE_SECONDS
from gpuagent.gpus.gpu_reading import GpuReading
from gpuagent.gpus.nvml import NvmlGpus
from gpuagent.simulation.simulated_gpus import ProcFolder, pod_cgroup, process_files
from tests.support.nvml_stub.build import ANSWERS, Answers, cached_library, use_library
from tests.support.scenarios.objects import PodIdentity, node_objects, pod_identities
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
        for pid in process.pids:
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


class ScenarioGpus(NvmlGpus):
    """A GpuSource on a scenario, which starts with its creation; there is one at a time in a process.

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
        self._stub_clock = clock
        self._stub_since = clock()
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
        self.proc_root.mkdir()
        self._stub_tree = ProcTree(root=self.proc_root, scenario=scenario, pods=pod_identities(objects))
        self._stub = Answers(folder / "answers", scenario)
        self._stub_patch = pytest.MonkeyPatch()
        use_library(cached_library("-DWITHOUT_LIMITS"), self._stub_patch)
        self._stub_patch.setenv(ANSWERS, str(self._stub.path))
        self._show_now()
        super().__init__(clock=clock, deadline=deadline)

    def read(self) -> GpuReading:
        """Update the files to the current time, and read every GPU."""
        self._show_now()
        return super().read()

    def close(self) -> None:
        super().close()
        self._stub_patch.undo()
        self._remove_folder()

    def _show_now(self) -> None:
        seconds = self._stub_clock() - self._stub_since
        self._stub_tree.show(seconds)
        self._stub.show(seconds)
