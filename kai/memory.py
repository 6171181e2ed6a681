"""What a share is worth in bytes on a given card, as KAI's scheduler counts it.

Sources: `pkg/scheduler/api/node_info/node_info.go` (getNodeGpuMemory, GetResourceGpuMemory) and
`gpu_sharing_node_info.go` (getGpuMemoryFractionalOnNode), the same at v0.9.8, v0.13.0 and v0.17.0;
v0.7.x counts in 10^6 bytes (`Version.counts_megabytes`).
"""

import math
import re
from dataclasses import dataclass

from kai.gonumber import parse_int
from kai.share import MIB, MOST_BYTES, Share
from kai.version import Version

_MEGABYTE = 10**6
_HAMI_LIMIT = re.compile(r"([0-9]{1,18})([gGmMkK]?)")
_HAMI_SHIFT = {"": 0, "k": 10, "m": 20, "g": 30}
_LABEL_IN_BYTES_FROM = 1 << 20  # a label of 1 Ti or more "MiB" is in bytes (a bug of GPU feature discovery)


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU's memory in the unit a release of KAI counts in.

    `units` is already floored to hundreds, as KAI does "so there will not be 2 jobs that get same bytes".
    """

    units: int
    unit_bytes: int

    @classmethod
    def from_mib(cls, mib: int, version: Version | None = None) -> "Card":
        """Take the node label `nvidia.com/gpu.memory` (or the device's own total in MiB).

        Raises:
            ValueError: fewer than 100 MiB, which no share can be a part of, or more than any GPU has.
        """
        if mib >= _LABEL_IN_BYTES_FROM:
            mib //= MIB
        if mib * MIB > MOST_BYTES:
            raise ValueError(f"{mib} MiB is more than any GPU has")
        counts_megabytes = version is not None and version.counts_megabytes
        amount, unit = (mib * MIB // _MEGABYTE, _MEGABYTE) if counts_megabytes else (mib, MIB)
        units = amount - amount % 100
        if units <= 0:
            raise ValueError(f"{mib} MiB is less than the 100 MiB KAI counts in")
        return cls(units, unit)

    @classmethod
    def from_label(cls, text: str, version: Version | None = None) -> "Card":
        """Take the node label `nvidia.com/gpu.memory` as it stands.

        Raises:
            ValueError: it is no number of MiB, or a number too small.
        """
        return cls.from_mib(_parsed_label(text), version)

    def fraction_bytes(self, fraction: float) -> int:
        """Bytes of one device for a fraction: `int64(fraction × units)`, one float64 product."""
        return int(fraction * self.units) * self.unit_bytes

    def memory_bytes(self, memory: int) -> int:
        """Bytes of one device for `gpu-memory: memory`."""
        return memory * self.unit_bytes

    def portion_of_memory(self, memory: int) -> float:
        """The part of a device that `gpu-memory` is charged as: rounded up to hundredths.

        More than 1 means that no card of this kind can hold it and the pod stays Pending.
        """
        return math.ceil(memory / self.units * 100) / 100

    def share_bytes(self, share: Share) -> int:
        """Bytes on each of the share's devices, by what the annotation says (unrounded fraction)."""
        if share.memory_mib is not None:
            return self.memory_bytes(share.memory_mib)
        if share.fraction is None or math.isnan(share.fraction):
            raise ValueError("the share names neither a fraction nor memory")
        return self.fraction_bytes(share.fraction)


def label_bytes(text: str) -> int:
    """Return the bytes of one GPU by the node label `nvidia.com/gpu.memory`, not rounded.

    Raises:
        ValueError: it is no number of MiB, or a number that KAI does not count with.
    """
    Card.from_label(text)
    mib = _parsed_label(text)
    return (mib // MIB if mib >= _LABEL_IN_BYTES_FROM else mib) * MIB


def _parsed_label(text: str) -> int:
    try:
        return parse_int(text)
    except ValueError:
        raise ValueError(f'"{text[:40]}" is not a number of MiB') from None


def hami_limit_bytes(text: str) -> int | None:
    """Read `CUDA_DEVICE_MEMORY_LIMIT`; None for 0, which is no limit.

    KAI writes MiB as `71885m` (v0.17.0 `hami_core.go`); HAMi-core also takes `g`, `k` and bare bytes.

    Raises:
        ValueError: it has another form, or is more than any GPU has.
    """
    found = _HAMI_LIMIT.fullmatch(text)
    if found is None:
        raise ValueError(f'"{text[:40]}" is not a limit of HAMi-core; allowed: an integer and g, m or k')
    limit = int(found[1]) << _HAMI_SHIFT[found[2].lower()]
    if limit > MOST_BYTES:
        raise ValueError(f'"{text}" is more than any GPU has')
    return limit or None
