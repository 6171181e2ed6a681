"""Finds the GPUs of a pod: by its GPU groups, whole ones by elimination, or by its claims. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuagent.gpus.gpu_reading import Gpu
from gpuagent.pods.inventory import Inventory, NodePod, PodClaims
from gpuagent.shares.share_requests import ShareRequest
from kai import keys


@dataclass(frozen=True, slots=True)
class Placement:
    """The known GPUs of a pod."""

    gpus: tuple[str, ...] = ()
    is_complete: bool = False
    """Whether all GPUs of the pod are known."""
    groups: tuple[str, ...] = ()
    """The groups whose reservation pods name the GPUs; empty for another source."""
    is_kais: bool = False
    """Whether all of these reservation pods are in a namespace that no tenant can write."""

    def updated(self, newer: "Placement", groups: tuple[str, ...]) -> "Placement":
        """Return the placement that counts after a newer resolution for the same pod.

        What is known stays. Another GPU counts only if KAI itself records it: reservation pods of the pod's
        groups in a namespace that no tenant can write. Those of another group prove nothing: KAI may give the
        group of an outdated BindRequest to another pod, on another GPU.
        """
        if newer.is_complete and newer.is_kais and newer.groups == groups:
            return newer
        if self.is_complete or not newer.gpus:
            return self
        return newer if newer.is_complete or set(self.gpus) <= set(newer.gpus) else self


UNPLACED: Final = Placement()


def group_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of GPU groups."""
    prefix = keys.GPU_GROUP_PREFIX
    return {key: text for key, text in labels.items() if key == keys.GPU_GROUP or key.startswith(prefix)}


def groups_of(labels: Mapping[str, str], devices: int) -> tuple[str, ...]:
    """Return the GPU groups of a pod with a share of so many devices.

    KAI labels one device with `runai-gpu-group`, and several devices with `runai-gpu-group/<group>` each
    (v0.13.0 `resource_reservation.go`). The other form on the same pod does not come from KAI.
    """
    single = labels.get(keys.GPU_GROUP, "")
    prefix = keys.GPU_GROUP_PREFIX
    several = tuple(sorted(label.removeprefix(prefix) for label in labels if label.startswith(prefix)))
    if several and (devices > 1 or not single):
        return several
    return (single,) if single else ()


def is_of_vcluster(group: str, pod: NodePod, inventory: Inventory) -> bool:
    """Whether a KAI inside the pod's vCluster has reserved the group, or may have."""
    key = (pod.namespace, group)
    return key in inventory.tenant_reservations or key in inventory.undecided_groups


def is_reserved(group: str, pod: NodePod, inventory: Inventory) -> bool:
    """Whether a reservation pod on this node has the group, or may have, and this pod may use it."""
    return group in inventory.reservations or is_of_vcluster(group, pod, inventory)


def of_groups(groups: Sequence[str], pod: NodePod, inventory: Inventory) -> Placement:
    """Return the GPUs that the reservation pods of the groups name."""
    own = inventory.tenant_reservations
    gpus = [inventory.reservations.get(group, own.get((pod.namespace, group), "")) for group in groups]
    return Placement(
        tuple(dict.fromkeys(gpu for gpu in gpus if gpu)),
        is_complete=bool(groups) and all(gpus),
        groups=tuple(groups),
        is_kais=all(group in inventory.reservations for group in groups),
    )


def of_share(
    groups: Sequence[str], bound: Sequence[str], request: ShareRequest, pod: NodePod, inventory: Inventory
) -> Placement:
    """Find the GPUs of a share.

    The sources are, in order: the reservation pod of the group label, that of the BindRequest's groups
    (`bound`), and the annotation `gpus.devices` of a container. The latter comes last because the pod's owner
    can write it as well as KAI's binder.
    """
    places = (
        of_groups(groups, pod, inventory),
        of_groups(bound, pod, inventory),
        Placement(request.gpus, is_complete=bool(request.gpus)),
    )
    complete = next((place for place in places if place.is_complete), None)
    return complete or next((place for place in places if place.gpus), UNPLACED)


def is_time_sliced(inventory: Inventory, devices: int = 0) -> bool:
    """Whether the device plugin gives each GPU to several pods.

    A label says so, or the node offers more `nvidia.com/gpu` than the driver has devices. Plugins other than
    NVIDIA's with GPU feature discovery set no label. `devices` is 0 if the number is unknown.
    """
    labels = inventory.node_labels or {}
    counts = (labels.get(key, "1") for key in (keys.NODE_GPU_REPLICAS, keys.GKE_MOST_CLIENTS))
    says_so = keys.GKE_SHARING_STRATEGY in labels or any(count not in ("", "0", "1") for count in counts)
    return says_so or 0 < devices < inventory.offered_gpus


def withheld_gpus(pod: NodePod, inventory: Inventory, devices: int) -> frozenset[str]:
    """Return the GPUs that a pod with whole GPUs cannot have been given, since a KAI group holds them.

    The device plugin gives a reservation pod its GPU, and each GPU to one pod only, except with time slicing.
    Reservation pods in namespaces that no tenant can write count, and those in the pod's own namespace. None
    counts while the node's labels are unknown, since they show whether time slicing is on. `devices` is the
    number of the driver's GPUs.
    """
    is_reservation = pod.uid in inventory.tenant_reservation_uids
    if inventory.node_labels is None or is_time_sliced(inventory, devices) or is_reservation:
        return frozenset()
    own = [gpu for (namespace, _), gpu in inventory.tenant_reservations.items() if namespace == pod.namespace]
    return frozenset((*inventory.reservations.values(), *own)) - {""}


