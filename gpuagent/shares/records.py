"""KAI's records of a pod, as first known: its BindRequest and its GPUs. Pure.

The owner of a pod can remove its group label, and KAI then deletes the reservation pod while the pod runs. A
tenant whose KAI runs inside a vCluster can edit and delete its reservation pods. A record that changes or
goes therefore takes nothing away: neither the GPUs of a running pod nor its share.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

from gpuagent.pods.inventory import BindRequest, Inventory, NodePod
from gpuagent.shares.entitlement import Record
from gpuagent.shares.placement import UNPLACED, Placement, of_groups, of_share
from gpuagent.shares.pod_share import Author
from gpuagent.shares.share_requests import ShareRequest
from service.text import one_line, quoted

_PORTION = re.compile(r"0(?:\.[0-9]{1,9})?|1(?:\.0{1,9})?")
_MOST_DEVICES: Final = 1 << 10
_MOST_FORMER: Final = 64
"""Maximum of former GPUs of one pod; more than any node has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindRequestShare:
    """The share in a pod's BindRequest."""

    portion: str = ""
    """Fraction of each device, with two decimals; empty if the pod has no share."""
    count: int = 0
    """Number of devices; 0 if the BindRequest has none."""
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecords:
    """KAI's records of one pod. They stay for its UID, unless KAI itself records something else."""

    bound: BindRequestShare | None = None
    """The BindRequest that counts; None without a well-formed one."""
    latest: BindRequestShare | None = None
    """The present BindRequest."""
    has_bind_request: bool = False
    """Whether the pod has ever had a BindRequest, well-formed or not; KAI has then placed the pod."""
    is_known: bool = False
    """Whether it was ever known if the pod has a BindRequest."""
    note: str = ""
    """Why the present BindRequest does not count; empty if it does."""
    groups: tuple[str, ...] = ()
    """Groups of a BindRequest with which KAI bound the pod again; they replace those of its labels."""
    place: Placement = UNPLACED
    former_gpus: tuple[str, ...] = ()
    """GPUs that were the pod's own before KAI recorded other ones."""
    may_have_other_gpus: bool = False
    """Whether the pod ran without a reservation pod before the GPU of its group was known. A reservation pod
    that comes later may name another GPU than the one that the pod was given."""

    @property
    def state(self) -> Record:
        """What is known of the BindRequest."""
        if self.bound is not None:
            return Record.SHARE if self.bound.portion else Record.NO_SHARE
        if self.has_bind_request:
            return Record.MALFORMED
        return Record.NONE if self.is_known else Record.UNKNOWN

    def updated(self, pod: NodePod, inventory: Inventory, where: str) -> "PodRecords":
        """Return the records with a newer BindRequest; `where` is the pod's name, as the prefix of notes.

        A BindRequest that appears late counts. One that changes counts only if KAI bound the pod again: with
        other groups, whose reservation pods are there.
        """
        request = inventory.bind_requests.get(pod.key)
        latest, note = (None, "") if request is None else _bound_share(request, pod)
        bound, groups = self.bound or latest, self.groups
        if latest is not None and self.bound is not None and latest.groups != self.bound.groups:
            place = of_groups(latest.groups, pod, inventory)
            if place.is_complete and place.author is Author.KAI:
                bound, groups = latest, latest.groups
        return replace(
            self,
            bound=bound,
            latest=latest,
            has_bind_request=self.has_bind_request or (request is not None and request.pod_uid == pod.uid),
            is_known=self.is_known or pod.key not in inventory.bind_requests_unknown,
            note=note and one_line(f"{where}: {note}"),
            groups=groups,
        )

    def with_gpus(
        self, groups: tuple[str, ...], request: ShareRequest, pod: NodePod, inventory: Inventory
    ) -> "PodRecords":
        """Return the records with the GPUs that they name now, as far as they were unknown."""
        bound_groups = self.bound.groups if self.bound else ()
        place = self.place.updated(of_share(groups, bound_groups, request, pod, inventory), groups)
        former = dict.fromkeys((*self.former_gpus, *self.place.gpus))
        is_known = place.is_complete and place.groups == groups
        return replace(
            self,
            place=place,
            former_gpus=tuple(gpu for gpu in former if gpu not in place.gpus)[-_MOST_FORMER:],
            may_have_other_gpus=self.may_have_other_gpus
            or (bool(groups) and pod.is_running and not is_known),
        )


NO_RECORDS: Final = PodRecords()


def _bound_share(request: BindRequest, pod: NodePod) -> tuple[BindRequestShare | None, str]:
    """Read a BindRequest; without a share of the pod, say why."""
    if request.pod_uid != pod.uid:
        return None, "the BindRequest of that name belongs to another pod and is ignored"
    if request.portion and _PORTION.fullmatch(request.portion) is None:
        portion = quoted(request.portion)
        return None, f"BindRequest portion {portion}: expected a number from 0 to 1, such as 0.50"
    if request.count > _MOST_DEVICES:
        return None, "BindRequest: its GPU count is larger than any node's; ignored"
    # Pods without a share have BindRequests, too: `Regular` with 1.00 for whole GPUs, and 0.00 for none.
    is_share = request.resource_type == "Fraction" or (
        request.resource_type != "Regular" and (bool(request.groups) or 0 < float(request.portion or 0) < 1)
    )
    portion = request.portion if is_share else ""
    return BindRequestShare(portion=portion, count=max(request.count, 0), groups=request.groups), ""
