"""Adds up the GPU requests of bound pods by node, shared GPU and queue, and compares them with KAI's figures.

Pure.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Final

import msgspec
from msgspec import Raw

from console.cluster.facts import Listing, items
from console.doctor.check_results import CheckResult, problem
from console.doctor.cluster_state import ClusterNode
from kai import keys
from kai.numbers import is_quantity
from kai.pod import Metadata, PodDocument, PodView, gpu_groups
from kai.queue import Queue
from kai.share import Share, is_container_memory_key
from kube.kinds import PodGroup, gpu_amount
from service.text import MOST_LINES, counted, joined, listed, one_line, quoted, shorten
from webhook.policy.checks import gpus_of_regular_containers, whole_gpus
from webhook.policy.distributed import evidence_of, evidence_of_share

TOLERANCE: Final = 0.001
"""Difference of two figures that are equal, in GPUs: KAI's status rounds each pod up to 10^-9."""
REMEDY: Final = (
    "compare the labels and annotations of these pods with their requests, delete and recreate the pods, and"
    " install the guard with guard.action=deny"
)
_HIDING_APPS: Final = frozenset({keys.RESERVATION_APP, "scaling-pod"})
"""Values of `app` by which KAI recognises its own pods (`utility_pods.go`, v0.9.8 to v0.17.0)."""
_LONGEST_KEY: Final = 100
_CLAIMS: Final = "resource claims"
"""The obstacle of a pod with claims, whose devices are not `nvidia.com/gpu` of the node."""
_DEFAULT_SUBGROUP: Final = "default"
"""The only subgroup of a PodGroup without subgroups, and the subgroup of a pod without the label
(`job_info.go` of v0.9.8, v0.13.4 and v0.17.0)."""
_DIGITS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """A bound pod that requests GPUs and has not ended."""

    name: str
    """Namespace and name: `team-a/train-0`."""
    namespace: str
    node: str
    is_of_kai: bool
    """Whether `spec.schedulerName`, which cannot be changed, names KAI."""
    whole: int
    """Whole GPUs that the pod holds, as Kubernetes counts them: with sidecars and init containers."""
    regular: int
    """Whole GPUs of the regular containers, which is what KAI's status counts (`metadata/pod.go`)."""
    share: Share | None
    """The share of a pod of KAI; other schedulers ignore the annotations."""
    obstacle: str
    """The reason why the GPUs of the pod cannot be counted, such as `resource claims`; empty if they can."""
    is_readable_by_status: bool
    """Whether KAI's status can read `gpu-fraction`: a quantity, so no `0x1p-1` (`requested.go`)."""
    gpu_groups: tuple[str, ...]
    """GPUs that the pod shares, by the labels `runai-gpu-group` and `runai-gpu-group/<group>`."""
    pod_group: str
    """Name of the PodGroup; empty without the annotation."""
    queue_label: str
    subgroup: str
    deleted_at: datetime | None
    """Time of the request to delete the pod; None if there was none."""
    hiding_key: str
    """A label or annotation by which KAI counts the pod's GPUs as none; empty without one."""
    evidence: str
    """Evidence that the pod is a rank of a distributed job, such as `a PyTorchJob of 4 ranks`; or empty."""

    @property
    def not_counted(self) -> str:
        """The name, with the reason why the GPUs of the pod are unknown."""
        return f"{self.name} ({self.obstacle or 'unknown memory of its node'})"

    @property
    def title(self) -> str:
        """The name, with the label or annotation that hides the pod's GPUs from KAI."""
        return f"{self.name} ({self.hiding_key})" if self.hiding_key else self.name


class _Metadata(Metadata):
    deletionTimestamp: str | None = None  # noqa: N815
    deletionGracePeriodSeconds: int | None = None  # noqa: N815


class _Status(msgspec.Struct):
    phase: str | None = None
    extendedResourceClaimStatus: Raw = Raw(b"")  # noqa: N815


class _Document(PodDocument):
    metadata: _Metadata | None = None
    status: _Status | None = None


_document = msgspec.json.Decoder(_Document).decode


