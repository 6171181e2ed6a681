"""Shares as labels write them, and their bytes on a card by KAI's arithmetic. Pure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kai import keys
from kai.share import MIB
from kai.share_bytes import Card
from webhook.policy.label_values import PolicyShare

_TOLERANCE: Final = 0.004
"""Part of a card by which a share may differ from a label's: less than half of a hundredth. The driver's
memory of a card and the node label that KAI reads may differ by some MiB."""

_HUNDREDTHS: Final = range(2, 100)
"""Fractions that a label may have."""


@dataclass(frozen=True, slots=True, order=True)
class ShareValue:
    """A share: hundredths of a GPU (100 is a whole one), or MiB."""

    hundredths: int = 0
    mib: int = 0

    def __str__(self) -> str:
        """Return the share as the value of a size's label: `0.25`, `8192Mi` or `1`."""
        if self.mib:
            return f"{self.mib}Mi"
        return "1" if self.is_whole else f"{self.hundredths / 100:.2f}"

    @property
    def is_whole(self) -> bool:
        """Whether the share is a whole GPU."""
        return self.hundredths >= 100

    def bytes_on(self, gpu_bytes: int) -> int:
        """Return the bytes that KAI gives on a GPU with this memory."""
        if self.is_whole:
            return gpu_bytes
        card = card_of(gpu_bytes)
        return card.memory_bytes(self.mib) if self.mib else card.fraction_bytes(self.hundredths / 100)

    def portion_on(self, gpu_bytes: int) -> float:
        """Return the part of the GPU that KAI charges."""
        return card_of(gpu_bytes).portion_of_memory(self.mib) if self.mib else self.hundredths / 100

    def is_share(self, share_bytes: int, gpu_bytes: int) -> bool:
        """Whether a pod's share on a GPU is this one.

        KAI hands a share in MiB over as a portion with two decimals, so both amounts count.
        """
        tolerance = _TOLERANCE * gpu_bytes
        if self.mib:
            if abs(share_bytes - self.mib * MIB) <= MIB:
                return True
            handed_over = card_of(gpu_bytes).fraction_bytes(self.portion_on(gpu_bytes))
            return abs(share_bytes - handed_over) <= MIB
        return abs(share_bytes - self.bytes_on(gpu_bytes)) <= tolerance


WHOLE: Final = ShareValue(hundredths=100)


def card_of(gpu_bytes: int) -> Card:
    """Return the card as KAI counts it.

    Raises:
        ValueError: KAI shares no GPU of this memory.
    """
    return Card.from_mib(gpu_bytes // MIB)


def share_value(share: PolicyShare | None) -> ShareValue:
    """Return a policy's share; None is a size of a whole GPU."""
    if share is None:
        return WHOLE
    if share.annotation == keys.GPU_MEMORY:
        return ShareValue(mib=int(share.value))
    return ShareValue(hundredths=round(float(share.value) * 100))


def seen_share(share_bytes: int, gpu_bytes: int | None) -> ShareValue:
    """Return the share that a pod's bytes on a GPU stand for: hundredths if they fit, else MiB."""
    if gpu_bytes is not None:
        if WHOLE.is_share(share_bytes, gpu_bytes):
            return WHOLE
        card = card_of(gpu_bytes)
        share = ShareValue(hundredths=round(share_bytes / (card.units * card.unit_bytes) * 100))
        if share.hundredths and share.is_share(share_bytes, gpu_bytes):
            return share
    return ShareValue(mib=max(-(-share_bytes // MIB), 1))


def smallest_fraction(needs: Iterable[tuple[float, int]]) -> ShareValue:
    """Return the smallest fraction that covers each need on its GPU, or a whole GPU.

    Args:
        needs: bytes, and the memory of the GPU.
    """
    hundredths = 0
    for need, gpu_bytes in needs:
        card = card_of(gpu_bytes)
        fits = (h for h in _HUNDREDTHS if h >= hundredths and card.fraction_bytes(h / 100) >= need)
        hundredths = next(fits, 100)
        if hundredths == 100:
            break
    return ShareValue(hundredths=max(hundredths, 2))


def smallest_memory(needs: Iterable[tuple[float, int]]) -> ShareValue:
    """Return the smallest share in MiB that covers each need; a whole GPU if it fits on none."""
    needs = list(needs)
    mib = max(math.ceil(max(need for need, _ in needs) / MIB), 1)
    share = ShareValue(mib=mib)
    return share if all(share.portion_on(gpu_bytes) < 1 for _, gpu_bytes in needs) else WHOLE
