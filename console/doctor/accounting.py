"""The check `accounting`: the books of KAI, counted once more.

The pods' own requests are added up by node, shared GPU and queue, and compared with KAI's figures.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from console.cluster.facts import FactReader, Why, items
from console.doctor.accounting_reading import (
    CLAIMS,
    DEFAULT_SUBGROUP,
    GpuRequest,
    Reading,
    gpus,
    read_books,
    reread,
)
from console.doctor.check_results import CheckResult, grouped, limited, ok, problem, unknown, warning
from console.doctor.cluster_state import ClusterFacts
from kai import keys
from kube.kinds import PodGroup, gpu_amount
from service.text import MOST_LINES, counted, listed, one_line, quoted
from service.units import duration

TOLERANCE: Final = 0.001  # GPUs between two figures that are equal: KAI's status rounds each pod up to 10^-9
REMEDY: Final = (
    "compare the labels and annotations of these pods with their requests, delete and recreate the pods, and"
    " install the guard with guard.action=deny"
)
_WITHOUT: Final = "the requests of pods were not compared with KAI's figures"
_LONG: Final = timedelta(minutes=5)  # after which a deleted pod is reported; most pods end within 30 s
_PAUSE_SECONDS: Final = 4.0  # before the second reading; KAI writes its status a second after a change


@dataclass(slots=True)
class AccountingComparison:
    """What one reading shows."""

    reading: Reading
    differences: dict[tuple[str, ...], tuple[CheckResult, Collection[object]]] = field(default_factory=dict)
    """Figures that should be equal, and sums above their limit, by kind and name of queue, node or GPU group.

    The evidence is what a difference consists of. It lasts if a part of it is in both readings.
    """
    compared: Counter[str] = field(default_factory=Counter)  # queues and nodes with comparable figures
    unknown: defaultdict[str, dict[str, list[str]]] = field(default_factory=lambda: defaultdict(dict))
    """Queues and nodes whose figures could not be compared, with the pods that prevented it."""

    def differ(
        self, *key: str, what: str, remedy: str = REMEDY, evidence: Collection[object] = (None,)
    ) -> None:
        """Add a difference."""
        self.differences[key] = (problem(what, remedy), evidence)


async def requests_add_up(cluster: ClusterFacts, reader: FactReader) -> AsyncIterator[CheckResult]:
    """Yield findings about pods whose requests differ from KAI's figures.

    A difference in the first reading is reported only if a second reading has it, too.
    """
    if cluster.queues.why is Why.UNSERVED:
        return  # the check of the queues reports it
    books = await read_books(reader, cluster)
    if books is None:
        yield unknown(f"not checked: {_WITHOUT}, because they could not be read")
        return
    first = last = evaluate(books)
    if first.differences:
        await asyncio.sleep(_PAUSE_SECONDS)
        books = await read_books(reader, await reread(reader, cluster))
        if books is None:
            yield unknown(f"{_WITHOUT}, because the second reading failed")
            return
        last = evaluate(books)
    for result in persistent_findings(first, last):
        yield result


def persistent_findings(first: AccountingComparison, last: AccountingComparison) -> Iterator[CheckResult]:
    """Yield the findings that both readings have in common; they may be the same reading."""
    findings = [
        finding
        for key, (finding, evidence) in last.differences.items()
        if key in first.differences and not set(evidence).isdisjoint(first.differences[key][1])
    ]
    yield from limited(findings, "more difference")
    deleted = list(_deleted_pods(last.reading))
    yield from deleted
    for kind in ("queue", "node"):
        unclear = last.unknown[kind]
        if unclear:
            reasons = {reason for pods in unclear.values() for reason in pods}
            yield unknown(
                f"the sum of {counted(len(unclear), kind)} is unknown:"
                f" {listed([quoted(name) for name in unclear])}; pods: {listed(reasons)}"
            )
    if not last.reading.has_figures:
        yield unknown(
            "KAI has written no figures: the requests of pods were compared with limits and nodes only",
            "run KAI with its podgroupcontroller and queuecontroller",
        )
    changing = len(last.differences) - len(findings)
    if changing:
        yield unknown(
            f"{counted(changing, 'figure')} changed between two readings, and could not be compared",
            "run doctor again",
        )
    if last.reading.is_whole and last.reading.has_figures and not findings and not deleted:
        pods = counted(len(items(last.reading.pods)), "pod")
        queues, nodes = counted(last.compared["queue"], "queue"), counted(last.compared["node"], "node")
        yield ok(f"the requests of {pods} add up to KAI's figures in {queues} and fit on {nodes}")


def _deleted_pods(reading: Reading) -> Iterator[CheckResult]:
    """Yield a warning about deleted pods that still hold GPUs minutes later.

    KAI's scheduler no longer counts them in their queue (`pod_status.go`: Releasing is not allocated), and
    counts them on their node.
    """
    now = reading.cluster.now
    deleted = [
        (pod.name, pod.deleted_at)
        for pod in items(reading.pods)
        if pod.deleted_at is not None and reading.queue_of(pod) is not None
    ]
    if now is None and deleted:
        yield unknown("the API server's time is unknown: deleted pods that still run were not checked")
    ages = {name: (now - at).total_seconds() for name, at in deleted if now - at > _LONG} if now else {}
    if old := [f"{name} ({duration(min(age, 365 * 86_400))} ago)" for name, age in ages.items()]:
        yield warning(
            f"{counted(len(old), 'deleted pod')} with GPUs, which KAI no longer counts in a queue:"
            f" {listed(old)}",
            "compare terminationGracePeriodSeconds and finalizers of these pods, and look at their nodes; the"
            " pods of a lost node end when the Node is deleted",
        )


def evaluate(reading: Reading) -> AccountingComparison:
    """Compare all figures of a reading.

    Without a part of the objects or without figures of KAI, `Queue.status` is not compared. A sum that is
    too large in spite of a missing object is a difference all the same.
    """
    result = AccountingComparison(reading)
    if reading.is_whole and reading.has_figures:
        _compare_status(result)
    _compare_limits(result)
    _compare_nodes(result)
    _compare_subgroups(result)
    return result


def _compare_subgroups(result: AccountingComparison) -> None:
    """Add the pods whose PodGroup lacks their subgroup.

    KAI's scheduler does not count such a pod in its queue and cannot evict it (`job_info.go`, AddTaskInfo,
    v0.9.8 to v0.17.0). A change of the owner, such as fewer groups of workers, has the same effect.
    """
    pods = {}
    for pod in items(result.reading.pods):
        group = result.reading.group_of(pod)
        if group is not None and pod.deleted_at is None and pod.subgroup not in _pod_subgroups(group):
            pods[pod.name] = f"{pod.name} (subgroup {quoted(pod.subgroup)})"
    if pods:
        result.differ(
            "subgroups",
            what=f"{counted(len(pods), 'pod')} with GPUs in a subgroup that the PodGroup lacks, which KAI"
            f" counts in no queue: {listed(pods.values())}",
            remedy=f"compare the label {keys.SUBGROUP_NAME} with spec.subGroups of the PodGroup; {REMEDY}",
            evidence=pods.keys(),
        )


def _pod_subgroups(group: PodGroup) -> Collection[str]:
    """Return the subgroups whose pods KAI counts: those without children (`subgroup_info/factory.go`)."""
    subgroups = group.spec.sub_groups or ()
    parents = {subgroup.parent.lower() for subgroup in subgroups if subgroup.parent}
    return {subgroup.name for subgroup in subgroups if subgroup.name not in parents} or {DEFAULT_SUBGROUP}


def _compare_nodes(result: AccountingComparison) -> None:
    """Compare the requests of all pods on each node with its GPUs, and the shares of each GPU with one GPU.

    Every pod counts, of any scheduler, also while it is being deleted: it holds its GPUs until it has ended.
    A sum that is too large in spite of a missing figure is a difference; any other sum is then unknown.
    Shares of one GPU are in the units of memory that KAI's scheduler compares (`gpu_sharing_node_info.go`),
    so that eight shares of 0.125 are one GPU, although each counts as 0.13 in its queue.
    """
    reading = result.reading
    sums: defaultdict[str, float] = defaultdict(float)
    shared: defaultdict[tuple[str, str], dict[GpuRequest, float]] = defaultdict(dict)
    pods = grouped((pod.node, pod) for pod in items(reading.pods))
    unknown: defaultdict[str, list[str]] = defaultdict(list)
    for pod in items(reading.pods):
        sums[pod.node] += pod.whole
        part = reading.memory_of(pod).on_gpu(pod.share) if pod.share else 0.0
        if part is None or pod.obstacle not in ("", CLAIMS):
            unknown[pod.node].append(pod.not_counted)
        elif pod.share:
            sums[pod.node] += part * pod.share.devices
            for group in pod.gpu_groups:
                shared[pod.node, group][pod] = part
    for node in items(reading.cluster.nodes):
        name, total = node.name, sums[node.name]
        if node.gpus and total > node.gpus + TOLERANCE:
            what = f"node {one_line(name)} has {gpus(node.gpus)}, and its pods request {gpus(total)}"
            result.differ("node", name, what=f"{what}: {_names(pods[name])}")
        elif unknown[name]:
            result.unknown["node"][name] = unknown[name]
        elif total and not node.gpus:  # the device plugin is away, or DRA provides the GPUs
            result.unknown["node"][name] = [f"{pod.name} (the node reports no GPU)" for pod in pods[name]]
        elif node.gpus:
            result.compared["node"] += 1
    for (node_name, group), parts in shared.items():
        total = sum(parts.values())
        if total > 1 + TOLERANCE:
            what = f"the shares of GPU group {one_line(group)} on node {one_line(node_name)} add up to"
            result.differ("GPU group", node_name, group, what=f"{what} {gpus(total)}: {_names(parts)}")


def _compare_limits(result: AccountingComparison) -> None:
    """Compare the sum of each queue, as KAI's scheduler counts it, with `spec.resources.gpu.limit`.

    A pod that is being deleted does not count: KAI leaves it out, so that its successor may run beside it.
    MIG devices and claims, which KAI counts, are left out; the sum is then a lower bound.
    """
    reading = result.reading
    pods = grouped(
        (queue, pod)
        for pod in items(reading.pods)
        # The PodGroup of a pod may be among those that were not read.
        if reading.cluster.pod_groups.is_known or reading.group_of(pod) is not None
        if (queue := reading.queue_of(pod)) is not None and pod.deleted_at is None
    )
    by_name = {queue.name: queue for queue in items(reading.cluster.queues)}
    totals: defaultdict[str, float] = defaultdict(float)
    parts: defaultdict[str, list[str]] = defaultdict(list)  # the queues with pods that make up a total
    for queue, members in pods.items():
        amount, above, seen = sum(_requested(reading, pod) for pod in members), queue, set[str]()
        while above in by_name and above not in seen:  # parents may form a circle
            seen.add(above)
            totals[above] += amount
            parts[above].append(queue)
            above = by_name[above].parent
    detailed = 0
    for queue_above in by_name.values():
        name, limit = queue_above.name, queue_above.gpu_limit
        if limit is None or totals[name] <= limit + TOLERANCE:
            continue
        detailed += 1  # the pods of each queue take linear time
        members = [pod for queue in parts[name] for pod in pods[queue]] if detailed <= MOST_LINES else []
        status = gpu_amount(queue_above.allocated)
        by_kai = "" if status is None else f"; KAI's status has {gpus(status)}"
        what = f"queue {quoted(name)} has a limit of {gpus(limit)}, and its pods request {gpus(totals[name])}"
        what += f"{by_kai}{f': {_names(members)}' if members else ''}"
        remedy = f"if the limit was not lowered while these pods ran: {REMEDY}"
        result.differ("limit", name, what=what, remedy=remedy)
    lost = [queue for queue in pods if queue not in by_name] if reading.cluster.queues.is_known else []
    members = [pod for queue in lost for pod in pods[queue] if _requested(reading, pod)]
    if members:
        what = f"{counted(len(members), 'pod')} with GPUs in queues that do not exist: {_names(members)}"
        what += f"; queues: {listed([quoted(queue) for queue in lost])}"
        remedy = "no queue counts these pods: create the queues, or delete the pods"
        result.differ("no queue", what=what, remedy=remedy, evidence={pod.name for pod in members})


def _names(pods: Iterable[GpuRequest]) -> str:
    return listed({pod.name for pod in pods})


def _requested(reading: Reading, pod: GpuRequest) -> float:
    """Return the GPUs that a pod certainly requests; a claim beside a share does not hide the share."""
    is_readable = pod.obstacle in ("", CLAIMS)
    share = reading.memory_of(pod).in_queue(pod.share) if pod.share and is_readable else None
    return pod.whole + (share or 0.0)


@dataclass(slots=True)
class _Part:
    """Pods that KAI's status adds up together: those of a PodGroup, or one pod without a PodGroup."""

    group: PodGroup | None
    spec_queue: str
    label_queue: str
    counted_by_kai: float | None = 0.0  # by the PodGroup's status; KAI counts no pod without a PodGroup
    pods: list[GpuRequest] = field(default_factory=list)
    own: float = 0.0  # the pods' own requests, as far as they can be counted
    unknown: list[str] = field(default_factory=list)

    @property
    def difference(self) -> float:
        """Own requests minus KAI's figure; 0 if one of them is unknown."""
        return 0.0 if self.unknown or self.counted_by_kai is None else self.own - self.counted_by_kai


