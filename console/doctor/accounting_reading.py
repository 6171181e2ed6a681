"""The books of KAI as one reading has them: queues, PodGroups, nodes, and the GPU requests of bound pods."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import Any, Final

import msgspec
from msgspec import Raw

from console.cluster.facts import FactReader, Listing, items
from console.doctor.cluster_state import ClusterFacts, read_gpu_node
from kai import keys
from kai.installation import RESERVATION_NAMESPACE
from kai.numbers import parse_int
from kai.pod import Metadata, PodDocument, PodView, gpu_groups
from kai.releases import Version
from kai.share import MIB, Share, is_container_memory_key
from kai.share_bytes import Card
from kube import kinds
from kube.kinds import Kind, PodGroup
from service.text import shorten
from webhook.policy.checks import gpus_of_regular_containers, whole_gpus

CLAIMS: Final = "resource claims"  # the obstacle of a pod whose devices are not `nvidia.com/gpu` of the node
DEFAULT_SUBGROUP: Final = "default"
"""The subgroup of a PodGroup or pod that names none (`job_info.go` of v0.9.8, v0.13.4 and v0.17.0)."""
_LONGEST_KEY: Final = 100
_CONTROLLERS: Final = frozenset({"podgroupcontroller", "queuecontroller"})
"""KAI's programs that write the status of PodGroups and queues; KAI's values can switch them off."""
_BOUND: Final = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
_PODS: Final[Kind[Any]] = kinds.PODS
_NODES: Final[Kind[Any]] = kinds.NODES
_UNLABELLED: Final = Card(100, MIB)
"""GPU of a node without the label: KAI's DefaultGpuMemory (`node_info.go`), used for fractions only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRequest:
    """A bound pod that requests GPUs and has not ended."""

    name: str  # namespace and name: `team-a/train-0`
    namespace: str
    node: str
    is_of_kai: bool  # whether `spec.schedulerName`, which cannot be changed, names KAI
    whole: int  # whole GPUs that the pod holds, as Kubernetes counts them: with sidecars and init containers
    regular: int  # whole GPUs of the regular containers, which KAI's status counts (`metadata/pod.go`)
    share: Share | None  # the share of a pod of KAI; other schedulers ignore the annotations
    obstacle: str  # why the GPUs of the pod cannot be counted, such as `resource claims`; empty if they can
    gpu_groups: tuple[str, ...]  # GPUs that the pod shares, by its labels
    pod_group: str  # name of the PodGroup; empty without the annotation
    queue_label: str
    subgroup: str
    deleted_at: datetime | None  # time of the request to delete the pod; None if there was none

    @property
    def not_counted(self) -> str:
        """The name, with the reason why the GPUs of the pod are unknown."""
        return f"{self.name} ({self.obstacle or 'unknown memory of its node'})"


class _Metadata(Metadata):
    deletionTimestamp: str | None = None  # noqa: N815 - as the fields of PodDocument
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

    A reservation pod stands for the shares of its GPU group, which are counted instead. Tenants have no
    rights in the reservation namespace. The schedulers are KAI's, one release of which reads requests of GPU
    memory for single containers.
    """
    document = _document(item)
    metadata, status = document.metadata or _Metadata(), document.status or _Status()
    pod = PodView(document)
    if not pod.node_name or status.phase in keys.FINISHED_PHASES or pod.namespace == reservation_namespace:
        return None
    is_of_kai = pod.scheduler_name in schedulers
    whole, regular, share, obstacle = 0, 0, None, ""
    try:
        whole, regular = whole_gpus(pod), gpus_of_regular_containers(pod)
        share = _share(pod) if is_of_kai else None
    except ValueError as error:
        obstacle = shorten(f"unreadable request: {error}", _LONGEST_KEY)
    if pod.uses_claims or bytes(status.extendedResourceClaimStatus) not in (b"", b"null"):
        obstacle = CLAIMS
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
        gpu_groups=tuple(dict.fromkeys(gpu_groups(pod.labels))) if share else (),
        pod_group=pod.annotations.get(keys.POD_GROUP_NAME, ""),
        queue_label=pod.labels.get(keys.QUEUE_LABEL, ""),
        subgroup=pod.labels.get(keys.SUBGROUP_NAME) or DEFAULT_SUBGROUP,
        deleted_at=_deleted_at(metadata),
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


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """The memory of one GPU of a node, by which KAI turns a share into GPUs.

    KAI has three figures for one share. Its status takes the annotation, its scheduler rounds to hundredths
    for the queue, and compares units of memory for one GPU. A figure is None if it depends on the memory, and
    that is unknown.
    """

    mib: int | None = None  # as in the label, which KAI's status uses (`fraction.go`)
    card: Card | None = None  # as KAI's scheduler counts it

    @classmethod
    def of(cls, label: str, version: Version | None) -> "NodeMemory":
        """Read the label as the installed release does; None for its release if it is unknown."""
        try:
            return cls(parse_int(label), Card.from_label(label, version))
        except ValueError:
            return cls()

    def in_status(self, share: Share) -> float | None:
        """Return the GPUs of a share in KAI's status, where the devices count once (`requested.go`)."""
        of_memory = share.memory_mib / self.mib if share.memory_mib is not None and self.mib else None
        return of_memory if share.fraction is None else share.fraction

    def in_queue(self, share: Share) -> float | None:
        """Return the GPUs of a share that KAI's scheduler charges to its queue."""
        if share.memory_mib is not None:
            return self.card.portion_of_memory(share.memory_mib) * share.devices if self.card else None
        return share.counted_gpus

    def on_gpu(self, share: Share) -> float | None:
        """Return the part of each GPU that KAI's scheduler charges to its node."""
        card = self.card or (None if share.fraction is None else _UNLABELLED)
        return card.share_bytes(share) / (card.units * card.unit_bytes) if card else None


