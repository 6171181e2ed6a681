"""The past of each pod on each GPU: its peaks in the last 15 minutes, and since when its state lasts. Pure.

The history is kept in memory only, so a restart of the agent starts with an empty one. Times are those of the
samples: monotonic seconds for intervals, Unix seconds for display.
"""

import heapq
import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gpuagent.ledger.snapshot import Holding, Snapshot
from gpuagent.problems import Cause, Suspension
from gpuagent.verdicts.judge import Verdict, Verdicts

WINDOW_SECONDS: Final = 900.0
"""Length of the recorded past."""
MAX_SERIES: Final = 2048
"""Largest number of pods on GPUs with a history. One series takes about 0.7 KiB."""

_BUCKET_SECONDS: Final = 15.0
_INTERVALS_IN_A_BUCKET: Final = 1.5
"""Smallest width of a bucket. Samples are at most 1.4 intervals apart, since their jitter is 20 %."""
_MIB: Final = 1 << 20
_UNKNOWN: Final = -1
_MAX_MIB: Final = (1 << 31) - 1

SeriesKey = tuple[str, str]
"""Pod UID and GPU UUID; the latter is empty if the pod's GPU is unknown."""


class PodState(StrEnum):
    """The state of a pod on one GPU, from its verdicts."""

    FLAGGED = "flagged"
    OVER = "over"
    """In violation, within the grace."""
    WITHIN = "within"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHistory:
    """The past of one pod on one GPU."""

    peaks: tuple[int | None, ...]
    """Bytes, the peak of each bucket of `bucket_seconds`, oldest first; None while the usage was unknown, and
    before the pod was first seen."""
    bucket_seconds: float
    peak_bytes: int | None
    """Peak since `first_seen`; None if the usage has never been known."""
    first_seen: float
    """Unix time of the first sample with this pod on this GPU."""
    share_bytes: int | None
    """The last known share on this GPU."""
    state: PodState
    since: float
    """Unix time at which the state began. A flag lasts through times in which its pod is not judged."""
    slot: int
    """A small number that no other pod on the same GPU has; it stays the same while the pod lives."""


@dataclass(slots=True)
class _Series:
    slot: int
    scope: int
    """Index of the GPU at which the slot is taken."""
    first_seen: float
    since: float
    state: PodState = PodState.NOT_JUDGED
    flagged_at: float | None = None
    peak: int | None = None
    share: int | None = None
    mebibytes: "array[int] | None" = None
    """A ring of peaks in MiB, rounded up; None before the first known usage."""


@dataclass(slots=True)
class _Slots:
    """Hands out the smallest free number."""

    free: list[int] = field(default_factory=list)
    used: int = 0

    def take(self) -> int:
        if self.free:
            return heapq.heappop(self.free)
        self.used += 1
        return self.used - 1

    def give_back(self, slot: int) -> None:
        heapq.heappush(self.free, slot)