def _compare_status(result: AccountingComparison) -> None:
    """Compare the requests of the pods of each queue with `Queue.status.allocated`, without child queues.

    KAI's status counts what `calculatedAllocatedResources` of its podgroupcontroller adds up, also for a pod
    that is being deleted: the regular containers' GPUs, and the share without its number of devices. Which
    queue a PodGroup counts in depends on the release; of an unknown one, either may be right.
    """
    cluster = result.reading.cluster
    version = cluster.installation.version if cluster.installation else None
    parts = _parts(result.reading)
    by_spec = grouped((part.spec_queue, part) for part in parts)
    by_label = grouped((part.label_queue, part) for part in parts)
    if version is not None:
        by_spec = by_label = by_label if version.sums_queues_by_label else by_spec
    children = grouped((queue.parent, queue) for queue in items(cluster.queues))
    for queue in items(cluster.queues):
        name, below = queue.name, children.get(queue.name, [])
        by_kai, *of_below = (gpu_amount(each.allocated) for each in (queue, *below))
        # KAI adds the figures of child queues (`resource_updater.go`).
        counted = None if by_kai is None or None in of_below else by_kai - sum(filter(None, of_below))
        own, other = (sum(part.own for part in sums.get(name, ())) for sums in (by_spec, by_label))
        members = by_spec.get(name, ())
        unclear = [pod for part in members for pod in part.unknown]
        differing = [part for part in members if abs(part.difference) > TOLERANCE]
        if unclear or counted is None:
            result.unknown["queue"][name] = unclear or ["KAI's figure cannot be read"]
            own = sum(part.own for part in differing)
            counted = sum(part.counted_by_kai or 0.0 for part in differing)
        elif min(abs(own - counted), abs(other - counted)) <= TOLERANCE:
            result.compared["queue"] += 1
            continue
        if differing or not result.unknown["queue"].get(name):
            title = f"{quoted(name)} (without its child queues)" if below else quoted(name)
            _add_queue(result, title, name, own, counted, differing)


