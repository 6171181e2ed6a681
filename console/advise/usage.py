"""What one pod used of one GPU while it had one share. Pure."""

import math
import re
from dataclasses import dataclass, field
from typing import Final

from console.prometheus.series import RangeSeries, are_names
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
