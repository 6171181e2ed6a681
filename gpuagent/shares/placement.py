"""Finds the GPUs of a pod's share by its GPU groups. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuagent.pods.inventory import Inventory, NodePod
from gpuagent.shares.allocations import Allocation
from gpuagent.shares.requests import ShareRequest
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

        Args:
            newer: the newer resolution.
            groups: the groups of the pod.
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
    groups: Sequence[str], request: ShareRequest, allocation: Allocation, pod: NodePod, inventory: Inventory
) -> Placement:
    """Find the GPUs of a share.

    The sources are, in order: the reservation pod of the group label, that of the BindRequest's group, KAI's
    ConfigMap, and the annotation `gpus.devices` of a container. The latter comes last because the pod's owner
    can write it as well as KAI's binder.
    """
    bound, configured = allocation.bound, allocation.configured
    places = (
        of_groups(groups, pod, inventory),
        of_groups(bound.groups if bound else (), pod, inventory),
        Placement(configured.gpus, is_complete=bool(configured.gpus)) if configured else Placement(),
        Placement(request.gpus, is_complete=bool(request.gpus)),
    )
    for place in places:
        if place.is_complete:
            return place
    return next((place for place in places if place.gpus), Placement())
