"""Decides which pods are flagged: combines the grounds of each snapshot with the history. Pure.

All times are on the clock of the samples. There is no verdict without attribution, with a missing figure, or
on a stale sample. Flags and balances survive such a gap, which adds nothing to them.

What is compared with the grace is a balance, not a stopwatch, which a pod could restart by a dip once per
grace. Each sample over the limit adds one interval, each sample within it subtracts half of one, and a sample
without an evaluation changes nothing. A pod that is over in more than a third of the evaluated samples is
therefore flagged eventually. Times are whole nanoseconds, so that sums are exact for any number of samples.

Each sample counts one interval, whatever the time since the previous one: the times between samples are
random (`sampling.sampler`), and counting them would favour a pod that is over only right after a sample. A
sample counts nothing if more than `longest_gap` lies between it and the previous one. An extra sample, as
before an eviction, counts nothing either, and clears no flag.

Reasons without a limit have a balance, too: `unassigned-gpu` and `no-share` by the samples with more than
256 MiB on a GPU without a share there, `no-reservation` by those without a reservation pod. `share-changed`
has no grace, and the flags about the driver's limits take two consecutive samples.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from gpuagent.ledger.slack import DEFAULT_SLACK, Slack
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.problems import Cause
from gpuagent.shares.pod_share import PodShare
from gpuagent.verdicts.flag_reasons import FROM_KAI_RECORDS, OF_DRIVER_LIMITS, FlagReason
from gpuagent.verdicts.grounds import Ground, Grounds
from gpuagent.verdicts.verdict import Change, Key, Transition, Verdict, Verdicts

_CLEAN_SAMPLES: Final = 2
_NANOSECONDS: Final = 1_000_000_000
_RECOVERY: Final = 2
"""Time within the limit that cancels one unit of time over it."""
_OWN_GRACE: Final = frozenset({FlagReason.OVER_SHARE, FlagReason.LIMIT_BYPASSED})
_OF_MEMORY: Final = _OWN_GRACE | {FlagReason.UNASSIGNED_GPU, FlagReason.NO_SHARE}
"""Reasons whose GPU a pod can choose, by allocating memory there."""
_SAMPLES_TO_FLAG: Final = {FlagReason.SHARE_CHANGED: 1} | dict.fromkeys(OF_DRIVER_LIMITS, 2)
"""Consecutive samples with a violation that raise a flag, for the reasons without a grace."""
_NO_GRACES: Final[Mapping[str, float]] = {}


def nanoseconds(seconds: float) -> int:
    """Convert seconds to the unit of balances."""
    return round(seconds * _NANOSECONDS)


def seconds(nanoseconds: int) -> float:
    """Convert a balance to seconds."""
    return nanoseconds / _NANOSECONDS


class _History(Struct, gc=False):
    """History of one key that has a balance, a flag or a violation."""

    verdict: Verdict
    """The last verdict; its pod share is reported when the flag is dropped."""
    balance: int = 0
    """Nanoseconds."""
    over_since: float | None = None
    over_samples: int = 0
    clean_samples: int = 0

    @property
    def is_flagged(self) -> bool:
        return self.verdict.is_flagged

    @property
    def is_empty(self) -> bool:
        return not self.is_flagged and self.balance == 0 and self.over_since is None

    def forget_the_present(self) -> None:
        """Forget everything that needs consecutive samples; keep balance and flag."""
        self.over_since = None
        self.over_samples = self.clean_samples = 0

    def update(self, pod_share: PodShare) -> None:
        """Keep the newest pod share, so that old versions of the pod do not stay in memory."""
        if self.verdict.pod_share is not pod_share:
            self.verdict = replace(self.verdict, pod_share=pod_share)

    def forget(self) -> None:
        """Forget everything but the balance."""
        self.forget_the_present()
        self.verdict = replace(self.verdict, is_flagged=False)


_Amount = Annotated[int, Meta(ge=0, lt=1 << 62)]


class SavedFlag(Struct, frozen=True, gc=False, omit_defaults=True):
    """The history of one key, over a restart of the agent. Times are of the node's monotonic clock."""

    key: Key
    balance: _Amount = 0
    over_since: float | None = None
    clean_samples: _Amount = 0
    is_flagged: bool = False
    allowed_bytes: _Amount | None = None


