"""Events (core/v1) that are written when the API server has time for them, and never wait for it.

An event is a courtesy: what tells one goes on at once, and nothing that goes wrong here reaches it.
"""

import asyncio
import hashlib
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable, expect_kind
from service.backoff import TokenBucket
from service.text import printable, shorten_utf8

_LONGEST_MESSAGE: Final = 1024
"""Bytes of UTF-8: what events.k8s.io/v1 allows, and what `kubectl describe` still shows whole."""
_LONGEST_NAME: Final = 253
_HASH_DIGITS: Final = 16
_MERGE_PATCH: Final = "application/merge-patch+json"
_FORBIDDEN: Final = 403
_LATER: Final = frozenset({401, 408, 409, 429, 500, 502, 503, 504})
"""What another try may mend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReference:
    """What an event is about.

    Its namespace must be the event's own: API servers refuse others with 422 (seen on 1.36.3).
    """

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event; told again under the same name it is the same event, and its count grows."""

    name: str
    """metadata.name, such as `event_name` makes."""
    namespace: str
    about: ObjectReference
    reason: str
    message: str
    """Cut to 1024 bytes."""
    is_warning: bool = True


def event_name(about: str, *parts: str) -> str:
    """Make a name that begins with that of the object, and is always the same for the same parts.

    vCluster replaces the object's name at its beginning by the one the tenant knows.
    """
    digits = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_HASH_DIGITS]
    return f"{about[: _LONGEST_NAME - 1 - _HASH_DIGITS].rstrip('-.')}.{digits}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTiming:
    """Bounds; times are seconds."""

    most_waiting: int = 256
    """Events; when another comes, the one that waits longest is dropped."""
    most_remembered: int = 1024
    """Events that were written, whose counts are known."""
    per_second: float = 2.0
    burst: int = 25
    """As client-go's: so many at once, whatever comes."""
    give_up_after: float = 600.0
    """How long one is tried; then it has failed."""
    patience_forbidden: float = 20.0
    """The same where the right seems to be missing: an API server that has just begun says so of everything,
    until it has read its roles (seen on 1.36.3)."""
    first_pause: float = 0.5
    longest_pause: float = 30.0


@dataclass(slots=True)
class _Waiting:
    event: Event
    told_at: float
    first_at: float
    """Unix time."""
    last_at: float
    times: int = 1


@dataclass(slots=True)
class _Written:
    count: int
    first_at: float


