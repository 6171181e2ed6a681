"""Reports of invalid policies: an Event in the namespace, and a line in the log."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kube.events import Event, ObjectReference
from service.log import WARNING, JsonLog
from service.tasks import LoopYield
from webhook.namespaces.cluster import Managed
from webhook.policy.labels import LabelProblem, NamespacePolicy

REASON: Final = "PolicyInvalid"
NAME: Final = "kaishare-policy-invalid"
"""The same for every replica, and for whatever is wrong: they all write one event a namespace."""

REFRESH_SECONDS: Final = 45 * 60.0
"""API servers forget an event an hour after it was last written (`--event-ttl`)."""

_SPREAD: Final = 0.9
"""Replicas that began together should not go on together: a refresh comes after 0.9 to 1 of its time."""

_MOST_WAITING: Final = 32
"""Events that the writer holds at once; the others wait here, where none is lost."""

_LOOK_EVERY_SECONDS: Final = 1.0
_MOST_TOLD: Final = 8
"""Labels named in one event; the log and the metric name more."""


class Writer(Protocol):
    """Where events go: a kube.events.EventWriter."""

    @property
    def waiting(self) -> int:
        """How many it has not written yet."""

    def emit(self, event: Event) -> None:
        """Take one more; never waits."""


@dataclass(slots=True)
class _Telling:
    """What is told of one namespace, and when to tell it (again)."""

    uid: str
    message: str
    due: float


class PolicyEvents:
    """Writes one Event a namespace while its policy is invalid: at once, when that changes, and every 45 min.

    Each replica does: the second one to write makes the count of the same event grow, which harms nobody.
    Told only what the namespaces are like, so that no review causes an event, dry runs included.
    """

    def __init__(self, writer: Writer, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._clock = clock
        self._tellings: dict[str, _Telling] = {}

    def take(self, managed: Managed) -> None:
        """Know how all managed namespaces are now."""
        tellings: dict[str, _Telling] = {}
        for name, found in managed.items():
            if found.policy.problems and found.uid:
                before = self._tellings.get(name)
                message = describe(found.policy.problems, found.policy.more_problems)
                if before and (before.uid, before.message) == (found.uid, message):
                    tellings[name] = before
                else:
                    tellings[name] = _Telling(found.uid, message, due=self._clock())
        self._tellings = tellings
        self.emit()

    def emit(self) -> None:
        """Tell what is due, as far as the writer keeps up."""
        now = self._clock()
        for name, telling in self._tellings.items():
            if telling.due > now:
                continue
            if self._writer.waiting >= _MOST_WAITING:
                return
            self._writer.emit(_event(name, telling.uid, telling.message))
            telling.due = now + REFRESH_SECONDS * random.uniform(_SPREAD, 1.0)  # noqa: S311 - no secret

    async def run(self) -> None:
        """Tell what is due later, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
            self.emit()


def describe(problems: Sequence[LabelProblem], more: int = 0) -> str:
    """Say which labels of a namespace are not followed, and what is allowed.

    Args:
        problems: with labels.
        more: how many there are beside them.
    """
    told = [str(problem) for problem in problems[:_MOST_TOLD]]
    more += len(problems) - len(told)
    if more:
        told.append(f"and {more} more")
    return f"not followed: {'; '.join(told)}"


def _event(namespace: str, uid: str, message: str) -> Event:
    """Make the event, about the namespace and in it: `kubectl get events -n` shows it, not `describe ns`.

    API servers want the namespace of what it is about to be the event's own, for a Namespace too.
    """
    about = ObjectReference(api_version="v1", kind="Namespace", namespace=namespace, name=namespace, uid=uid)
    return Event(name=NAME, namespace=namespace, about=about, reason=REASON, message=message)


class ProblemLog:
    """Says once what is wrong with policies, and once more when a different thing is."""

    def __init__(self, log: JsonLog) -> None:
        self._log = log
        self._said: set[tuple[str, LabelProblem]] = set()

    async def report(self, policies: Mapping[str, NamespacePolicy]) -> None:
        """Say what is wrong now and was not before."""
        loop_yield = LoopYield()
        found: set[tuple[str, LabelProblem]] = set()
        for name, policy in sorted(policies.items()):
            for problem in policy.problems:
                found.add((name, problem))
                if (name, problem) not in self._said:
                    self._log(
                        "policy invalid",
                        WARNING,
                        namespace=name,
                        label=problem.label,
                        problem=str(problem),
                    )
            await loop_yield.maybe_yield()
        self._said = found
