"""GPUs and processes for a cluster without GPUs: made up from the pods that KAI placed on this node."""

import ctypes
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpuagent.gpus.driver import ListedProcess, ProcessList
from gpuagent.gpus.process_lists import MOST_LISTED
from gpuagent.gpus.reader import GpuReader
from gpuagent.gpus.reading import DriverReplaced, Gpu, GpuReading
from gpuagent.pods.inventory import Inventory, NodePod, PodSource
from gpuagent.problems import Cause, Problem
from gpuagent.shares.share_resolver import ShareResolver
from gpuagent.simulation.driver import SimulatedDriver
from gpuagent.simulation.node_gpus import NodeGpus
from gpuagent.simulation.pod_memory import PodMemory, WholeGpuPods, memory_of
from gpuagent.simulation.procfs import ProcFolder, pod_cgroup, process_files
from gpuagent.simulation.scenario import Scenario, SimulatedGpu, SimulatedNode
from gpuagent.simulation.state import DeviceMoment, DriverState
from kai.version import Version
from service.command import UsageError
from service.log import WARNING, JsonLog
from service.log_changes import NewLines

_LIBRARY: Final = "libnvidia-ml.so.1"
_PROC: Final = Path("/proc")
_DRIVER: Final = Path("driver/nvidia")
_VERSION: Final = "simulated"
_PROCESS: Final = "simulated"
"""Name of every made-up process."""
_FIRST_PID: Final = 1000
_PIDS: Final = (1 << 22) - _FIRST_PID
"""Number of usable PIDs; the kernel's PID_MAX_LIMIT is 2^22."""


def driver_of_this_node(*, proc: Path = _PROC, library: str = _LIBRARY) -> str:
    """Return what shows that this node has an NVIDIA driver, in a few words; empty if nothing does.

    The library is loaded to find out, and stays loaded.
    """
    if (proc / _DRIVER).exists():
        return f"{proc / _DRIVER} exists"
    try:
        ctypes.CDLL(library)
    except OSError:
        return ""
    return f"{library} loads"


def simulated_cluster(*, node: str, log: JsonLog, kai_version: Version | None = None) -> "ClusterGpus":
    """Create the source of a node without GPUs.

    Raises:
        UsageError: the node has an NVIDIA driver, or the temporary folder cannot be written.
    """
    driver = driver_of_this_node()
    if driver:
        raise UsageError(f"--gpus simulated:cluster is refused on a node with an NVIDIA driver: {driver}")
    try:
        return ClusterGpus(node=node, log=log, kai_version=kai_version)
    except OSError as error:
        raise UsageError(
            f"--gpus simulated:cluster needs a writable temporary folder ($TMPDIR): {error.strerror or error}"
        ) from None