class EventWriter:
    """Writes events one after the other.

    Needs the rights to create and to patch events, and no other: counts are remembered, not read. The count
    of an event that is there already and was written by somebody else, or by an earlier process, goes on
    at 2.
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
        """Prepare; `run` does it.

        Args:
            client: to the API server.
            component: who speaks; `kubectl describe` shows it as From.
            host: the node it is on; empty if that says nothing.
            on_result: told an event's reason and what became of it: `created`, `updated`, `dropped` (too many
                waited) or `failed`. One that is told again while it waits becomes one with it.
            on_trouble: told in one line what is wrong when that changes, and "" when all is well again.
            clock: monotonic seconds.
            wall_clock: Unix seconds.
            timing: other than usual.
        """
        self._client = client
        self._component = component
        self._host = host
        self._on_result = on_result
        self._on_trouble = on_trouble
        self._clock = clock
        self._wall_clock = wall_clock
        self._timing = timing or EventTiming()
        self._bucket = TokenBucket(per_second=self._timing.per_second, burst=self._timing.burst, clock=clock)
        self._waiting: OrderedDict[tuple[str, str], _Waiting] = OrderedDict()
        self._written: OrderedDict[tuple[str, str], _Written] = OrderedDict()
        self._told = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._problem = ""

    @property
    def waiting(self) -> int:
        """How many events wait to be written."""
        return len(self._waiting)

    def emit(self, event: Event) -> None:
        """Have an event written. Never raises, never waits; for the event loop's thread only."""
        now = self._wall_clock()
        message = shorten_utf8(printable(event.message, _LONGEST_MESSAGE), _LONGEST_MESSAGE)
        event = replace(event, message=message)
        self._queue(_Waiting(event, told_at=self._clock(), first_at=now, last_at=now))

    async def settled(self) -> None:
        """Wait until nothing waits, and nothing is being written."""
        await self._idle.wait()

    async def run(self) -> None:
        """Write until cancelled; what waits then is lost."""
        pause = self._timing.first_pause
        while True:
            if not self._waiting:
                self._idle.set()
                self._told.clear()
                await self._told.wait()
            await asyncio.sleep(self._bucket.seconds_until_next())
            if not self._bucket.take():
                continue
            _, waiting = self._waiting.popitem(last=False)
            wait = await self._write(waiting)
            if wait is None:
                pause = self._timing.first_pause
                continue
            spread = random.uniform(0.5, 1.0)  # noqa: S311 - only keeps a thousand agents apart
            await asyncio.sleep(max(pause * spread, wait))
            pause = min(pause * 2, self._timing.longest_pause)

    def _queue(self, new: _Waiting) -> None:
        """Put one at the end of the queue, together with what waits of the same event."""
        key = (new.event.namespace, new.event.name)
        same = self._waiting.pop(key, None)
        if same is not None:
            newest = max(same, new, key=lambda one: one.last_at)
            new = _Waiting(
                newest.event,
                told_at=min(same.told_at, new.told_at),
                first_at=min(same.first_at, new.first_at),
                last_at=newest.last_at,
                times=same.times + new.times,
            )
        self._waiting[key] = new
        self._idle.clear()
        if len(self._waiting) > self._timing.most_waiting:
            oldest = min(self._waiting, key=lambda one: self._waiting[one].told_at)
            self._on_result(self._waiting.pop(oldest).event.reason, "dropped")
        self._told.set()

    async def _write(self, waiting: _Waiting) -> float | None:
        """Write one; return None if that is settled, else how long the server wants to be left alone."""
        reason = waiting.event.reason
        try:
            result = await self._create_or_patch(waiting)
        except (ApiError, Unreachable, AccessError) as error:
            self._say(str(error))
            patience = self._patience(error)
            if self._clock() - waiting.told_at < patience:
                self._queue(waiting)  # behind the others: what is wrong may be wrong with this one only
            else:
                self._on_result(reason, "failed")
                if not patience:
                    return None
            return (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0
        self._say("")
        self._on_result(reason, result)
        return None

    def _patience(self, error: Exception) -> float:
        """How long to try in spite of such an error."""
        if not isinstance(error, ApiError):
            return self._timing.give_up_after
        if error.status == _FORBIDDEN:
            return self._timing.patience_forbidden
        return self._timing.give_up_after if error.status in _LATER else 0.0

    async def _create_or_patch(self, waiting: _Waiting) -> str:
        """Write one; return `created` or `updated`.

        Raises:
            ApiError, Unreachable, AccessError: as KubeClient.request.
        """
        event = waiting.event
        key = (event.namespace, event.name)
        before = self._written.get(key)
        if before is not None and await self._patch(waiting, before.count + waiting.times):
            self._remember(key, _Written(before.count + waiting.times, before.first_at))
            return "updated"
        body = msgspec.json.encode(self._as_object(waiting))
        path = f"/api/v1/namespaces/{event.namespace}/events"
        try:
            expect_kind(await self._client.request("POST", path, body=body), "Event", f"POST {path}")
        except ApiError as error:
            count = 1 + waiting.times
            if error.status != 409 or not await self._patch(waiting, count):
                raise
            self._remember(key, _Written(count, waiting.first_at))
            return "updated"
        self._remember(key, _Written(waiting.times, waiting.first_at))
        return "created"

    async def _patch(self, waiting: _Waiting, count: int) -> bool:
        """Let an event's count grow; False if it is not there any more: API servers keep them for an hour."""
        event = waiting.event
        change = {"count": count, "lastTimestamp": _timestamp(waiting.last_at), "message": event.message}
        path = f"/api/v1/namespaces/{event.namespace}/events/{event.name}"
        try:
            answer = await self._client.request(
                "PATCH", path, body=msgspec.json.encode(change), content_type=_MERGE_PATCH
            )
            expect_kind(answer, "Event", f"PATCH {path}")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def _remember(self, key: tuple[str, str], written: _Written) -> None:
        self._written[key] = written
        self._written.move_to_end(key)
        if len(self._written) > self._timing.most_remembered:
            self._written.popitem(last=False)

    def _as_object(self, waiting: _Waiting) -> dict[str, Any]:
        """The form that recorders before events.k8s.io wrote: with an eventTime API servers ask for more."""
        event, about = waiting.event, waiting.event.about
        versioned = {"resourceVersion": about.resource_version} if about.resource_version else {}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event.name, "namespace": event.namespace},
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
                **versioned,
            },
            "reason": event.reason,
            "message": event.message,
            "source": {"component": self._component, **({"host": self._host} if self._host else {})},
            "firstTimestamp": _timestamp(waiting.first_at),
            "lastTimestamp": _timestamp(waiting.last_at),
            "count": waiting.times,
            "type": "Warning" if event.is_warning else "Normal",
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }

    def _say(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._on_trouble(problem)


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
