"""The memory of each pod on each GPU in the last 15 minutes, and since when it is idle. Pure.

The history is kept in memory only, so a restart of the agent starts with an empty one.
"""

import math
from array import array
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Final

from gpuagent.api_types import ApiPodHistory
from gpuagent.ledger.snapshot import Holding, Snapshot
from gpuagent.problems import Cause, Suspension
from gpuagent.sampling.sampler import LONGEST_GAP, longest_gap
from kai.share import MIB

WINDOW_SECONDS: Final = 900.0
"""Length of the recorded past."""
MAX_SERIES: Final = 2048
"""Largest number of pods on GPUs with a history. One series takes about 0.5 KiB."""

_BUCKET_SECONDS: Final = 15.0
_UNKNOWN: Final = -1
_MAX_MIB: Final = (1 << 31) - 1

SeriesKey = tuple[str, str]
"""Pod UID and GPU UUID; the latter is empty if the pod's GPU is unknown."""


@dataclass(slots=True)
class _Series:
    share: int | None = None
    idle_since: float | None = None
    """Monotonic seconds of the first of the last samples in a row in which the pod was idle."""
    mebibytes: "array[int] | None" = None
    """A ring of peaks in MiB, rounded up; None before the first known usage."""


class History:
    """Records each evaluated sample. Not thread-safe: use it in the event loop.

    Its memory is bounded: a series ends with its pod, and there are at most `MAX_SERIES`. At the limit a new
    pod takes the place of a series without current usage, or else has no history.
    """

    def __init__(self, *, interval: float) -> None:
        """Set the seconds between samples; a bucket is at least 2.5 times as wide."""
        self.bucket_seconds = max(_BUCKET_SECONDS, interval * LONGEST_GAP)
        self._buckets = max(1, math.ceil(WINDOW_SECONDS / self.bucket_seconds))
        self._longest_gap = longest_gap(interval)
        self._taken_at = -math.inf
        self._empty = array("i", [_UNKNOWN]) * self._buckets
        self._newest = 0
        """Number of the newest bucket since the clock's zero; its place in a ring is the remainder."""
        self._series: dict[SeriesKey, _Series] = {}

    def __len__(self) -> int:
        """Return the number of series."""
        return len(self._series)

    def record(self, snapshot: Snapshot) -> None:
        """Record a sample. Usage that is unknown, or whose verdicts are suspended, leaves a gap."""
        is_continued = snapshot.taken_at - self._taken_at <= self._longest_gap
        self._taken_at = snapshot.taken_at
        self._advance(math.floor(snapshot.taken_at / self.bucket_seconds))
        current = {(holding.pod_share.pod.uid, holding.gpu_uuid): holding for holding in snapshot.holdings}
        self._forget(snapshot, current.keys())
        suspension = Suspension.of(snapshot.problems, {account.gpu.uuid for account in snapshot.gpus})
        for key, holding in current.items():
            if key not in self._series and len(self._series) < MAX_SERIES:
                self._series[key] = _Series()
            if key in self._series and not suspension.covers(key[1]):
                self._add(self._series[key], holding)
        for key, series in self._series.items():
            if key not in current or suspension.covers(key[1]) or not _is_idle(current[key]):
                series.idle_since = None
            elif series.idle_since is None or not is_continued:
                series.idle_since = snapshot.taken_at

    def pods(self) -> Iterator[ApiPodHistory]:
        """Yield the past of each pod on each GPU with known usage."""
        for (uid, gpu_uuid), series in self._series.items():
            if series.mebibytes is not None:
                oldest = (self._newest + 1) % self._buckets
                ring = series.mebibytes[oldest:] + series.mebibytes[:oldest]
                yield ApiPodHistory(
                    uid=uid,
                    gpu_uuid=gpu_uuid,
                    share_mebibytes=None if series.share is None else series.share // MIB,
                    used_mebibytes=tuple(None if peak == _UNKNOWN else peak for peak in ring),
                )

    def idle_seconds(self, uid: str, gpu_uuid: str, at: float) -> float | None:
        """Return for how long a pod has been idle at the newest sample; None if unknown or not idle."""
        series = self._series.get((uid, gpu_uuid))
        if series is None or series.idle_since is None or at <= series.idle_since:
            return None
        return at - series.idle_since

    def _advance(self, number: int) -> None:
        """Move on to a bucket, and mark it and the skipped ones as unknown."""
        skipped = range(max(self._newest + 1, number - self._buckets + 1), number + 1)
        if not skipped:
            return
        places = [skipped_number % self._buckets for skipped_number in skipped]
        for series in self._series.values():
            if series.mebibytes is not None:
                for place in places:
                    series.mebibytes[place] = _UNKNOWN
        self._newest = number

    def _add(self, series: _Series, holding: Holding) -> None:
        share, used = holding.pod_share.promised_on(holding.gpu_uuid), holding.used_bytes
        if share is not None:
            series.share = share.bytes
        if used is None:
            return
        if series.mebibytes is None:
            series.mebibytes = self._empty[:]
        place, rounded = self._newest % self._buckets, -(-used // MIB)
        if rounded > series.mebibytes[place]:
            series.mebibytes[place] = min(rounded, _MAX_MIB)

    def _forget(self, snapshot: Snapshot, current: Set[SeriesKey]) -> None:
        """Remove the series of pods that ended, and at the limit those without current usage."""
        idle = self._series.keys() - current
        if not idle:
            return
        if any(problem.cause is Cause.PODS_STALE for problem in snapshot.problems):
            return  # whether a pod has ended is unknown
        is_full = len(idle) + len(current) > MAX_SERIES
        for key in idle:
            if is_full or key[0] not in snapshot.pod_uids:
                del self._series[key]


def _is_idle(holding: Holding) -> bool:
    """Whether a pod with a share ran no kernel: it holds no memory, or its utilisation is 0."""
    pod_share, uuid = holding.pod_share, holding.gpu_uuid
    has_share = pod_share.has_share and uuid in pod_share.gpu_uuids
    if not has_share or holding.is_mig or holding.used_bytes is None:
        return False
    return holding.used_bytes == 0 or holding.utilization_ratio == 0
