"""Reads the nodes, with their GPUs and what a share is worth on each of them.

KAI has three figures for one share. Its status takes the annotation, its scheduler rounds to hundredths for
the queue, and compares units of memory for one GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from kai import keys
from kai.gonumber import parse_int
from kai.gpu_resources import NVIDIA_PREFIX, names_gpu
from kai.memory import Card
from kai.pod import Quantity
from kai.share import MIB, Share
from kai.version import Version
from kube.objects import LabelledMeta, Taint
from service.text import one_line
from webhook.doctor.api_reader import ApiReader, ListResult, ListSpec
from webhook.doctor.pod_groups import gpu_amount

PRESENT_LABEL: Final = "nvidia.com/gpu.present"
"""Label of GPU feature discovery. The chart's DaemonSet selects nodes with the value `true`."""

_NODES: Final = ListSpec(
    resource="nodes",
    without="the nodes with GPUs are not known, and were not compared with agents and requests",
)
_UNLABELLED: Final = Card(100, MIB)
"""GPU of a node without the label: KAI's DefaultGpuMemory (`node_info.go`), used for fractions only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """A node as far as the checks need it."""

    name: str
    gpus: float | None = None
    """`nvidia.com/gpu` of the node, replicas of time-slicing included; None if the quantity cannot be read.

    The larger one of allocatable and capacity: a GPU that fails leaves allocatable while its pods run on.
    """
    memory: int | None = None
    """MiB of one GPU as in the label, which KAI's status uses (`fraction.go`); None without a valid label."""
    card: Card | None = None
    """One GPU as KAI's scheduler counts it; None without a valid label."""
    has_gpus: bool = True
    """Whether the node has GPUs, by its capacity or its labels."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of a node with GPUs; empty for another one."""
    taints: tuple[Taint, ...] = ()

    @property
    def is_labelled(self) -> bool:
        """Whether the label `PRESENT_LABEL` has the value `true`."""
        return self.labels.get(PRESENT_LABEL) == "true"

    @property
    def has_memory_label(self) -> bool:
        """Whether the node has the label from which KAI computes the bytes of a share."""
        return keys.NODE_GPU_MEMORY in self.labels

    @property
    def memory_label_error(self) -> str:
        """Why the value of that label is invalid; empty if it is valid, or without the label."""
        if not self.has_memory_label:
            return ""
        try:
            Card.from_label(self.labels[keys.NODE_GPU_MEMORY])
        except ValueError as error:
            return one_line(str(error))
        return ""

    def in_status(self, share: Share) -> float | None:
        """Return the GPUs of a share in KAI's status: the devices count once (`ExtractGPUSharingReceived…`).

        None if they depend on the memory of the node's GPUs, and that is unknown.
        """
        if share.fraction is not None:
            return share.fraction
        return share.memory_mib / self.memory if share.memory_mib is not None and self.memory else None

    def in_queue(self, share: Share) -> float | None:
        """Return the GPUs of a share that KAI's scheduler charges to its queue; None as in `in_status`."""
        if share.memory_mib is not None:
            return self.card.portion_of_memory(share.memory_mib) * share.devices if self.card else None
        return share.counted_gpus

    def on_gpu(self, share: Share) -> float | None:
        """Return the part of each GPU that KAI's scheduler charges to its node; None as in `in_status`."""
        card = self.card or (None if share.fraction is None else _UNLABELLED)
        return card.share_bytes(share) / (card.units * card.unit_bytes) if card else None


UNKNOWN_NODE: Final = ClusterNode(name="")
"""Stands for a node that could not be read."""


class _Spec(Struct, frozen=True):
    taints: list[Taint] | None = None


class _Status(Struct, frozen=True):
    allocatable: dict[str, Quantity] | None = None
    capacity: dict[str, Quantity] | None = None


class _Node(Struct, frozen=True):
    metadata: LabelledMeta
    spec: _Spec = _Spec()
    status: _Status = _Status()


_node = msgspec.json.Decoder(_Node).decode


async def list_nodes(reader: ApiReader, version: Version | None) -> ListResult[ClusterNode]:
    """List the nodes; a failed request is recorded in the reader. See `read_node`."""
    return await reader.list(_NODES, partial(read_node, version=version))


def read_node(item: bytes, version: Version | None) -> ClusterNode:
    """Read a node.

    Args:
        item: the node's JSON.
        version: the installed release of KAI; None if unknown.
    """
    node = _node(item)
    labels = node.metadata.labels
    label = labels.get(keys.NODE_GPU_MEMORY, "")
    has_gpus = any(
        amount not in ("0", 0) and name.startswith(NVIDIA_PREFIX) and names_gpu(name)
        for name, amount in (node.status.capacity or {}).items()
    )
    has_gpus |= labels.get(PRESENT_LABEL) == "true" or keys.NODE_GPU_MEMORY in labels
    allocatable, capacity = gpu_amount(node.status.allocatable), gpu_amount(node.status.capacity)
    try:
        memory, card = parse_int(label), Card.from_label(label, version)
    except ValueError:
        memory, card = None, None
    return ClusterNode(
        name=node.metadata.name,
        gpus=None if allocatable is None or capacity is None else max(allocatable, capacity),
        memory=memory,
        card=card,
        has_gpus=has_gpus,
        labels=labels if has_gpus else {},
        taints=tuple(node.spec.taints or ()),
    )
