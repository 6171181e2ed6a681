"""A simulated node: GPUs by the simulated library of the driver, with a matching /proc folder and pods file."""

import json
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuagent.gpus.gpu_reader import DEADLINE_SECONDS
from gpuagent.gpus.gpu_reading import GpuReading
from gpuagent.gpus.nvml import NvmlGpus
from gpuagent.simulation.simulated_gpus import ProcFolder, pod_cgroup, process_files
from tests.support.nvml_stub.build import ANSWERS, Answers, cached_library, use_library
from tests.support.scenarios.objects import PodIdentity, node_objects, pod_identities
from tests.support.scenarios.scenario import FaultKind, Scenario, SimulatedProcess


class ProcTree:
    """Keeps a folder of processes at the state of a scenario."""

    def __init__(self, *, root: Path, scenario: Scenario, pods: dict[str, PodIdentity]) -> None:
        self._folder = ProcFolder(root)
        self._pods = pods
        self._scenario = scenario

    def show(self, time: float) -> None:
        kinds = {fault.fault for fault in self._scenario.faults if fault.is_at(time)}
        is_hidden = FaultKind.PID_NAMESPACE in kinds
        processes: dict[int, tuple[str, ...]] = {}
        for process in () if is_hidden else self._scenario.processes:
            for pid in process.pids if process.is_at(time) else ():
                if pid not in processes:
                    processes[pid] = process_files(pid, process.name, process.start, self._cgroup(process))
        self._folder.update(processes, second="sh" if is_hidden else "kthreadd")

    def _cgroup(self, process: SimulatedProcess) -> str:
        if process.cgroup:
            return process.cgroup if process.cgroup.endswith("\n") else f"{process.cgroup}\n"
        if not process.pod:
            return f"0::/system.slice/{process.name}.service\n"
        pod = self._pods[process.pod]
        container = pod.containers.get(process.container) or next(iter(pod.containers.values()), "")
        return pod_cgroup(pod.uid, container)


class ScenarioGpus(NvmlGpus):
    """A GpuSource on a scenario, which starts with its creation; there is one at a time in a process.
    It owns a temporary folder with the files, and removes the folder when it is closed or the process ends."""

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
        self._stub_lock = threading.Lock()
        self._stub_patch = pytest.MonkeyPatch()
        use_library(cached_library("-DWITHOUT_LIMITS"), self._stub_patch)
        self._stub_patch.setenv(ANSWERS, str(self._stub.path))
        self.show()
        super().__init__(clock=clock, deadline=deadline)

    def read(self) -> GpuReading:
        """Update the files to the current time, and read every GPU."""
        self.show()
        return super().read()

    def close(self) -> None:
        """Close as the driver does: not while a call hangs, which reads the answers again and again."""
        if not self.is_hanging:
            super().close()
            self._stub_patch.undo()
            self._remove_folder()

    def show(self) -> None:
        seconds = self._stub_clock() - self._stub_since
        with self._stub_lock:
            self._stub_tree.show(seconds)
            self._stub.show(seconds)
