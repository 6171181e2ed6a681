"""GPUs and processes for a node without GPUs, made up from the pods that KAI placed there."""

import ctypes
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from gpuagent.gpus.driver import MOST_LISTED
from gpuagent.gpus.gpu_reading import DriverReplaced, Gpu, GpuProcess, GpuReading
from gpuagent.gpus.memory_limits import LimitAnswers
from gpuagent.pods.inventory import Inventory, NodePod, PodSource
from gpuagent.pods.lookups import may_be_kais
from gpuagent.problems import Cause, Problem
from gpuagent.sampling.processes import Lookup
from gpuagent.sampling.sample import LookupResult, Origin
from gpuagent.shares.placement import is_time_sliced
from gpuagent.shares.share_resolver import ShareResolver
from gpuagent.simulation.simulated_use import SimulatedPod, read_pods, used_bytes
from kai import keys
from kai.gpu_resources import is_gpu_uuid
from kai.releases import Version
from kai.share import MIB
from kai.share_bytes import label_bytes
from service.log import WARNING, JsonLog, NewLines

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

    def update(self, inventory: Inventory) -> tuple[Gpu, ...]:
        """Return the GPUs by an inventory; a GPU's index is its place, which it keeps."""
        labels = inventory.node_labels or {}
        self._place(named_gpus(inventory), inventory.labelled_gpus)
        total = _memory(labels.get(keys.NODE_GPU_MEMORY))
        product = labels.get(keys.NODE_GPU_PRODUCT, "")[:_LONGEST_PRODUCT]
        model = f"Simulated {product or 'GPU'}"
        return tuple(
            Gpu(
                index=index,
                uuid=gpu,
                model=model,
                total_bytes=total,
                used_bytes=0,
                reserved_bytes=0,
                processes=(),
                utilization={},
            )
            for index, gpu in enumerate(self._uuids)
        )

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


def _memory(label: str | None) -> int:
    try:
        return label_bytes(label) if label is not None else DEFAULT_BYTES
    except ValueError:  # logged where the node was read
        return DEFAULT_BYTES


class WholeGpuPods:
    """Gives whole GPUs to the pods that request them, as a device plugin does.

    A pod keeps its GPUs until it ends. A GPU that a reservation pod names belongs to KAI's group.
    """

    def __init__(self) -> None:
        self._assigned: dict[str, tuple[str, ...]] = {}

    def assign(self, inventory: Inventory, gpus: Sequence[Gpu]) -> Mapping[str, Collection[str]]:
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


