"""Compares the requests of the pods of each queue with the GPUs in `Queue.status`."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from kai import keys
from kai.queue import Queue
from service.check_results import CheckResult, problem
from service.text import joined, listed, quoted
from webhook.doctor.accounting.reading import (
    CHECK,
    REMEDY,
    TOLERANCE,
    Difference,
    Reading,
    SumComparison,
    gpus,
    named,
)
from webhook.doctor.accounting.requests import GpuRequest
from webhook.doctor.pod_groups import PodGroup, gpu_amount

_DIGITS = 3


@dataclass(slots=True)
class _Members:
    """Pods that KAI's status adds up together: those of a PodGroup, or one pod without a PodGroup."""

    group: PodGroup | None
    spec_queue: str
    label_queue: str
    pods: list[GpuRequest] = field(default_factory=list)
    own: float = 0.0
    """The pods' own requests, as far as they can be counted."""
    unknown: list[str] = field(default_factory=list)

    @property
    def counted_by_kai(self) -> float | None:
        """The figure in the PodGroup's status; KAI counts no pod without a PodGroup in its namespace."""
        return self.group.allocated_gpus if self.group else 0.0

    @property
    def difference(self) -> float:
        """Own requests minus KAI's figure; 0 if one of them is unknown."""
        counted = self.counted_by_kai
        return 0.0 if self.unknown or counted is None else self.own - counted


@dataclass(slots=True)
class _Queue:
    """The sums of one queue without its child queues."""

    own: float = 0.0
    pods: list[GpuRequest] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    differing: list[_Members] = field(default_factory=list)
    """The PodGroups and pods whose own figure differs from KAI's."""

    def add(self, members: _Members) -> None:
        """Add the pods of a PodGroup."""
        self.own += members.own
        self.pods += members.pods
        self.unknown += members.unknown
        if abs(members.difference) > TOLERANCE:
            self.differing.append(members)


def compare_status(reading: Reading) -> SumComparison:
    """Compare the requests of the pods of each queue with `Queue.status.allocated`, without child queues.

    KAI's status counts what `calculatedAllocatedResources` of its podgroupcontroller adds up, also for a pod
    that is being deleted: the regular containers' GPUs, and the share without its number of devices.
    """
    members = _members(reading)
    by_spec = _queues(members, use_label=False)
    by_label = _queues(members, use_label=True)
    if reading.sums_by_label is not None:
        by_spec = by_label = by_label if reading.sums_by_label else by_spec
    children: defaultdict[str, list[Queue]] = defaultdict(list)
    for queue in reading.queues.items:
        children[queue.parent].append(queue)
    result = SumComparison()
    for queue in reading.queues.items:
        name = queue.name
        counted = _counted_by_kai(queue, children[name])
        sums, other = by_spec.get(name, _Queue()), by_label.get(name, _Queue())
        if sums.unknown or counted is None:
            result.unknown[name] = sums.unknown or ["KAI's figure cannot be read"]
            if sums.differing:
                own = sum(part.own for part in sums.differing)
                counted = sum(part.counted_by_kai or 0.0 for part in sums.differing)
                result.differences.append(_difference(name, own, counted, sums, bool(children[name])))
        elif min(abs(sums.own - counted), abs(other.own - counted)) > TOLERANCE:
            result.differences.append(_difference(name, sums.own, counted, sums, bool(children[name])))
        else:
            result.compared.append(name)
    return result


def _members(reading: Reading) -> list[_Members]:
    """Collect the pods of each PodGroup, PodGroups without pods, and each pod of KAI without a PodGroup."""
    groups = {
        key: _Members(group, group.spec.queue, group.queue_label)
        for key, group in reading.groups_by_key.items()
    }
    single: list[_Members] = []
    for pod in reading.pods.items:
        group = reading.group_of(pod)
        if group is not None:
            members = groups[group.key]
        elif pod.is_of_kai:
            queue = pod.queue_label or keys.DEFAULT_QUEUE
            members = _Members(None, queue, queue)
            single.append(members)
        else:
            continue
        share = reading.node_of(pod).in_status(pod.share) if pod.share else 0.0
        members.pods.append(pod)
        if pod.obstacle or share is None:
            members.unknown.append(f"{pod.name} ({pod.obstacle or 'unknown memory of its node'})")
        else:
            members.own += pod.regular + share
    return [*groups.values(), *single]


def _queues(members: Iterable[_Members], *, use_label: bool) -> dict[str, _Queue]:
    queues: defaultdict[str, _Queue] = defaultdict(_Queue)
    for part in members:
        queues[part.label_queue if use_label else part.spec_queue].add(part)
    return queues


def _counted_by_kai(queue: Queue, children: Iterable[Queue]) -> float | None:
    """Return KAI's figure of a queue without its child queues, which KAI adds (`resource_updater.go`)."""
    own = gpu_amount(queue.allocated)
    for child in children:
        allocated = gpu_amount(child.allocated)
        if own is None or allocated is None:
            return None
        own -= allocated
    return own


def _difference(name: str, own: float, counted: float, sums: _Queue, has_children: bool) -> Difference:
    pods = [pod for part in sums.differing for pod in part.pods]
    evidence: set[object] = {
        (part.group.key if part.group else part.pods[0].name, round(part.difference, _DIGITS))
        for part in sums.differing
    }
    if not evidence:  # pods that start and end may make the same totals differ twice
        evidence.add((round(own, _DIGITS), round(counted, _DIGITS)))
    scope = " (without its child queues)" if has_children else ""
    return Difference(
        key=("queue", name),
        evidence=evidence,
        finding=_finding(
            f"the pods of queue {quoted(name)}{scope} request {gpus(own)}, and KAI counts {gpus(counted)}",
            pods,
            [part.group for part in sums.differing if part.group and not part.pods],
        ),
    )


def _finding(summary: str, pods: list[GpuRequest], empty: list[PodGroup]) -> CheckResult:
    if not pods and not empty:
        return problem(
            CHECK,
            f"{summary}, although the figures of its PodGroups agree with the pods",
            "read the log of KAI's queue-controller, which adds up the PodGroups",
        )
    unreadable = [pod.name for pod in pods if not pod.is_readable_by_status]
    parts = [f"{summary}: {named(pods)}" if pods else summary]
    if unreadable:
        parts.append(
            f"KAI's status cannot read {keys.GPU_FRACTION} of {listed(unreadable)}, and leaves out their"
            " PodGroups"
        )
    if empty:
        names = listed([f"{group.metadata.namespace}/{group.metadata.name}" for group in empty])
        parts.append(f"KAI counts PodGroups without bound pods: {names}")
    return problem(CHECK, joined(parts), REMEDY)
