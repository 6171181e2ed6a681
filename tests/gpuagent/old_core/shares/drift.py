"""What a pod declares of its share, and how that differs from KAI's records (`share-changed`). Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kai import keys
from kai.kaishare_keys import SIZE, is_size_name
from service.text import counted
from tests.gpuagent.old_core.pods.inventory import NodePod
from tests.gpuagent.old_core.pods.pod_owners import Workload, virtual_workload_of, workload_of
from tests.gpuagent.old_core.shares.allocations import Allocation, BindRequestShare
from tests.gpuagent.old_core.shares.cards import Cards
from tests.gpuagent.old_core.shares.placement import group_labels, groups_of
from tests.gpuagent.old_core.shares.share_requests import ShareRequest, parse_share_request


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A pod's declaration of its share at one time."""

    request: ShareRequest
    groups: tuple[str, ...]


def pod_name(pod: NodePod) -> str:
    """Return the pod's name, as the prefix of notes."""
    return f"Pod {pod.namespace}/{pod.name}"


@dataclass(frozen=True, slots=True)
class PodDeclaration:
    """A pod's declaration at one time.

    It does not hold the pod, since the first declaration outlives old versions of the pod.
    """

    request: ShareRequest
    notes: tuple[str, ...]
    queue: str
    size: str
    workload: Workload
    virtual_workload: Workload
    """The workload inside the vCluster; counts only for a pod of a vCluster."""
    group_labels: Mapping[str, str]

    @classmethod
    def by(cls, pod: NodePod) -> "PodDeclaration":
        """Read a pod's declaration."""
        request, notes = parse_share_request(pod.annotations, pod_name(pod))
        size = pod.annotations.get(SIZE, "")
        return cls(
            request,
            notes,
            queue=pod.labels.get(keys.QUEUE_LABEL, ""),
            size=size if is_size_name(size) else "",
            workload=workload_of(pod),
            virtual_workload=virtual_workload_of(pod),
            group_labels=group_labels(pod.labels),
        )

    def declared(self, devices: int) -> Declared:
        """Return the request and the GPU groups of a share of so many devices."""
        return Declared(request=self.request, groups=groups_of(self.group_labels, devices))


def share_drift(
    now: Declared, first: Declared, allocation: Allocation, latest: Allocation, cards: Cards
) -> tuple[str, ...]:
    """Return all differences.

    The annotations are compared with KAI's record, rounded to two decimals as KAI rounds them. Without a
    record they are compared with those first seen. A group label that differs from the BindRequest is no
    drift: KAI changes it after a retried reservation (observed on v0.9.8, v0.13.4 and v0.17.0).

    Args:
        now: the current declaration.
        first: the first declaration.
        allocation: KAI's records, as first seen.
        latest: the current records.
        cards: memory of the GPUs.
    """
    bind_request = allocation.bound
    differences = [_of_records(bind_request, latest.bound)]
    if bind_request is not None:
        differences.append(_against(bind_request, now.request, cards))
    elif (now.request.share, now.request.requests) != (first.request.share, first.request.requests):
        differences.append(
            f"the pod declares {_text(now.request)}; it declared {_text(first.request)} when first seen"
        )
    if now.request.limits != first.request.limits:
        differences.append("the memory limits of its containers have changed since the pod was first seen")
    if now.request.devices != first.request.devices:
        differences.append("the GPUs of its containers have changed since the pod was first seen")
    if bind_request is None:
        differences.append(_of_groups(now.groups, first))
    return tuple(filter(None, differences))


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


def _of_records(first: BindRequestShare | None, latest: BindRequestShare | None) -> str:
    if first is None or latest is None or first.portion == latest.portion:
        return ""
    return f"KAI's BindRequest allocates {latest.portion or 'no share'} now; the first one seen counts"


def _of_groups(groups: Sequence[str], first: Declared) -> str:
    if tuple(groups) != first.groups:
        return "its GPU group labels have changed since the pod was first seen"
    share = first.request.share
    if share is not None and len(groups) > share.devices:
        return f"the pod has {len(groups)} GPU groups for a share of {counted(share.devices, 'GPU')}"
    return ""


def _text(request: ShareRequest) -> str:
    return request.text or "no share"
