"""Fetches objects by name, once or periodically, and skips kinds that RBAC denies."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpuagent.pods.objects import KubernetesObject, ObjectError
from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from service.backoff import JITTER_AROUND, Backoff, jittered

_AT_ONCE: Final = 2  # each TLS connection takes 256 KiB
_NAMES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTiming:
    """Intervals of fetches and retries, in seconds."""

    missing: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    """Waiting times before each retry for a missing object; after the last one the object counts as
    absent."""
    first_hold: float = 60.0
    """First back-off after a missing right; doubles each time."""
    longest_hold: float = 600.0
    first_pause: float = 1.0
    """First back-off after an error of the API server; doubles each time."""
    longest_pause: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """A kind of object to fetch.

    Each kind is one constant that is equal only to itself, so hashing is cheap.
    """

    resource: str
    """Name as in RBAC and kubectl: `bindrequests.scheduling.run.ai`."""
    prefix: str
    """Prefix of the API path: `/api/v1`."""
    decode: Callable[[bytes], KubernetesObject]
    """Decodes the object; raises ObjectError if it is malformed."""
    without: str
    """Consequence of missing this kind, in words."""
    accept: str = "application/json"
    again_seconds: float = math.inf
    """Interval of repeated fetches."""
    is_expected: bool = False
    """Whether a missing object is expected to appear soon."""

    def path(self, namespace: str, name: str) -> str:
        """Return the API path of an object; the namespace is empty for a cluster-scoped one."""
        plural = self.resource.partition(".")[0]
        where = f"namespaces/{namespace}/" if namespace else ""
        return f"{self.prefix}/{where}{plural}/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """Reference to one object."""

    kind: Kind
    names: tuple[str, ...]
    """Candidate names; the first existing object counts."""
    namespace: str = ""
    pod_uid: str = ""
    """UID of the pod that the object belongs to. An object of another pod with the same name is ignored."""


class UnavailableReason(StrEnum):
    """Why a kind of object cannot be fetched."""

    DENIED = "denied"
    NOT_SERVED = "not-served"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """A kind of object that cannot be fetched."""

    resource: str
    reason: UnavailableReason
    line: str
    """One line for a person: the error, its consequence, and the remedy if there is one."""


@dataclass(slots=True)
class _Entry:
    object_: KubernetesObject | None = None
    is_answered: bool = False
    """Whether the API server has confirmed that the object exists or is absent."""
    tries: int = 0
    due: float = 0.0


@dataclass(slots=True)
class _Hold:
    kind: Kind
    namespace: str
    reason: UnavailableReason
    detail: str
    backoff: Backoff
    is_reported: bool

    @property
    def until(self) -> float:
        """End of the current wait, on the monotonic clock."""
        return self.backoff.due_at


_ANSWERS: Final = (UnavailableReason.DENIED, UnavailableReason.NOT_SERVED)
"""Reasons that count as a final answer; after an error the object may still be fetched."""


class Fetcher:
    """Keeps copies of the requested objects, as far as they can be fetched."""

    def __init__(
        self,
        client: KubeClient,
        *,
        on_change: Callable[[], None] = lambda: None,
        on_unavailable: Callable[[Unavailable, bool], None] = lambda _lack, _is_new: None,
        clock: Callable[[], float] = time.monotonic,
        timing: FetchTiming | None = None,
    ) -> None:
        """Set up the fetches; call `run` to start them.

        Args:
            client: connection to the API server.
            on_change: called when an object appears, changes, or is known to be absent.
            on_unavailable: called when a kind becomes unavailable (True) or available again (False).
            clock: monotonic seconds.
            timing: None for the defaults.
        """
        self._client = client
        self._on_change = on_change
        self._on_unavailable = on_unavailable
        self._clock = clock
        self._timing = timing or FetchTiming()
        self._entries: dict[ObjectRef, _Entry] = {}
        self._holds: dict[tuple[str, str], _Hold] = {}
        """By resource and namespace; the namespace is empty for all namespaces."""
        self._unavailable: dict[tuple[str, UnavailableReason], Unavailable] = {}
        self._wake = asyncio.Event()
        self.settled = asyncio.Event()
        """Set once every object of the first request has been fetched or is unavailable."""

    @property
    def objects(self) -> Iterator[KubernetesObject]:
        """Fetched objects."""
        return (entry.object_ for entry in self._entries.values() if entry.object_ is not None)

    def answered(self, kind: Kind) -> frozenset[tuple[str, str]]:
        """Return namespace and first name of the objects of a kind whose state is known.

        The object exists, is absent according to the API server, or is unavailable for lack of a right or of
        its API. Objects whose fetch is pending, failed or returned a malformed object are not included.
        """
        return frozenset(
            (ref.namespace, ref.names[0])
            for ref, entry in self._entries.items()
            if ref.kind is kind
            and (entry.is_answered or any(hold.reason in _ANSWERS for hold in self._backoffs(ref)))
        )

    @property
    def unavailable(self) -> tuple[Unavailable, ...]:
        """Unavailable kinds, in order of detection."""
        return tuple(self._unavailable.values())

    def request(self, refs: Iterable[ObjectRef]) -> None:
        """Fetch these objects, and forget all others."""
        before = self._entries
        self._entries = {ref: before.get(ref) or _Entry() for ref in refs}
        if self._entries.keys() - before.keys():
            self._wake.set()
        requested = {(ref.kind.resource, space) for ref in self._entries for space in (ref.namespace, "")}
        forgets_until = self._clock() - self._timing.longest_hold
        self._holds = {
            key: hold for key, hold in self._holds.items() if key in requested or hold.until > forgets_until
        }
        backing_off = {(hold.kind.resource, hold.reason) for hold in self._holds.values()}
        self._unavailable = {
            key: unavailable for key, unavailable in self._unavailable.items() if key in backing_off
        }

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            self._wake.clear()
            batch = self._due(_AT_ONCE)
            if batch:
                async with asyncio.TaskGroup() as group:
                    for ref in batch:
                        group.create_task(self._fetch(ref))
                self._report_unavailable()
                continue
            if self._entries:
                self.settled.set()
            try:
                async with asyncio.timeout(self._next_due()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _backoffs(self, ref: ObjectRef) -> list[_Hold]:
        keys = {(ref.kind.resource, space) for space in (ref.namespace, "")}
        return [self._holds[key] for key in keys if key in self._holds]

    def _due(self, most: int) -> list[ObjectRef]:
        """Return the objects to fetch now; of a kind in back-off only one, as a probe."""
        now = self._clock()
        due: list[ObjectRef] = []
        probed: set[tuple[str, str]] = set()
        for ref, entry in self._entries.items():
            if entry.due > now:
                continue
            holds = self._backoffs(ref)
            probes = {(hold.kind.resource, hold.namespace) for hold in holds}
            if not probes & probed and all(hold.until <= now for hold in holds):
                probed |= probes
                due.append(ref)
                if len(due) == most:
                    break
        return due

    def _next_due(self) -> float | None:
        moments = [
            max([entry.due, *(hold.until for hold in self._backoffs(ref))])
            for ref, entry in self._entries.items()
        ]
        soonest = min(moments, default=math.inf)
        return None if math.isinf(soonest) else max(soonest - self._clock(), 0.0)

    async def _fetch(self, ref: ObjectRef) -> None:
        kind = ref.kind
        try:
            object_ = await self._first(ref)
        except ApiError as error:
            if error.status == 403:
                self._hold(ref, UnavailableReason.DENIED, ref.namespace, "")
            elif error.status == 404:
                self._hold(ref, UnavailableReason.NOT_SERVED, "", "")
            else:
                self._hold(ref, UnavailableReason.ERROR, "", str(error), error.retry_after or 0.0)
            return
        except ObjectError as error:
            if ref in self._entries:
                self._entries[ref].is_answered = False  # the object exists, but its content is unknown
            self._hold(ref, UnavailableReason.ERROR, "", str(error))
            return
        except (Unreachable, AccessError):
            self._hold(ref, UnavailableReason.ERROR, "", "")  # the watch of the pods reports the error
            return
        for space in (ref.namespace, ""):
            self._holds.pop((kind.resource, space), None)
        entry = self._entries.get(ref)
        if entry is None:
            return  # its pod was removed in the meantime
        entry.due = self._clock() + self._again_in(ref, entry, object_)
        if object_ != entry.object_ or not entry.is_answered:
            entry.object_, entry.is_answered = object_, True
            self._on_change()

    async def _first(self, ref: ObjectRef) -> KubernetesObject | None:
        """Return the first existing object that belongs to the pod, else one of another pod, else None.

        Raises:
            ApiError, Unreachable, AccessError, ObjectError: the object's state is unknown.
        """
        kind = ref.kind
        foreign: KubernetesObject | None = None
        for name in ref.names:
            path = kind.path(ref.namespace, name)
            try:
                body = await self._client.get(path, accept=kind.accept)
            except ApiError as error:
                if error.status == 404 and error.reason == "NotFound":
                    continue
                raise
            object_ = kind.decode(body)
            if not ref.pod_uid or object_.metadata.pod_owner_uid in (None, ref.pod_uid):
                return object_
            foreign = foreign or object_
        return foreign

    def _again_in(self, ref: ObjectRef, entry: _Entry, object_: KubernetesObject | None) -> float:
        kind = ref.kind
        is_own = object_ is not None and object_.metadata.pod_owner_uid in (None, ref.pod_uid)
        if kind.is_expected and not is_own:
            entry.tries += 1
            waits = self._timing.missing
            return waits[entry.tries - 1] if entry.tries <= len(waits) else math.inf
        return jittered(kind.again_seconds, JITTER_AROUND)

    def _hold(
        self,
        ref: ObjectRef,
        reason: UnavailableReason,
        namespace: str,
        detail: str,
        retry_after: float = 0.0,
    ) -> None:
        """Put a kind into back-off: in one namespace if a right is missing there, else everywhere.

        After an error the probe is another object of the kind, so that one malformed object does not block
        the others.
        """
        timing, key = self._timing, (ref.kind.resource, namespace)
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
                self._retry_after(ref, before)
            return  # another object of the same batch came first
        backoff = (
            before.backoff
            if is_same and before is not None
            else Backoff(first=first, most=longest, jitter=JITTER_AROUND)
        )
        backoff.back_off(self._clock(), retry_after)
        self._holds[key] = _Hold(
            kind=ref.kind,
            namespace=namespace,
            reason=reason,
            detail=detail,
            backoff=backoff,
            is_reported=not is_error or (is_same and bool(detail)),  # a single failure is not reported
        )
        if is_error:
            self._retry_after(ref, self._holds[key])
        if not is_same:
            self._on_change()

    def _retry_after(self, ref: ObjectRef, hold: _Hold) -> None:
        entry = self._entries.get(ref)
        if entry is not None:
            entry.due = hold.until + self._timing.first_pause

    def _report_unavailable(self) -> None:
        """Report kinds that have become unavailable or available again."""
        now: dict[tuple[str, UnavailableReason], Unavailable] = {}
        for hold in self._holds.values():
            if hold.is_reported:
                key = (hold.kind.resource, hold.reason)
                alike = [
                    other for other in self._holds.values() if (other.kind.resource, other.reason) == key
                ]
                now[key] = Unavailable(resource=hold.kind.resource, reason=hold.reason, line=_line(alike))
        before, self._unavailable = self._unavailable, now
        for key in now.keys() - before.keys():
            self._on_unavailable(now[key], True)
        for key in before.keys() - now.keys():
            self._on_unavailable(before[key], False)


def _line(holds: list[_Hold]) -> str:
    hold = holds[0]
    kind = hold.kind
    if hold.reason is UnavailableReason.NOT_SERVED:
        return f"the API server has no {kind.resource}: {kind.without}"
    if hold.reason is UnavailableReason.ERROR:
        return f"{hold.detail}: {kind.without}"
    names = sorted(hold.namespace for hold in holds if hold.namespace)
    namespaces = ", ".join(names[:_NAMES_SHOWN]) + (
        f" and {len(names) - _NAMES_SHOWN} more" if names[_NAMES_SHOWN:] else ""
    )
    where = f" in {namespaces}" if namespaces else ""
    return f"no right to get {kind.resource}{where}: {kind.without}; grant the right to change that"
