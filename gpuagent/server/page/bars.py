"""Geometry of the page's bars: a GPU's, and a pod's. Pure.

Places and widths are percentages of the drawing, so that nothing in it is stretched.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from service.units import size

SHARE_AT: Final = 200 / 3
"""Where the share ends in a pod's bar, in percent. The bar ends at 150 % of the share."""
_NARROWEST_DIGIT: Final = 2.6
"""Percent of the bar for each digit of a number within a segment."""


class Segment(Struct, frozen=True, kw_only=True):
    """A part of a GPU's bar."""

    kind: str
    """CSS class."""
    title: str
    at: str
    width: str
    middle: str
    number: str = ""
    """Number of the pod's row; empty if the segment has no room for it."""
    is_flagged: bool = False


class Part(Struct, frozen=True, kw_only=True):
    """A part of a GPU's memory before it is placed in the bar."""

    kind: str
    title: str
    bytes: int | None
    number: str = ""
    """Number of the pod's row; empty for a part that is no pod's."""
    is_flagged: bool = False

    @property
    def amount(self) -> str:
        """The memory in words."""
        return size(self.bytes)


class GpuBar(Struct, frozen=True, kw_only=True):
    """The memory of a GPU. Its scale ends at the larger of the memory and the promised shares."""

    label: str
    segments: tuple[Segment, ...]
    end: str
    """Where the GPU's memory ends."""
    promised: str
    """Where the promised shares end; empty if unknown or none."""
    excess_width: str
    """Width of the promised shares beyond the memory; empty without any."""


class ShareBar(Struct, frozen=True, kw_only=True):
    """A pod's memory against its share."""

    label: str
    within: str
    beyond: str
    """Width of the part beyond the share; empty without one."""
    is_clipped: bool
    """Whether the pod uses more than the bar can show."""


def gpu_bar(parts: Sequence[Part], *, total: int | None, used: int | None, promised: int | None) -> GpuBar:
    """Place the parts of a GPU's memory side by side, in their order."""
    scale = max(total or 0, promised or 0)
    label = f"{size(used)} of {size(total)} in use, {size(promised)} promised"
    if not total or not scale:
        return GpuBar(label=label, segments=(), end=_percentage(100), promised="", excess_width="")
    segments, at, end = [], 0.0, total / scale * 100
    for part in parts:
        width = min(max(part.bytes or 0, 0) / scale * 100, end - at)
        if width <= 0:
            continue
        has_room = width >= _NARROWEST_DIGIT * max(len(part.number), 1)
        segments.append(
            Segment(
                kind=part.kind,
                title=f"{part.title}: {part.amount}",
                at=_percentage(at),
                width=_percentage(width),
                middle=_percentage(at + width / 2),
                number=part.number if has_room else "",
                is_flagged=part.is_flagged,
            )
        )
        at += width
    return GpuBar(
        label=label,
        segments=tuple(segments),
        end=_percentage(end),
        promised=_percentage(promised / scale * 100) if promised else "",
        excess_width=_percentage(100 - end) if promised and promised > total else "",
    )


def share_bar(used: int | None, share: int | None) -> ShareBar | None:
    """Return a pod's bar; None if its share or its memory is unknown, or the share is 0."""
    if used is None or not share:
        return None
    ratio = max(used / share, 0.0)
    beyond = min(ratio - 1, 0.5) * SHARE_AT
    return ShareBar(
        label=f"{size(used)} of the share of {size(share)}",
        within=_percentage(min(ratio, 1) * SHARE_AT),
        beyond=_percentage(beyond) if beyond > 0 else "",
        is_clipped=ratio > 1.5,
    )


def _percentage(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".") + "%"
