"""Attribution of processes to pods: each process belongs to the pod that its cgroup path names. Pure."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeVar

from gpuagent.pods.inventory import Inventory, NodePod
from gpuagent.sampling.sample import LookupResult, Origin, Sample
from kai import keys

_HASH = re.compile(r"[0-9a-f]{32}")
_K = TypeVar("_K")


class Reservation(Enum):
    """Owner of the processes of reservation pods, which no series is about."""

    POD = "reservation-pod"


Owner = NodePod | Reservation


@dataclass(frozen=True)
class PodIndex:
    """The pods of one Inventory by all their names in cgroup paths."""

    _by_uid: Mapping[str, Owner]
    _pods: Collection[NodePod]

    @classmethod
    def from_inventory(cls, inventory: Inventory) -> "PodIndex":
        """Index every pod, finished ones too: their processes may live on.

        A UID is the API server's and counts before a config hash, which is an annotation anybody may write:
        where two pods claim one hash, it is the mirror pod's.
        """
        pods = inventory.pods.values()
        by_hash = _unambiguous((pod.config_hash, pod) for pod in pods if _is_mirror(pod))
        by_hash |= _unambiguous(
            (pod.config_hash, pod)
            for pod in pods
            if pod.config_hash not in by_hash and _HASH.fullmatch(pod.config_hash)
        )
        reservations = dict.fromkeys(inventory.reservation_uids, Reservation.POD)
        return cls({**by_hash, **reservations, **inventory.pods}, pods)

    @cached_property
    def _by_container(self) -> Mapping[str, NodePod]:
        """Made when a process is first looked up by it: few runtimes hide the pod, and pods can have many."""
        return _unambiguous((each, pod) for pod in self._pods for each in pod.container_ids)

    def pod_of(self, origin: Origin) -> Owner | None:
        """Return the pod a process belongs to; None if it is none of this node's.

        The outermost known pod of the path: who can make cgroups below its own must not be able to name its
        neighbour, and a cluster inside a pod of ours is that pod's. The container counts only where no pod is
        named at all (CRI-O in a private cgroup namespace).
        """
        for uid in origin.pod_uids:
            owner = self._by_uid.get(uid)
            if owner is not None:
                return owner
        return None if origin.pod_uids else self._by_container.get(origin.container_id)


def _is_mirror(pod: NodePod) -> bool:
    """The kubelet writes the hash into two annotations, and deletes a mirror pod that is not its own."""
    return pod.annotations.get(keys.MIRROR_POD) == pod.config_hash


def _unambiguous(pairs: Iterable[tuple[_K, NodePod]]) -> dict[_K, NodePod]:
    found: dict[_K, NodePod] = {}
    twice: set[_K] = set()
    for key, pod in pairs:
        if found.setdefault(key, pod) is not pod:
            twice.add(key)
    return {key: pod for key, pod in found.items() if key and key not in twice}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The owner of each process of one sample.

    A process that ended before it was looked up, or that /proc does not let the agent look up, has no entry.
    """

    owners: Mapping[int, NodePod | None]
    """By PID; None for a process of the host, of a pod that is not in the list, or of a reservation pod."""
    named_by_uid: frozenset[int]
    """PIDs whose cgroup path names the owner by the UID that the API server gave it."""
    denied: frozenset[int]
    """PIDs that /proc does not let the agent look up: their owner is unknown."""
    gpu_uuids: Mapping[str, set[str]]
    """GPUs on which each pod has a process, by pod UID; MIG devices are left out."""


def attribute(sample: Sample, pods: PodIndex) -> Attribution:
    """Find the owner of every process of a sample, each once."""
    owners: dict[int, NodePod | None] = {}
    named_by_uid: set[int] = set()
    denied: set[int] = set()
    for pid, origin in sample.origins.items():
        if origin.found is LookupResult.DENIED:
            denied.add(pid)
        elif origin.found is not LookupResult.GONE:
            owner = pods.pod_of(origin)
            owners[pid] = pod = owner if isinstance(owner, NodePod) else None
            if pod is not None and pod.uid in origin.pod_uids:
                named_by_uid.add(pid)
    gpu_uuids: dict[str, set[str]] = {}
    for gpu in sample.reading.gpus:
        for process in gpu.processes or ():
            pod = owners.get(process.pid)
            if pod is not None:
                gpu_uuids.setdefault(pod.uid, set()).add(gpu.uuid)
    return Attribution(
        owners=owners,
        named_by_uid=frozenset(named_by_uid),
        denied=frozenset(denied),
        gpu_uuids=gpu_uuids,
    )
