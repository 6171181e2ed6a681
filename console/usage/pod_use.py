"""The time that is looked at, and what one pod used of one GPU in it. Pure."""

import math
import re
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple

from kai.kaishare_keys import is_size_name
from kai.share import MOST_BYTES
from service.names import is_dns_label, is_dns_subdomain, is_gpu_model, is_kind, is_label_value

HOUR: Final = 3600
LEAST_KNOWN: Final = 0.9  # part of the time below which a figure counts as not well known, and is marked
NEAR: Final = 0.95  # part of the share from which a pod counts as using all of it
FLAT: Final = 0.02  # part of the largest use by which a constant use varies at most
MOST_OF_SHARE: Final = 0.7
"""Part of the share from which a constant use is a setting of the framework: vLLM takes 0.9 of the memory
that it sees, and JAX 0.75. With the headroom, the advice would be near to the share again."""
LOW: Final = 0.05  # the quantile that is compared with the share and the peak

_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,99}")
_SYNTAX: Final[Mapping[str, Callable[[str], object]]] = {
    "uid": _IDENTIFIER.fullmatch,
    "gpu_uuid": _IDENTIFIER.fullmatch,
    "pod": is_dns_subdomain,
    "namespace": is_dns_label,
    "vcluster": is_dns_label,
    "virtual_namespace": is_dns_label,
    "queue": is_label_value,
    "workload_kind": is_kind,
    "workload": is_dns_subdomain,
    "size": is_size_name,
    "node": is_dns_subdomain,
    "model": is_gpu_model,
}


def are_names(labels: Mapping[str, str]) -> bool:
    """Whether each value is empty or has the syntax of its label, so that it can be printed and pasted."""
    return all(not name or _SYNTAX[label](name) for label, name in labels.items())


def utc_minute(seconds: float) -> str:
    """Format Unix seconds for a heading, such as `2026-05-12 18:00`, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The time that is looked at, in Unix seconds."""

    start: float
    end: float

    @property
    def length(self) -> int:
        """Seconds."""
        return round(self.end - self.start)

    @property
    def step(self) -> int:
        """Seconds between two values that count, a multiple of 60: at most 5,000 values of a series."""
        return max(-(-self.length // (5000 * 60)) * 60, 60)

    @property
    def bucket(self) -> int:
        """Seconds of at most 336 equal parts of the time: at most an hour each, or several whole hours.

        They begin with the window, except for less than a second a part.
        """
        longest = -(-self.length // (336 * HOUR)) * HOUR
        return -(-self.length // -(-self.length // longest))

    @property
    def first_bucket(self) -> float:
        """End of the first part, in Unix seconds; the last one ends with the window."""
        return self.end - (-(-self.length // self.bucket) - 1) * self.bucket

    def __str__(self) -> str:
        return f"{utc_minute(self.start)} to {utc_minute(self.end)} UTC"


class Peaks(NamedTuple):
    """The largest use in each part of a time with a known use."""

    times: "array[float]" = array("d")  # ends of the parts in Unix seconds, ascending
    values: "array[float]" = array("d")  # bytes


class PodNames(NamedTuple):
    """The names of a pod on one GPU; empty if unknown. `are_valid` must hold before one is printed."""

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

    @property
    def place(self) -> tuple[str, str, str]:
        """The namespace of the host, and the vCluster with the namespace inside."""
        return self.namespace, self.vcluster, self.virtual_namespace

    @property
    def are_valid(self) -> bool:
        """Whether every name has the syntax of its kind, and may be printed or pasted into a shell."""
        needed = (
            self.uid,
            self.gpu_uuid,
            self.pod,
            self.namespace,
            self.vcluster or not self.virtual_namespace,
        )
        return all(needed) and are_names(self._asdict())


class Doubt(StrEnum):
    """Why the use of a pod may not show its need; the value is a note about such pods."""

    UNKNOWN = "never had a known use: the advice does not cover their need"
    GIVEN = (
        f"took {MOST_OF_SHARE:.0%} of the share or more from the start, as vLLM and JAX do, which"
        " allocate in advance: such use does not show the need, and the advice is no smaller"
    )
    CONSTANT = (
        "held a constant amount, as frameworks do that allocate in advance: such use shows a setting, perhaps"
        " not the need; look at the framework before you give less"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodUse:
    """The figures of a pod on one GPU."""

    names: PodNames
    gpu_bytes: int | None  # memory of the GPU; None if unknown, as for a MIG device
    share_bytes: int
    seconds: float  # gaps in the data are left out
    known_seconds: float  # time in which the use was known, too
    expected_seconds: float  # with gaps and the time outside the records
    first: float  # Unix seconds
    last: float  # Unix seconds
    peak_bytes: float | None  # None if the use was never known; so are the quantiles
    quantile_bytes: float | None
    low_bytes: float | None  # the quantile `LOW`
    over_seconds: float | None = None  # above the share, on any GPU of the pod; None without the counter
    is_current: bool = False  # whether the pod exists at the end of the time
    is_claim: bool = False  # whether the share is a resource claim, and not KAI's
    bucket: float = HOUR  # seconds of each part of the time in `peaks`
    peaks: Peaks = field(default=Peaks(), repr=False, compare=False)  # empty if the use was never known

    @property
    def is_possible(self) -> bool:
        """Whether a GPU can have these amounts, which are up to 8 PiB; a share of 0 is none."""
        amounts = (self.share_bytes, self.peak_bytes or 0, self.quantile_bytes or 0, self.low_bytes or 0)
        return self.share_bytes > 0 and max(amounts) <= MOST_BYTES

    @property
    def doubt(self) -> Doubt | None:
        """Why the use may not show the need; None if it does."""
        low, peak, near = self.low_bytes, self.peak_bytes, NEAR * self.share_bytes
        if self.quantile_bytes is None:
            return Doubt.UNKNOWN
        if low is None or peak is None:
            return None
        started = self.first + max(2 * HOUR, self.bucket)  # end of a part of the time without the first hour
        if low >= near:
            full = (
                at for at, largest in zip(*self.peaks, strict=True) if at > self.first and largest >= near
            )
            return Doubt.GIVEN if next(full, math.inf) <= started else None
        later = min((largest for at, largest in zip(*self.peaks, strict=True) if at >= started), default=0.0)
        if not peak or min(low, later) < (1 - FLAT) * peak:
            return None
        return Doubt.GIVEN if low >= MOST_OF_SHARE * self.share_bytes else Doubt.CONSTANT

    @property
    def keeps_share(self) -> bool:
        """Whether the use shows what the pod was given and not its need, so that it gets no smaller share."""
        return self.doubt is Doubt.GIVEN

    @property
    def is_at_limit(self) -> bool:
        """Whether the pod filled its share without exceeding it, so that it may need more."""
        slack = max(256 << 20, 0.05 * self.share_bytes)
        peak = self.peak_bytes
        return peak is not None and NEAR * self.share_bytes <= peak <= self.share_bytes + slack
