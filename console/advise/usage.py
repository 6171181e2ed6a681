"""What one pod used of one GPU while it had one share. Pure."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from console.prometheus.series import RangeSeries
from kai.own_labels import is_size_name
from service.names import is_dns_label, is_dns_subdomain, is_gpu_model, is_kind

_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}")

NEAR: Final = 0.95
"""Part of the share from which a pod counts as using all of it."""

_HOUR: Final = 3600.0


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
    def are_valid(self) -> bool:
        """Whether every name has the syntax of its kind, and may be printed or pasted into a shell."""
        return (
            _IDENTIFIER.fullmatch(self.uid) is not None
            and _IDENTIFIER.fullmatch(self.gpu_uuid) is not None
            and is_dns_label(self.namespace)
            and is_dns_subdomain(self.pod)
            and all(not name or is_dns_label(name) for name in (self.vcluster, self.virtual_namespace))
            and bool(self.vcluster) >= bool(self.virtual_namespace)
            and (not self.size or is_size_name(self.size))
            and (not self.workload_kind or is_kind(self.workload_kind))
            and (not self.workload or is_dns_subdomain(self.workload))
            and (not self.model or is_gpu_model(self.model))
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
    first: float
    """Unix seconds."""
    last: float
    """Unix seconds."""
    peak_bytes: float | None
    """None if the use was never known."""
    quantile_bytes: float | None
    low_bytes: float | None
    """The quantile 0.05; None if the use is unknown, or never came near to the share."""
    over_seconds: float | None = None
    """Time above the share, on any of the pod's GPUs; None if the counter has no values."""
    is_current: bool = False
    """Whether the pod exists at the end of the time."""
    bucket: float = _HOUR
    """Seconds of each part of the time in `peaks`."""
    peaks: RangeSeries | None = field(default=None, repr=False, compare=False)
    """Largest use in each part of the time, at the end of the part; None if the use was never known."""

    @property
    def is_mostly_full(self) -> bool:
        """Whether the use is at 95 % of the share or more in 95 % of the time."""
        return self.low_bytes is not None and self.low_bytes >= NEAR * self.share_bytes

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
        return next(full, math.inf) <= first + max(2 * _HOUR, self.bucket)

    @property
    def is_at_limit(self) -> bool:
        """Whether the pod filled its share without exceeding it, so that it may need more."""
        slack = max(256 << 20, 0.05 * self.share_bytes)
        peak = self.peak_bytes
        return peak is not None and NEAR * self.share_bytes <= peak <= self.share_bytes + slack

    @property
    def expected_seconds(self) -> float:
        """Time between the first and the last value, gaps included."""
        return max(self.last - self.first, self.seconds)


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of a pod on one GPU at a time."""

    at: float
    share_bytes: int
    used_bytes: float | None


def by_share(points: Sequence[Point], *, quantile: float, step: float) -> list[dict[str, float | None]]:
    """Return the figures of `PodUse` for each share that a pod had, in order of time.

    For the few pods whose share changed. The keys are those of `PodUse`.

    Args:
        points: in order of time.
        quantile: from 0 to 1.
        step: seconds between two points.
    """
    of_share: dict[int, list[Point]] = {}
    for point in points:
        of_share.setdefault(point.share_bytes, []).append(point)
    figures: list[dict[str, float | None]] = []
    for share, own in of_share.items():
        used = sorted(point.used_bytes for point in own if point.used_bytes is not None)
        figures.append(
            {
                "share_bytes": share,
                "seconds": len(own) * step,
                "known_seconds": len(used) * step,
                "first": own[0].at - step,
                "last": own[-1].at,
                "peak_bytes": used[-1] if used else None,
                "quantile_bytes": quantile_of(used, quantile),
                "low_bytes": quantile_of(used, 0.05),
            }
        )
    return figures


def quantile_of(values: Sequence[float], quantile: float) -> float | None:
    """Return a quantile of ascending values as `quantile_over_time` does: linear between two values."""
    if not values:
        return None
    rank = quantile * (len(values) - 1)
    lower = int(rank)
    upper = min(lower + 1, len(values) - 1)
    return values[lower] + (values[upper] - values[lower]) * (rank - lower)
