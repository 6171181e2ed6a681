"""Geometry of the page's drawings: the bars of GPUs and pods, and 15 minutes of a pod's past. Pure.

Places and widths are percentages of the drawing, so that nothing in it is stretched.

Places along the axis are percentages of the drawing, heights are pixels, so that no text is stretched. Only
the line is a path in buckets and pixels, and its width follows that of the drawing.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from msgspec import Struct

from gpuagent.evaluation.history import WINDOW_SECONDS, PodHistory
from service.units import duration, size

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


PLOT_TOP: Final = 12
"""Height of the label of the peak, above the plot."""
PLOT_HEIGHT: Final = 21
HEIGHT: Final = PLOT_TOP + PLOT_HEIGHT + 10
"""Height of the drawing with the labels of the axis."""
PLOT_WIDTH: Final = 84
"""Width of the plot in percent; the word for the share stands to the right of it."""

_WIDE_GAP: Final = 0.34
"""Part of the window from which on an unknown time has room for a word."""
_LONGEST_WINDOW: Final = WINDOW_SECONDS * 1.1
"""The window is a whole number of buckets, so it can be longer than 15 minutes. Up to this length its axis is
the common one."""


class Gap(Struct, frozen=True):
    """A time in which the use was unknown."""

    at: str
    width: str
    middle: str
    """Place of the word; empty without room for it."""


class Peak(Struct, frozen=True, kw_only=True):
    """The largest amount in the window."""

    at: str
    y: int
    amount: str
    anchor: str
    """`text-anchor` of the amount, which stays within the drawing."""


class Past(Struct, frozen=True, kw_only=True):
    """A pod's memory in the last 15 minutes."""

    label: str
    width: int
    """Number of buckets, which is the width of the path."""
    path: str
    """SVG path of horizontal steps, interrupted where the memory is unknown; empty if it always was."""
    share_y: str
    """Height of the share; empty without one."""
    gaps: tuple[Gap, ...]
    peak: Peak | None
    """None if the use was always unknown."""
    start: str
    """Label of the start of the axis; empty for the common axis of 15 minutes."""


def past(history: PodHistory | None) -> Past | None:
    """Return the drawing of a pod's past; None without a history."""
    if history is None:
        return None
    known = [amount for amount in history.peaks if amount is not None]
    share, count = history.share_bytes, len(history.peaks)
    window = count * history.bucket_seconds
    largest = max(*known, share or 0, 1) if known else max(share or 0, 1)
    span = "15 minutes" if window <= _LONGEST_WINDOW else duration(window)
    label = f"last {span}: "
    label += f"from {size(min(known))} to {size(max(known))}" if known else "unknown"
    unknown = (count - len(known)) * history.bucket_seconds
    if known and unknown:
        label += f"; unknown for {duration(unknown)}"
    return Past(
        label=label,
        width=count,
        path=_path(history.peaks, largest),
        share_y=str(_height(share, largest)) if share else "",
        gaps=tuple(_gaps(history.peaks)),
        peak=_peak(history.peaks, max(known), largest) if known else None,
        start="" if window <= _LONGEST_WINDOW else f"-{duration(window)}",
    )


def _path(peaks: Sequence[int | None], largest: int) -> str:
    steps: list[str] = []
    at = 0
    for height, run in groupby(None if peak is None else _height(peak, largest) for peak in peaks):
        length = len(list(run))
        if height is not None:
            is_joined = bool(steps) and bool(steps[-1])
            steps.append(f"V{height}h{length}" if is_joined else f"M{at} {height}h{length}")
        else:
            steps.append("")
        at += length
    return "".join(steps)


def _gaps(peaks: Sequence[int | None]) -> Iterator[Gap]:
    at, count = 0, len(peaks)
    for is_unknown, run in groupby(peak is None for peak in peaks):
        length = len(list(run))
        if is_unknown:
            has_room = length >= _WIDE_GAP * count
            middle = _place(at + length / 2, count) if has_room else ""
            yield Gap(_place(at, count), _place(length, count), middle)
        at += length


def _peak(peaks: Sequence[int | None], amount: int, largest: int) -> Peak:
    """Return the newest of the largest amounts."""
    count = len(peaks)
    bucket = max(number for number, peak in enumerate(peaks) if peak == amount)
    part = (bucket + 0.5) / count
    return Peak(
        at=_place(bucket + 0.5, count),
        y=PLOT_TOP + _height(amount, largest),
        amount=size(amount),
        anchor="start" if part < 0.3 else "end" if part > 0.6 else "middle",
    )


def _height(amount_bytes: int, largest: int) -> int:
    """Return the height of an amount in the plot, from its top; the largest amount is at 1."""
    return round(PLOT_HEIGHT - 1 - amount_bytes / largest * (PLOT_HEIGHT - 2))


def _place(buckets: float, count: int) -> str:
    """Return a place of the plot in percent of the drawing."""
    return f"{buckets / count * PLOT_WIDTH:.2f}".rstrip("0").rstrip(".") + "%"
