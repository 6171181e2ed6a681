"""Attribution of processes to pods: a process belongs to the pod that its cgroup path names. Pure.

`ledger.balance` adds up their memory, and the memory without an owner.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from gpuagent.pods.inventory import EndedPod, Inventory, NodePod
from gpuagent.sampling.sample import LookupResult, Origin, Sample
from kai import keys

_HASH = re.compile(r"[0-9a-f]{32}")
_K = TypeVar("_K")


@dataclass(frozen=True)
class PodIndex:
    """Index of an Inventory's pods by every name that a cgroup path can contain."""

    _by_uid: Mapping[str, NodePod | EndedPod | None]
    """None for a reservation pod, which has no metric series."""
    _pods: Collection[NodePod]

    @classmethod
    def from_inventory(cls, inventory: Inventory) -> "PodIndex":
        """Index every pod, finished pods included: their processes may still run.

        The API server assigns a UID, so a UID takes precedence. Any user can write the annotation with the
        config hash. If two pods have the same hash, it belongs to the mirror pod: the kubelet writes the hash
        into two annotations, and deletes mirror pods that it did not create.
        """
        pods = inventory.pods.values()
        by_hash = _unambiguous(
            (pod.config_hash, pod) for pod in pods if pod.annotations.get(keys.MIRROR_POD) == pod.config_hash
        )
        by_hash |= _unambiguous(
            (pod.config_hash, pod)
            for pod in pods
            if pod.config_hash not in by_hash and _HASH.fullmatch(pod.config_hash)
        )
        reservations = dict.fromkeys(inventory.reservation_uids)
        return cls({**by_hash, **inventory.ended, **reservations, **inventory.pods}, pods)

    @cached_property
    def _by_container(self) -> Mapping[str, NodePod]:
        """Pods by container ID, built at the first look-up.

        Few runtimes hide the pod's UID, and a pod can have many containers.
        """
        return _unambiguous((container_id, pod) for pod in self._pods for container_id in pod.container_ids)

    def pod_of(self, origin: Origin) -> NodePod | EndedPod | None:
        """Return the pod of a process; None if it belongs to no pod of this node, or to a reservation pod.

        The outermost known pod of the path counts, whether or not it has ended. A tenant who can create
        cgroups below its own must not be able to name another pod, and a cluster inside a pod belongs to that
        pod. The container ID counts only if the path names no pod (CRI-O in a private cgroup namespace).
        """
        for uid in origin.pod_uids:
            if uid in self._by_uid:
                return self._by_uid[uid]
        return None if origin.pod_uids else self._by_container.get(origin.container_id)


def _unambiguous(pairs: Iterable[tuple[_K, NodePod]]) -> dict[_K, NodePod]:
    unique: dict[_K, NodePod] = {}
    twice: set[_K] = set()
    for key, pod in pairs:
        if unique.setdefault(key, pod) is not pod:
            twice.add(key)
    return {key: pod for key, pod in unique.items() if key and key not in twice}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """The owner of each process of one sample.

    A process that ended before it was looked up has no entry, nor has a process that /proc denies.
    """

    owners: Mapping[int, NodePod | None]
    """By PID; None for a process of the host, of an unlisted or ended pod, or of a reservation pod."""
    ended: Mapping[int, EndedPod]
    """By PID: the pod that is no longer listed."""
    named_by_uid: frozenset[int]
    """PIDs whose cgroup path names the owner first, by its UID, which the API server assigned. Below another
    pod, even an unknown one, the name of a cgroup proves nothing."""
    denied: frozenset[int]
    """PIDs that /proc does not let the agent look up; the owner is unknown."""
    gpu_uuids: Mapping[str, set[str]]
    """GPUs on which each pod has a process, by pod UID, without MIG devices."""


def attribute(sample: Sample, pods: PodIndex) -> Attribution:
    """Find the owner of each process of a sample."""
    owners: dict[int, NodePod | None] = {}
    named_by_uid: set[int] = set()
    denied: set[int] = set()
    ended: dict[int, EndedPod] = {}
    for pid, origin in sample.origins.items():
        if origin.result is LookupResult.DENIED:
            denied.add(pid)
        elif origin.result is not LookupResult.GONE:
            owner = pods.pod_of(origin)
            owners[pid] = pod = owner if isinstance(owner, NodePod) else None
            if isinstance(owner, EndedPod):
                ended[pid] = owner
            if pod is not None and origin.pod_uids[:1] == (pod.uid,):
                named_by_uid.add(pid)
    gpu_uuids: dict[str, set[str]] = {}
    for gpu in sample.reading.gpus:
        present = {process.pid for process in gpu.processes or ()} & owners.keys()
        for uid in {pod.uid for pid in present if (pod := owners[pid]) is not None}:
            gpu_uuids.setdefault(uid, set()).add(gpu.uuid)
    return Attribution(
        owners=owners,
        ended=ended,
        named_by_uid=frozenset(named_by_uid),
        denied=frozenset(denied),
        gpu_uuids=gpu_uuids,
    )