class ClusterGpus:
    """A GpuSource for a node without GPUs; `follow` sets the pods.

    The GPUs are those of the node's labels and of KAI's reservation pods. Each running pod that KAI placed
    has one process, which holds a part of the pod's share. Its utilisation is the part of the GPU's memory
    that it holds, so the processes of one GPU use at most 100 %. The source owns a temporary folder in the
    form of /proc, and removes it when it is closed or the process ends.
    """

    is_simulated = True

    def __init__(
        self,
        *,
        node: str,
        log: JsonLog,
        kai_version: Version | None = None,
        clock: Callable[[], float] = time.monotonic,
        proc: Path = _PROC,
    ) -> None:
        """Create the temporary folder.

        Args:
            node: name of the node.
            log: receives one line for each invalid annotation.
            kai_version: KAI's release, by which shares are computed.
            clock: monotonic seconds.
            proc: mount point of the real /proc, where a driver that is loaded later appears.

        Raises:
            OSError: no temporary folder can be written.
        """
        folder = Path(tempfile.mkdtemp(prefix="kaishare-simulated-"))
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.proc_root = folder / "proc"
        """A folder in the form of /proc, at the state of the last read."""
        self._folder = ProcFolder(self.proc_root)
        self._folder.update({})
        self._log = log
        self._clock = clock
        self._since = clock()
        self._real_proc = proc
        self._pods: PodSource | None = None
        self._inventory: Inventory | None = None
        """The inventory of the last update."""
        self._node_gpus = NodeGpus(node)
        self._whole_gpus = WholeGpuPods()
        self._resolver = ShareResolver(kai_version=kai_version)
        self._gpus: tuple[SimulatedGpu, ...] = ()
        self._pids: dict[str, tuple[int, float]] = {}
        """PID and start, in seconds since the simulation began, of each pod's process by pod UID."""
        self._next_pid = 0
        self._invalid = NewLines()
        """UIDs of the pods with an invalid annotation."""
        self._state = DriverState(devices=())
        self._driver, self._reader = self._new_driver(())

    @property
    def errors(self) -> dict[tuple[str, str], int]:
        """Empty: a simulated call never fails."""
        return {}

    @property
    def is_hanging(self) -> bool:
        """False: a simulated call never hangs here."""
        return False

    def follow(self, pods: PodSource | None) -> None:
        """Set the source of the pods; without one, no GPU is known."""
        self._pods = pods

    def expect(self, count: int | None) -> None:
        """Do nothing: the number of GPUs already follows the node's label."""

    def read(self) -> GpuReading:
        """Update GPUs and processes to the current pods, and read every GPU.

        Raises:
            DriverReplaced: an NVIDIA driver was loaded since the start.
        """
        driver = self._real_proc / _DRIVER
        if driver.exists():
            raise DriverReplaced(
                f"simulated GPUs are refused on a node with an NVIDIA driver: {driver} exists"
            )
        inventory = self._pods.inventory if self._pods else None
        if inventory is None:
            return _without_gpus("simulated: the pods of this node have not been listed yet")
        if inventory is not self._inventory:
            self._update(inventory)
            self._inventory = inventory
        if not self._gpus and inventory.node_labels is None:
            return _without_gpus(
                "simulated: the number of GPUs is unknown: the Node is not readable, and no reservation pod"
                " names a GPU"
            )
        if not self._gpus:
            return GpuReading(gpus=(), driver_version=_VERSION)
        self._driver.refresh()
        return self._reader.read()

    def close(self) -> None:
        """Remove the temporary folder."""
        self._reader.close()
        self._remove_folder()

    def _update(self, inventory: Inventory) -> None:
        gpus = self._node_gpus.update(inventory)
        if gpus != self._gpus:
            self._use(gpus)
        devices = [
            Gpu(
                index=index,
                uuid=gpu.uuid,
                model=gpu.model,
                total_bytes=int(gpu.memory),
                used_bytes=None,
                reserved_bytes=None,
                processes=None,
            )
            for index, gpu in enumerate(gpus)
        ]
        whole = self._whole_gpus.assign(inventory, gpus)
        memory = memory_of(self._resolver.resolve(inventory, devices, whole), gpus, whole)
        self._log_invalid(memory.invalid, inventory.pods)
        self._show(memory, inventory.pods)

    def _use(self, gpus: tuple[SimulatedGpu, ...]) -> None:
        """Start a new driver with these GPUs; a GPU that was taken away is not reported as lost."""
        self._gpus = gpus
        self._reader.close()
        self._driver, self._reader = self._new_driver(gpus)

    def _new_driver(self, gpus: tuple[SimulatedGpu, ...]) -> tuple[SimulatedDriver, GpuReader]:
        scenario = Scenario(node=SimulatedNode(driver=_VERSION), gpus=gpus)
        driver = SimulatedDriver(scenario=scenario, look=self._look)
        return driver, GpuReader(driver=driver, clock=self._clock)

    def _look(self) -> DriverState:
        return replace(self._state, time=self._clock() - self._since)

    def _show(self, memory: PodMemory, pods: Mapping[str, NodePod]) -> None:
        """Set the driver's lists, and write /proc."""
        pids: dict[str, tuple[int, float]] = {}
        devices = []
        for gpu in self._gpus:
            used_bytes = memory.by_gpu[gpu.uuid]
            compute = []
            percents = {}
            for uid in list(used_bytes)[:MOST_LISTED]:  # the driver lists no more
                pids[uid] = pids.get(uid) or self._pids.get(uid) or self._new_process()
                pid = pids[uid][0]
                compute.append(ListedProcess(pid, used_bytes[uid]))
                percents[pid] = used_bytes[uid] * 100 // gpu.memory
            devices.append(
                DeviceMoment(
                    uuid=gpu.uuid,
                    total=int(gpu.memory),
                    reserved=0,
                    used=sum(used_bytes.values()),
                    lists={ProcessList.COMPUTE: compute, ProcessList.GRAPHICS: [], ProcessList.MPS: []},
                    percents=percents,
                )
            )
        self._pids = pids
        self._folder.update(
            {pid: _files(pid, start, pods[uid]) for uid, (pid, start) in pids.items()},
        )
        self._state = DriverState(devices=tuple(devices))

    def _new_process(self) -> tuple[int, float]:
        """Return PID and start of a new process; a PID is used again only after all others."""
        pid = _FIRST_PID + self._next_pid % _PIDS
        self._next_pid += 1
        return pid, self._clock() - self._since

    def _log_invalid(self, invalid: Mapping[str, str], pods: Mapping[str, NodePod]) -> None:
        """Log each pod whose annotation became invalid, for a limited number of pods at a time."""
        new, _ = self._invalid.update(invalid)
        for uid in new:
            pod = pods[uid]
            self._log(
                "ignoring invalid annotation", WARNING, pod=f"{pod.namespace}/{pod.name}", error=invalid[uid]
            )


def _without_gpus(detail: str) -> GpuReading:
    return GpuReading(gpus=(), problems=(Problem(Cause.NVML, "", detail),), driver_version=_VERSION)


def _files(pid: int, start: float, pod: NodePod) -> dict[str, str]:
    container = pod.container_ids[0] if pod.container_ids else ""
    return process_files(pid, _PROCESS, start, pod_cgroup(pod.uid, container))
