"""Flags that reach people: each one raised, and each over-share cleared, as one Event on its pod."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from gpuagent.actions.event_messages import EVICTED, WITHIN_SHARE, event_reason, eviction_message, message
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.pods.inventory import NodePod
from gpuagent.verdicts.grounds import Key
from gpuagent.verdicts.judge import Change, Transition, Verdict
from kube.events import Event, ObjectReference, event_name
from service.backoff import TokenBucket

COMPONENT: Final = "kaishare-agent"


class EventSink(Protocol):
    """Where Events go: an EventWriter."""

    def emit(self, event: Event) -> None:
        """Have one written; never raises, never waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBounds:
    """How much may be said; times are seconds."""

    first_wait: float = 60.0
    """From one flag of a pod, reason and GPU to the next that is told; twice as long each time."""
    longest_wait: float = 3600.0
    """After so long without a change it begins anew."""
    burst: int = 25
    """From the whole node at once."""
    per_second: float = 0.1


@dataclass(slots=True)
class _Pending:
    """What was said of one key, and what is still to be said."""

    wait: float
    pending: Transition | None = None
    told_at: float | None = None
    """When it was last told to be flagged."""
    changed_at: float = 0.0
    was_told_flagged: bool = False


class FlagEvents:
    """Makes Events of transitions, not more than people can read.

    What may not be said yet is kept, only the latest of each pod, reason and GPU, and said when its time has
    come: so the last Event about a pod is true, however often a flag came and went. A flag that was dropped,
    with its pod or its GPU, is not spoken of.
    """

    def __init__(
        self, sink: EventSink, *, clock: Callable[[], float], bounds: EventBounds | None = None
    ) -> None:
        """Take where Events go, and a clock of seconds for the bucket of the node."""
        self._sink = sink
        self._bounds = bounds or EventBounds()
        self._bucket = TokenBucket(per_second=self._bounds.per_second, burst=self._bounds.burst, clock=clock)
        self._clock = clock
        self._pending: dict[Key, _Pending] = {}

    def take(self, snapshot: Snapshot, transitions: Iterable[Transition]) -> None:
        """Say what the newest sample changed, and what had to wait until now."""
        now = self._clock()
        for transition in transitions:
            self._record(transition, now)
        totals = {account.gpu.uuid: account.gpu.total_bytes for account in snapshot.gpus}
        self._pending = {key: entry for key, entry in self._pending.items() if key.uid in snapshot.pod_uids}
        for entry in sorted(self._pending.values(), key=_last_told):
            if entry.pending is not None and self._may_emit(entry, now):
                self._speak(entry, entry.pending, totals, now)

    def evicting(self, verdict: Verdict, seconds: float, gpu_bytes: int | None) -> None:
        """Say that a pod is evicted: evictions are few, and each is said."""
        text = eviction_message(verdict, seconds, gpu_bytes)
        self._sink.emit(_event(EVICTED, verdict.pod_share.pod, verdict.key, text))

    def _record(self, transition: Transition, now: float) -> None:
        key = transition.verdict.key
        entry = self._pending.get(key)
        if entry is None:
            entry = self._pending[key] = _Pending(wait=self._bounds.first_wait)
        elif now - max(entry.changed_at, entry.told_at or 0.0) >= self._bounds.longest_wait:
            entry.wait, entry.told_at = self._bounds.first_wait, None
        entry.changed_at = now
        if event_reason(transition) is None or (
            # Nobody was told of the flag that is gone again.
            transition.change is Change.CLEARED and not entry.was_told_flagged
        ):
            entry.pending = None
        else:
            entry.pending = transition

    def _may_emit(self, entry: _Pending, now: float) -> bool:
        # That a flag is gone is said as soon as it is: it comes once after a flag that was told.
        is_end = entry.pending is not None and entry.pending.change is Change.CLEARED
        is_time = is_end or entry.told_at is None or now - entry.told_at >= entry.wait
        return is_time and self._bucket.take()

    def _speak(
        self, entry: _Pending, transition: Transition, totals: Mapping[str, int | None], now: float
    ) -> None:
        entry.pending = None
        entry.was_told_flagged = transition.change is Change.FLAGGED
        if entry.was_told_flagged:
            if entry.told_at is not None:
                entry.wait = min(2 * entry.wait, self._bounds.longest_wait)
            entry.told_at = now
        verdict, reason = transition.verdict, event_reason(transition)
        if reason is not None:
            text = message(transition, totals.get(verdict.key.gpu_uuid))
            self._sink.emit(_event(reason, verdict.pod_share.pod, verdict.key, text))


def _last_told(entry: _Pending) -> float:
    """When it was last spoken of, so that those who wait longest come first."""
    return -math.inf if entry.told_at is None else entry.told_at


def _event(reason: str, pod: NodePod, key: Key, text: str) -> Event:
    return Event(
        name=event_name(pod.name, pod.uid, reason, key.gpu_uuid),
        namespace=pod.namespace,
        about=ObjectReference(
            api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid
        ),
        reason=reason,
        message=text,
        is_warning=reason != WITHIN_SHARE,
    )
