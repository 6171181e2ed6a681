"""Who is flagged for what, and since when: the grounds of each snapshot, held against time. Pure.

The clock is the samples' own. What is not judged is absent: without attribution, with a figure missing, on a
stale sample. Flags and balances (`verdicts.balance`) outlive such a gap, and the gap adds nothing to either.

The time between two consecutive samples counts by the later one. It counts for a pod that is judged in the
later sample and was listed at the earlier one, if at most `longest_gap` lies between them.

The reasons without an amount have a balance, too: `unassigned-gpu` and `no-share` add the time in which
the pod holds more than 256 MiB where it has no share, `no-reservation` the time in which its group has no
reservation pod. Half of the time in which that is not the case is subtracted. `share-changed` has no grace.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gpuagent.ledger.slack import DEFAULT_SLACK, Slack
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.problems import Cause
from gpuagent.shares.pod_shares import PodShare
from gpuagent.verdicts.grace import Standing, nanoseconds, next_balance, seconds
from gpuagent.verdicts.grounds import FlagReason, Ground, Grounds, Key

_CLEAN_SAMPLES: Final = 2
_OWN_GRACE: Final = frozenset({FlagReason.OVER_SHARE, FlagReason.LIMIT_BYPASSED})
_OF_MEMORY: Final = _OWN_GRACE | {FlagReason.UNASSIGNED_GPU, FlagReason.NO_SHARE}
"""Reasons of which a pod can choose the GPU: by where it holds its memory."""
_NO_GRACES: Final[Mapping[str, float]] = {}


class Verdict(Struct, frozen=True, kw_only=True):
    """One pod, judged for one reason on one GPU."""

    key: Key
    pod_share: PodShare
    gpu_index: int | None
    """None: the pod's GPU is unknown."""
    is_flagged: bool
    since: float | None
    """When the present violation began, which had no break, on the injected clock; None: there is none."""
    balance: float = 0.0
    """Seconds that count towards the grace."""
    used_bytes: int | None = None
    allowed_bytes: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the violation is present in this very sample."""
        return self.since is not None

    def lasted(self, now: float) -> float:
        """Return how long the present violation has lasted without a break, seconds; 0 if there is none."""
        return 0.0 if self.since is None else max(0.0, now - self.since)


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
    """How long the present violation has lasted without a break; 0 if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """Everything judged at one moment; what is not judged is not here."""

    judged: Mapping[Key, Verdict] = field(default_factory=dict)
    over_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Time over the share, flagged or not, by pod UID and GPU UUID: wherever a pod is held to a share."""


@dataclass(slots=True)
class _Mark:
    """What is remembered of a key that has a balance, a flag or a violation."""

    verdict: Verdict
    """The last one, whose claim is told about when the flag is dropped."""
    balance: int = 0
    """Nanoseconds."""
    is_flagged: bool = False
    over_since: float | None = None
    clean_samples: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.is_flagged and self.balance == 0 and self.over_since is None

    def forget_the_present(self) -> None:
        """Forget what needs samples in a row; balance and flag stay."""
        self.over_since = None
        self.clean_samples = 0

    def update(self, pod_share: PodShare) -> None:
        """Keep the newest claim; older ones would hold versions of the pod in memory."""
        if self.verdict.pod_share is not pod_share:
            self.verdict = replace(self.verdict, pod_share=pod_share)

    def forget(self) -> None:
        """Forget everything but the balance."""
        self.forget_the_present()
        self.is_flagged = False
        self.verdict = replace(self.verdict, is_flagged=False)


class Judge:
    """Turns one snapshot after the other into verdicts.

    Its memory is bounded: a key is a pod of the node, a GPU and a reason, and the pod's end removes its keys.
    """

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
        self._over: dict[tuple[str, str], int] = {}
        """Nanoseconds, for `Verdicts.over_seconds`."""
        self._judged_at: float | None = None
        self._listed: frozenset[str] = frozenset()
        """UIDs of the pods at the sample before."""

    @property
    def remembered(self) -> int:
        """How many balances, flags and times over are remembered."""
        return len(self._marks) + len(self._over)

    def judge(
        self, snapshot: Snapshot, graces: Mapping[str, float] = _NO_GRACES
    ) -> tuple[Verdicts, tuple[Transition, ...]]:
        """Judge a snapshot; return what holds now, and which flags it raised or took away.

        Args:
            snapshot: what is known.
            graces: seconds by pod UID, for pods whose namespace asks for another grace before they are
                flagged as over their share or their limit.
        """
        sample = _Sample(
            snapshot=snapshot,
            grounds=Grounds(snapshot, slack=self._slack, excluded_namespaces=self._excluded),
            seen=self._seen(snapshot.taken_at),
            listed=self._listed,
            graces=graces,
            grace=self._grace,
        )
        self._judged_at = snapshot.taken_at
        if sample.seen is None:
            for mark in self._marks.values():
                mark.forget_the_present()

        judged: dict[Key, Verdict] = {}
        transitions: list[Transition] = []

        def changed(change: Change, verdict: Verdict) -> None:
            transitions.append(
                Transition(
                    change=change,
                    verdict=verdict,
                    wall_time=snapshot.wall_time,
                    seconds=verdict.lasted(snapshot.taken_at),
                )
            )

        for key in [key for key in self._marks if key not in sample.grounds.by_key]:
            verdict, change = self._weigh_without_ground(key, sample)
            if change is not None:
                changed(change, verdict)
            elif verdict.is_flagged and not sample.grounds.is_suspended(key):
                judged[key] = verdict
        for key, ground in sample.grounds.by_key.items():
            if key.reason is FlagReason.OVER_SHARE:
                place = (key.uid, key.gpu_uuid)
                self._over[place] = self._over.get(place, 0) + (sample.counts(key) if ground.is_over else 0)
            judged[key], change = self._weigh(ground, sample)
            if change is not None:
                changed(change, judged[key])
        self._listed = snapshot.pod_uids if sample.knows_pods else self._listed | snapshot.pod_uids
        self._over = {place: over for place, over in self._over.items() if place[0] in self._listed}
        over_seconds = {place: seconds(over) for place, over in self._over.items()}
        return Verdicts(judged=judged, over_seconds=over_seconds), tuple(transitions)

    def _seen(self, now: float) -> int | None:
        """Return the time since the sample before, nanoseconds; None if it was not seen."""
        if self._judged_at is None or not 0 <= now - self._judged_at <= self._longest_gap:
            return None
        return nanoseconds(now) - nanoseconds(self._judged_at)

    def _weigh_without_ground(self, key: Key, sample: "_Sample") -> tuple[Verdict, Change | None]:
        """Update what is remembered of a key that the sample does not judge.

        A pod that ended is forgotten. A pod that left a GPU that is not its own is within its share there.
        Else the balance stays, and so does the flag unless its reason no longer applies.
        """
        mark = self._marks[key]
        mark.update(sample.newest_claim(mark.verdict.pod_share))
        has_ended = sample.knows_pods and key.uid not in sample.snapshot.pod_uids
        if not has_ended:
            if sample.grounds.is_suspended(key):
                mark.forget_the_present()
                return mark.verdict, None
            ground = sample.grounds.after(key, mark.verdict.pod_share)
            if ground is not None:
                return self._weigh(ground, sample)
        was_flagged, verdict = mark.is_flagged, mark.verdict
        mark.forget()
        if has_ended or mark.is_empty:
            del self._marks[key]
        return verdict, Change.DROPPED if was_flagged else None

    def _weigh(self, ground: Ground, sample: "_Sample") -> tuple[Verdict, Change | None]:
        """Hold what one sample says against what was seen before, and remember it."""
        key, now, counts = ground.key, sample.snapshot.taken_at, sample.counts(ground.key)
        mark = self._marks.get(key)
        balance = mark.balance if mark is not None else 0
        was_flagged = mark is not None and mark.is_flagged
        since = mark.over_since if mark is not None else None
        clean_samples = mark.clean_samples if mark is not None else 0
        if not ground.is_over:
            since = None
        elif since is None:
            since = now - seconds(counts)
        clean_samples = clean_samples + 1 if ground.is_clean else 0
        is_immediate = key.reason is FlagReason.SHARE_CHANGED
        grace = nanoseconds(sample.grace_of(key))
        if not is_immediate:
            balance = next_balance(balance, interval=counts, standing=sample.standing(ground), grace=grace)
        if was_flagged:
            is_flagged = clean_samples < (1 if is_immediate else _CLEAN_SAMPLES)
        else:
            is_flagged = ground.is_over and (is_immediate or balance >= grace)
        verdict = Verdict(
            key=key,
            pod_share=ground.pod_share,
            gpu_index=ground.gpu_index,
            is_flagged=is_flagged,
            since=since,
            balance=seconds(balance),
            used_bytes=ground.used_bytes,
            allowed_bytes=ground.allowed_bytes,
        )
        mark = _Mark(verdict, balance, is_flagged, since, clean_samples)
        if mark.is_empty:
            self._marks.pop(key, None)
        else:
            self._marks[key] = mark
        if is_flagged == was_flagged:
            return verdict, None
        return verdict, Change.FLAGGED if is_flagged else Change.CLEARED


class _Sample:
    """One snapshot, with what its time counts for each key."""

    def __init__(
        self,
        *,
        snapshot: Snapshot,
        grounds: Grounds,
        seen: int | None,
        listed: frozenset[str],
        graces: Mapping[str, float],
        grace: float,
    ) -> None:
        self.snapshot = snapshot
        self.grounds = grounds
        self.seen = seen
        """Nanoseconds since the sample before; None if that time was not seen."""
        self.knows_pods = all(problem.cause is not Cause.PODS_STALE for problem in snapshot.problems)
        """Whether a pod that is not listed has ended; a missing or stale list does not tell."""
        self._listed = listed
        self._graces = graces
        self._grace = grace
        self._pod_shares = {pod_share.pod.uid: pod_share for pod_share in snapshot.pod_shares}
        self._hoarders = {
            key.uid for key, ground in grounds.by_key.items() if ground.is_over and key.reason in _OF_MEMORY
        }

    def newest_claim(self, last: PodShare) -> PodShare:
        """Return the claim of a pod now, or one that was the last, the same for all keys of the pod."""
        return self._pod_shares.setdefault(last.pod.uid, last)

    def counts(self, key: Key) -> int:
        """Return the nanoseconds that the sample counts for a key: none for a pod that is new."""
        return (self.seen or 0) if key.uid in self._listed else 0

    def grace_of(self, key: Key) -> float:
        """Return the grace of a key, seconds."""
        return self._graces.get(key.uid, self._grace) if key.reason in _OWN_GRACE else self._grace

    def standing(self, ground: Ground) -> Standing:
        """Return how the sample finds the pod, for its balance.

        Time within a share on one GPU takes nothing away while the pod holds too much on another: otherwise a
        pod that moves its memory around three GPUs would be over all the time and never be flagged.
        """
        if ground.is_over:
            return Standing.OVER
        is_elsewhere = ground.key.reason in _OF_MEMORY and ground.key.uid in self._hoarders
        return Standing.WITHIN if ground.is_clean and not is_elsewhere else Standing.BETWEEN