class SimulatedGpus:
    """A GpuSource for a node without GPUs, and the origins of its processes; `follow` sets the pods.

    The GPUs are those of the node's labels and of KAI's reservation pods. Each running pod that KAI placed
    has one process, which holds a part of the pod's share. Its utilisation is the part of the GPU's memory
    that it holds, so the processes of one GPU use at most 100 %.
    """

    is_simulated = True
    is_hanging = False

    def __init__(
        self,
        *,
        node: str,
        log: JsonLog,
        kai_version: Version | None = None,
        clock: Callable[[], float] = time.monotonic,
        proc: Path = _PROC,
    ) -> None:
        """Simulate a node; the log receives one line for each invalid annotation.

        A driver that is loaded later appears in `proc`.
        """
        self._log = log
        self._clock = clock
        self._since = clock()
        self._proc = proc
        self._pods: PodSource | None = None
        self._inventory: Inventory | None = None
        """The inventory of the last update."""
        self._node_gpus = NodeGpus(node)
        self._whole_gpus = WholeGpuPods()
        self._resolver = ShareResolver(kai_version=kai_version)
        self._gpus: tuple[Gpu, ...] = ()
        self._simulated: tuple[SimulatedPod, ...] = ()
        self._started: dict[str, float] = {}
        """Start of each pod, in seconds since the simulation began, by UID."""
        self._pids: dict[str, int] = {}
        """PID of each pod's process by pod UID."""
        self._origins: dict[int, Origin] = {}
        self._next_pid = 0
        self._invalid = NewLines()
        """UIDs of the pods with an invalid annotation."""

    @property
    def errors(self) -> dict[tuple[str, str], int]:
        """Empty: a simulated call never fails."""
        return {}

    def follow(self, pods: PodSource | None) -> None:
        """Set the source of the pods; without one, no GPU is known."""
        self._pods = pods

    def expect(self, count: int | None) -> None:
        """Do nothing: the number of GPUs already follows the node's label."""

    def read(self) -> GpuReading:
        """Update GPUs and processes to the current pods and time, and return every GPU.

        Raises:
            DriverReplaced: an NVIDIA driver was loaded since the start.
        """
        driver = self._proc / _DRIVER
        if driver.exists():
            raise DriverReplaced(
                f"simulated GPUs are refused on a node with an NVIDIA driver: {driver} exists"
            )
        inventory = self._pods.inventory if self._pods else None
        if inventory is None:
            return _without_gpus("simulated: the pods of this node have not been listed yet")
        now = self._clock() - self._since
        if inventory is not self._inventory:
            self._update(inventory, now)
            self._inventory = inventory
        if not self._gpus and inventory.node_labels is None:
            return _without_gpus(
                "simulated: the number of GPUs is unknown: the Node is not readable, and no reservation pod"
                " names a GPU"
            )
        totals = {gpu.uuid: gpu.total_bytes or 0 for gpu in self._gpus}
        seconds = {uid: now - started for uid, started in self._started.items()}
        return self._reading(used_bytes(self._simulated, seconds, totals), inventory.pods)

    def memory_limits(self, groups: Mapping[str, Collection[str]]) -> LimitAnswers:  # noqa: ARG002
        """Return no limits: no driver holds them."""
        return {}

    def look_up(self, _reading: GpuReading, *, began: int | None = None) -> Lookup:  # noqa: ARG002
        """Return the origin of every process of the last reading."""
        return self._origins, ()

    def close(self) -> None:
        """Do nothing."""

    def _update(self, inventory: Inventory, now: float) -> None:
        self._gpus = self._node_gpus.update(inventory)
        whole = self._whole_gpus.assign(inventory, self._gpus)
        self._simulated, invalid = read_pods(self._resolver.resolve(inventory, self._gpus, whole), whole)
        self._started = {pod.uid: self._started.get(pod.uid, now) for pod in self._simulated}
        new, _ = self._invalid.update(invalid)
        for uid in new:  # a limited number of pods at a time
            pod, error = inventory.pods[uid], invalid[uid]
            self._log("ignoring invalid annotation", WARNING, pod=f"{pod.namespace}/{pod.name}", error=error)

    def _reading(self, used: Mapping[str, Mapping[str, int]], pods: Mapping[str, NodePod]) -> GpuReading:
        """Return the GPUs with their processes, and keep the origins of these."""
        pids: dict[str, int] = {}
        gpus, problems = [], []
        for gpu in self._gpus:
            total = gpu.total_bytes or 1
            if len(used[gpu.uuid]) > MOST_LISTED:
                detail = f"simulated as by a driver: at most {MOST_LISTED} processes of a GPU are listed"
                problems.append(Problem(Cause.TRUNCATED, gpu.uuid, detail))
            processes = []
            for uid in islice(used[gpu.uuid], MOST_LISTED):
                pids[uid] = pids.get(uid) or self._pids.get(uid) or self._new_pid()
                processes.append(GpuProcess(pids[uid], used[gpu.uuid][uid]))
            gpus.append(
                replace(
                    gpu,
                    used_bytes=sum(used[gpu.uuid].values()),
                    processes=tuple(processes),
                    utilization={each.pid: (each.used_bytes or 0) * 100 // total for each in processes},
                )
            )
        self._pids = pids
        self._origins = {
            pid: Origin(
                result=LookupResult.CONTAINER,
                pod_uids=(uid,),
                container_id=next(iter(pods[uid].container_ids), ""),
                name=_PROCESS,
            )
            for uid, pid in pids.items()
        }
        return GpuReading(gpus=tuple(gpus), problems=tuple(problems), driver_version=_VERSION)

    def _new_pid(self) -> int:
        """Return the PID of a new process; a PID is used again only after all others."""
        self._next_pid += 1
        return _FIRST_PID + (self._next_pid - 1) % _PIDS


def _without_gpus(detail: str) -> GpuReading:
    return GpuReading(gpus=(), problems=(Problem(Cause.NVML, "", detail),), driver_version=_VERSION)
