"""Compares the requests of the pods of each queue, with its child queues, with the queue's limit."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

from service.check_results import problem
from service.text import MOST_LINES, counted, listed, quoted
from webhook.doctor.accounting.reading import CHECK, REMEDY, TOLERANCE, Difference, Reading, gpus, named
from webhook.doctor.accounting.requests import CLAIMS, GpuRequest
from webhook.doctor.api_reader import ListOutcome
from webhook.doctor.pod_groups import gpu_amount


def compare_limits(reading: Reading) -> list[Difference]:
    """Compare the sum of each queue, as KAI's scheduler counts it, with `spec.resources.gpu.limit`.

    A pod that is being deleted does not count: KAI leaves it out, so that its successor may run beside it.
    MIG devices and claims, which KAI counts, are left out; the sum is then a lower bound.
    """
    direct: defaultdict[str, float] = defaultdict(float)
    pods: defaultdict[str, list[GpuRequest]] = defaultdict(list)
    for pod in reading.pods.items:
        place = _queue_of(reading, pod)
        if place is not None and pod.deleted_at is None:
            direct[place] += _requested(reading, pod)
            pods[place].append(pod)
    parents = {queue.name: queue.parent for queue in reading.queues.items}
    totals: defaultdict[str, float] = defaultdict(float)
    parts: defaultdict[str, list[str]] = defaultdict(list)
    """The queues with pods that make up a total."""
    for queue, amount in direct.items():
        for above in _upwards(queue, parents):
            totals[above] += amount
            parts[above].append(queue)
    differences: list[Difference] = []
    for limited in reading.queues.items:
        name, limit = limited.name, limited.gpu_limit
        if limit is None or totals[name] <= limit + TOLERANCE:
            continue
        is_shown = len(differences) < MOST_LINES  # the pods of each queue take linear time
        members = [pod for queue in parts[name] for pod in pods[queue]] if is_shown else []
        status = gpu_amount(limited.allocated)
        counted_by_kai = "" if status is None else f"; KAI's status has {gpus(status)}"
        differences.append(
            Difference(
                key=("limit", name),
                finding=problem(
                    CHECK,
                    f"queue {quoted(name)} has a limit of {gpus(limit)}, and its pods request"
                    f" {gpus(totals[name])}{counted_by_kai}{f': {named(members)}' if members else ''}",
                    f"if the limit was not lowered while these pods ran: {REMEDY}",
                ),
            )
        )
    return [*differences, *_without_queue(reading, pods)]


def _upwards(queue: str, parents: Mapping[str, str]) -> Iterator[str]:
    """Yield a queue that exists and the queues above it, each once even in a circle."""
    seen: set[str] = set()
    while queue in parents and queue not in seen:
        seen.add(queue)
        yield queue
        queue = parents[queue]


def _queue_of(reading: Reading, pod: GpuRequest) -> str | None:
    """Return the queue of a pod; None also if its PodGroup may be among those that were not read."""
    is_certain = reading.pod_groups.outcome is ListOutcome.WHOLE or reading.group_of(pod) is not None
    return reading.queue_of(pod) if is_certain else None


def _requested(reading: Reading, pod: GpuRequest) -> float:
    """Return the GPUs that a pod certainly requests; a claim beside a share does not hide the share."""
    is_readable = pod.obstacle in ("", CLAIMS)
    share = reading.node_of(pod).in_queue(pod.share) if pod.share and is_readable else None
    return pod.whole + (share or 0.0)


def _without_queue(reading: Reading, pods: Mapping[str, list[GpuRequest]]) -> list[Difference]:
    """Return the pods in queues that do not exist, which have no limit."""
    if reading.queues.outcome is not ListOutcome.WHOLE:
        return []
    known = {queue.name for queue in reading.queues.items}
    lost = {queue: members for queue, members in pods.items() if queue not in known}
    members = [pod for queue in lost.values() for pod in queue if _requested(reading, pod)]
    if not members:
        return []
    return [
        Difference(
            key=("no queue",),
            evidence={pod.name for pod in members},
            finding=problem(
                CHECK,
                f"{counted(len(members), 'pod')} with GPUs in queues that do not exist: {named(members)};"
                f" queues: {listed([quoted(queue) for queue in lost])}",
                "no queue counts these pods: create the queues, or delete the pods",
            ),
        )
    ]
