"""KAI's records of a pod, as first known. Pure.

The owner of a pod can remove its group label, and KAI then deletes the reservation pod while the pod runs. A
tenant whose KAI runs inside a vCluster can edit and delete its reservation pods. A record that changes or
goes therefore takes nothing away: neither the GPUs of a running pod nor its share.
"""

from dataclasses import dataclass, replace
from typing import Final

from tests.gpuagent.old_core.pods.inventory import Inventory, NodePod
from tests.gpuagent.old_core.shares.allocations import Allocation, BindRequestShare
from tests.gpuagent.old_core.shares.placement import UNPLACED, Placement, of_groups, of_share
from tests.gpuagent.old_core.shares.share_requests import ShareRequest

_MOST_FORMER: Final = 64
"""Maximum of former GPUs of one pod; more than any node has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRecord:
    """KAI's records of one pod. They stay for its UID, unless KAI itself records something else."""

    allocation: Allocation
    groups: tuple[str, ...] = ()
    """Groups of a BindRequest with which KAI bound the pod again; they replace those of its labels."""
    is_bind_request_known: bool = False
    """Whether it was ever known if the pod has a BindRequest. KAI writes it before it binds the pod."""
    place: Placement = UNPLACED
    former_gpus: tuple[str, ...] = ()
    """GPUs that were the pod's own before KAI recorded other ones."""
    may_have_other_gpus: bool = False
    """Whether the pod ran without a reservation pod before the GPU of its group was known. A reservation pod
    that comes later may name another GPU than the one that the pod was given."""

    def with_gpus(
        self, groups: tuple[str, ...], request: ShareRequest, pod: NodePod, inventory: Inventory
    ) -> "FirstRecord":
        """Return the record with the GPUs that the records name now, as far as they were unknown."""
        latest = of_share(groups, request, self.allocation, pod, inventory)
        place = self.place.updated(latest, groups)
        former = dict.fromkeys((*self.former_gpus, *self.place.gpus))
        is_known = place.is_complete and place.groups == groups
        return replace(
            self,
            place=place,
            former_gpus=tuple(gpu for gpu in former if gpu not in place.gpus)[-_MOST_FORMER:],
            may_have_other_gpus=self.may_have_other_gpus
            or (bool(groups) and pod.is_running and not is_known),
        )


def first_record(
    known: FirstRecord | None,
    latest: Allocation,
    pod: NodePod,
    inventory: Inventory,
) -> FirstRecord:
    """Return the record of a pod with a newer record of its BindRequest.

    A BindRequest that appears late counts. One that changes counts only if KAI bound the pod again: with
    other groups, whose reservation pods are there.

    Args:
        known: the record so far; None for a new pod.
        latest: the current records.
        pod: the pod.
        inventory: has the reservation pods.
    """
    is_bind_request_known = pod.key not in inventory.bind_requests_unknown
    if known is None:
        return FirstRecord(allocation=latest, is_bind_request_known=is_bind_request_known)
    before, groups = known.allocation, known.groups
    bound = before.bound or latest.bound
    if before.bound and latest.bound and _is_bound_again(before.bound, latest.bound, pod, inventory):
        bound, groups = latest.bound, latest.bound.groups
    has_bind_request = before.has_bind_request or latest.has_bind_request
    return replace(
        known,
        allocation=replace(latest, bound=bound, has_bind_request=has_bind_request),
        groups=groups,
        is_bind_request_known=known.is_bind_request_known or is_bind_request_known,
    )


def _is_bound_again(
    before: BindRequestShare, latest: BindRequestShare, pod: NodePod, inventory: Inventory
) -> bool:
    place = of_groups(latest.groups, pod, inventory)
    return latest.groups != before.groups and place.is_complete and place.is_kais
