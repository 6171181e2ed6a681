"""Which GPUs are a pod's: of a share by its group, of whole GPUs by what is left. Pure but for a memory."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpuagent.gpus.reading import Gpu
from gpuagent.pods.inventory import Inventory, NodePod
from gpuagent.shares.allocations import Allocation
from gpuagent.shares.requests import ShareRequest
from kai import keys


@dataclass(frozen=True, slots=True)
class Placement:
    """A pod's GPUs, as far as they are known."""

    gpus: tuple[str, ...] = ()
    is_complete: bool = False
    """Whether these are all of them."""


def group_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that name GPU groups."""
    prefix = keys.GPU_GROUP_PREFIX
    return {key: text for key, text in labels.items() if key == keys.GPU_GROUP or key.startswith(prefix)}


def groups_of(labels: Mapping[str, str], devices: int) -> tuple[str, ...]:
    """Read the GPU groups of a pod that has a share of so many devices.

    KAI labels one device with `runai-gpu-group` and several with `runai-gpu-group/<group>` each (v0.13.0
    `resource_reservation.go`); the other form on the same pod is not KAI's.
    """
    single = labels.get(keys.GPU_GROUP, "")
    prefix = keys.GPU_GROUP_PREFIX
    several = tuple(sorted(label.removeprefix(prefix) for label in labels if label.startswith(prefix)))
    if several and (devices > 1 or not single):
        return several
    return (single,) if single else ()


def is_reserved(group: str, pod: NodePod, inventory: Inventory) -> bool:
    """Whether a reservation pod on this node carries the group, for this pod to use."""
    return group in inventory.reservations or (pod.namespace, group) in inventory.tenant_reservations


def of_groups(groups: Sequence[str], pod: NodePod, inventory: Inventory) -> Placement:
    """Follow the groups to the GPUs that their reservation pods name."""
    own = inventory.tenant_reservations
    gpus = [inventory.reservations.get(group, own.get((pod.namespace, group), "")) for group in groups]
    known = tuple(dict.fromkeys(gpu for gpu in gpus if gpu))
    return Placement(known, is_complete=bool(groups) and all(gpus))


def of_share(
    groups: Sequence[str], ask: ShareRequest, grants: Allocation, pod: NodePod, inventory: Inventory
) -> Placement:
    """Find the GPUs of a share by the pod's groups.

    Where no reservation pod carries the group of the label, the BindRequest may still name one that is, and
    KAI's ConfigMap the GPU itself. `gpus.devices` of a container comes last: the pod's owner can write it as
    well as KAI's binder.
    """
    bound, configured = grants.bound, grants.configured
    places = (
        of_groups(groups, pod, inventory),
        of_groups(bound.groups if bound else (), pod, inventory),
        Placement(configured.gpus, is_complete=bool(configured.gpus)) if configured else Placement(),
        Placement(ask.gpus, is_complete=bool(ask.gpus)),
    )
    for place in places:
        if place.is_complete:
            return place
    return next((place for place in places if place.gpus), Placement())


class GroupGpus:
    """The GPUs that KAI groups hold, by whom that is said.

    A reservation pod has its GPU from the device plugin, which hands one GPU to one pod: unless time slicing
    hands it to several.
    """

    def __init__(self, inventory: Inventory) -> None:
        trusted = {gpu for gpu in inventory.reservations.values() if gpu}
        found: dict[str, set[str]] = {}
        for (namespace, _), gpu in inventory.tenant_reservations.items():
            found.setdefault(namespace, set(trusted)).update({gpu} - {""})
        is_exclusive = inventory.node_labels is not None and not is_time_sliced(inventory)
        self._trusted = frozenset(trusted if is_exclusive else ())
        self._by_namespace = {name: frozenset(gpus) for name, gpus in found.items()} if is_exclusive else {}
        self._reservation_uids = inventory.tenant_reservation_uids

    def withheld_from(self, pod: NodePod) -> frozenset[str]:
        """Return the GPUs that no device plugin gave to a pod with whole GPUs, since a KAI group holds them.

        Reservation pods where no tenant can write count, and those of the pod's own namespace. Those of other
        tenants do not, and none does where the node's labels are unknown, which tell of time slicing.
        """
        if pod.uid in self._reservation_uids:
            return frozenset()
        return self._by_namespace.get(pod.namespace, self._trusted)


class WholeGpus:
    """Which whole GPUs a pod has: the API does not say, so only what follows from the rest counts.

    A whole GPU is nobody else's for as long as its pod lives, so what was found once stays, unless a KAI
    group turns out to hold it: then the pod used a GPU that it was not given.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, ...]] = {}
        self._present: frozenset[str] = frozenset()
        self._seen: frozenset[str] = frozenset()

    def assign(
        self,
        wanted: Mapping[str, int],
        inventory: Inventory,
        devices: Sequence[Gpu],
        holders: Mapping[str, Collection[str]],
    ) -> Mapping[str, tuple[str, ...]]:
        """Find the GPUs of the pods with whole GPUs.

        Args:
            wanted: count of GPUs by pod UID, of every pod whose containers ask for some, reservation pods of
                the cluster's own KAI and finished pods left out.
            inventory: for those reservation pods, each of which has a whole GPU.
            devices: the node's GPUs.
            holders: the GPUs that a pod's processes were found on, by pod UID.
        """
        present = self._present = frozenset(gpu.uuid for gpu in devices)
        self._seen |= present
        groups = GroupGpus(inventory)
        withheld = {uid: groups.withheld_from(inventory.pods[uid]) for uid in wanted}
        self._found = {
            uid: tuple(gpu for gpu in gpus if gpu not in withheld[uid])
            for uid, gpus in self._found.items()
            if uid in wanted
        }
        if any(gpu.mig for gpu in devices) or is_time_sliced(inventory):
            return self._found  # `nvidia.com/gpu` is a part of a GPU then
        reserved = set(inventory.reservations.values())
        free = present - reserved - self._taken()
        held = {uid: free.intersection(holders.get(uid, ())) - withheld[uid] for uid in wanted}
        times = Counter(gpu for gpus in held.values() for gpu in gpus)
        for uid, count in wanted.items():
            found, own = self._found.get(uid, ()), sorted(held[uid])
            if own and len(found) + len(own) <= count and all(times[gpu] == 1 for gpu in own):
                self._found[uid] = (*found, *own)
        free = present - reserved - self._taken()
        missing = [uid for uid, count in wanted.items() if count > len(self._found.get(uid, ()))]
        if len(missing) == 1 and "" not in reserved and not free & withheld[missing[0]]:
            self._give_what_is_left(missing[0], wanted, free, holders, inventory)
        return self._found

    def _give_what_is_left(
        self,
        uid: str,
        wanted: Mapping[str, int],
        free: frozenset[str],
        holders: Mapping[str, Collection[str]],
        inventory: Inventory,
    ) -> None:
        """Give the last pod the last GPUs, if every GPU and every other owner is known."""
        if not self._sees_all(inventory):
            return
        own = self._found.get(uid, ())
        is_elsewhere = (self._taken() - set(own)).intersection(holders.get(uid, ()))
        if wanted[uid] == len(own) + len(free) and not is_elsewhere:
            self._found[uid] = (*own, *sorted(free))

    def _taken(self) -> set[str]:
        return {gpu for gpus in self._found.values() for gpu in gpus}

    def _sees_all(self, inventory: Inventory) -> bool:
        count = (inventory.node_labels or {}).get(keys.NODE_GPU_COUNT)
        return self._present == self._seen and (count is None or count == str(len(self._present)))


def is_time_sliced(inventory: Inventory) -> bool:
    """Whether the device plugin hands each GPU to several pods."""
    return (inventory.node_labels or {}).get(keys.NODE_GPU_REPLICAS, "1") not in ("", "0", "1")
