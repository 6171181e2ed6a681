"""Adds up the requests of pods by node, shared GPU and queue, and compares them with KAI's figures."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from console.doctor.accounting_reading import (
    CHECK,
    CLAIMS,
    REMEDY,
    TOLERANCE,
    Difference,
    GpuRequest,
    Reading,
    SumComparison,
    gpus,
    named,
)
from console.doctor.api_reader import ListOutcome
from console.doctor.check_results import CheckResult, problem
from console.doctor.counted_pod_groups import PodGroup, gpu_amount
from kai import keys
from kai.queue import Queue
from service.text import MOST_LINES, counted, joined, listed, one_line, quoted

_GPU = 1 + TOLERANCE


@dataclass(slots=True)
class _SharedGpu:
    """The shares of one GPU.

    They are in the units of memory that KAI's scheduler compares (`gpu_sharing_node_info.go`), so that eight
    shares of 0.125 are one GPU, although each counts as 0.13 in its queue.
    """

    total: float = 0.0
    pods: list[GpuRequest] = field(default_factory=list)

    def add(self, pod: GpuRequest, part: float) -> None:
        """Add a pod with its part of the GPU."""
        self.total += part
        self.pods.append(pod)


def compare_nodes(reading: Reading) -> SumComparison:
    """Compare the requests of all pods on each node with its GPUs, and the shares of each GPU with one GPU.

    Every pod counts, of any scheduler, also while it is being deleted: it holds its GPUs until it has ended.
    A sum that is too large in spite of a missing figure is a difference; any other sum is then unknown.
    """
    result = SumComparison()
    sums: defaultdict[str, float] = defaultdict(float)
    shared: defaultdict[tuple[str, str], _SharedGpu] = defaultdict(_SharedGpu)
    pods: defaultdict[str, list[GpuRequest]] = defaultdict(list)
    unknown: defaultdict[str, list[str]] = defaultdict(list)
    for pod in reading.pods.items:
        pods[pod.node].append(pod)
        sums[pod.node] += pod.whole
        part = reading.node_of(pod).on_gpu(pod.share) if pod.share else 0.0
        if part is None or pod.obstacle not in ("", CLAIMS):
            unknown[pod.node].append(f"{pod.name} ({pod.obstacle or 'unknown memory of its node'})")
        elif pod.share:
            sums[pod.node] += part * pod.share.devices
            for group in pod.gpu_groups:
                shared[pod.node, group].add(pod, part)
    for node in reading.nodes.items:
        total = sums[node.name]
        if node.gpus and total > node.gpus + TOLERANCE:
            result.differences.append(
                Difference(
                    key=("node", node.name),
                    finding=problem(
                        CHECK,
                        f"node {one_line(node.name)} has {gpus(node.gpus)}, and its pods request"
                        f" {gpus(total)}: {named(pods[node.name])}",
                        REMEDY,
                    ),
                )
            )
        elif unknown[node.name]:
            result.unknown[node.name] = unknown[node.name]
        elif total and not node.gpus:  # the device plugin is away, or DRA provides the GPUs
            result.unknown[node.name] = [f"{pod.name} (the node reports no GPU)" for pod in pods[node.name]]
        elif node.gpus:
            result.compared.append(node.name)
    result.differences += [
        Difference(
            key=("GPU group", node, group),
            finding=problem(
                CHECK,
                f"the shares of GPU group {one_line(group)} on node {one_line(node)} add up to"
                f" {gpus(gpu.total)}: {named(gpu.pods)}",
                REMEDY,
            ),
        )
        for (node, group), gpu in shared.items()
        if gpu.total > _GPU
    ]
    return result


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
