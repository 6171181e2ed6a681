"""One reading of the cluster, and the differences that a comparison finds in it."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Final

from kai import keys
from kai.queue import Queue
from service.check_results import CheckResult
from service.text import counted, listed
from webhook.doctor.accounting.requests import GpuRequest
from webhook.doctor.api_reader import ListOutcome, ListResult
from webhook.doctor.nodes import UNKNOWN_NODE, ClusterNode
from webhook.doctor.pod_groups import PodGroup

CHECK: Final = "accounting"
TOLERANCE: Final = 0.001
"""Difference of two figures that are equal, in GPUs: KAI's status rounds each pod up to 10^-9."""
REMEDY: Final = (
    "compare the labels and annotations of these pods with their requests, delete and recreate the pods, and"
    " install the guard with guard.action=deny"
)

Key = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The objects of one reading."""

    queues: ListResult[Queue]
    pod_groups: ListResult[PodGroup]
    pods: ListResult[GpuRequest]
    nodes: ListResult[ClusterNode]
    sums_by_label: bool | None
    """Whether `Queue.status` adds up PodGroups by their label; None if the release of KAI is unknown."""
    has_controllers: bool
    """Whether the programs run that write KAI's figures; they can be switched off in KAI's values."""
    now: datetime | None
    """The API server's time; None if unknown."""

    @property
    def is_whole(self) -> bool:
        """Whether every object was read, so that a sum has no gap."""
        lists = (self.queues, self.pod_groups, self.pods, self.nodes)
        return all(result.outcome is ListOutcome.WHOLE for result in lists)

    @property
    def has_figures(self) -> bool:
        """Whether KAI writes figures: by its programs, or by a figure of any queue or PodGroup.

        True without pods of KAI, for which KAI has nothing to write.
        """
        return (
            self.has_controllers
            or not any(pod.is_of_kai for pod in self.pods.items)
            or any(queue.allocated for queue in self.queues.items)
            or any(group.status and group.status.resources for group in self.pod_groups.items)
        )

    @cached_property
    def groups_by_key(self) -> dict[tuple[str, str], PodGroup]:
        """The PodGroups by namespace and name."""
        return {group.key: group for group in self.pod_groups.items}

    @cached_property
    def nodes_by_name(self) -> dict[str, ClusterNode]:
        """The nodes by name."""
        return {node.name: node for node in self.nodes.items}

    def node_of(self, pod: GpuRequest) -> ClusterNode:
        """Return the node of a pod."""
        return self.nodes_by_name.get(pod.node, UNKNOWN_NODE)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two figures that should be equal, or a sum above its limit."""

    key: Key
    """The figure: its kind, and the name of the queue, node or GPU group."""
    finding: CheckResult
    evidence: Collection[object] = (None,)
    """What the difference consists of. It lasts if a part of it is in both readings."""

    def persists_since(self, earlier: "Difference | None") -> bool:
        """Whether an earlier reading had the same difference."""
        return earlier is not None and not set(self.evidence).isdisjoint(earlier.evidence)


@dataclass(slots=True)
class SumComparison:
    """The result of comparing the figures of one kind."""

    differences: list[Difference] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)
    """Names of the queues or nodes whose figures could be compared."""
    unknown: dict[str, list[str]] = field(default_factory=dict)
    """Queues or nodes whose figures could not be compared, with the pods that prevented it and the reason."""


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
