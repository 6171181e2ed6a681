"""The use of the few pods whose share changed, divided by share. Pure."""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from console.advise.queries import Window
from console.advise.usage import PodUse
from console.prometheus.series import RangeSeries


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of a pod on one GPU at a time."""

    at: float
    share_bytes: int
    used_bytes: float | None
    over_seconds: float = 0.0
    """Time above the share since the last point, on any of the pod's GPUs."""


def by_share(use: PodUse, points: Sequence[Point], *, quantile: float, window: Window) -> list[PodUse]:
    """Return the use of a pod once for each share that it had, in order of time.

    Args:
        use: the use in the whole time.
        points: in order of time.
        quantile: from 0 to 1.
        window: the time; its step is the time between two points.
    """
    step = window.step
    of_share: dict[int, list[Point]] = {}
    expected: defaultdict[int, float] = defaultdict(float)
    last: Point | None = None
    for point in points:
        is_same = last is not None and last.share_bytes == point.share_bytes
        expected[point.share_bytes] += point.at - last.at if last and is_same else step
        of_share.setdefault(point.share_bytes, []).append(point)
        last = point
    over = sum(point.over_seconds for point in points)
    parts = []
    for share, own in of_share.items():
        used = sorted(point.used_bytes for point in own if point.used_bytes is not None)
        part = replace(
            use,
            share_bytes=share,
            seconds=len(own) * step,
            known_seconds=len(used) * step,
            first=own[0].at - step,
            last=own[-1].at,
            peak_bytes=used[-1] if used else None,
            quantile_bytes=quantile_of(used, quantile),
            low_bytes=quantile_of(used, 0.05),
            over_seconds=_part_of(use.over_seconds, sum(point.over_seconds for point in own), over),
            is_current=use.is_current and points[-1].share_bytes == share,
            expected_seconds=expected[share],
            peaks=_peaks(own, window),
        )
        parts.append(part)
    return parts


def _peaks(points: Iterable[Point], window: Window) -> RangeSeries | None:
    """Return the largest use in each part of the window; None if the use was never known."""
    largest: dict[float, float] = {}
    for point in points:
        if point.used_bytes is not None:
            end = window.bucket_end(point.at)
            largest[end] = max(largest.get(end, 0.0), point.used_bytes)
    return RangeSeries({}, array("d", largest), array("d", largest.values())) if largest else None


def _part_of(seconds: float | None, part: float, total: float) -> float | None:
    """Return the part of a sum; None if the sum is not 0 and the time of none of it is known."""
    return seconds * part / total if seconds and total else None if seconds else seconds


def quantile_of(values: Sequence[float], quantile: float) -> float | None:
    """Return a quantile of ascending values as `quantile_over_time` does: linear between two values."""
    if not values:
        return None
    rank = quantile * (len(values) - 1)
    lower = int(rank)
    upper = min(lower + 1, len(values) - 1)
    return values[lower] + (values[upper] - values[lower]) * (rank - lower)
