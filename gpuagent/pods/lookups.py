"""Objects that are fetched by name: once or now and then, and not at all for want of a right."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpuagent.pods.objects import KubernetesObject, ObjectError
from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable

_AT_ONCE: Final = 2  # each TLS connection holds a quarter of a MiB
_NAMES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTiming:
    """How long what waits for what, in seconds."""

    missing: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    """When to ask again for what is not there yet; then it is taken for absent."""
    first_hold: float = 60.0
    """How long a right that is missing is left alone at first; twice as long each time."""
    longest_hold: float = 600.0
    first_pause: float = 1.0
    """The same for an API server that does not answer."""
    longest_pause: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """What is fetched; each kind is made once and equal to itself only, so that it hashes at no cost."""

    resource: str
    """As RBAC and kubectl name it: `bindrequests.scheduling.run.ai`."""
    prefix: str
    """Of its path: `/api/v1`."""
    decode: Callable[[bytes], KubernetesObject]
    """Raises ObjectError for what is no such object."""
    without: str
    """What is worse without it, for a person."""
    accept: str = "application/json"
    again_seconds: float = math.inf
    """After how long it is fetched again."""
    is_expected: bool = False
    """Whether it should be there soon if it is not there yet."""

    def path(self, namespace: str, name: str) -> str:
        """Where an object is; the namespace is empty for what has none."""
        plural = self.resource.partition(".")[0]
        where = f"namespaces/{namespace}/" if namespace else ""
        return f"{self.prefix}/{where}{plural}/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """One object."""

    kind: Kind
    names: tuple[str, ...]
    """The first of these that is there."""
    namespace: str = ""
    pod_uid: str = ""
    """Of the pod it is about. What another pod owns is that pod's, which had the same name."""


class UnavailableReason(StrEnum):
    """Why something is lacking."""

    DENIED = "denied"
    NOT_SERVED = "not-served"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """A kind of object that cannot be had."""

    resource: str
    reason: UnavailableReason
    line: str
    """For a person: what is wrong, what follows, and what to do where something can be done."""


@dataclass(slots=True)
class _Entry:
    found: KubernetesObject | None = None
    is_answered: bool = False
    """Whether the API server told that it is there or absent."""
    tries: int = 0
    due: float = 0.0


@dataclass(slots=True)
class _Hold:
    kind: Kind
    namespace: str
    reason: UnavailableReason
    detail: str
    until: float
    seconds: float
    is_said: bool


_ANSWERS: Final = (UnavailableReason.DENIED, UnavailableReason.NOT_SERVED)
"""Why an object cannot be had at all, which is an answer; after an error it may still be had."""


