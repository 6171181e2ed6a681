"""Events (core/v1): written in the background, so that the caller never waits, and listed by component."""

import asyncio
import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from kube.answers import REQUEST_ERRORS, ApiError, Unreachable, decode_answer, expect_kind
from kube.client import MERGE_PATCH, KubeClient
from kube.metadata import Time
from service.backoff import JITTER_DOWN, Backoff, TokenBucket
from service.log import OngoingProblem
from service.names import LONGEST_SUBDOMAIN
from service.text import printable, shorten_utf8

_LONGEST_MESSAGE: Final = 1024
"""Maximum size in bytes of UTF-8: the limit of events.k8s.io/v1, which `kubectl describe` shows in full."""
_HASH_DIGITS: Final = 16
_REFUSED: Final = "refused"  # kind of the problem of refused Events, whose texts differ by the Events' names
_REFUSED_SECONDS: Final = 60.0
_MOST_EVENTS: Final = 10_000  # in one list
_LATER: Final = frozenset({401, 408, 409, 429, 500, 502, 503, 504})  # another attempt may succeed


class ObjectReference(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The involved object of an Event, whose namespace must be the Event's, else 422 (seen on 1.36.3)."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One Event. Emitting the same name again increases the count of the existing Event."""

    name: str
    namespace: str
    about: ObjectReference
    reason: str
    message: str  # cut to 1024 bytes
    is_warning: bool = True
    related: ObjectReference | None = None  # a second object, in any namespace
    annotations: Mapping[str, str] = field(default_factory=dict)
    first_at: float = 0.0  # Unix time; an `EventWriter` sets it
    last_at: float = 0.0
    count: int = 1

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name


def event_name(about: str, *parts: str) -> str:
    """Return an Event name that begins with the object's name and is always the same for the same parts.

    vCluster replaces the object's name at the beginning by the object's name in the tenant cluster.
    """
    digits = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_HASH_DIGITS]
    return f"{about[: LONGEST_SUBDOMAIN - 1 - _HASH_DIGITS].rstrip('-.')}.{digits}"


