"""Reports invalid policies as Events in their namespaces and as log lines."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kube.events import Event, EventWriter, ObjectReference
from service.log import WARNING, JsonLog
from service.tasks import LoopYield
from webhook.namespaces.cluster_policies import Managed
from webhook.policy.label_values import LabelProblem
from webhook.policy.labels import NamespacePolicy

REASON: Final = "PolicyInvalid"
NAME: Final = "kaishare-policy-invalid"
"""Name of the Event. All replicas use the same name, so that each namespace has one Event."""

REFRESH_SECONDS: Final = 45 * 60.0
"""Time between two writes of an Event. API servers delete it an hour after the last one (`--event-ttl`)."""

_SPREAD: Final = 0.9
"""Smallest random fraction of that time, so that replicas that start together drift apart."""

_MOST_WAITING: Final = 32
"""Maximum number of Events in the writer's queue. The rest waits here, so that none is dropped."""

_LOOK_EVERY_SECONDS: Final = 1.0
_MAX_LABELS: Final = 8
"""Maximum number of labels named in one Event; the log and the metric name more."""


@dataclass(slots=True)
class _PendingEvent:
    """The Event of one namespace, and the time of its next write."""

    uid: str
    message: str
    due: float


class PolicyEvents:
    """Writes one Event for each namespace with an invalid policy: at once, after changes, and every 45 min.

    Every replica writes the same Event, which only increases its count. Events depend on namespaces and never
    on reviews, so that a dry run causes none.
    """

    def __init__(self, writer: EventWriter, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._clock = clock
        self._pending: dict[str, _PendingEvent] = {}

    def take(self, managed: Managed) -> None:
        """Update the Events to write from the current state of all managed namespaces."""
        pending: dict[str, _PendingEvent] = {}
        for name, namespace in managed.items():
            if namespace.policy.problems and namespace.uid:
                before = self._pending.get(name)
                message = describe(namespace.policy.problems, namespace.policy.more_problems)
                if before and (before.uid, before.message) == (namespace.uid, message):
                    pending[name] = before
                else:
                    pending[name] = _PendingEvent(namespace.uid, message, due=self._clock())
        self._pending = pending
        self.emit()

    def emit(self) -> None:
        """Pass due Events to the writer until its queue is full."""
        now = self._clock()
        for name, entry in self._pending.items():
            if entry.due > now:
                continue
            if self._writer.waiting >= _MOST_WAITING:
                return
            self._writer.emit(_event(name, entry.uid, entry.message))
            entry.due = now + REFRESH_SECONDS * random.uniform(_SPREAD, 1.0)  # noqa: S311 - no secret

    async def run(self) -> None:
        """Pass Events to the writer when they are due, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
            self.emit()


def describe(problems: Sequence[LabelProblem], more: int = 0) -> str:
    """Return the message of an Event: the invalid labels of a namespace and their allowed values.

    `more` is the number of invalid labels that `problems` omits.
    """
    messages = [str(problem) for problem in problems[:_MAX_LABELS]]
    more += len(problems) - len(messages)
    if more:
        messages.append(f"and {more} more")
    return f"invalid labels and selectors are not applied: {'; '.join(messages)}"


def _event(namespace: str, uid: str, message: str) -> Event:
    """Create the Event about a namespace, in that namespace; `kubectl describe ns` does not show it.

    API servers require the involved object's namespace to equal the Event's, even for a Namespace.
    """
    about = ObjectReference(api_version="v1", kind="Namespace", namespace=namespace, name=namespace, uid=uid)
    return Event(name=NAME, namespace=namespace, about=about, reason=REASON, message=message)


class ProblemLog:
    """Logs each problem of a policy once."""

    def __init__(self, log: JsonLog) -> None:
        self._log = log
        self._logged: set[tuple[str, LabelProblem]] = set()

    async def report(self, policies: Mapping[str, NamespacePolicy]) -> None:
        """Log the problems that are new since the last call."""
        loop_yield = LoopYield()
        current: set[tuple[str, LabelProblem]] = set()
        for name, policy in sorted(policies.items()):
            for problem in policy.problems:
                current.add((name, problem))
                if (name, problem) not in self._logged:
                    self._log(
                        "policy invalid", WARNING, namespace=name, label=problem.label, problem=str(problem)
                    )
            await loop_yield.maybe_yield()
        self._logged = current
