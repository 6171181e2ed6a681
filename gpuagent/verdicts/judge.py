"""Who is flagged for what, and since when: the grounds of each snapshot, held against time. Pure.

The clock is the samples' own. What is not judged is absent: without attribution, with a figure missing, on a
stale sample. A flag outlives such a gap, a grace does not: nobody is flagged for a time that was not seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from msgspec import Struct

from gpuagent.shares.claims import PodClaim
from gpuagent.snapshot import Snapshot
from gpuagent.verdicts.grounds import Ground, Grounds, Key, Reason
from gpuagent.verdicts.slack import DEFAULT_SLACK, Slack

_CLEAN_SAMPLES: Final = 2
_OWN_GRACE: Final = (Reason.OVER_SHARE, Reason.LIMIT_BYPASSED)
_NO_GRACES: Final[Mapping[str, float]] = {}


class Verdict(Struct, frozen=True, kw_only=True):
    """One pod, judged for one reason on one GPU."""

    key: Key
    claim: PodClaim
    gpu_index: int | None
    """None: the pod's GPU is unknown."""
    is_flagged: bool
    since: float | None
    """When it began without a break, on the injected clock; None: it is not the case now."""
    used_bytes: int | None = None
    allowed_bytes: int | None = None


class Change(StrEnum):
    """What became of a flag."""

    FLAGGED = "flagged"
    CLEARED = "cleared"
    DROPPED = "dropped"
    """Pod or GPU are gone, or the reason no longer applies: nothing is known to be well again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A flag that one sample raised or took away."""

    change: Change
    verdict: Verdict
    wall_time: float
    seconds: float = 0.0
    """How long it has been the case, without a break and up to now; 0 if it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """Everything judged at one moment; what is not judged is not here."""

    judged: Mapping[Key, Verdict] = field(default_factory=dict)
    over_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Time over the share, flagged or not, by pod UID and GPU UUID: wherever a pod is held to a share."""


@dataclass(slots=True)
class _Mark:
    """What is remembered of a key that is, or was, not clean."""

    verdict: Verdict
    over_since: float | None = None
    clean_samples: int = 0

    def forget_the_time(self) -> None:
        self.over_since = None
        self.clean_samples = 0


class Judge:
    """Turns one snapshot after the other into verdicts."""

    def __init__(
        self,
        *,
        grace: float,
        longest_gap: float,
        slack: Slack = DEFAULT_SLACK,
        excluded_namespaces: frozenset[str] = frozenset(),
    ) -> None:
        """Take seconds; between two samples that are more than `longest_gap` apart nothing was seen."""
        self._grace = grace
        self._longest_gap = longest_gap
        self._slack = slack
        self._excluded = excluded_namespaces
        self._marks: dict[Key, _Mark] = {}
        self._over_seconds: dict[tuple[str, str], float] = {}
        self._judged_at: float | None = None
        self._graces = _NO_GRACES

    def judge(
        self, snapshot: Snapshot, graces: Mapping[str, float] = _NO_GRACES
    ) -> tuple[Verdicts, tuple[Transition, ...]]:
        """Judge a snapshot; return what holds now, and which flags it raised or took away.

        Args:
            snapshot: what is known.
            graces: seconds by pod UID, for pods whose namespace asks for another grace before they are
                flagged as over their share or their limit.
        """
        self._graces = graces
        grounds = Grounds(snapshot, slack=self._slack, excluded_namespaces=self._excluded)
        now = snapshot.taken_at
        seen = 0.0 if self._judged_at is None else now - self._judged_at
        self._judged_at = now
        if not 0 <= seen <= self._longest_gap:
            seen = 0.0
            for mark in self._marks.values():
                mark.forget_the_time()

        judged: dict[Key, Verdict] = {}
        transitions: list[Transition] = []

        def changed(change: Change, verdict: Verdict) -> None:
            seconds = 0.0 if verdict.since is None else max(0.0, now - verdict.since)
            transitions.append(
                Transition(change=change, verdict=verdict, wall_time=snapshot.wall_time, seconds=seconds)
            )

        for key, mark in list(self._marks.items()):
            if key in grounds.by_key:
                continue
            if grounds.is_suspended(key):
                mark.forget_the_time()
                continue
            ground = grounds.after(key, mark.verdict.claim) if mark.verdict.is_flagged else None
            if ground is not None:
                verdict, change = self._weigh(ground, now)
                if change is None:
                    judged[key] = verdict
                else:
                    changed(change, verdict)
                continue
            del self._marks[key]
            if mark.verdict.is_flagged:
                changed(Change.DROPPED, mark.verdict)
        for key, ground in grounds.by_key.items():
            if key.reason is Reason.OVER_SHARE:
                self._count(key, seen if ground.is_over else 0.0)
            judged[key], change = self._weigh(ground, now)
            if change is not None:
                changed(change, judged[key])
        self._forget_pods(snapshot)
        return Verdicts(judged=judged, over_seconds=dict(self._over_seconds)), tuple(transitions)

    def _weigh(self, ground: Ground, now: float) -> tuple[Verdict, Change | None]:
        """Hold what one sample says against what was seen before."""
        key = ground.key
        mark = self._marks.get(key)
        was_flagged = mark is not None and mark.verdict.is_flagged
        since = mark.over_since if mark is not None else None
        clean_samples = mark.clean_samples if mark is not None else 0
        since = (now if since is None else since) if ground.is_over else None
        clean_samples = clean_samples + 1 if ground.is_clean else 0
        is_immediate = key.reason is Reason.SHARE_CHANGED
        if was_flagged:
            is_flagged = clean_samples < (1 if is_immediate else _CLEAN_SAMPLES)
        else:
            grace = self._graces.get(key.uid, self._grace) if key.reason in _OWN_GRACE else self._grace
            is_flagged = since is not None and (is_immediate or now - since >= grace)
        verdict = Verdict(
            key=key,
            claim=ground.claim,
            gpu_index=ground.gpu_index,
            is_flagged=is_flagged,
            since=since,
            used_bytes=ground.used_bytes,
            allowed_bytes=ground.allowed_bytes,
        )
        if is_flagged or since is not None:
            self._marks[key] = _Mark(verdict, since, clean_samples)
        else:
            self._marks.pop(key, None)
        if is_flagged == was_flagged:
            return verdict, None
        return verdict, Change.FLAGGED if is_flagged else Change.CLEARED

    def _count(self, key: Key, seen: float) -> None:
        """Add the time since the sample before, if it was over then too."""
        mark = self._marks.get(key)
        was_over = mark is not None and mark.over_since is not None
        place = (key.uid, key.gpu_uuid)
        self._over_seconds[place] = self._over_seconds.get(place, 0.0) + (seen if was_over else 0.0)

    def _forget_pods(self, snapshot: Snapshot) -> None:
        for place in [p for p in self._over_seconds if p[0] not in snapshot.pod_uids]:
            del self._over_seconds[place]