async def create_event(
    client: KubeClient, event: Event, *, component: str, host: str, **options: Any
) -> None:
    """Create an Event as recorders of core/v1 do; the options are those of `request`.

    It has no eventTime, because API servers require further fields together with one.
    """
    annotations = {"annotations": dict(event.annotations)} if event.annotations else {}
    document = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": event.name, "namespace": event.namespace, **annotations},
        "involvedObject": event.about,
        **({"related": event.related} if event.related else {}),
        "reason": event.reason,
        "message": _shortened(event.message),
        "source": {"component": component, **({"host": host} if host else {})},
        "firstTimestamp": _timestamp(event.first_at),
        "lastTimestamp": _timestamp(event.last_at),
        "count": event.count,
        "type": "Warning" if event.is_warning else "Normal",
        "reportingComponent": component,
        "reportingInstance": host,
    }
    path = f"/api/v1/namespaces/{event.namespace}/events"
    answer = await client.request("POST", path, body=msgspec.json.encode(document), **options)
    expect_kind(answer, "Event", f"POST {path}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTiming:
    """Limits of an `EventWriter`; times are seconds."""

    max_waiting: int = 256  # a further Event replaces the oldest one
    max_remembered: int = 1024  # written Events whose counts are remembered
    per_second: float = 2.0
    burst: int = 25  # as in client-go
    give_up_after: float = 600.0  # time of retries, after which an Event has failed
    first_pause: float = 0.5
    longest_pause: float = 30.0


class EventWriter:
    """Writes Events one after the other, with the rights to create and patch them alone.

    It remembers counts and does not read them, so that of another process' Event continues at 2.
    """

    def __init__(  # noqa: PLR0913 - two of them are clocks
        self,
        client: KubeClient,
        *,
        component: str,
        host: str = "",
        on_result: Callable[[str, str], None] = lambda _reason, _result: None,
        on_trouble: Callable[[str], None] = lambda _problem: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        timing: EventTiming | None = None,
    ) -> None:
        """Set up the queue; call `run` to start writing.

        `kubectl describe` shows the component as From; the host is the name of a node. `on_result` gets an
        Event's reason and `created`, `updated`, `dropped` (full queue) or `failed`, once for equal Events in
        the queue. `on_trouble` is the report of an `OngoingProblem`.
        """
        self._client = client
        self._source = {"component": component, "host": host}
        self._on_result = on_result
        self._clock, self._wall_clock = clock, wall_clock
        self._timing = timing or EventTiming()
        self._bucket = TokenBucket(per_second=self._timing.per_second, burst=self._timing.burst, clock=clock)
        self._waiting: OrderedDict[tuple[str, str], tuple[float, Event]] = OrderedDict()
        """Events, each with the monotonic time since which it waits."""
        self._counts: OrderedDict[tuple[str, str], int] = OrderedDict()  # of written Events, by their keys
        self._has_new = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._trouble = OngoingProblem(on_trouble)
        self._refused_until = -math.inf  # until when a written Event does not end the problem of refused ones

    @property
    def waiting(self) -> int:
        """Number of Events in the queue."""
        return len(self._waiting)

    def emit(self, event: Event) -> None:
        """Queue an Event, without waiting or raising. Only for the event loop's thread."""
        now = self._wall_clock()
        event = replace(event, message=_shortened(event.message), first_at=now, last_at=now)
        self._queue(self._clock(), event)

    async def settled(self) -> None:
        """Wait until the queue is empty and no write is in progress."""
        await self._idle.wait()

    async def run(self) -> None:
        """Write queued Events until cancelled; the remaining ones are lost."""
        timing = self._timing
        backoff = Backoff(first=timing.first_pause, most=timing.longest_pause, jitter=JITTER_DOWN)
        while True:
            if not self._waiting:
                self._idle.set()
                self._has_new.clear()
                await self._has_new.wait()
            await asyncio.sleep(self._bucket.seconds_until_next())
            if not self._bucket.take():
                continue
            _, (since, event) = self._waiting.popitem(last=False)
            wait = await self._write(since, event)
            if wait is None:
                backoff.reset()
            else:
                await asyncio.sleep(backoff.step(at_least=wait))

    def _queue(self, since: float, event: Event) -> None:
        """Append an Event to the queue, and combine it with an equal one in the queue."""
        if event.key in self._waiting:
            other_since, other = self._waiting.pop(event.key)
            first_at, count = min(other.first_at, event.first_at), other.count + event.count
            newest = max(other, event, key=lambda each: each.last_at)
            since, event = min(other_since, since), replace(newest, first_at=first_at, count=count)
        self._waiting[event.key] = since, event
        self._idle.clear()
        if len(self._waiting) > self._timing.max_waiting:
            oldest = min(self._waiting, key=lambda key: self._waiting[key][0])
            self._on_result(self._waiting.pop(oldest)[1].reason, "dropped")
        self._has_new.set()

    async def _write(self, since: float, event: Event) -> float | None:
        """Write an Event; return None if others need not wait, else the seconds that the server asks to wait.

        A missing right concerns all Events. Another 403 concerns one namespace, such as a quota of Events,
        and its Event fails at once. The problem of such Events ends only after a while without another one.
        """
        try:
            result = await self._create_or_patch(event)
        except REQUEST_ERRORS as error:
            is_refusal = isinstance(error, ApiError) and error.is_forbidden and not error.user
            self._refused_until = self._clock() + _REFUSED_SECONDS if is_refusal else -math.inf
            self._trouble.update(str(error), kind=_REFUSED if is_refusal else None)
            is_final = isinstance(error, ApiError) and not error.user and error.status not in _LATER
            if is_final or self._clock() - since >= self._timing.give_up_after:
                self._on_result(event.reason, "failed")
            else:
                self._queue(since, event)  # at the end of the queue, as the error may concern only this one
            return None if is_final else (isinstance(error, ApiError) and error.retry_after) or 0.0
        if self._clock() >= self._refused_until:
            self._trouble.update("")
        self._on_result(event.reason, result)
        return None

    async def _create_or_patch(self, event: Event) -> str:
        """Write one Event; return `created` or `updated`. Raises as `KubeClient.request`."""
        known = self._counts.get(event.key)
        if known is not None and await self._patch(event, known):
            return "updated"
        try:
            await create_event(self._client, event, **self._source)
        except ApiError as error:
            if error.status != 409 or not await self._patch(event, 1):
                raise
            return "updated"
        self._remember(event, event.count)
        return "created"

    async def _patch(self, event: Event, known: int) -> bool:
        """Add to an Event's count; return False if the API server has deleted the Event (after an hour)."""
        count, path = known + event.count, f"/api/v1/namespaces/{event.namespace}/events/{event.name}"
        change = {"count": count, "lastTimestamp": _timestamp(event.last_at), "message": event.message}
        try:
            answer = await self._client.request(
                "PATCH", path, body=msgspec.json.encode(change), content_type=MERGE_PATCH
            )
            expect_kind(answer, "Event", f"PATCH {path}")
        except ApiError as error:
            if error.is_not_found:
                return False
            raise
        self._remember(event, count)
        return True

    def _remember(self, event: Event, count: int) -> None:
        self._counts[event.key] = count
        self._counts.move_to_end(event.key)
        if len(self._counts) > self._timing.max_remembered:
            self._counts.popitem(last=False)


def _shortened(message: str) -> str:
    return shorten_utf8(printable(message, _LONGEST_MESSAGE), _LONGEST_MESSAGE)


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Metadata(Struct, frozen=True, rename="camel"):
    creation_timestamp: Time
    annotations: dict[str, str] = {}


class _Event(Struct, frozen=True):
    metadata: _Metadata


_event = msgspec.json.Decoder(_Event)


async def list_events(
    client: KubeClient, namespace: str, *, reason: str, component: str, about_uid: str
) -> list[tuple[float, Mapping[str, str]]]:
    """Return age in seconds and annotations of the Events of one reason about one object, oldest first.

    The age is by the API server's times of its answer and of the Event's creation, exact to 3 s; clients
    cannot write the time of creation. Raises as `KubeClient.list_objects`, and Unreachable without a valid
    date of an Event or of the answer.
    """
    path = f"/api/v1/namespaces/{namespace}/events"
    selector = f"reason={reason},reportingComponent={component},involvedObject.uid={about_uid}"
    decoded: list[_Event] = []
    async with client.list_objects(path, params={"fieldSelector": selector}) as objects:
        async for data in objects:
            decoded.append(decode_answer(_event, data, f"GET {path}", expected="an Event"))
            if len(decoded) > _MOST_EVENTS:
                raise Unreachable(f"GET {path}: more than {_MOST_EVENTS} Events")
    now = client.server_time()
    if now is None:
        raise Unreachable(f"GET {path}: an answer without a date")
    listed = sorted((event.metadata for event in decoded), key=lambda each: each.creation_timestamp)
    return [(max((now - each.creation_timestamp).total_seconds(), 0.0), each.annotations) for each in listed]
