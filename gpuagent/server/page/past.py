"""Geometry of a pod's past: 15 minutes with an axis, the share, the peak, and unknown times. Pure.

Places along the axis are percentages of the drawing, heights are pixels, so that no text is stretched. Only
the line is a path in buckets and pixels, and its width follows that of the drawing.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from msgspec import Struct

from gpuagent.evaluation.history import WINDOW_SECONDS, PodHistory
from service.units import duration, size

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
