"""GPUs and processes for a cluster without GPUs, made up from the pods that KAI placed there."""

import ctypes
import re
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gpuagent.gpus.driver import ListedProcess, ProcessList
from gpuagent.gpus.gpu_reader import GpuReader
from gpuagent.gpus.gpu_reading import DriverReplaced, Gpu, GpuReading
from gpuagent.gpus.process_lists import MOST_LISTED
from gpuagent.pods.inventory import Inventory, NodePod, PodSource
from gpuagent.pods.lookups import may_be_kais
from gpuagent.problems import Cause, Problem
from gpuagent.shares.placement import is_time_sliced
from gpuagent.shares.pod_share import PodShare, ShareSource
from gpuagent.shares.share_resolver import ShareResolver
from gpuagent.simulation.scenario import Bytes, Scenario, SimulatedGpu, SimulatedNode
from gpuagent.simulation.simulated_driver import DeviceMoment, DriverState, SimulatedDriver
from gpuagent.simulation.simulated_processes import ProcFolder, pod_cgroup, process_files
from kai import keys
from kai.gpu_resources import is_gpu_uuid
from kai.kaishare_keys import SIMULATE
from kai.releases import Version
from kai.share import MIB
from kai.share_bytes import label_bytes
from service.command import UsageError
from service.log import WARNING, JsonLog, NewLines
from service.text import quoted

MOST_GPUS: Final = 64
"""Maximum of GPUs of a simulated node; more than any node has."""
DEFAULT_BYTES: Final = 16384 * MIB
"""Memory of a GPU without a valid node label `nvidia.com/gpu.memory`."""
_NAMES: Final = uuid.UUID(int=0)
"""Namespace of made-up UUIDs. With it and `<node>-<index>` they equal those of run.ai's fake-gpu-operator
(`generateGpuDetails`), whose reservation pods nevertheless name a random UUID each."""
_LONGEST_PRODUCT: Final = 63


class NodeGpus:
    """The GPUs of one node over time.

    The label `nvidia.com/gpu.count` has their number, and each reservation pod names the UUID of its GPU.
    A GPU that no reservation pod has named yet gets a made-up UUID, and the first new name replaces it. A
    named GPU stays when its reservation pod ends, since a GPU outlives its pods.
    """

    def __init__(self, node: str) -> None:
        """Set the name of the node, from which UUIDs are made up."""
        self._node = node
        self._uuids: list[str] = []
        self._made_up: set[str] = set()

    def update(self, inventory: Inventory) -> tuple[SimulatedGpu, ...]:
        """Return the GPUs by an inventory; a GPU's index is its place, which it keeps."""
        labels = inventory.node_labels or {}
        self._place(named_gpus(inventory), inventory.labelled_gpus)
        memory = _memory(labels.get(keys.NODE_GPU_MEMORY))
        product = labels.get(keys.NODE_GPU_PRODUCT, "")[:_LONGEST_PRODUCT]
        model = f"Simulated {product or 'GPU'}"
        return tuple(SimulatedGpu(uuid=gpu, memory=memory, model=model) for gpu in self._uuids)

    def _place(self, named: Sequence[str], count: int | None) -> None:
        """Give each named GPU a place, and fill the others up to the labelled number."""
        labelled = min(count or 0, MOST_GPUS)
        most = MOST_GPUS if count is None else max(labelled, len(named))
        wanted = frozenset(named)
        spare = [gpu for gpu in self._uuids if gpu not in wanted]
        spare.sort(key=lambda gpu: gpu not in self._made_up)  # made-up GPUs go first
        for gpu in named:
            if gpu in self._uuids:
                continue
            if spare and (spare[0] in self._made_up or len(self._uuids) >= most):
                self._replace(spare.pop(0), gpu)
            else:
                self._uuids.append(gpu)
        for gpu in spare[: max(0, len(self._uuids) - most)]:
            self._uuids.remove(gpu)
        for number in range(MOST_GPUS):
            if len(self._uuids) >= labelled:
                break
            gpu = f"GPU-{uuid.uuid5(_NAMES, f'{self._node}-{number}')}"
            if gpu not in self._uuids:
                self._made_up.add(gpu)
                self._uuids.append(gpu)

    def _replace(self, old: str, new: str) -> None:
        self._uuids[self._uuids.index(old)] = new


def named_gpus(inventory: Inventory) -> tuple[str, ...]:
    """Return the GPUs that reservation pods name, those of the cluster's own KAI first.

    A tenant whose KAI runs inside a vCluster can write any UUID, so a tenant's name adds no GPU beyond the
    labelled number.
    """
    pods = [pod for pod in inventory.reservation_pods if is_gpu_uuid(pod.gpu)]
    own = {pod.gpu for pod in pods if not pod.is_tenants}
    names = (*sorted(own), *sorted({pod.gpu for pod in pods} - own))
    count = MOST_GPUS if inventory.labelled_gpus is None else inventory.labelled_gpus
    return names[: min(max(count, len(own)), MOST_GPUS)]


