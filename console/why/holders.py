"""Which pods hold the GPUs that a pod waits for, and the pod's place among those that wait. Pure.

Only for callers who may list the pods of all namespaces. The queue of a pod is the one that its label names.
KAI takes the workload of the highest priority in a queue first, and of equal ones the oldest (v0.17.0,
`priority.go`, `elastic.go`).
"""

from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from console.cluster.facts import items
from console.why.evidence import GpuPod, PodEvidence, request_of
from kube.kinds import Pod
from service.text import one_line

_MOST: Final = 3  # pods that are named
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


def gpu_pod(pod: Pod) -> GpuPod | None:
    """Return what is kept of a pod of KAI; None for one that requests no GPU."""
    request, created = request_of(pod), pod.metadata.creation_timestamp
    if not request.is_any or created is None:
        return None
    start, seconds, ends_at = pod.status.start_time, pod.spec.active_deadline_seconds, None
    if start is not None and seconds is not None:
        with suppress(OverflowError):  # an end that no calendar has is none
            ends_at = start + timedelta(seconds=seconds)
    place, queue, group = pod.metadata.key, pod.queue_label, pod.pod_group_name
    return GpuPod(*place, queue, group, request.text, created, pod.is_bound, ends_at)


def who_holds(evidence: PodEvidence, queues: Collection[str] = ()) -> str:
    """Return the pods that hold GPUs, of some queues or all, and the pod's place, as the end of a sentence.

    The pod that ends first comes first. Empty if the caller may not list pods.
    """
    if not evidence.gpu_pods.is_known:
        return ""
    pods = [pod for pod in items(evidence.gpu_pods) if pod.is_bound and (not queues or pod.queue in queues)]
    pods.sort(key=lambda pod: (pod.ends_at or _LATEST, pod.created_at, pod.namespace, pod.name))
    named = "; ".join(map(_named, pods[:_MOST]))
    more = f"; and {len(pods) - _MOST} more" if len(pods) > _MOST else ""
    place = place_of(evidence) or (1, 1)
    turn = f". By age its workload is number {place[0]} of {place[1]} that wait in the queue"
    return f"{f': {named}{more}' if pods else ''}{turn if place[1] > 1 else ''}"


def place_of(evidence: PodEvidence) -> tuple[int, int] | None:
    """Return the place of the pod's workload among those that wait in its queue, by age, and their number."""
    own, queue = evidence.pod.known, evidence.queue_name
    if own is None or not queue or not evidence.gpu_pods.is_known:
        return None
    waiting: dict[tuple[str, str], datetime] = {}
    for pod in items(evidence.gpu_pods):
        if not pod.is_bound and pod.queue == queue:
            key = pod.namespace, pod.group or pod.name
            waiting[key] = min(waiting.get(key, pod.created_at), pod.created_at)
    order = sorted(waiting, key=lambda key: (waiting[key], key))
    key = own.metadata.namespace, own.pod_group_name or own.name
    return (order.index(key) + 1, len(order)) if key in waiting else None


def _named(pod: GpuPod) -> str:
    queue = f", queue {one_line(pod.queue)}" if pod.queue else ""
    ends = f", ends by {pod.ends_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if pod.ends_at else ""
    return f"{pod.namespace}/{pod.name} ({pod.request}{queue}{ends})"
