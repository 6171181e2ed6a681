"""What is recorded of a pod and what it declares, as first known, and how that differs now. Pure.

The owner of a pod can remove its group label, and KAI then deletes the reservation pod while the pod runs. A
tenant whose KAI runs inside a vCluster can edit and delete its reservation pods. A record that changes or
goes therefore takes nothing away: neither the GPUs of a running pod nor its share.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from gpuagent.pods.inventory import BindRequest, Inventory, NodePod
from gpuagent.pods.pod_owners import Workload, virtual_workload_of, workload_of
from gpuagent.shares.entitlement import Record
from gpuagent.shares.placement import UNPLACED, Placement, group_labels, groups_of, of_groups, of_share
from gpuagent.shares.share_requests import Cards, ShareRequest, parse_share_request
from kai import keys
from kai.kaishare_keys import SIZE, is_size_name
from service.text import counted, one_line, quoted

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

    def agree_with(self, pod: NodePod, inventory: Inventory) -> bool:
        """Whether the present BindRequest is one that these records know, or is missing."""
        request = inventory.bind_requests.get(pod.key)
        latest = _bound_share(request, pod)[0] if request is not None else None
        return latest is None or self.bound is None or latest in (self.bound, self.latest)

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
            if place.is_complete and place.is_kais:
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


@dataclass(frozen=True, slots=True)
class PodDeclaration:
    """A pod's declaration at one time. It holds no NodePod, since the first one outlives old versions."""

    name: str
    """Prefix of notes."""
    request: ShareRequest
    notes: tuple[str, ...]
    queue: str
    size: str
    workload: Workload
    virtual_workload: Workload
    """The workload inside the vCluster; counts only for a pod of a vCluster."""
    group_labels: Mapping[str, str]

    @property
    def declares_share(self) -> bool:
        """Whether the pod asks for a share, or has the label of a GPU group."""
        return self.request.has_share or bool(self.request.devices or self.group_labels)

    @classmethod
    def by(cls, pod: NodePod) -> "PodDeclaration":
        """Read a pod's declaration."""
        name = f"Pod {pod.namespace}/{pod.name}"
        request, notes = parse_share_request(pod.annotations, name)
        size = pod.annotations.get(SIZE, "")
        return cls(
            name,
            request,
            notes,
            queue=pod.labels.get(keys.QUEUE_LABEL, ""),
            size=size if is_size_name(size) else "",
            workload=workload_of(pod),
            virtual_workload=virtual_workload_of(pod),
            group_labels=group_labels(pod.labels),
        )

    def groups(self, devices: int) -> tuple[str, ...]:
        """Return the GPU groups of a share of so many devices."""
        return groups_of(self.group_labels, devices)


def share_drift(
    now: PodDeclaration, first: PodDeclaration, devices: int, records: PodRecords, cards: Cards
) -> list[str]:
    """Return all differences of a share of so many devices.

    The annotations are compared with KAI's record, rounded to two decimals as KAI rounds them. Without a
    record they are compared with those first seen. A group label that differs from the BindRequest is no
    drift: KAI changes it after a retried reservation (observed on v0.9.8, v0.13.4 and v0.17.0).
    """
    bound, latest, differences = records.bound, records.latest, []
    if bound is not None and latest is not None and bound.portion != latest.portion:
        allocates = latest.portion or "no share"
        differences.append(f"KAI's BindRequest allocates {allocates} now; the first one seen counts")
    if bound is not None:
        differences.append(_against(bound, now.request, cards))
    elif (now.request.share, now.request.requests) != (first.request.share, first.request.requests):
        differences.append(
            f"the pod declares {_text(now.request)}; it declared {_text(first.request)} when first seen"
        )
    if now.request.limits != first.request.limits:
        differences.append("the memory limits of its containers have changed since the pod was first seen")
    if now.request.devices != first.request.devices:
        differences.append("the GPUs of its containers have changed since the pod was first seen")
    if bound is None:
        differences.append(_of_groups(now.groups(devices), first.groups(devices), first.request))
    return [difference for difference in differences if difference]


def _against(bound: BindRequestShare, request: ShareRequest, cards: Cards) -> str:
    portion, count = bound.portion, bound.count
    declares = f"the pod declares {_text(request)}, its BindRequest allocates"
    if not portion:
        return f"{declares} no share" if request.has_share else ""
    own = request.portions(cards.all())
    if not request.has_share or (own and all(float(fraction) != float(portion) for fraction in own)):
        return f"{declares} {portion}"
    if count and request.share is not None and request.share.devices != count:
        return f"{declares} {counted(count, 'GPU')}"
    return ""


def _of_groups(groups: tuple[str, ...], first: tuple[str, ...], request: ShareRequest) -> str:
    if groups != first:
        return "its GPU group labels have changed since the pod was first seen"
    if request.share is not None and len(groups) > request.share.devices:
        return f"the pod has {len(groups)} GPU groups for a share of {counted(request.share.devices, 'GPU')}"
    return ""


def _text(request: ShareRequest) -> str:
    return request.text or "no share"
