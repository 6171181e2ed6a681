"""What a pod declares of its share, and how that differs from KAI's records (`share-changed`). Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuagent.pods.inventory import NodePod
from gpuagent.pods.pod_owners import Workload, virtual_workload_of, workload_of
from gpuagent.shares.cards import Cards
from gpuagent.shares.placement import group_labels, groups_of
from gpuagent.shares.records import BindRequestShare, PodRecords
from gpuagent.shares.share_requests import ShareRequest, parse_share_request
from kai import keys
from kai.kaishare_keys import SIZE, is_size_name
from service.text import counted


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
