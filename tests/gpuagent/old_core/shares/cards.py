"""Total memory of each GPU, as the driver reports it and as KAI counts it. Pure."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from gpuagent.gpus.gpu_reading import Gpu
from kai import keys
from kai.releases import Version
from kai.share import MIB
from kai.share_bytes import MEGABYTE, Card, label_bytes

_T = TypeVar("_T")


class Cards:
    """Memory of the node's GPUs, from the node label that KAI uses, or else from the driver."""

    def __init__(
        self, *, node_labels: Mapping[str, str] | None, devices: Sequence[Gpu], version: Version | None
    ) -> None:
        label = (node_labels or {}).get(keys.NODE_GPU_MEMORY)
        self._labelled = None if label is None else _card_of_label(label, version)
        self._by_gpu = {gpu.uuid: _card_of(gpu, version) for gpu in devices}
        labelled_bytes = label_bytes(label) if label is not None and self._labelled else None
        totals = {gpu.uuid: gpu.total_bytes for gpu in devices}
        self._totals = {uuid: labelled_bytes if total is None else total for uuid, total in totals.items()}
        self.gpus = tuple(self._by_gpu)
        """UUIDs of the GPUs that responded."""
        self.unit_bytes = MEGABYTE if version is not None and version.counts_megabytes else MIB
        """Bytes of one unit of `gpu-memory`, which need no card."""

    def of(self, gpu: str) -> Card | None:
        """Return the card of one GPU; for an unknown GPU ("") only if all cards are equal."""
        return self._labelled or _one_of(self._by_gpu, gpu)

    def total_of(self, gpu: str) -> int | None:
        """Return the memory of one GPU in bytes, by the driver or else by the label.

        For an unknown GPU ("") the result is None unless all GPUs are equal.
        """
        return _one_of(self._totals, gpu)

    def all(self) -> frozenset[Card]:
        """Return all different cards of the node; empty if one is unknown."""
        if self._labelled is not None:
            return frozenset({self._labelled})
        known = frozenset(card for card in self._by_gpu.values() if card is not None)
        return frozenset() if None in self._by_gpu.values() else known


def _one_of(by_gpu: Mapping[str, _T], gpu: str) -> _T | None:
    if gpu:
        return by_gpu.get(gpu)
    alike = set(by_gpu.values())
    return alike.pop() if len(alike) == 1 else None


def _card_of_label(label: str, version: Version | None) -> Card | None:
    try:
        return Card.from_label(label, version)
    except ValueError:  # reported once, where the node was read
        return None


def _card_of(gpu: Gpu, version: Version | None) -> Card | None:
    if gpu.total_bytes is None:
        return None
    try:
        return Card.from_mib(gpu.total_bytes // MIB, version)
    except ValueError:  # too small for any share
        return None