class History:
    """Records each evaluated sample. Not thread-safe: use it in the event loop.

    Its memory is bounded: a series ends with its pod, and there are at most `MAX_SERIES`. At the limit a new
    pod takes the place of a series without current usage, or else has no history.
    """

    def __init__(self, *, interval: float, max_series: int = MAX_SERIES) -> None:
        """Set the seconds between samples; a bucket is at least 1.5 times as wide."""
        self.bucket_seconds = max(_BUCKET_SECONDS, interval * _INTERVALS_IN_A_BUCKET)
        self._buckets = max(1, math.ceil(WINDOW_SECONDS / self.bucket_seconds))
        self._max_series = max_series
        self._empty = array("i", [_UNKNOWN]) * self._buckets
        self._newest = 0
        """Number of the newest bucket since the clock's zero; its place in a ring is the remainder."""
        self._series: dict[SeriesKey, _Series] = {}
        self._slots: defaultdict[int, _Slots] = defaultdict(_Slots)
        self._lost: dict[str, float] = {}

    def __len__(self) -> int:
        """Return the number of series."""
        return len(self._series)

    def record(self, snapshot: Snapshot, verdicts: Verdicts) -> None:
        """Record a sample. Usage that is unknown, or whose verdicts are suspended, leaves a gap."""
        self._advance(math.floor(snapshot.taken_at / self.bucket_seconds))
        self._lost = {gpu.scope: self._lost.get(gpu.scope, snapshot.wall_time) for gpu in snapshot.lost_gpus}
        current = {(holding.pod_share.pod.uid, holding.gpu_uuid): holding for holding in snapshot.holdings}
        verdicts_by_series: defaultdict[SeriesKey, list[Verdict]] = defaultdict(list)
        for verdict in verdicts.by_key.values():
            verdicts_by_series[verdict.key.uid, verdict.key.gpu_uuid].append(verdict)
        self._forget(snapshot, current.keys() | verdicts_by_series.keys())
        suspension = Suspension.of(snapshot.problems, {account.gpu.uuid for account in snapshot.gpus})
        for key, holding in current.items():
            series = self._series.get(key) or self._open(key, holding.gpu_index, snapshot.wall_time)
            if series is not None and not suspension.covers(holding.gpu_uuid):
                self._add(series, holding)
        for key in verdicts_by_series.keys() - current.keys():
            _ = self._series.get(key) or self._open(key, _NO_INDEX, snapshot.wall_time)
        for key, series in self._series.items():
            _update_state(series, verdicts_by_series.get(key, ()), snapshot)

    def of(self, uid: str, gpu_uuid: str) -> PodHistory | None:
        """Return the past of a pod on a GPU; None if it has none."""
        series = self._series.get((uid, gpu_uuid))
        if series is None:
            return None
        return PodHistory(
            peaks=tuple(self._peaks(series)),
            bucket_seconds=self.bucket_seconds,
            peak_bytes=series.peak,
            first_seen=series.first_seen,
            share_bytes=series.share,
            state=series.state,
            since=series.since,
            slot=series.slot,
        )

    def lost_since(self, scope: str) -> float | None:
        """Return the Unix time of the first sample without a GPU, by `LostGpu.scope`; None if present."""
        return self._lost.get(scope)

    def _peaks(self, series: _Series) -> Iterator[int | None]:
        ring, start = series.mebibytes or self._empty, self._newest + 1
        for number in range(start, start + self._buckets):
            peak = ring[number % self._buckets]
            yield None if peak == _UNKNOWN else peak * _MIB

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
        share, used = holding.pod_share.shares.get(holding.gpu_uuid), holding.used_bytes
        if share is not None:
            series.share = share.bytes
        if used is None:
            return
        if series.mebibytes is None:
            series.mebibytes = self._empty[:]
        place = self._newest % self._buckets
        series.mebibytes[place] = max(series.mebibytes[place], min(-(-used // _MIB), _MAX_MIB))
        if series.peak is None or used > series.peak:
            series.peak = used

    def _open(self, key: SeriesKey, scope: int, wall_time: float) -> _Series | None:
        if len(self._series) >= self._max_series:
            return None
        series = _Series(self._slots[scope].take(), scope, first_seen=wall_time, since=wall_time)
        self._series[key] = series
        return series

    def _forget(self, snapshot: Snapshot, current: Iterable[SeriesKey]) -> None:
        """Remove the series of pods that ended, and at the limit those without current usage."""
        kept = set(current)
        if any(problem.cause is Cause.PODS_STALE for problem in snapshot.problems):
            return  # whether a pod has ended is unknown
        is_full = len(self._series.keys() | kept) > self._max_series
        for key in [
            key for key in self._series if key not in kept and (is_full or key[0] not in snapshot.pod_uids)
        ]:
            series = self._series.pop(key)
            slots = self._slots[series.scope]
            slots.give_back(series.slot)
            if len(slots.free) == slots.used:
                del self._slots[series.scope]


_NO_INDEX: Final = -1
"""Scope of the slots of pods whose GPU is unknown."""


def _update_state(series: _Series, verdicts: Iterable[Verdict], snapshot: Snapshot) -> None:
    state, over_since = PodState.NOT_JUDGED, None
    for verdict in verdicts:
        if verdict.is_flagged:
            state = PodState.FLAGGED
        elif verdict.is_over and state is not PodState.FLAGGED:
            state = PodState.OVER
        elif state is PodState.NOT_JUDGED:
            state = PodState.WITHIN
        if verdict.since is not None:
            over_since = verdict.since if over_since is None else min(over_since, verdict.since)
    if state is PodState.FLAGGED:
        series.flagged_at = series.since = (
            snapshot.wall_time if series.flagged_at is None else series.flagged_at
        )
    elif state is not PodState.NOT_JUDGED:
        series.flagged_at = None
    if state is PodState.OVER and over_since is not None:
        series.since = snapshot.wall_time - max(0.0, snapshot.taken_at - over_since)
    elif state is not series.state and state is not PodState.FLAGGED:
        series.since = snapshot.wall_time
    series.state = state