def read_request(
    item: bytes, *, schedulers: Collection[str], reservation_namespace: str, reads_container_memory: bool
) -> GpuRequest | None:
    """Read a pod; None if it is not bound, has ended, requests no GPU, or is a reservation pod of KAI.

    A reservation pod stands for the shares of its GPU group, which are counted instead.

    Args:
        item: the pod's JSON.
        schedulers: names of KAI's schedulers.
        reservation_namespace: namespace of KAI's reservation pods, in which tenants have no rights.
        reads_container_memory: whether KAI reads requests of GPU memory for single containers.
    """
    document = _document(item)
    metadata, status = document.metadata or _Metadata(), document.status or _Status()
    pod = PodView(document)
    if not pod.node_name or status.phase in keys.FINISHED_PHASES or pod.namespace == reservation_namespace:
        return None
    is_of_kai = pod.scheduler_name in schedulers
    whole = regular = 0
    share = None
    obstacle = ""
    try:
        whole, regular = whole_gpus(pod), gpus_of_regular_containers(pod)
        share = _share(pod) if is_of_kai else None
    except ValueError as error:
        obstacle = shorten(f"unreadable request: {error}", _LONGEST_KEY)
    if pod.uses_claims or bytes(status.extendedResourceClaimStatus) not in (b"", b"null"):
        obstacle = _CLAIMS
    elif is_of_kai and reads_container_memory and any(map(is_container_memory_key, pod.nvidia_annotations)):
        obstacle = "GPU memory of single containers"
    if not (whole or share or obstacle):
        return None
    return GpuRequest(
        name=f"{pod.namespace}/{pod.name}",
        namespace=pod.namespace,
        node=pod.node_name,
        is_of_kai=is_of_kai,
        whole=whole,
        regular=regular,
        share=share,
        obstacle=obstacle,
        is_readable_by_status=is_quantity(pod.annotations.get(keys.GPU_FRACTION, "0")),
        gpu_groups=tuple(dict.fromkeys(gpu_groups(pod.labels))) if share else (),
        pod_group=pod.annotations.get(keys.POD_GROUP_NAME, ""),
        queue_label=pod.labels.get(keys.QUEUE_LABEL, ""),
        subgroup=pod.labels.get(keys.SUBGROUP_NAME) or _DEFAULT_SUBGROUP,
        deleted_at=_deleted_at(metadata),
        hiding_key=_hiding_key(pod),
        evidence=_evidence(pod, has_share=share is not None) if is_of_kai else "",
    )


def _share(pod: PodView) -> Share | None:
    """Read the share of a pod; None without a share, and for a value that the scheduler ignores.

    Raises:
        ValueError: KAI's validator refuses the value, or it is NaN.
    """
    share = pod.share_request
    if share is None or not share.seen_by_scheduler:
        return None
    if share.fraction is not None and math.isnan(share.fraction):
        raise ValueError(f"{keys.GPU_FRACTION} is not a number")
    return share


def _evidence(pod: PodView, *, has_share: bool) -> str:
    if has_share:
        evidence = evidence_of_share(pod)
    else:
        holders = (container for container in pod.containers if container.asks(keys.GPU_RESOURCE))
        container = next(holders, None)
        evidence = None if container is None else evidence_of(pod, container)
    return "" if evidence is None else str(evidence)


def _deleted_at(metadata: _Metadata) -> datetime | None:
    """Return the time of the request: `deletionTimestamp` is later by the grace period.

    The grace period is any number of 64 bits that a user chose, which may leave the range of dates.
    """
    if metadata.deletionTimestamp is None:
        return None
    try:
        ends_at = datetime.fromisoformat(metadata.deletionTimestamp)
        ends_at = ends_at.replace(tzinfo=ends_at.tzinfo or UTC)
        return ends_at - timedelta(seconds=metadata.deletionGracePeriodSeconds or 0)
    except (ValueError, OverflowError):
        return datetime.min.replace(tzinfo=UTC)


