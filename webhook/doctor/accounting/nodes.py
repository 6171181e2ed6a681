"""Nodes with GPUs, and what a share is worth on each of them.

KAI has three figures for one share. Its status takes the annotation, its scheduler rounds to hundredths for
the queue, and compares units of memory for one GPU.
"""

from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

from kai import keys
from kai.gonumber import parse_int
from kai.memory import Card
from kai.pod import Quantity
from kai.share import MIB, Share
from kai.version import Version
from kube.objects import ObjectMeta
from webhook.doctor.pod_groups import gpu_amount

_UNLABELLED: Final = Card(100, MIB)
"""GPU of a node without the label: KAI's DefaultGpuMemory (`node_info.go`), used for fractions only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """A node as far as the check needs it."""

    name: str
    gpus: float | None
    """`nvidia.com/gpu` of the node, replicas of time-slicing included; None if the quantity cannot be read.

    The larger one of allocatable and capacity: a GPU that fails leaves allocatable while its pods run on.
    """
    memory: int | None
    """MiB of one GPU as in the label, which KAI's status uses (`fraction.go`); None without a valid label."""
    card: Card | None
    """One GPU as KAI's scheduler counts it; None without a valid label."""

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


UNKNOWN_NODE: Final = GpuNode(name="", gpus=None, memory=None, card=None)
"""Stands for a node that could not be read."""


class _Metadata(ObjectMeta, frozen=True):
    labels: dict[str, str] | None = None


class _Status(Struct, frozen=True):
    allocatable: dict[str, Quantity] | None = None
    capacity: dict[str, Quantity] | None = None


class _Node(Struct, frozen=True):
    metadata: _Metadata
    status: _Status = _Status()


_node = msgspec.json.Decoder(_Node).decode


def read_node(item: bytes, version: Version | None) -> GpuNode:
    """Read a node.

    Args:
        item: the node's JSON.
        version: the installed release of KAI; None if unknown.
    """
    node = _node(item)
    label = (node.metadata.labels or {}).get(keys.NODE_GPU_MEMORY, "")
    allocatable, capacity = gpu_amount(node.status.allocatable), gpu_amount(node.status.capacity)
    try:
        memory, card = parse_int(label), Card.from_label(label, version)
    except ValueError:
        memory, card = None, None
    return GpuNode(
        name=node.metadata.name,
        gpus=None if allocatable is None or capacity is None else max(allocatable, capacity),
        memory=memory,
        card=card,
    )
