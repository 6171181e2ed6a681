"""KAI's own record of a pod: its BindRequest. Pure."""

import re
from dataclasses import dataclass
from typing import Final

from service.text import one_line, quoted
from tests.gpuagent.old_core.pods.inventory import Inventory, NodePod

_PORTION = re.compile(r"0(?:\.[0-9]{1,9})?|1(?:\.0{1,9})?")
_MOST_DEVICES: Final = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BindRequestShare:
    """The share in a pod's BindRequest."""

    portion: str = ""
    """Fraction of each device, with two decimals; empty if the pod has no share."""
    count: int = 0
    """Number of devices; 0 if the BindRequest has none."""
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """KAI's record of one pod."""

    bound: BindRequestShare | None = None
    has_bind_request: bool = False
    """Whether the pod has a BindRequest of its own, well-formed or not; KAI has then placed the pod."""
    notes: tuple[str, ...] = ()


def find_allocation(pod: NodePod, inventory: Inventory, where: str) -> Allocation:
    """Find KAI's record of a pod. The record of another pod with the same name is ignored.

    Args:
        pod: the pod.
        inventory: has the BindRequests that could be fetched.
        where: the pod's name, as the prefix of notes.
    """
    notes: list[str] = []
    bound = _bound(pod, inventory, where, notes)
    request = inventory.bind_requests.get(pod.key)
    return Allocation(
        bound=bound,
        has_bind_request=request is not None and request.pod_uid == pod.uid,
        notes=tuple(map(one_line, notes)),
    )


def _bound(pod: NodePod, inventory: Inventory, where: str, notes: list[str]) -> BindRequestShare | None:
    request = inventory.bind_requests.get(pod.key)
    if request is None:
        return None
    if request.pod_uid != pod.uid:
        notes.append(f"{where}: the BindRequest of that name belongs to another pod and is ignored")
        return None
    is_portion = _PORTION.fullmatch(request.portion) is not None
    if request.portion and not is_portion:
        portion_text = quoted(request.portion)
        notes.append(
            f"{where}: BindRequest portion {portion_text}: expected a number from 0 to 1, such as 0.50"
        )
        return None
    if request.count > _MOST_DEVICES:
        notes.append(f"{where}: BindRequest: its GPU count is larger than any node's; ignored")
        return None
    # Pods without a share have BindRequests, too: `Regular` with 1.00 for whole GPUs, and 0.00 for none.
    is_share = request.resource_type == "Fraction" or (
        request.resource_type != "Regular" and (bool(request.groups) or 0 < float(request.portion or 0) < 1)
    )
    return BindRequestShare(
        portion=request.portion if is_share else "", count=max(request.count, 0), groups=request.groups
    )