def _hiding_key(pod: PodView) -> str:
    mig = next((key for key in pod.nvidia_annotations if key.startswith(keys.MIG_PREFIX)), None)
    if mig is not None:
        return f"annotation {shorten(mig, _LONGEST_KEY)}={quoted(pod.annotations[mig])}"
    app = pod.labels.get(keys.APP_LABEL)
    return f"label {keys.APP_LABEL}={app}" if app in _HIDING_APPS else ""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The objects of one reading."""

    queues: Listing[Queue]
    pod_groups: Listing[PodGroup]
    pods: Listing[GpuRequest]
    nodes: Listing[ClusterNode]
    sums_by_label: bool | None
    """Whether `Queue.status` adds up PodGroups by their label; None if the release of KAI is unknown."""
    has_controllers: bool
    """Whether the programs run that write KAI's figures; they can be switched off in KAI's values."""
    now: datetime | None
    """The API server's time; None if unknown."""

    @property
    def is_whole(self) -> bool:
        """Whether every object was read, so that a sum has no gap."""
        return (
            self.queues.is_known and self.pod_groups.is_known and self.pods.is_known and self.nodes.is_known
        )

    @property
    def has_figures(self) -> bool:
        """Whether KAI writes figures: by its programs, or by a figure of any queue or PodGroup.

        True without pods of KAI, for which KAI has nothing to write.
        """
        return (
            self.has_controllers
            or not any(pod.is_of_kai for pod in items(self.pods))
            or any(queue.allocated for queue in items(self.queues))
            or any(group.status and group.status.resources_status for group in items(self.pod_groups))
        )

    @cached_property
    def groups_by_key(self) -> dict[tuple[str, str], PodGroup]:
        """The PodGroups by namespace and name."""
        return {group.metadata.key: group for group in items(self.pod_groups)}

    @cached_property
    def nodes_by_name(self) -> dict[str, ClusterNode]:
        """The nodes by name."""
        return {node.name: node for node in items(self.nodes)}

    def node_of(self, pod: GpuRequest) -> ClusterNode:
        """Return the node of a pod."""
        return self.nodes_by_name.get(pod.node, _UNKNOWN_NODE)

    def group_of(self, pod: GpuRequest) -> PodGroup | None:
        """Return the PodGroup of a pod; None if its own namespace has no PodGroup of the annotated name.

        KAI's scheduler finds PodGroups by name across namespaces, so that a pod can use the queue of another
        namespace's PodGroup (`cluster_info.go`).
        """
        return self.groups_by_key.get((pod.namespace, pod.pod_group)) if pod.pod_group else None

    def queue_of(self, pod: GpuRequest) -> str | None:
        """Return the queue that a pod belongs to; None if KAI does not schedule the pod.

        A pod without a PodGroup belongs to the queue of its own label.
        """
        group = self.group_of(pod)
        if group is not None:
            return group.spec.queue
        return (pod.queue_label or keys.DEFAULT_QUEUE) if pod.is_of_kai else None


def gpus(amount: float) -> str:
    """Format a number of GPUs: `1 GPU`, `0.75 GPUs`."""
    text = f"{amount:.3f}".rstrip("0").rstrip(".")
    return f"{text} GPU{'' if text == '1' else 's'}"


def named(pods: Iterable[GpuRequest]) -> str:
    """List pods; those with a key that hides their GPUs come first."""
    titles = {pod.title: bool(pod.hiding_key) for pod in pods}
    hiding = [title for title, is_hiding in titles.items() if is_hiding]
    others = len(titles) - len(hiding)
    if not hiding:
        return listed(titles)
    return listed(hiding) + (f", beside {counted(others, 'other pod')}" if others else "")


_UNKNOWN_NODE: Final = ClusterNode(name="")


@dataclass(frozen=True, slots=True)
class Difference:
    """Two figures that should be equal, or a sum above its limit."""

    finding: CheckResult
    evidence: Collection[object]
    """What the difference consists of. It lasts if a part of it is in both readings."""

    def persists_since(self, earlier: "Difference | None") -> bool:
        """Whether an earlier reading had the same difference."""
        return earlier is not None and not set(self.evidence).isdisjoint(earlier.evidence)