class WholeGpus:
    """Finds the whole GPUs of each pod. The API does not contain them, so they are inferred.

    A whole GPU belongs to its pod until the pod ends, so a result is kept. The exception is a GPU that turns
    out to be held by a KAI group: then the pod used a GPU that it was not given.
    """

    def __init__(self) -> None:
        self._assigned: dict[str, tuple[str, ...]] = {}
        self._seen: frozenset[str] = frozenset()
        """All GPUs that ever responded."""

    @property
    def assigned(self) -> Mapping[str, tuple[str, ...]]:
        """The whole GPUs of pods that have been inferred, by pod UID."""
        return self._assigned

    def restore(self, assigned: Mapping[str, tuple[str, ...]]) -> None:
        """Go on from what an earlier process inferred."""
        self._assigned = dict(assigned)

    def assign(
        self,
        wanted: Mapping[str, int],
        withheld: Mapping[str, frozenset[str]],
        inventory: Inventory,
        devices: Sequence[Gpu],
        holders: Mapping[str, Collection[str]],
    ) -> Mapping[str, tuple[str, ...]]:
        """Find the GPUs of the pods with whole GPUs, by pod UID.

        `wanted` has the number of each unfinished pod that requests some, `withheld` the GPUs that KAI groups
        hold, and `holders` the GPUs on which the pod has a process.
        """
        present = frozenset(gpu.uuid for gpu in devices)
        self._seen |= present
        assigned = self._assigned = {
            uid: tuple(gpu for gpu in gpus if gpu not in withheld[uid])
            for uid, gpus in self._assigned.items()
            if uid in wanted
        }
        if any(gpu.mig for gpu in devices) or is_time_sliced(inventory, len(self._seen)):
            return assigned  # `nvidia.com/gpu` is then a part of a GPU
        claimed = (each.gpu_uuid for claims in inventory.claims.values() for each in claims.gpus)
        reserved = {*inventory.reservations.values(), *claimed}
        free = present.difference(reserved, *assigned.values())
        used = {uid: free.intersection(holders.get(uid, ())) - withheld[uid] for uid in wanted}
        times = Counter(gpu for gpus in used.values() for gpu in gpus)
        for uid, count in wanted.items():
            known, own = assigned.get(uid, ()), sorted(used[uid])
            if own and len(known) + len(own) <= count and all(times[gpu] == 1 for gpu in own):
                assigned[uid] = (*known, *own)
        free = present.difference(reserved, *assigned.values())
        missing = [uid for uid, count in wanted.items() if count > len(assigned.get(uid, ()))]
        labelled = (inventory.node_labels or {}).get(keys.NODE_GPU_COUNT, str(len(present)))
        sees_all = present == self._seen and labelled == str(len(present)) and "" not in reserved
        if len(missing) == 1 and sees_all and not free & withheld[missing[0]]:
            # Every GPU and every other owner is known, so the rest belongs to the last pod.
            uid = missing[0]
            own_gpus = assigned.get(uid, ())
            others = {gpu for gpus in assigned.values() for gpu in gpus} - set(own_gpus)
            if wanted[uid] == len(own_gpus) + len(free) and others.isdisjoint(holders.get(uid, ())):
                assigned[uid] = (*own_gpus, *sorted(free))
        return assigned


@dataclass(frozen=True, slots=True)
class ClaimedMemory:
    """What a pod may use on one GPU by its claims."""

    bytes: int | None
    """The claims of all `peers` together; None for the whole GPU."""
    peers: frozenset[str] = frozenset()
    """UIDs of the pods that share the claims, this one included; empty if no other pod has one of them."""


def claimed_memory(claims: Mapping[str, PodClaims]) -> Mapping[str, Mapping[str, ClaimedMemory]]:
    """Return what each pod may use, by its UID and the UUID of the GPU.

    Pods that name the same claim may use it together, in whatever parts, and so may pods that several claims
    connect. `claims` are those of the unfinished pods, by UID.
    """
    memory: dict[str, dict[str, ClaimedMemory]] = {}
    users: dict[tuple[str, str], set[str]] = {}
    amounts: dict[tuple[str, str], int | None] = {}
    claims_of: dict[tuple[str, str], list[str]] = {}
    for uid, pod_claims in claims.items():
        for each in pod_claims.gpus:
            users.setdefault((each.gpu_uuid, each.claim_uid), set()).add(uid)
            amounts[each.gpu_uuid, each.claim_uid] = each.bytes
            claims_of.setdefault((each.gpu_uuid, uid), []).append(each.claim_uid)
    for gpu, uid in claims_of:
        if gpu in memory.get(uid, {}):
            continue
        pods, own_claims, left = {uid}, set[str](), [uid]
        while left:
            for claim in claims_of[gpu, left.pop()]:
                if claim not in own_claims:
                    own_claims.add(claim)
                    left += users[gpu, claim] - pods
                    pods |= users[gpu, claim]
        parts = [amounts[gpu, claim] for claim in own_claims]
        whole = None in parts
        made = ClaimedMemory(
            None if whole else sum(part for part in parts if part is not None),
            frozenset(pods) if len(pods) > 1 else frozenset(),
        )
        for peer in pods:
            memory.setdefault(peer, {})[gpu] = made
    return memory
