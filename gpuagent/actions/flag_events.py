"""Events about flags: one for each raised flag, and one for each cleared `over-share`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final

from gpuagent.ledger.snapshot import Snapshot
from gpuagent.pods.inventory import NodePod
from gpuagent.verdicts.messages import EVICTED, WITHIN_SHARE, event_reason, eviction_message, message
from gpuagent.verdicts.verdict import Change, Key, Transition, Verdict
from kube.events import Event, EventWriter, ObjectReference, event_name
from service.backoff import Backoff, TokenBucket

COMPONENT: Final = "kaishare-agent"


FIRST_WAIT: Final = 60.0
"""Minimum seconds between two Events of one pod, reason and GPU; doubles with each Event."""
LONGEST_WAIT: Final = 3600.0
"""Maximum of that time. After as long without a transition the minimum applies again."""


@dataclass(slots=True)
class _Pending:
    """Event state of one key: the last Event, and a transition that waits for its turn."""

    backoff: Backoff
    """Time until the next Event about a raised flag."""
    pending: Transition | None = None
    emitted_at: float | None = None
    """Time of the last Event about a raised flag; None if there was none."""
    changed_at: float = 0.0
    is_flag_known: bool = False


@dataclass(eq=False)
class FlagEvents:
    """Turns transitions into Events, within rate limits.

    A transition that exceeds a limit waits, and only the latest one of each pod, reason and GPU is kept. The
    last Event about a pod is therefore true, however often a flag changes. A dropped flag has no Event, since
    its pod or GPU is gone.
    """

    writer: EventWriter
    _: KW_ONLY
    clock: Callable[[], float]
    burst: int = 25
    """Largest number of Events of the whole node at a time."""
    per_second: float = 0.1
    is_simulated: bool = False
    """Whether the figures are synthetic; a message begins with "simulated: " then."""

    def __post_init__(self) -> None:
        """Begin without Events."""
        self._mark = "simulated: " if self.is_simulated else ""
        self._bucket = TokenBucket(per_second=self.per_second, burst=self.burst, clock=self.clock)
        self._pending: dict[Key, _Pending] = {}

    def handle(self, snapshot: Snapshot, transitions: Iterable[Transition]) -> None:
        """Emit Events for the transitions of the newest sample, and for waiting ones whose time has come."""
        now = self.clock()
        for transition in transitions:
            self._record(transition, now)
        totals = {account.gpu.uuid: account.gpu.total_bytes for account in snapshot.gpus}
        self._pending = {key: entry for key, entry in self._pending.items() if key.uid in snapshot.pod_uids}
        # The keys without a recent Event come first.
        for entry in sorted(
            self._pending.values(), key=lambda each: -1.0 if each.emitted_at is None else each.emitted_at
        ):
            due = entry.pending
            # A cleared flag is reported at once: it follows an Event about the raised flag, so only once.
            if (
                due is not None
                and (due.change is Change.CLEARED or entry.backoff.is_due(now))
                and self._bucket.take()
            ):
                self._emit(entry, due, totals, now)

    def emit_eviction(self, verdict: Verdict, seconds: float, gpu_bytes: int | None) -> None:
        """Emit the Event of an eviction, without rate limit.

        The eviction budget bounds the number of evictions.
        """
        text = eviction_message(verdict, seconds, gpu_bytes)
        self.writer.emit(_event(EVICTED, verdict.pod_share.pod, verdict.key, f"{self._mark}{text}"))

    def _record(self, transition: Transition, now: float) -> None:
        key = transition.verdict.key
        entry = self._pending.get(key)
        if entry is None:
            entry = self._pending[key] = _Pending(Backoff(first=FIRST_WAIT, most=LONGEST_WAIT))
        elif now - max(entry.changed_at, entry.emitted_at or 0.0) >= LONGEST_WAIT:
            entry.backoff.reset()
            entry.emitted_at = None
        entry.changed_at = now
        if event_reason(transition) is None or (
            # The raised flag was never reported, so its end is not reported either.
            transition.change is Change.CLEARED and not entry.is_flag_known
        ):
            entry.pending = None
        else:
            entry.pending = transition

    def _emit(
        self, entry: _Pending, transition: Transition, totals: Mapping[str, int | None], now: float
    ) -> None:
        entry.pending = None
        entry.is_flag_known = transition.change is Change.FLAGGED
        if entry.is_flag_known:
            entry.backoff.back_off(now)
            entry.emitted_at = now
        verdict, reason = transition.verdict, event_reason(transition)
        if reason is not None:
            text = message(transition, totals.get(verdict.key.gpu_uuid))
            self.writer.emit(_event(reason, verdict.pod_share.pod, verdict.key, f"{self._mark}{text}"))


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