@dataclass(slots=True)
class Evaluation:
    """What one reading shows."""

    reading: Reading
    differences: dict[tuple[str, ...], Difference] = field(default_factory=dict)
    """Differences by the figure: its kind, and the name of the queue, node or GPU group."""
    compared: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Numbers of the queues and nodes whose figures could be compared."""
    unknown: defaultdict[str, dict[str, list[str]]] = field(default_factory=lambda: defaultdict(dict))
    """Queues and nodes whose figures could not be compared, with the pods that prevented it."""

    def differ(
        self, *key: str, what: str, remedy: str = REMEDY, evidence: Collection[object] = (None,)
    ) -> None:
        """Add a difference."""
        self.differences[key] = Difference(problem(what, remedy), evidence)


def evaluate(reading: Reading) -> Evaluation:
    """Compare all figures of a reading.

    Without a part of the objects or without figures of KAI, `Queue.status` is not compared. A sum that is
    too large in spite of a missing object is a difference all the same.
    """
    result = Evaluation(reading)
    if reading.is_whole and reading.has_figures:
        _compare_status(result)
    _compare_limits(result)
    _compare_nodes(result)
    _compare_subgroups(result)
    return result


def _compare_subgroups(result: Evaluation) -> None:
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
    return {subgroup.name for subgroup in subgroups if subgroup.name not in parents} or {_DEFAULT_SUBGROUP}


def _compare_nodes(result: Evaluation) -> None:
    """Compare the requests of all pods on each node with its GPUs, and the shares of each GPU with one GPU.

    Every pod counts, of any scheduler, also while it is being deleted: it holds its GPUs until it has ended.
    A sum that is too large in spite of a missing figure is a difference; any other sum is then unknown.
    Shares of one GPU are in the units of memory that KAI's scheduler compares (`gpu_sharing_node_info.go`),
    so that eight shares of 0.125 are one GPU, although each counts as 0.13 in its queue.
    """
    reading = result.reading
    sums: defaultdict[str, float] = defaultdict(float)
    shared: defaultdict[tuple[str, str], dict[GpuRequest, float]] = defaultdict(dict)
    pods: defaultdict[str, list[GpuRequest]] = defaultdict(list)
    unknown: defaultdict[str, list[str]] = defaultdict(list)
    for pod in items(reading.pods):
        pods[pod.node].append(pod)
        sums[pod.node] += pod.whole
        part = reading.node_of(pod).on_gpu(pod.share) if pod.share else 0.0
        if part is None or pod.obstacle not in ("", _CLAIMS):
            unknown[pod.node].append(pod.not_counted)
        elif pod.share:
            sums[pod.node] += part * pod.share.devices
            for group in pod.gpu_groups:
                shared[pod.node, group][pod] = part
    for node in items(reading.nodes):
        name, total = node.name, sums[node.name]
        if node.gpus and total > node.gpus + TOLERANCE:
            result.differ(
                "node",
                name,
                what=f"node {one_line(name)} has {gpus(node.gpus)}, and its pods request {gpus(total)}:"
                f" {named(pods[name])}",
            )
        elif unknown[name]:
            result.unknown["node"][name] = unknown[name]
        elif total and not node.gpus:  # the device plugin is away, or DRA provides the GPUs
            result.unknown["node"][name] = [f"{pod.name} (the node reports no GPU)" for pod in pods[name]]
        elif node.gpus:
            result.compared["node"] += 1
    for (node_name, group), parts in shared.items():
        total = sum(parts.values())
        if total > 1 + TOLERANCE:
            result.differ(
                "GPU group",
                node_name,
                group,
                what=f"the shares of GPU group {one_line(group)} on node {one_line(node_name)} add up to"
                f" {gpus(total)}: {named(parts)}",
            )


def _compare_limits(result: Evaluation) -> None:
    """Compare the sum of each queue, as KAI's scheduler counts it, with `spec.resources.gpu.limit`.

    A pod that is being deleted does not count: KAI leaves it out, so that its successor may run beside it.
    MIG devices and claims, which KAI counts, are left out; the sum is then a lower bound.
    """
    reading = result.reading
    direct: defaultdict[str, float] = defaultdict(float)
    pods: defaultdict[str, list[GpuRequest]] = defaultdict(list)
    for pod in items(reading.pods):
        # The PodGroup of a pod may be among those that were not read.
        is_certain = reading.pod_groups.is_known or reading.group_of(pod) is not None
        place = reading.queue_of(pod) if is_certain else None
        if place is not None and pod.deleted_at is None:
            direct[place] += _requested(reading, pod)
            pods[place].append(pod)
    by_name = {queue.name: queue for queue in items(reading.queues)}
    totals: defaultdict[str, float] = defaultdict(float)
    parts: defaultdict[str, list[str]] = defaultdict(list)
    """The queues with pods that make up a total."""
    for queue, amount in direct.items():
        above, seen = queue, set[str]()
        while above in by_name and above not in seen:  # parents may form a circle
            seen.add(above)
            totals[above] += amount
            parts[above].append(queue)
            above = by_name[above].parent
    shown = 0
    for limited in by_name.values():
        name, limit = limited.name, limited.gpu_limit
        if limit is None or totals[name] <= limit + TOLERANCE:
            continue
        shown += 1  # the pods of each queue take linear time
        members = [pod for queue in parts[name] for pod in pods[queue]] if shown <= MOST_LINES else []
        status = gpu_amount(limited.allocated)
        by_kai = "" if status is None else f"; KAI's status has {gpus(status)}"
        result.differ(
            "limit",
            name,
            what=f"queue {quoted(name)} has a limit of {gpus(limit)}, and its pods request"
            f" {gpus(totals[name])}{by_kai}{f': {named(members)}' if members else ''}",
            remedy=f"if the limit was not lowered while these pods ran: {REMEDY}",
        )
    lost = [queue for queue in pods if queue not in by_name] if reading.queues.is_known else []
    members = [pod for queue in lost for pod in pods[queue] if _requested(reading, pod)]
    if members:
        result.differ(
            "no queue",
            what=f"{counted(len(members), 'pod')} with GPUs in queues that do not exist: {named(members)};"
            f" queues: {listed([quoted(queue) for queue in lost])}",
            remedy="no queue counts these pods: create the queues, or delete the pods",
            evidence={pod.name for pod in members},
        )


def _requested(reading: Reading, pod: GpuRequest) -> float:
    """Return the GPUs that a pod certainly requests; a claim beside a share does not hide the share."""
    is_readable = pod.obstacle in ("", _CLAIMS)
    share = reading.node_of(pod).in_queue(pod.share) if pod.share and is_readable else None
    return pod.whole + (share or 0.0)


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


def _compare_status(result: Evaluation) -> None:
    """Compare the requests of the pods of each queue with `Queue.status.allocated`, without child queues.

    KAI's status counts what `calculatedAllocatedResources` of its podgroupcontroller adds up, also for a pod
    that is being deleted: the regular containers' GPUs, and the share without its number of devices.
    """
    reading = result.reading
    members = _members(reading)
    by_spec = _queues(members, use_label=False)
    by_label = _queues(members, use_label=True)
    if reading.sums_by_label is not None:
        by_spec = by_label = by_label if reading.sums_by_label else by_spec
    children: defaultdict[str, list[Queue]] = defaultdict(list)
    for queue in items(reading.queues):
        children[queue.parent].append(queue)
    for queue in items(reading.queues):
        name = queue.name
        counted = _counted_by_kai(queue, children[name])
        sums, other = by_spec.get(name, _Queue()), by_label.get(name, _Queue())
        if sums.unknown or counted is None:
            result.unknown["queue"][name] = sums.unknown or ["KAI's figure cannot be read"]
            if sums.differing:
                own = sum(part.own for part in sums.differing)
                counted = sum(part.counted_by_kai or 0.0 for part in sums.differing)
                _add_queue(result, name, own, counted, sums, bool(children[name]))
        elif min(abs(sums.own - counted), abs(other.own - counted)) > TOLERANCE:
            _add_queue(result, name, sums.own, counted, sums, bool(children[name]))
        else:
            result.compared["queue"] += 1


def _members(reading: Reading) -> list[_Members]:
    """Collect the pods of each PodGroup, PodGroups without pods, and each pod of KAI without a PodGroup."""
    groups = {
        key: _Members(group, group.spec.queue, group.queue_label)
        for key, group in reading.groups_by_key.items()
    }
    single: list[_Members] = []
    for pod in items(reading.pods):
        group = reading.group_of(pod)
        if group is not None:
            members = groups[group.metadata.key]
        elif pod.is_of_kai:
            queue = pod.queue_label or keys.DEFAULT_QUEUE
            members = _Members(None, queue, queue)
            single.append(members)
        else:
            continue
        share = reading.node_of(pod).in_status(pod.share) if pod.share else 0.0
        members.pods.append(pod)
        if pod.obstacle or share is None:
            members.unknown.append(pod.not_counted)
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


def _add_queue(
    result: Evaluation, name: str, own: float, counted: float, sums: _Queue, has_children: bool
) -> None:
    """Add the difference between the requests of a queue's pods and KAI's figure, with its parts."""
    pods = [pod for part in sums.differing for pod in part.pods]
    empty = [part.group for part in sums.differing if part.group and not part.pods]
    evidence: set[object] = {
        (part.group.metadata.key if part.group else part.pods[0].name, round(part.difference, _DIGITS))
        for part in sums.differing
    }
    scope = " (without its child queues)" if has_children else ""
    what = f"the pods of queue {quoted(name)}{scope} request {gpus(own)}, and KAI counts {gpus(counted)}"
    remedy = REMEDY
    if not evidence:  # pods that start and end may make the same totals differ twice
        evidence.add((round(own, _DIGITS), round(counted, _DIGITS)))
        what = f"{what}, although the figures of its PodGroups agree with the pods"
        remedy = "read the log of KAI's queue-controller, which adds up the PodGroups"
    parts = [f"{what}: {named(pods)}" if pods else what]
    unreadable = [pod.name for pod in pods if not pod.is_readable_by_status]
    if unreadable:
        parts.append(
            f"KAI's status cannot read {keys.GPU_FRACTION} of {listed(unreadable)}, and leaves out their"
            " PodGroups"
        )
    if empty:
        names = listed([f"{group.metadata.namespace}/{group.metadata.name}" for group in empty])
        parts.append(f"KAI counts PodGroups without bound pods: {names}")
    result.differ("queue", name, what=joined(parts), remedy=remedy, evidence=evidence)
