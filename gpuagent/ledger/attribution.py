"""From what a cgroup path names to the pod it belongs to. Immutable."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeVar

from gpuagent.pods.inventory import Inventory, NodePod
from gpuagent.sampling.sample import Origin
from kai import keys

_HASH = re.compile(r"[0-9a-f]{32}")
_K = TypeVar("_K")


class Reservation(Enum):
    """Whose process it is when it is a reservation pod's: nobody's that a series is about."""

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
