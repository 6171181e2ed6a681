"""Problems of reservation pods: one GPU named in two namespaces, and pods that name no GPU of the node.

A GPU belongs to one client of the device plugin at a time. If reservation pods of two namespaces name one
GPU, one of them is wrong or forged: a tenant whose KAI runs inside a vCluster writes both the pod and its
annotation. The problem is reported and suspends no verdict, since a tenant can cause it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpuagent.ledger.snapshot import Holding, Snapshot
from gpuagent.pods.inventory import Inventory, NodePod, ReservationPod
from gpuagent.problems import Cause, Problem
from gpuagent.shares.placement import is_time_sliced
from gpuagent.shares.pod_share import Relation
from gpuagent.verdicts.grounds import SMALL_BYTES
from service.text import first_few, one_line


class Reservations:
    """Finds contradictory reservation pods, and remembers when each was first seen."""

    def __init__(self, *, grace: float) -> None:
        """Set the age in seconds up to which a reservation pod may name no GPU; KAI adds the name later."""
        self._grace = grace
        self._first_seen: dict[str, float] = {}
        """By pod UID, in seconds on the clock of the samples."""

    def problems(self, inventory: Inventory, snapshot: Snapshot) -> tuple[Problem, ...]:
        """Return the conflicts of each GPU, and one problem for all pods that name no GPU.

        Return nothing while no GPU responds, since no name can be resolved then. While the UUID of a lost GPU
        is unknown, any name may be that GPU's.
        """
        now = snapshot.taken_at
        pods = sorted(inventory.reservation_pods, key=_order)
        self._first_seen = {pod.uid: self._first_seen.get(pod.uid, now) for pod in pods}
        if not snapshot.gpus:
            return ()
        present = {account.gpu.uuid for account in snapshot.gpus}
        present |= {part.uuid for account in snapshot.gpus for part in account.gpu.instances}
        by_gpu: dict[str, dict[str, ReservationPod]] = {}
        for pod in pods:
            if pod.gpu in present:
                by_gpu.setdefault(pod.gpu, {}).setdefault(pod.namespace, pod)
        devices = len(snapshot.gpus) + len(snapshot.lost_gpus)
        conflicts = () if is_time_sliced(inventory, devices) else _conflicts(by_gpu, snapshot)
        known = present | {problem.gpu_uuid for problem in snapshot.problems if problem.cause is Cause.NVML}
        may_be_lost = any(not gpu.uuid for gpu in snapshot.lost_gpus)
        old = [pod for pod in pods if now - self._first_seen[pod.uid] >= self._grace]
        unresolved = [pod for pod in old if not pod.gpu or not (may_be_lost or pod.gpu in known)]
        return (*conflicts, *_unresolved(unresolved))


def _unresolved(pods: Sequence[ReservationPod]) -> Iterator[Problem]:
    if pods:
        counts = Counter(pod.namespace for pod in pods)
        first = {pod.namespace: pod for pod in reversed(pods)}
        names = [
            _name(first[namespace]) + (f" and {count - 1} more there" if count > 1 else "")
            for namespace, count in counts.items()
        ]
        yield Problem(
            Cause.RESERVATION_UNRESOLVED,
            "",
            f"reservation pods name no GPU of this node: {first_few(names)};"
            " the GPU of their groups is unknown",
        )


def _conflicts(by_gpu: Mapping[str, Mapping[str, ReservationPod]], snapshot: Snapshot) -> Iterator[Problem]:
    users: dict[str, list[Holding]] = {}
    for holding in snapshot.holdings:
        if holding.gpu_uuid in by_gpu and holding.pod_share.is_whole and _may_conflict(holding):
            users.setdefault(holding.gpu_uuid, []).append(holding)
    for gpu, pods in sorted(by_gpu.items()):
        own = [h for h in users.get(gpu, ()) if len(pods) > 1 or h.pod_share.pod.namespace not in pods]
        parts = []
        if len(pods) > 1:
            parts.append(f"reservation pods of {len(pods)} namespaces name this GPU: {_all(pods)}")
        elif own:
            parts.append(f"reservation pod {_all(pods)} names this GPU")
        if own:
            namespaces = {holding.pod_share.pod.namespace: holding.pod_share.pod for holding in reversed(own)}
            parts.append(f"a pod with whole GPUs uses this GPU: {_all(namespaces)}")
        if parts:
            detail = "; ".join(parts)
            yield Problem(Cause.RESERVATION_CONFLICT, gpu, f"{detail}; only one of them can have the GPU")


def _may_conflict(holding: Holding) -> bool:
    """Whether a pod with whole GPUs uses a GPU that no trusted reservation pod withholds from it."""
    pod_share = holding.pod_share
    return (
        (holding.used_bytes or 0) > SMALL_BYTES
        and not holding.is_mig
        and not pod_share.pod.is_finished
        and pod_share.on(holding.gpu_uuid).relation is not Relation.WITHHELD
    )


def _order(pod: ReservationPod) -> tuple[bool, str, str, str]:
    """Sort key: pods that no tenant can write come first."""
    return pod.is_tenants, pod.namespace, pod.name, pod.uid


def _all(pods: Mapping[str, ReservationPod] | Mapping[str, NodePod]) -> str:
    """Name one pod of each namespace, for the first few namespaces."""
    return first_few([_name(pod) for pod in pods.values()])


def _name(pod: ReservationPod | NodePod) -> str:
    return f"{one_line(pod.namespace)}/{one_line(pod.name)}"
