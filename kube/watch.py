"""Keeps a local copy of objects in sync with the API server: reads the whole state, then follows changes.

The whole state arrives as one list from the API server's cache. Objects are decoded one by one, so that
memory holds only the decoded objects and one raw object; of one that cannot be decoded, the last readable
version stays. The watch recovers from expired resourceVersions (410), expired tokens, errors that are not
JSON, streams that close at once or fall silent, and long outages.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from kube.access import AccessError
from kube.answers import ApiError, Silent, Unreachable, status_error
from kube.client import KubeClient
from service.backoff import JITTER_DOWN, Backoff
from service.json_depth import decode_deep, shallow_object
from service.tasks import LoopYield
from service.text import MALFORMED, one_line


class _Metadata(Struct):
    name: str = ""  # a bookmark has none
    namespace: str = ""
    resourceVersion: str = ""


class _Object(Struct):
    metadata: _Metadata


class _Event(Struct):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: Raw


_event = msgspec.json.Decoder(_Event)
_object = msgspec.json.Decoder(_Object)


class UnreadableObject(Exception):
    """An object of a list or of a watch cannot be decoded; the message is one line with the reason."""


def read_event(line: bytes, request_line: str) -> tuple[str, _Metadata, bytes]:
    """Return type, metadata and object of a line. An object that is too deep for a decoder is shortened.

    ApiError for an error of the API server, Unreachable for another line without an event, UnreadableObject
    for an object that cannot be decoded.
    """
    try:
        event = decode_deep(_event.decode, line)
    except MALFORMED as error:
        raise Unreachable(f"{request_line}: not an event: {one_line(str(error))}") from None
    if event.type == "ERROR":
        raise status_error(event.object, request_line)
    item = shallow_object(event.object)
    return event.type, _read_metadata(item, request_line, event.type == "BOOKMARK"), item


def _read_metadata(item: bytes, request_line: str, is_bookmark: bool = False) -> _Metadata:
    """Decode an object's metadata; raise UnreadableObject without a name, which only a bookmark may lack."""
    try:
        metadata = _object.decode(item).metadata
    except MALFORMED as error:
        raise UnreadableObject(f"{request_line}: not an object: {one_line(str(error))}") from None
    if not metadata.resourceVersion or not (metadata.name or is_bookmark):
        raise UnreadableObject(f"{request_line}: not an object: name or resourceVersion is missing")
    return metadata


T = TypeVar("T")
Key = tuple[str, str]  # namespace and name

_GONE: Final = 410
_NOT_SERVED: Final = 404
_TOO_NEW: Final = 504
"""Status for a version that no server has yet, as after a restore from a backup (among other causes)."""
_WHOLE_WATCH: Final = 0.9  # part of a watch's time after which its end counts as the API server's timeout
_REFUSED: Final = frozenset({"403", "404"})  # causes that only an administrator can remove
_USUAL: Final = frozenset({"closed", "gone", "silent"})  # usual ends of a watch, unless they repeat at once


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTiming:
    """Time limits of a watch, in seconds."""

    watch: int = 40
    """Least duration of one watch. It is short, because each new watch proves contact within 60 s."""
    spread: int = 0  # largest random addition to `watch`; clients that started together drift apart
    silence: float = float("inf")
    """Silence after which a watch is renewed at its version; bookmarks, about one a minute, end a silence."""
    grace: float = 8.0  # by which a stream may exceed the duration of its watch
    first_pause: float = 0.5
    longest_pause: float = 30.0
    longest_refused: float = 0.0  # longest pause after 403 or 404, if it is longer than `longest_pause`
    healthy_after: float = 5.0  # least duration of a successful stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """The resource that a watch follows: its name in metrics, path of the list, and the query."""

    name: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    accept: str = "application/json"  # media type; `kube.metadata.METADATA_ONLY` omits spec and status


