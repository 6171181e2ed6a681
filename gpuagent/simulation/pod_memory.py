"""GPU memory that the pods of a node without GPUs hold, made up from their shares. Pure."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuagent.pods.inventory import Inventory, NodePod
from gpuagent.pods.related import may_be_kais
from gpuagent.shares.pod_share import PodShare, ShareSource
from gpuagent.shares.whole_gpus import is_time_sliced
from gpuagent.simulation.node_gpus import named_gpus
from gpuagent.simulation.scenario import SimulatedGpu
from kai.own_labels import SIMULATE
from service.text import quoted

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
        if not pod_share.shares or not pod.is_running or not _UID.fullmatch(pod.uid):
            continue
        try:
            percent = percent_of_share(pod.annotations)
        except ValueError as error:
            invalid[pod.uid] = str(error)
            percent = DEFAULT_PERCENT
        for gpu, share in pod_share.shares.items():
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