def _parts(reading: Reading) -> list[_Part]:
    """Return the pods of each PodGroup, PodGroups without pods, and each pod of KAI without a PodGroup."""
    groups = {
        key: _Part(group, group.spec.queue, group.queue_label, group.allocated_gpus)
        for key, group in reading.groups.items()
    }
    single: list[_Part] = []
    for pod in items(reading.pods):
        group = reading.group_of(pod)
        if group is not None:
            part = groups[group.metadata.key]
        elif pod.is_of_kai:
            queue = pod.queue_label or keys.DEFAULT_QUEUE
            part = _Part(None, queue, queue)
            single.append(part)
        else:
            continue
        share = reading.memory_of(pod).in_status(pod.share) if pod.share else 0.0
        part.pods.append(pod)
        if pod.obstacle or share is None:
            part.unknown.append(pod.not_counted)
        else:
            part.own += pod.regular + share
    return [*groups.values(), *single]


def _add_queue(
    result: AccountingComparison,
    title: str,
    name: str,
    own: float,
    counted: float,
    differing: Sequence[_Part],
) -> None:
    """Add the difference between the requests of a queue's pods and KAI's figure, with its parts."""
    pods = [pod for part in differing for pod in part.pods]
    empty = ["/".join(part.group.metadata.key) for part in differing if part.group and not part.pods]
    evidence: set[object] = {
        (part.group.metadata.key if part.group else part.pods[0].name, round(part.difference, 3))
        for part in differing
    }
    what = f"the pods of queue {title} request {gpus(own)}, and KAI counts {gpus(counted)}"
    remedy = REMEDY
    if not evidence:  # pods that start and end may make the same totals differ twice
        evidence.add((round(own, 3), round(counted, 3)))
        what = f"{what}, although the figures of its PodGroups agree with the pods"
        remedy = "read the log of KAI's queue-controller, which adds up the PodGroups"
    what += f": {_names(pods)}" if pods else ""
    what += f"; KAI counts PodGroups without bound pods: {listed(empty)}" if empty else ""
    result.differ("queue", name, what=what, remedy=remedy, evidence=evidence)
