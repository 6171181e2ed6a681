"""What one pod used of one GPU while it had one share. Pure."""

import math
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from console.advise.usage_queries import Window
from console.prometheus.promql import RangeSeries, are_names
from kai.share import MOST_BYTES
from service.names import is_dns_subdomain

_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}")

_NAMES: Final = (
    "namespace", "vcluster", "virtual_namespace", "size", "workload_kind", "workload", "model",
)  # fmt: skip

NEAR: Final = 0.95
"""Part of the share from which a pod counts as using all of it."""

FLAT: Final = 0.02
"""Part of the largest use by which the use of a pod varies at most that holds a constant amount."""

MOST_OF_SHARE: Final = 0.7
"""Part of the share from which a constant use is a setting of the framework: vLLM takes 0.9 of the memory
that it sees, and JAX 0.75. With the headroom, the advice would be near to the share again."""

_HOUR: Final = 3600.0


def is_possible(figure: float) -> bool:
    """Whether a count, an amount of bytes or a time can be of a pod on a GPU: from 0 to 8 PiB."""
    return 0 <= figure <= MOST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class PodNames:
    """The names of a pod on one GPU. `are_valid` must hold before one of them is printed."""

    uid: str
    gpu_uuid: str
    namespace: str
    pod: str
    vcluster: str = ""
    virtual_namespace: str = ""
    size: str = ""
    workload_kind: str = ""
    workload: str = ""
    model: str = ""
    """Empty if unknown."""

    @property
    def place(self) -> tuple[str, str, str]:
        """The namespace of the host, and the vCluster with the namespace inside."""
        return self.namespace, self.vcluster, self.virtual_namespace

    @property
    def are_valid(self) -> bool:
        """Whether every name has the syntax of its kind, and may be printed or pasted into a shell."""
        return (
            _IDENTIFIER.fullmatch(self.uid) is not None
            and _IDENTIFIER.fullmatch(self.gpu_uuid) is not None
            and is_dns_subdomain(self.pod)
            and bool(self.namespace)
            and bool(self.vcluster) >= bool(self.virtual_namespace)
            and are_names({label: getattr(self, label) for label in _NAMES})
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodUse:
    """The figures of a pod on one GPU during the time in which it had one share."""

    names: PodNames
    gpu_bytes: int | None
    """Memory of the GPU; None if unknown, as for a MIG device."""
    share_bytes: int
    seconds: float
    """Time with this share; gaps in the data are left out."""
    known_seconds: float
    """Time in which the use was known, too."""
    expected_seconds: float
    """Time in which the pod had this share, gaps between two times with it included."""
    first: float
    """Unix seconds."""
    last: float
    """Unix seconds."""
    peak_bytes: float | None
    """None if the use was never known."""
    quantile_bytes: float | None
    low_bytes: float | None
    """The quantile 0.05; None if the use is unknown, or on all GPUs of the pod neither near to the share nor
    constant."""
    over_seconds: float | None = None
    """Time above the share, on any of the pod's GPUs; None if the counter has no values."""
    is_current: bool = False
    """Whether the pod exists at the end of the time."""
    bucket: float = _HOUR
    """Seconds of each part of the time in `peaks`."""
    peaks: RangeSeries | None = field(default=None, repr=False, compare=False)
    """Largest use in each part of the time, at the end of the part; None if the use was never known."""

    @property
    def is_possible(self) -> bool:
        """Whether a GPU can have these amounts; a share of 0 is none."""
        amounts = (self.share_bytes, self.peak_bytes, self.quantile_bytes, self.low_bytes)
        return self.share_bytes > 0 and all(amount is None or is_possible(amount) for amount in amounts)

    @property
    def is_mostly_full(self) -> bool:
        """Whether the use is at 95 % of the share or more in 95 % of the time."""
        return self.low_bytes is not None and self.low_bytes >= NEAR * self.share_bytes

    @property
    def _has_started(self) -> float:
        """Unix seconds at which a part of the time ends that does not contain the pod's first hour."""
        return self.first + max(2 * _HOUR, self.bucket)

    @property
    def takes_all(self) -> bool:
        """Whether the pod fills its share from its first hour on; then its use does not show its need."""
        if not self.is_mostly_full or self.peaks is None:
            return False
        first = self.first
        full = (
            at
            for at, peak in zip(self.peaks.times, self.peaks.values, strict=True)
            if at > first and peak >= NEAR * self.share_bytes
        )
        return next(full, math.inf) <= self._has_started

    @property
    def has_flat_peaks(self) -> bool:
        """Whether the largest use of each part of the time is the same, from the first hour on."""
        if self.peaks is None or not self.peak_bytes:
            return False
        least = (1 - FLAT) * self.peak_bytes
        start = self._has_started
        later = [peak for at, peak in zip(self.peaks.times, self.peaks.values, strict=True) if at >= start]
        return bool(later) and min(later) >= least

    @property
    def is_flat(self) -> bool:
        """Whether the pod holds a constant amount below its share, as a framework that allocates in advance.

        Then its use may show a setting and not its need. A pod that fills its share has another rule.
        """
        if self.low_bytes is None or self.peak_bytes is None or self.is_mostly_full:
            return False
        return self.has_flat_peaks and self.low_bytes >= (1 - FLAT) * self.peak_bytes

    @property
    def is_allocated_in_advance(self) -> bool:
        """Whether the pod holds a constant amount that is most of its share."""
        return self.is_flat and (self.low_bytes or 0.0) >= MOST_OF_SHARE * self.share_bytes

    @property
    def keeps_share(self) -> bool:
        """Whether the use shows what the pod was given and not its need, so that it gets no smaller share."""
        return self.takes_all or self.is_allocated_in_advance

    @property
    def is_at_limit(self) -> bool:
        """Whether the pod filled its share without exceeding it, so that it may need more."""
        slack = max(256 << 20, 0.05 * self.share_bytes)
        peak = self.peak_bytes
        return peak is not None and NEAR * self.share_bytes <= peak <= self.share_bytes + slack


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