class Watch(Generic[T]):
    """Keeps the objects of one resource in sync."""

    def __init__(  # noqa: PLR0913 - two of them are clocks
        self,
        client: KubeClient,
        resource: Resource,
        *,
        read: Callable[[bytes], T | None],
        on_change: Callable[[Mapping[Key, T]], None] = lambda _objects: None,
        on_trouble: Callable[[str], None] = lambda _problem: None,
        on_unreadable: Callable[[str], None] = lambda _problem: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        timing: WatchTiming | None = None,
    ) -> None:
        """Set up the watch; call `run` to start it.

        `read` decodes an object's JSON, or omits it by None; after ValueError, or an error of msgspec, the
        object's last readable version stays. `on_change` gets all objects once they have been read, and for
        each batch of changes; `on_trouble` a line when the problem changes, and "" when it is resolved;
        `on_unreadable` a line for each version of an object that cannot be decoded.
        """
        self.resource = resource
        self.restarts: Counter[str] = Counter()
        """Number of restarts: `closed`, `silent`, `gone`, `unreachable`, `credentials` or a status."""
        self.unreadable = 0  # objects that were skipped, because not even their names could be decoded
        self.objects: dict[Key, T] = {}
        self.states_read = 0
        """How often the whole state was read. Between two times, changes may have been missed."""
        self.last_contact: float | None = None
        """Unix time of the last message about the resource; None before the first, and after a 404."""
        self.problem = self.cause = ""
        """The current problem in one line, and its cause, as in `restarts`; empty if there is none."""
        self._request_line = f"watch {resource.path}"
        self._client = client
        self._read = read
        self._on_change = on_change
        self._on_trouble = on_trouble
        self._on_unreadable = on_unreadable
        self._clock = clock
        self._wall_clock = wall_clock
        self._timing = timing or WatchTiming()
        self._loop_yield = LoopYield()
        self._contact_at: float | None = None
        self._opened_at: float | None = None
        self._resource_version = ""  # at which the next watch begins; empty to read the whole state first
        self._not_older_than = (
            "0"  # least version of a list; 0 for any, empty to let the server read from etcd
        )
        self._resource_version_at = -float("inf")  # when the last version came, on the monotonic clock

    @property
    def is_synced(self) -> bool:
        """Whether the whole state has been read at least once."""
        return self.states_read > 0

    def seconds_since_contact(self) -> float:
        """Return the time since the last message about the resource; infinite before the first.

        A whole list counts, a stream that stays open for `healthy_after`, and each event. Errors say nothing
        about the objects and do not count.
        """
        return float("inf") if self._contact_at is None else self._clock() - self._contact_at

    async def run(self) -> None:
        """Keep the objects in sync until cancelled."""
        timing = self._timing
        pauses = Backoff(first=timing.first_pause, most=timing.longest_pause, jitter=JITTER_DOWN)
        longest_refused = max(timing.longest_refused, timing.longest_pause)
        refused_pauses = Backoff(first=timing.first_pause, most=longest_refused, jitter=JITTER_DOWN)
        previous_cause = ""
        while True:
            self._opened_at = None
            cause, problem, retry_after = await self._once()
            self.restarts[cause] += 1
            duration = 0.0 if self._opened_at is None else self._clock() - self._opened_at
            is_healthy = duration >= timing.healthy_after
            is_usual = cause in _USUAL and (is_healthy or cause != previous_cause)
            previous_cause = cause
            if is_healthy:
                pauses.reset()
                refused_pauses.reset()
            if not is_usual:
                self._report(problem, cause)
            elif is_healthy:
                self._report("")
                continue
            backoff = refused_pauses if cause in _REFUSED else pauses
            await asyncio.sleep(backoff.step(at_least=retry_after))

    def _report(self, problem: str, cause: str = "") -> None:
        self.cause = cause
        if problem != self.problem:
            self.problem = problem
            self._on_trouble(problem)

    async def _once(self) -> tuple[str, str, float]:
        """Read the whole state if necessary, and follow changes; return cause, line and wait at the end."""
        try:
            if not self._resource_version:
                await self._list()
            await self._watch()
        except ApiError as error:
            if error.status in (_GONE, _TOO_NEW) and not self._resource_version:
                self._not_older_than = ""
            if error.status == _GONE:
                self._resource_version = ""
                return "gone", str(error), 0.0
            if error.status == _NOT_SERVED:
                self.last_contact = None
            return str(error.status or "error"), str(error), error.retry_after or 0.0
        except Silent as error:
            # Only a dead connection is silent longer than the API server keeps the watch open.
            is_renewed = self._opened_at is not None and self._timing.silence < self._timing.watch
            return "silent" if is_renewed else "unreachable", str(error), 0.0
        except (Unreachable, AccessError) as error:
            return "unreachable" if isinstance(error, Unreachable) else "credentials", str(error), 0.0
        return "closed", f"{self._request_line}: the server closes every stream at once", 0.0

    async def _list(self) -> None:
        """Read the whole state by a list; the known objects stay until it is complete."""
        objects: dict[Key, T] = {}
        unreadable = self.unreadable
        params = dict(self.resource.params)
        if self._not_older_than:
            params |= {"resourceVersion": self._not_older_than, "resourceVersionMatch": "NotOlderThan"}
        async with self._client.list_objects(
            self.resource.path, params=params, accept=self.resource.accept
        ) as listed:
            async for item in listed:
                try:
                    metadata = _read_metadata(item, self._request_line)
                except UnreadableObject as error:
                    self._skip(error)
                else:
                    self._put(objects, metadata, item)
        if not objects and self.unreadable > unreadable:  # such an answer does not come from an API server
            raise Unreachable(f"{self._request_line}: not a list: no object can be decoded")
        self.objects = objects
        self._resource_version = self._not_older_than = listed.resource_version
        self._resource_version_at = self._clock()
        self.states_read += 1
        self._on_change(objects)
        self._record_contact()

    async def _watch(self) -> None:
        """Watch from the known version."""
        timing = self._timing
        seconds = timing.watch + random.randint(0, timing.spread)  # noqa: S311 - spreads load, no secret
        params = {
            **self.resource.params,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "resourceVersion": self._resource_version,
        }
        async with self._client.lines(
            self.resource.path,
            params=params,
            accept=self.resource.accept.replace("List;", ";"),
            idle_seconds=min(seconds + timing.grace, timing.silence),
        ) as batches:
            self._opened_at = self._clock()
            healthy = asyncio.get_running_loop().call_later(timing.healthy_after, self._stays_open)
            try:
                async for batch in batches:
                    await self._take(batch)
            finally:
                healthy.cancel()
                self._forget_old_version()

    def _stays_open(self) -> None:
        """Count an open stream as contact, although no object may have changed.

        The head of an answer is no contact. A proxy without an API server may answer 200 with a page of its
        own, and the objects would seem known while it does.
        """
        self._record_contact()
        self._report("")

    def _forget_old_version(self) -> None:
        """Read the whole state next if no version has come for the time of a watch.

        A watch that began at a version newer than the server's, as after a restore of etcd, has no bookmarks
        and is silent although objects change (Kubernetes 1.36.3).
        """
        if self._clock() - self._resource_version_at >= self._timing.watch * _WHOLE_WATCH:
            self._resource_version = ""

    async def _take(self, lines: list[bytes]) -> None:
        """Process a batch of events."""
        is_changed = False
        try:
            for line in lines:
                try:
                    kind, metadata, item = read_event(line, self._request_line)
                except UnreadableObject as error:
                    self._skip(error)
                    continue
                if kind != "BOOKMARK":
                    self._put(self.objects, metadata, None if kind == "DELETED" else item)
                    is_changed = True
                self._resource_version = self._not_older_than = metadata.resourceVersion
                self._resource_version_at = self._clock()
                self._record_contact()
                await self._loop_yield.maybe_yield()
        finally:
            if is_changed:
                self._on_change(self.objects)

    def _put(self, objects: dict[Key, T], metadata: _Metadata, item: bytes | None) -> None:
        """Add or replace an object, or remove it if `item` is None; keep it if `item` cannot be decoded."""
        key = (metadata.namespace, metadata.name)
        try:
            value = None if item is None else self._read(item)
        except (ValueError, *MALFORMED) as error:
            self._on_unreadable(one_line(str(error)))
            value = self.objects.get(key)
        if value is None:
            objects.pop(key, None)
        else:
            objects[key] = value

    def _skip(self, error: UnreadableObject) -> None:
        self.unreadable += 1
        self._on_unreadable(str(error))

    def _record_contact(self) -> None:
        self._contact_at = self._clock()
        self.last_contact = self._wall_clock()
