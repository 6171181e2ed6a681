"""The past of each pod on each GPU: its peaks in the last 15 minutes, and since when its state lasts. Pure.

The history is kept in memory only, so a restart of the agent starts with an empty one. Times are those of the
samples: monotonic seconds for intervals, Unix seconds for display.
"""

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import count
from typing import Final

from gpuagent.table.pod_rows import PodState

from gpuagent.problems import Cause, Suspension
from kai.share import MIB
from tests.gpuagent.old_core.ledger.snapshot import Holding, Snapshot
from tests.gpuagent.old_core.sampling.sampler import LONGEST_GAP, longest_gap
from tests.gpuagent.old_core.verdicts.flag_reasons import FROM_KAI_RECORDS
from tests.gpuagent.old_core.verdicts.verdict import Change, Transition, Verdicts

WINDOW_SECONDS: Final = 900.0
"""Length of the recorded past."""
MAX_SERIES: Final = 2048
"""Largest number of pods on GPUs with a history. One series takes about 0.7 KiB."""

_BUCKET_SECONDS: Final = 15.0
_INTERVALS_IN_A_BUCKET: Final = LONGEST_GAP
"""Smallest width of a bucket: the longest time between two samples."""
_UNKNOWN: Final = -1
_MAX_MIB: Final = (1 << 31) - 1