class Fetcher:
    """Keeps the objects that are wanted, as far as they can be had."""

    def __init__(
        self,
        client: KubeClient,
        *,
        on_change: Callable[[], None] = lambda: None,
        on_lack: Callable[[Unavailable, bool], None] = lambda _lack, _is_new: None,
        clock: Callable[[], float] = time.monotonic,
        timing: FetchTiming | None = None,
    ) -> None:
        """Prepare; `run` does it.

        Args:
            client: to the API server.
            on_change: told when something was found, is another than before, or is known to be absent.
            on_lack: told when a kind cannot be had (True), and when it can again (False).
            clock: monotonic seconds.
            timing: other than usual.
        """
        self._client = client
        self._on_change = on_change
        self._on_lack = on_lack
        self._clock = clock
        self._timing = timing or FetchTiming()
        self._entries: dict[ObjectRef, _Entry] = {}
        self._holds: dict[tuple[str, str], _Hold] = {}
        """By resource and namespace; the namespace is empty where it is about all of them."""
        self._lacks: dict[tuple[str, UnavailableReason], Unavailable] = {}
        self._wake = asyncio.Event()
        self.settled = asyncio.Event()
        """Set once everything that was wanted at first was asked for, or cannot be."""

    @property
    def found(self) -> Iterator[KubernetesObject]:
        """What could be had of what is wanted."""
        return (entry.found for entry in self._entries.values() if entry.found is not None)

    def answered(self, kind: Kind) -> frozenset[tuple[str, str]]:
        """Return namespace and first name of the objects of a kind for which there is an answer.

        Each of them is there, is absent by the API server's word, or cannot be had for want of a right or of
        its API. The rest is still to be asked for, failed each time, or is there and cannot be read.
        """
        return frozenset(
            (wanted.namespace, wanted.names[0])
            for wanted, entry in self._entries.items()
            if wanted.kind is kind
            and (entry.is_answered or any(hold.reason in _ANSWERS for hold in self._held(wanted)))
        )

    @property
    def lacks(self) -> tuple[Unavailable, ...]:
        """What cannot be had, in the order in which that was noticed."""
        return tuple(self._lacks.values())

    def request(self, wanted: Iterable[ObjectRef]) -> None:
        """Fetch these, and forget all others."""
        before = self._entries
        self._entries = {one: before.get(one) or _Entry() for one in wanted}
        if self._entries.keys() - before.keys():
            self._wake.set()
        asked = {(one.kind.resource, space) for one in self._entries for space in (one.namespace, "")}
        forgets_until = self._clock() - self._timing.longest_hold
        self._holds = {
            key: hold for key, hold in self._holds.items() if key in asked or hold.until > forgets_until
        }
        spoken_of = {(hold.kind.resource, hold.reason) for hold in self._holds.values()}
        self._lacks = {key: lack for key, lack in self._lacks.items() if key in spoken_of}

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            self._wake.clear()
            batch = self._due(_AT_ONCE)
            if batch:
                async with asyncio.TaskGroup() as group:
                    for wanted in batch:
                        group.create_task(self._look_up(wanted))
                self._tell_lacks()
                continue
            if self._entries:
                self.settled.set()
            try:
                async with asyncio.timeout(self._next_due()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _held(self, wanted: ObjectRef) -> list[_Hold]:
        keys = {(wanted.kind.resource, space) for space in (wanted.namespace, "")}
        return [self._holds[key] for key in keys if key in self._holds]

    def _due(self, most: int) -> list[ObjectRef]:
        """What to ask for now: of what is held back only one, to see whether it still must be."""
        now = self._clock()
        due: list[ObjectRef] = []
        probed: set[tuple[str, str]] = set()
        for wanted, entry in self._entries.items():
            if entry.due > now:
                continue
            holds = self._held(wanted)
            probes = {(hold.kind.resource, hold.namespace) for hold in holds}
            if not probes & probed and all(hold.until <= now for hold in holds):
                probed |= probes
                due.append(wanted)
                if len(due) == most:
                    break
        return due

    def _next_due(self) -> float | None:
        moments = [
            max([entry.due, *(hold.until for hold in self._held(wanted))])
            for wanted, entry in self._entries.items()
        ]
        soonest = min(moments, default=math.inf)
        return None if math.isinf(soonest) else max(soonest - self._clock(), 0.0)

    async def _look_up(self, wanted: ObjectRef) -> None:
        kind = wanted.kind
        try:
            found = await self._first(wanted)
        except ApiError as error:
            if error.status == 403:
                self._hold(wanted, UnavailableReason.DENIED, wanted.namespace, "")
            elif error.status == 404:
                self._hold(wanted, UnavailableReason.NOT_SERVED, "", "")
            else:
                self._hold(wanted, UnavailableReason.ERROR, "", str(error), error.retry_after or 0.0)
            return
        except ObjectError as error:
            if wanted in self._entries:
                self._entries[wanted].is_answered = False  # it is there, and its content is unknown
            self._hold(wanted, UnavailableReason.ERROR, "", str(error))
            return
        except (Unreachable, AccessError):
            self._hold(wanted, UnavailableReason.ERROR, "", "")  # the watch on the pods tells of it
            return
        for space in (wanted.namespace, ""):
            self._holds.pop((kind.resource, space), None)
        entry = self._entries.get(wanted)
        if entry is None:
            return  # its pod went meanwhile
        entry.due = self._clock() + self._again_in(wanted, entry, found)
        if found != entry.found or not entry.is_answered:
            entry.found, entry.is_answered = found, True
            self._on_change()

    async def _first(self, wanted: ObjectRef) -> KubernetesObject | None:
        """Fetch the first that is there and the pod's own; else another pod's; else none.

        Raises:
            ApiError, Unreachable, AccessError, ObjectError: there is no telling.
        """
        kind = wanted.kind
        foreign: KubernetesObject | None = None
        for name in wanted.names:
            path = kind.path(wanted.namespace, name)
            try:
                body = await self._client.get(path, accept=kind.accept)
            except ApiError as error:
                if error.status == 404 and error.reason == "NotFound":
                    continue
                raise
            found = kind.decode(body)
            if not wanted.pod_uid or found.metadata.pod_owner_uid in (None, wanted.pod_uid):
                return found
            foreign = foreign or found
        return foreign

    def _again_in(self, wanted: ObjectRef, entry: _Entry, found: KubernetesObject | None) -> float:
        kind = wanted.kind
        is_own = found is not None and found.metadata.pod_owner_uid in (None, wanted.pod_uid)
        if kind.is_expected and not is_own:
            entry.tries += 1
            waits = self._timing.missing
            return waits[entry.tries - 1] if entry.tries <= len(waits) else math.inf
        return kind.again_seconds * random.uniform(0.8, 1.2)  # noqa: S311 - only spreads the load

    def _hold(
        self,
        wanted: ObjectRef,
        reason: UnavailableReason,
        namespace: str,
        detail: str,
        retry_after: float = 0.0,
    ) -> None:
        """Leave a kind alone for a while: in one namespace where the right is missing, else everywhere.

        After an error another object of the kind is asked for first, so that one that can never be read does
        not keep the others from being read.
        """
        timing, key = self._timing, (wanted.kind.resource, namespace)
        is_error = reason is UnavailableReason.ERROR
        first, longest = (
            (timing.first_pause, timing.longest_pause)
            if is_error
            else (timing.first_hold, timing.longest_hold)
        )
        before = self._holds.get(key)
        is_same = before is not None and before.reason is reason
        if is_same and before is not None and before.until > self._clock():
            if is_error:
                self._ask_after(wanted, before)
            return  # another of the same batch was first
        seconds = min(before.seconds * 2, longest) if is_same and before is not None else first
        self._holds[key] = _Hold(
            kind=wanted.kind,
            namespace=namespace,
            reason=reason,
            detail=detail,
            until=self._clock() + max(seconds * random.uniform(0.8, 1.2), retry_after),  # noqa: S311
            seconds=seconds,
            is_said=not is_error or (is_same and bool(detail)),  # one failure is nothing to speak of
        )
        if is_error:
            self._ask_after(wanted, self._holds[key])
        if not is_same:
            self._on_change()

    def _ask_after(self, wanted: ObjectRef, hold: _Hold) -> None:
        entry = self._entries.get(wanted)
        if entry is not None:
            entry.due = hold.until + self._timing.first_pause

    def _tell_lacks(self) -> None:
        """Say what is new and what is over."""
        now: dict[tuple[str, UnavailableReason], Unavailable] = {}
        for hold in self._holds.values():
            if hold.is_said:
                key = (hold.kind.resource, hold.reason)
                alike = [one for one in self._holds.values() if (one.kind.resource, one.reason) == key]
                now[key] = Unavailable(resource=hold.kind.resource, reason=hold.reason, line=_line(alike))
        before, self._lacks = self._lacks, now
        for key in now.keys() - before.keys():
            self._on_lack(now[key], True)
        for key in before.keys() - now.keys():
            self._on_lack(before[key], False)


def _line(holds: list[_Hold]) -> str:
    hold = holds[0]
    kind = hold.kind
    if hold.reason is UnavailableReason.NOT_SERVED:
        return f"the API server has no {kind.resource}: {kind.without}"
    if hold.reason is UnavailableReason.ERROR:
        return f"{hold.detail}: {kind.without}"
    names = sorted(one.namespace for one in holds if one.namespace)
    shown = ", ".join(names[:_NAMES_SHOWN]) + (
        f" and {len(names) - _NAMES_SHOWN} more" if names[_NAMES_SHOWN:] else ""
    )
    where = f" in {shown}" if shown else ""
    return f"no right to get {kind.resource}{where}: {kind.without}; grant the right to change that"