@dataclass(frozen=True)
class Reading:
    """The objects of one reading."""

    cluster: ClusterFacts
    pods: Listing[GpuRequest]

    @property
    def is_whole(self) -> bool:
        """Whether every object was read, so that a sum has no gap."""
        lists = (self.cluster.queues, self.cluster.pod_groups, self.cluster.nodes, self.pods)
        return all(each.why is None for each in lists)

    @property
    def has_figures(self) -> bool:
        """Whether KAI writes figures: by its programs, or by a figure of any queue or PodGroup.

        True without pods of KAI, for which KAI has nothing to write.
        """
        installed = self.cluster.installation
        return (
            (installed is not None and installed.programs.keys() >= _CONTROLLERS)
            or not any(pod.is_of_kai for pod in items(self.pods))
            or any(queue.allocated for queue in items(self.cluster.queues))
            or any(group.status and group.status.resources_status for group in self.groups.values())
        )

    @cached_property
    def groups(self) -> dict[tuple[str, str], PodGroup]:
        """The PodGroups by namespace and name."""
        return {group.metadata.key: group for group in items(self.cluster.pod_groups)}

    @cached_property
    def _memory(self) -> dict[str, NodeMemory]:
        installed = self.cluster.installation
        version = installed.version if installed else None
        labels = {node.name: node.labels.get(keys.NODE_GPU_MEMORY, "") for node in items(self.cluster.nodes)}
        return {name: NodeMemory.of(label, version) for name, label in labels.items()}

    def memory_of(self, pod: GpuRequest) -> NodeMemory:
        """Return the memory of the GPUs of a pod's node."""
        return self._memory.get(pod.node) or NodeMemory()

    def group_of(self, pod: GpuRequest) -> PodGroup | None:
        """Return the PodGroup of a pod; None if its own namespace has no PodGroup of the annotated name.

        KAI's scheduler finds PodGroups by name across namespaces, so that a pod can use the queue of another
        namespace's PodGroup (`cluster_info.go`).
        """
        return self.groups.get((pod.namespace, pod.pod_group)) if pod.pod_group else None

    def queue_of(self, pod: GpuRequest) -> str | None:
        """Return the queue of a pod; None if KAI does not schedule it."""
        group = self.group_of(pod)
        if group is not None:
            return group.spec.queue
        return (pod.queue_label or keys.DEFAULT_QUEUE) if pod.is_of_kai else None


async def read_books(reader: FactReader, cluster: ClusterFacts) -> Reading | None:
    """Read the pods; None if queues, PodGroups or pods could not be read."""
    if cluster.queues.value is None or cluster.pod_groups.value is None:
        return None
    installed = cluster.installation
    schedulers = cluster.matched_schedulers or {keys.SCHEDULER_NAME}
    schedulers |= {policy.scheduler for policy in cluster.managed.values()}
    read = partial(
        read_request,
        schedulers=schedulers - {keys.DEFAULT_SCHEDULER},
        reservation_namespace=installed.reservation_namespace if installed else RESERVATION_NAMESPACE,
        reads_container_memory=any(release.reads_container_memory for release in cluster.versions),
    )
    pods: Listing[GpuRequest] = await reader.list(_PODS, query=_BOUND, decode=read, keeps_little=True)
    return None if pods.value is None else Reading(cluster, pods)


async def reread(reader: FactReader, cluster: ClusterFacts) -> ClusterFacts:
    """Return the cluster with its queues, PodGroups and nodes as they are now."""
    return replace(
        cluster,
        queues=await reader.list(kinds.QUEUES),
        pod_groups=await reader.list(kinds.POD_GROUPS),
        nodes=await reader.list(_NODES, decode=read_gpu_node),
        now=reader.client.server_time(),
    )


def gpus(amount: float) -> str:
    text = f"{amount:.3f}".rstrip("0").rstrip(".")
    return f"{text} GPU{'' if text == '1' else 's'}"
