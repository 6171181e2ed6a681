"""Converts a share to bytes on a given GPU, with the arithmetic of KAI's scheduler.

Sources: `pkg/scheduler/api/node_info/node_info.go` (getNodeGpuMemory, GetResourceGpuMemory) and
`gpu_sharing_node_info.go` (getGpuMemoryFractionalOnNode), the same at v0.9.8, v0.13.0 and v0.17.0;
v0.7.x counts in 10^6 bytes (`Version.counts_megabytes`).
"""

import math
from dataclasses import dataclass

from kai.numbers import parse_int
from kai.releases import Version
from kai.share import MIB, MOST_BYTES, Share

MEGABYTE = 10**6
"""Unit of `gpu-memory` for releases of KAI that count megabytes."""
_LABEL_IN_BYTES_FROM = 1 << 20  # a label of 1 Ti or more "MiB" is in bytes (a bug of GPU feature discovery)


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU's memory in the unit in which a release of KAI counts."""

    units: int
    """Memory, rounded down to hundreds, as KAI does "so there will not be 2 jobs that get same bytes"."""
    unit_bytes: int  # bytes of one unit: a MiB, or 10^6 for releases that count megabytes

    @classmethod
    def from_mib(cls, mib: int, version: Version | None = None) -> "Card":
        """Build a card from MiB, as in the node label `nvidia.com/gpu.memory`.

        Args:
            mib: MiB of one GPU; a value of 2^20 or more is taken as bytes.
            version: the release of KAI; None for one that counts MiB.

        Raises:
            ValueError: the value is below 100 MiB, the granularity of KAI, or above 8 PiB.
        """
        if mib >= _LABEL_IN_BYTES_FROM:
            mib //= MIB
        if mib * MIB > MOST_BYTES:
            raise ValueError(f"{mib} MiB is more than any GPU has")
        counts_megabytes = version is not None and version.counts_megabytes
        amount, unit = (mib * MIB // MEGABYTE, MEGABYTE) if counts_megabytes else (mib, MIB)
        units = amount - amount % 100
        if units <= 0:
            raise ValueError(f"{mib} MiB is less than the 100 MiB KAI counts in")
        return cls(units, unit)

    @classmethod
    def from_label(cls, text: str, version: Version | None = None) -> "Card":
        """Build a card from the text of the node label `nvidia.com/gpu.memory`.

        Raises:
            ValueError: the text is not an integer, or `from_mib` refuses it.
        """
        return cls.from_mib(_parsed_label(text), version)

    def fraction_bytes(self, fraction: float) -> int:
        """Return the bytes of one device for a fraction: `int64(fraction × units)`, one float64 product."""
        return int(fraction * self.units) * self.unit_bytes

    def memory_bytes(self, memory: int) -> int:
        """Return the bytes of one device for the annotation `gpu-memory: memory`."""
        return memory * self.unit_bytes

    def portion_of_memory(self, memory: int) -> float:
        """Return the part of a device that KAI charges for `gpu-memory: memory`, rounded up to hundredths.

        A result above 1 fits on no GPU of this kind, and the pod stays Pending.
        """
        return math.ceil(memory / self.units * 100) / 100

    def share_bytes(self, share: Share) -> int:
        """Return the bytes on each of the share's devices, with the unrounded fraction of the annotation.

        Raises:
            ValueError: the share has neither memory nor a fraction that is a number.
        """
        if share.memory_mib is not None:
            return self.memory_bytes(share.memory_mib)
        if share.fraction is None or math.isnan(share.fraction):
            raise ValueError("the share names neither a fraction nor memory")
        return self.fraction_bytes(share.fraction)


def label_bytes(text: str) -> int:
    """Return the unrounded bytes of one GPU from the node label `nvidia.com/gpu.memory`.

    Raises:
        ValueError: the text is not an integer, or `Card.from_mib` refuses it.
    """
    Card.from_label(text)
    mib = _parsed_label(text)
    return (mib // MIB if mib >= _LABEL_IN_BYTES_FROM else mib) * MIB


def _parsed_label(text: str) -> int:
    try:
        return parse_int(text)
    except ValueError:
        raise ValueError(f'"{text[:40]}" is not a number of MiB') from None