class SavedTime(Struct, frozen=True, gc=False):
    """Nanoseconds that a pod was over its share on a GPU."""

    uid: str
    gpu_uuid: str
    over: _Amount


class Judge:
    """Turns consecutive snapshots into verdicts.

    Its memory is bounded: a key is a pod of the node, a GPU and a reason, and the end of a pod removes its
    keys.
    """

    def __init__(
        self,
        *,
        grace: float,
        interval: float = 5.0,
        longest_gap: float,
        slack: Slack = DEFAULT_SLACK,
        excluded_namespaces: frozenset[str] = frozenset(),
    ) -> None:
        """Set grace, interval and `longest_gap` in seconds.

        A sample counts one interval, and nothing if the previous one is longer ago than `longest_gap`.
        """
        self.grace = grace
        """Grace of pods whose namespace sets none, in seconds."""
        self._interval = nanoseconds(interval)
        self._longest_gap = longest_gap
        self._slack = slack
        self._excluded = excluded_namespaces
        self._histories: dict[Key, _History] = {}
        self._over: dict[tuple[str, str], int] = {}
        """Nanoseconds, the source of `Verdicts.over_seconds`."""
        self.evaluated_at: float | None = None
        """Time of the newest regular sample; None before the first."""
        self._listed: frozenset[str] = frozenset()
        """UIDs of the pods in the previous sample."""
        self._restored: dict[Key, SavedFlag] = {}
        """Histories from before a restart, until their pods are listed with a share."""

    def saved(self) -> tuple[list[SavedFlag], list[SavedTime]]:
        """Return everything that a restart would forget."""
        flags = [
            SavedFlag(k, h.balance, h.over_since, h.clean_samples, h.is_flagged, h.verdict.allowed_bytes)
            for k, h in self._histories.items()
        ]
        times = [SavedTime(uid, gpu, over) for (uid, gpu), over in self._over.items() if over]
        return [*flags, *self._restored.values()], times

    def restore(
        self, flags: Iterable[SavedFlag], times: Iterable[SavedTime], *, evaluated_at: float | None
    ) -> None:
        """Go on from what an earlier process saved in the same boot of the node."""
        self._restored = {flag.key: flag for flag in flags}
        self._over = {(each.uid, each.gpu_uuid): each.over for each in times}
        self.evaluated_at = evaluated_at
        self._listed = frozenset((*(key.uid for key in self._restored), *(uid for uid, _ in self._over)))

    def _adopt(self, sample: "_Sample") -> None:
        """Take the restored histories of pods that are listed, and drop those of pods that have ended."""
        if not self._restored or not sample.knows_pods:
            return
        for key, flag in list(self._restored.items()):
            pod_share = sample.share_of(key.uid)
            if pod_share is not None:
                verdict = Verdict(
                    key=key,
                    pod_share=pod_share,
                    gpu_index=None,
                    allowed_bytes=flag.allowed_bytes,
                    is_flagged=flag.is_flagged,
                )
                self._histories[key] = _History(
                    verdict, flag.balance, flag.over_since, clean_samples=flag.clean_samples
                )
            if pod_share is not None or key.uid not in sample.snapshot.pod_uids:
                del self._restored[key]

    def judge(
        self, snapshot: Snapshot, graces: Mapping[str, float] = _NO_GRACES, *, is_extra: bool = False
    ) -> tuple[Verdicts, tuple[Transition, ...]]:
        """Evaluate the newest snapshot; return the current verdicts and the transitions of flags.

        `graces` are seconds by pod UID, for pods whose namespace sets its own grace for `over-share` and
        `limit-bypassed`. An extra sample was taken beside the schedule.
        """
        grounds = Grounds(snapshot, slack=self._slack, excluded_namespaces=self._excluded)
        seen = self._seen(snapshot.taken_at)
        sample = _Sample(snapshot, grounds, seen, 0 if seen is None or is_extra else self._interval, is_extra)
        if not is_extra:
            self.evaluated_at = snapshot.taken_at
        self._adopt(sample)
        if sample.seen is None:
            for history in self._histories.values():
                history.forget_the_present()
            self._restored = {
                key: replace(flag, over_since=None, clean_samples=0) for key, flag in self._restored.items()
            }

        self._follow_gpus(grounds)
        by_key: dict[Key, Verdict] = {}
        transitions: list[Transition] = []

        def changed(change: Change, verdict: Verdict) -> None:
            transitions.append(
                Transition(change=change, verdict=verdict, seconds=verdict.lasted(snapshot.taken_at))
            )

        for key in [key for key in self._histories if key not in grounds.by_key]:
            verdict, change = self._judge_without_ground(key, sample, graces)
            if change is not None:
                changed(change, verdict)
            elif verdict.is_flagged and not grounds.is_suspended(key):
                by_key[key] = verdict
        for key, ground in grounds.by_key.items():
            if key.reason is FlagReason.OVER_SHARE:
                place = (key.uid, key.gpu_uuid)
                self._over[place] = self._over.get(place, 0) + (sample.counted if ground.is_over else 0)
            by_key[key], change = self._judge_ground(ground, sample, graces)
            if change is not None:
                changed(change, by_key[key])
        self._listed = snapshot.pod_uids if sample.knows_pods else self._listed | snapshot.pod_uids
        self._over = {place: over for place, over in self._over.items() if place[0] in self._listed}
        over_seconds = {place: seconds(over) for place, over in self._over.items()}
        return Verdicts(by_key=by_key, over_seconds=over_seconds), tuple(transitions)

    def _seen(self, now: float) -> int | None:
        """Return the nanoseconds since the previous regular sample; None if that time was not observed."""
        if self.evaluated_at is None or not 0 <= now - self.evaluated_at <= self._longest_gap:
            return None
        return nanoseconds(now) - nanoseconds(self.evaluated_at)

    def _follow_gpus(self, grounds: Grounds) -> None:
        """Let what is known about a pod's records follow the pod when its GPU becomes known, or another one.

        The key of such a reason has the pod's GPU, or no GPU while it is unknown. The flag would otherwise be
        dropped and raised again.
        """
        left = [
            key
            for key in self._histories
            if key.reason in FROM_KAI_RECORDS and key not in grounds.by_key and not grounds.is_suspended(key)
        ]
        if not left:  # the usual case
            return
        new = {(key.uid, key.reason): key for key in grounds.by_key if key not in self._histories}
        for key in left:
            successor = new.pop((key.uid, key.reason), None)
            if successor is not None:
                self._histories[successor] = self._histories.pop(key)

    def _judge_without_ground(
        self, key: Key, sample: "_Sample", graces: Mapping[str, float]
    ) -> tuple[Verdict, Change | None]:
        """Update the history of a key that the sample has no ground for.

        The history of a finished pod is deleted. A flag is compared with the limit that it was raised for.
        In all other cases the balance stays; the flag stays unless its reason no longer applies.
        """
        history = self._histories[key]
        history.update(sample.newest_share(history.verdict.pod_share))
        has_ended = sample.knows_pods and key.uid not in sample.snapshot.pod_uids
        if not has_ended:
            if sample.grounds.is_suspended(key):
                history.forget_the_present()
                return history.verdict, None
            ground = sample.grounds.of_remembered(history.verdict)
            if ground is not None:
                return self._judge_ground(ground, sample, graces)
        was_flagged, verdict = history.is_flagged, history.verdict
        history.forget()
        if has_ended or history.is_empty:
            del self._histories[key]
        return verdict, Change.DROPPED if was_flagged else None

    def _judge_ground(
        self, ground: Ground, sample: "_Sample", graces: Mapping[str, float]
    ) -> tuple[Verdict, Change | None]:
        """Combine one ground with the history of its key, and store the result."""
        key = ground.verdict.key
        history = self._histories.get(key)
        if history is None:
            if not ground.is_over:  # the usual case, in which there is nothing to store
                return ground.verdict, None
            history = _History(ground.verdict)
        now = sample.snapshot.taken_at
        balance, was_flagged, since = history.balance, history.is_flagged, history.over_since
        clean_samples = history.clean_samples + (not sample.is_extra) if ground.is_clean else 0
        if not ground.is_over:
            since = None
        elif since is None:
            # A violation may have begun unseen since the previous sample, unless the pod is new.
            since = now - seconds((sample.seen or 0) if key.uid in self._listed else 0)
        needed = _SAMPLES_TO_FLAG.get(key.reason)
        is_immediate = needed == 1
        over_samples = history.over_samples + (is_immediate or not sample.is_extra) if ground.is_over else 0
        own_grace = graces.get(key.uid, self.grace) if key.reason in _OWN_GRACE else self.grace
        grace = nanoseconds(own_grace)
        # A shorter grace reduces a balance only at the next time over: a tenant could else clear a balance by
        # shortening and restoring the grace of the namespace.
        if needed is None and ground.is_over:
            balance = min(balance + sample.counted, grace)
        elif needed is None and sample.is_within(ground):
            balance = max(balance - sample.counted // _RECOVERY, 0)
        if was_flagged:
            is_flagged = clean_samples < (1 if is_immediate else _CLEAN_SAMPLES)
        else:
            is_flagged = ground.is_over and (balance >= grace if needed is None else over_samples >= needed)
        verdict = replace(ground.verdict, is_flagged=is_flagged, since=since, balance=seconds(balance))
        history = _History(verdict, balance, since, over_samples, clean_samples)
        if history.is_empty:
            self._histories.pop(key, None)
        else:
            self._histories[key] = history
        if is_flagged == was_flagged:
            return verdict, None
        return verdict, Change.FLAGGED if is_flagged else Change.CLEARED


class _Sample:
    """One snapshot, with the time that it counts."""

    def __init__(
        self, snapshot: Snapshot, grounds: Grounds, seen: int | None, counted: int, is_extra: bool
    ) -> None:
        self.snapshot = snapshot
        self.grounds = grounds
        self.seen = seen
        """Nanoseconds since the previous regular sample; None if that time was not observed."""
        self.counted = counted
        """Nanoseconds that the sample counts."""
        self.is_extra = is_extra
        self.knows_pods = all(problem.cause is not Cause.PODS_STALE for problem in snapshot.problems)
        """Whether an unlisted pod has certainly ended; False while the list is missing or stale."""
        self._pod_shares = {pod_share.pod.uid: pod_share for pod_share in snapshot.pod_shares}
        over = [
            key.uid for key, ground in grounds.by_key.items() if ground.is_over and key.reason in _OF_MEMORY
        ]
        self._may_be_over = grounds.unknown_uids.union(over)

    def newest_share(self, last: PodShare) -> PodShare:
        """Return the pod's current share, or else `last`; all keys of the pod share one object."""
        return self._pod_shares.setdefault(last.pod.uid, last)

    def share_of(self, uid: str) -> PodShare | None:
        """Return the share of a pod that is listed; None for a pod without a share and without a GPU."""
        return self._pod_shares.get(uid)

    def is_within(self, ground: Ground) -> bool:
        """Whether the sample counts as time within the limit.

        Time within a share on one GPU subtracts nothing while the pod uses too much on another GPU, or may do
        so. Otherwise a pod could rotate its memory among three GPUs and never be flagged.
        """
        key = ground.verdict.key
        return ground.is_clean and not (key.reason in _OF_MEMORY and key.uid in self._may_be_over)