def _memory(label: str | None) -> Bytes:
    try:
        return Bytes(label_bytes(label)) if label is not None else Bytes(DEFAULT_BYTES)
    except ValueError:  # logged where the node was read
        return Bytes(DEFAULT_BYTES)


DEFAULT_PERCENT: Final = 80
"""Memory of a pod's process without the annotation, as a percentage of the share."""
MOST_PERCENT: Final = 1000
_PERCENT = re.compile(r"([0-9]{1,4})%")
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMemory:
    """Memory of all pods, in bytes, by GPU UUID and pod UID."""

    by_gpu: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    invalid: Mapping[str, str] = field(default_factory=dict)
    """By pod UID: why the pod's annotation does not count, in one line."""


def percent_of_share(annotations: Mapping[str, str]) -> int:
    """Read the annotation `kaishare.dev/simulate`; return the default without it.

    Raises:
        ValueError: the value is not a percentage from 0% to 1000%.
    """
    text = annotations.get(SIMULATE)
    if text is None:
        return DEFAULT_PERCENT
    match = _PERCENT.fullmatch(text)
    if match is None or int(match[1]) > MOST_PERCENT:
        raise ValueError(f"{SIMULATE} {quoted(text)} is invalid; allowed: 0% to {MOST_PERCENT}%")
    return int(match[1])


def memory_of(
    pod_shares: Iterable[PodShare], gpus: Sequence[SimulatedGpu], whole: Mapping[str, Collection[str]]
) -> PodMemory:
    """Return the memory of each running pod on the GPUs of its share.

    A GPU cannot hold more than its memory. Pods within their shares get theirs first, those with a share that
    KAI recorded before those with an annotation, which any user can write. A pod above its share gets at most
    what is left.

    Args:
        pod_shares: the shares of all pods.
        gpus: the node's GPUs.
        whole: whole GPUs by pod UID, from `WholeGpuPods`.
    """
    wanted: dict[str, list[tuple[bool, bool, str, int]]] = {gpu.uuid: [] for gpu in gpus}
    invalid: dict[str, str] = {}
    for pod_share in pod_shares:
        pod = pod_share.pod
        shares = pod_share.shares
        if not shares or not pod.is_running or not _UID.fullmatch(pod.uid):
            continue
        try:
            percent = percent_of_share(pod.annotations)
        except ValueError as error:
            invalid[pod.uid] = str(error)
            percent = DEFAULT_PERCENT
        for gpu, share in shares.items():
            is_given = share.source is not ShareSource.WHOLE_GPU or gpu in whole.get(pod.uid, ())
            if gpu in wanted and is_given:
                is_annotated = share.source is ShareSource.ANNOTATION
                wanted[gpu].append((percent > 100, is_annotated, pod.uid, share.bytes * percent // 100))
    by_gpu: dict[str, dict[str, int]] = {}
    for device in gpus:
        left = int(device.memory)
        used_bytes = by_gpu[device.uuid] = {}
        for _, _, uid, amount in sorted(wanted[device.uuid]):
            if left and amount:
                used_bytes[uid] = min(amount, left)
                left -= used_bytes[uid]
    return PodMemory(by_gpu=by_gpu, invalid=invalid)


class WholeGpuPods:
    """Gives whole GPUs to the pods that request them, as a device plugin does.

    A pod keeps its GPUs until it ends. A GPU that a reservation pod names belongs to KAI's group.
    """

    def __init__(self) -> None:
        self._assigned: dict[str, tuple[str, ...]] = {}

    def assign(self, inventory: Inventory, gpus: Sequence[SimulatedGpu]) -> Mapping[str, Collection[str]]:
        """Return the GPUs of each pod by pod UID; a pod that finds too few free GPUs gets none."""
        named = named_gpus(inventory)
        free = dict.fromkeys(gpu.uuid for gpu in gpus if gpu.uuid not in named)
        wanted = {} if is_time_sliced(inventory) else _whole_gpu_pods(inventory)
        kept: dict[str, tuple[str, ...]] = {}
        for uid, count in wanted.items():
            own = self._assigned.get(uid, ())
            if own and len(own) == count and all(gpu in free for gpu in own):
                kept[uid] = own
                for gpu in own:
                    del free[gpu]
        for uid, count in wanted.items():
            if uid not in kept and count <= len(free):
                kept[uid] = tuple(free)[:count]
                for gpu in kept[uid]:
                    del free[gpu]
        self._assigned = kept
        return kept


def _whole_gpu_pods(inventory: Inventory) -> dict[str, int]:
    """Return the number of GPUs of each running pod that KAI placed, by UID in a fixed order."""
    return {
        uid: pod.whole_gpus for uid, pod in sorted(inventory.pods.items()) if _is_given_gpus(pod, inventory)
    }


def _is_given_gpus(pod: NodePod, inventory: Inventory) -> bool:
    if not pod.whole_gpus or not pod.is_running or pod.uid in inventory.tenant_reservation_uids:
        return False
    return pod.key in inventory.bind_requests or may_be_kais(pod)


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
