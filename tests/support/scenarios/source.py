"""A simulated node: GPUs, with a matching /proc folder and pods file."""

import json
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from gpuagent.gpus.gpu_reader import DEADLINE_SECONDS, GpuReader
from gpuagent.gpus.gpu_reading import GpuReading
from tests.support.scenarios.driver import DriverState, SimulatedDriver, state_at
from tests.support.scenarios.objects import node_objects, pod_identities
from tests.support.scenarios.processes import ProcTree
from tests.support.scenarios.scenario import Scenario


class ScenarioGpus(GpuReader):
    """A GpuSource that reads a scenario like a driver; the simulation starts with its creation.

    It owns a temporary folder with the files, and removes the folder when it is closed or the process ends.
    """

    is_simulated = True

    def __init__(
        self,
        *,
        scenario: Scenario,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        deadline: float = DEADLINE_SECONDS,
    ) -> None:
        self._scenario = scenario
        self._time = clock
        self._since = clock()
        self._looking = threading.Lock()
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
        self._tree = ProcTree(root=self.proc_root, scenario=scenario, pods=pod_identities(objects))
        self._simulated_driver = SimulatedDriver(scenario=scenario, look=self._look, sleep=sleep)
        super().__init__(driver=self._simulated_driver, clock=clock, deadline=deadline)

    def read(self) -> GpuReading:
        """Update /proc to the current time, and read every GPU."""
        self._simulated_driver.refresh()
        return super().read()

    def close(self) -> None:
        super().close()
        self._remove_folder()

    def _look(self) -> DriverState:
        seconds = self._time() - self._since
        with self._looking:
            self._tree.show(seconds)
        return state_at(self._scenario, seconds)