SeriesKey = tuple[str, str]
"""Pod UID and GPU UUID; the latter is empty if the pod's GPU is unknown."""


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
    scope: str
    """UUID of the GPU at which the slot is taken, that of a MIG device's GPU; empty if unknown."""
    first_seen: float
    since: float
    state: PodState = PodState.NOT_JUDGED
    flagged_at: float | None = None
    """Start of the flag, which lasts through times without a verdict; None without one."""
    peak: int | None = None
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

    def __init__(self, *, interval: float, max_series: int = MAX_SERIES) -> None:
        """Set the seconds between samples; a bucket is at least 2.5 times as wide."""
        self.bucket_seconds = max(_BUCKET_SECONDS, interval * _INTERVALS_IN_A_BUCKET)
        self._buckets = max(1, math.ceil(WINDOW_SECONDS / self.bucket_seconds))
        self._longest_gap = longest_gap(interval)
        self._taken_at = -math.inf
        self._max_series = max_series
        self._empty = array("i", [_UNKNOWN]) * self._buckets
        self._newest = 0
        """Number of the newest bucket since the clock's zero; its place in a ring is the remainder."""
        self._series: dict[SeriesKey, _Series] = {}
        self._slots: defaultdict[str, set[int]] = defaultdict(set)
        """By `_Series.scope`: the slots that are taken. The index of a GPU may become that of another one."""
        self._lost: dict[str, float] = {}

    def __len__(self) -> int:
        """Return the number of series."""
        return len(self._series)

    def record(self, snapshot: Snapshot, verdicts: Verdicts, transitions: Iterable[Transition] = ()) -> None:
        """Record a sample. Usage that is unknown, or whose verdicts are suspended, leaves a gap."""
        is_continued = snapshot.taken_at - self._taken_at <= self._longest_gap
        self._taken_at = snapshot.taken_at
        self._advance(math.floor(snapshot.taken_at / self.bucket_seconds))
        wall_time = snapshot.wall_time
        self._lost = {gpu.scope: self._lost.get(gpu.scope, wall_time) for gpu in snapshot.lost_gpus}
        standings = _standings(verdicts)
        current = {(holding.pod_share.pod.uid, holding.gpu_uuid): holding for holding in snapshot.holdings}
        self._forget(snapshot, current.keys() | standings.keys())
        suspension = Suspension.of(snapshot.problems, {account.gpu.uuid for account in snapshot.gpus})
        scopes = {
            instance.uuid: account.gpu.uuid for account in snapshot.gpus for instance in account.gpu.instances
        }
        for key, holding in current.items():
            series = self._series.get(key) or self._open(key, scopes.get(key[1], key[1]), wall_time)
            if series is not None and not suspension.covers(key[1]):
                self._add(series, holding, key[1])
        for key in standings.keys() - current.keys():
            if key not in self._series:
                self._open(key, key[1], wall_time)
        dropped = {
            (transition.verdict.key.uid, transition.verdict.key.gpu_uuid)
            for transition in transitions
            if transition.change is Change.DROPPED
        }
        for key, series in self._series.items():
            state, over_since = standings.get(key, _NOT_JUDGED)
            if key in dropped and state is not PodState.FLAGGED:
                series.flagged_at = None
            if state is not series.state or state is PodState.IN_GRACE:
                _change_state(series, state, over_since, snapshot)
            if key not in current or suspension.covers(key[1]) or not _is_idle(current[key]):
                series.idle_since = None
            elif series.idle_since is None or not is_continued:
                series.idle_since = snapshot.taken_at

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

    def idle_seconds(self, uid: str, gpu_uuid: str, at: float) -> float | None:
        """Return for how long a pod with a share has been idle; None if it is not, or if that is unknown.

        Args:
            uid: UID of the pod.
            gpu_uuid: UUID of the GPU.
            at: time of the newest recorded sample, in monotonic seconds.
        """
        series = self._series.get((uid, gpu_uuid))
        if series is None or series.idle_since is None or at <= series.idle_since:
            return None
        return at - series.idle_since

    def lost_since(self, scope: str) -> float | None:
        """Return the Unix time of the first sample without a GPU, by `LostGpu.scope`; None if present."""
        return self._lost.get(scope)

    def _peaks(self, series: _Series) -> Iterator[int | None]:
        ring, start = series.mebibytes or self._empty, self._newest + 1
        for number in range(start, start + self._buckets):
            peak = ring[number % self._buckets]
            yield None if peak == _UNKNOWN else peak * MIB

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

    def _add(self, series: _Series, holding: Holding, gpu_uuid: str) -> None:
        share, used = holding.pod_share.shares.get(gpu_uuid), holding.used_bytes
        if share is not None:
            series.share = share.bytes
        if used is None:
            return
        if series.mebibytes is None:
            series.mebibytes = self._empty[:]
        place, rounded = self._newest % self._buckets, -(-used // MIB)
        if rounded > series.mebibytes[place]:
            series.mebibytes[place] = min(rounded, _MAX_MIB)
        if series.peak is None or used > series.peak:
            series.peak = used

    def _open(self, key: SeriesKey, scope: str, wall_time: float) -> _Series | None:
        if len(self._series) >= self._max_series:
            return None
        taken = self._slots[scope]
        slot = next(number for number in count() if number not in taken)
        taken.add(slot)
        series = _Series(slot, scope, first_seen=wall_time, since=wall_time)
        self._series[key] = series
        return series

    def _forget(self, snapshot: Snapshot, current: Set[SeriesKey]) -> None:
        """Remove the series of pods that ended, and at the limit those without current usage."""
        idle = self._series.keys() - current
        if not idle:
            return
        if any(problem.cause is Cause.PODS_STALE for problem in snapshot.problems):
            return  # whether a pod has ended is unknown
        is_full = len(idle) + len(current) > self._max_series
        for key in idle:
            if not is_full and key[0] in snapshot.pod_uids:
                continue
            series = self._series.pop(key)
            taken = self._slots[series.scope]
            taken.remove(series.slot)
            if not taken:
                del self._slots[series.scope]


def _is_idle(holding: Holding) -> bool:
    """Whether a pod with a share ran no kernel: it holds no memory, or its utilisation is 0."""
    pod_share, uuid = holding.pod_share, holding.gpu_uuid
    has_share = uuid in pod_share.shares or (pod_share.has_share and uuid in pod_share.gpu_uuids)
    if not has_share or holding.is_mig or holding.used_bytes is None:
        return False
    return holding.used_bytes == 0 or holding.utilization_ratio == 0


_Standing = tuple[PodState, float | None]
"""State of a pod on a GPU, and the start of its violation in monotonic seconds."""
_NOT_JUDGED: Final[_Standing] = (PodState.NOT_JUDGED, None)
_WITHIN: Final[_Standing] = (PodState.WITHIN, None)


def _standings(verdicts: Verdicts) -> dict[SeriesKey, _Standing]:
    """Return the worst state of each pod on each GPU."""
    standings: dict[SeriesKey, _Standing] = {}
    for key, verdict in verdicts.by_key.items():
        place = (key.uid, key.gpu_uuid)
        since = verdict.since
        if verdict.is_flagged:
            standings[place] = PodState.FLAGGED, since
        elif since is not None:
            state, earlier = standings.get(place, _WITHIN)
            if state is not PodState.FLAGGED:
                standings[place] = PodState.IN_GRACE, since if earlier is None else min(since, earlier)
        elif place not in standings and key.reason not in FROM_KAI_RECORDS:
            standings[place] = _WITHIN
    return standings


def _change_state(series: _Series, state: PodState, over_since: float | None, snapshot: Snapshot) -> None:
    if state is PodState.FLAGGED:
        series.since = snapshot.wall_time if series.flagged_at is None else series.flagged_at
        series.flagged_at = series.since
    elif state is PodState.IN_GRACE and over_since is not None:
        series.since = snapshot.wall_time - max(0.0, snapshot.taken_at - over_since)
    else:
        series.since = snapshot.wall_time
    if state not in (PodState.FLAGGED, PodState.NOT_JUDGED):
        series.flagged_at = None
    series.state = state
