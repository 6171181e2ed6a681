"""A set of objects kept as the API server has them: list, then watch, for ever.

Survives what API servers and what is between do: a forgotten resourceVersion (410), tokens that end, errors
that are no JSON, streams that close at once or go silent, and servers that are gone for long.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from kube.access import AccessError
from kube.client import PAGE, KubeClient
from kube.errors import MALFORMED, ApiError, Unreachable, status_error
from service.text import one_line

T = TypeVar("T")
Key = tuple[str, str]
"""Namespace and name."""

METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_GONE: Final = 410
_TOO_NEW: Final = 504
"""Among other things: no server has a version that new, as after a restore from a backup."""
_USUAL: Final = frozenset({"closed", "gone"})
"""How a watch ends when nothing is wrong, unless it ends so again and again."""
_CHANGES: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a watch waits for what, in seconds."""

    watch: int = 40
    """How long one watch lasts. Short: each new one is a sign of life, so 60 s without one mean something."""
    grace: float = 8.0
    """How much longer a stream may be silent before it counts as dead."""
    first_pause: float = 0.5
    longest_pause: float = 30.0
    lived: float = 5.0
    """A stream that was open for so long was a good one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What is watched."""

    name: str
    """What metrics call it."""
    path: str
    """Of the list, such as `/api/v1/pods`."""
    params: Mapping[str, str] = field(default_factory=dict)
    """Selectors."""
    accept: str = "application/json"
    """Media type; `METADATA_ONLY` leaves out spec and status."""
    is_small: bool = False
    """Lists it at once and from the API server's cache, as kubelets do: right for one node's pods, for which
    a consistent list makes servers before 1.31 read every pod of the cluster from etcd, for each node.
    Nothing older than what was seen before is taken."""


class _Metadata(Struct):
    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""


class _Object(Struct):
    metadata: _Metadata


class _Event(Struct):
    type: str
    object: Raw


_event = msgspec.json.Decoder(_Event)
_object = msgspec.json.Decoder(_Object)


@dataclass(frozen=True, slots=True)
class _End:
    """Why one round of list and watch was over."""

    cause: str
    problem: str
    retry_after: float = 0.0


class Watch(Generic[T]):
    """One resource, watched."""

    def __init__(  # noqa: PLR0913 - two of them are clocks
        self,
        client: KubeClient,
        resource: Resource,
        *,
        read: Callable[[bytes], T | None],
        on_change: Callable[[Mapping[Key, T]], None] = lambda _objects: None,
        on_trouble: Callable[[str], None] = lambda _problem: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        pace: Pace | None = None,
    ) -> None:
        """Prepare; `run` does it.

        Args:
            client: to the API server.
            resource: what to watch.
            read: makes of an object's JSON what is kept; None leaves it out. It must not raise.
            on_change: told all objects after a list and after each event.
            on_trouble: told in one line what is wrong when that changes, and "" when all is well again.
            clock: monotonic seconds.
            wall_clock: Unix seconds.
            pace: other than usual.
        """
        self.resource = resource
        self.restarts: Counter[str] = Counter()
        """How often it began anew, by cause: `closed`, `gone`, `unreachable`, `credentials` or a status."""
        self.objects: dict[Key, T] = {}
        self.is_synced = False
        """Whether there was a whole list, ever."""
        self.last_contact: float | None = None
        """Unix time at which the API server last said something of it; None before the first time."""
        self.problem = ""
        """What is wrong, in one line; empty while all is well."""
        self._client = client
        self._read = read
        self._on_change = on_change
        self._on_trouble = on_trouble
        self._clock = clock
        self._wall_clock = wall_clock
        self._pace = pace or Pace()
        self._heard_at: float | None = None
        self._opened_at: float | None = None
        self._version = ""
        """From which to go on; empty: list anew."""
        self._oldest = "0"
        """Of a small resource, what a list must not be older than; empty: let the server read from etcd."""

    def seconds_since_contact(self) -> float:
        """How long ago the API server last said something of it; infinite before the first time.

        An error is not counted: it says nothing of the objects.
        """
        return float("inf") if self._heard_at is None else self._clock() - self._heard_at

    async def run(self) -> None:
        """List and watch until cancelled."""
        pause = self._pace.first_pause
        before = ""
        while True:
            self._opened_at = None
            end = await self._once()
            self.restarts[end.cause] += 1
            lived = 0.0 if self._opened_at is None else self._clock() - self._opened_at
            is_good = lived >= self._pace.lived
            is_usual = end.cause in _USUAL and (is_good or end.cause != before)
            before = end.cause
            if is_good:
                pause = self._pace.first_pause
            if not is_usual:
                self._say(end.problem)
            elif is_good:
                self._say("")
                continue
            spread = random.uniform(0.5, 1.0)  # noqa: S311 - only keeps a thousand agents apart
            await asyncio.sleep(max(pause * spread, end.retry_after))
            pause = min(pause * 2, self._pace.longest_pause)

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._on_trouble(problem)

    async def _once(self) -> _End:
        """List if need be, and watch to the end."""
        try:
            if not self._version:
                await self._list()
            await self._follow()
        except ApiError as error:
            if error.status == _GONE:
                self._version = ""
                return _End("gone", str(error))
            return _End(str(error.status or "error"), str(error), error.retry_after or 0.0)
        except Unreachable as error:
            return _End("unreachable", str(error))
        except AccessError as error:
            return _End("credentials", str(error))
        return _End("closed", f"watch {self.resource.path}: the server closes every stream at once")

    async def _list(self) -> None:
        found: dict[Key, T] = {}
        version = ""
        asked = self.resource
        params = dict(asked.params)
        if asked.is_small and self._oldest:
            params |= {"resourceVersion": self._oldest, "resourceVersionMatch": "NotOlderThan"}
        try:
            async for page in self._client.pages(
                asked.path, params=params, accept=asked.accept, page=None if asked.is_small else PAGE
            ):
                found.update(self._kept(page.items or ()))
                version = page.metadata.resourceVersion
                self._heard()
        except ApiError as error:
            if error.status in (_GONE, _TOO_NEW):
                self._oldest = ""
            raise
        self.objects = found
        self._version = self._oldest = version
        self.is_synced = True
        self._on_change(found)

    def _kept(self, items: Iterable[Raw]) -> Iterable[tuple[Key, T]]:
        for item in items:
            metadata = self._metadata(item)
            kept = self._read(bytes(item))
            if kept is not None:
                yield (metadata.namespace, metadata.name), kept

    async def _follow(self) -> None:
        asked, pace = self.resource, self._pace
        params = {
            **asked.params,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(pace.watch),
        }
        async with self._client.lines(
            asked.path,
            params=params,
            accept=asked.accept.replace("List;", ";"),
            idle_seconds=pace.watch + pace.grace,
        ) as lines:
            self._opened_at = self._clock()
            self._heard()
            async for line in lines:
                self._take(line)
                self._heard()

    def _take(self, line: bytes) -> None:
        try:
            event = _event.decode(line)
        except MALFORMED as error:
            raise self._nonsense("no event", error) from None
        if event.type == "ERROR":
            raise status_error(event.object, f"watch {self.resource.path}")
        metadata = self._metadata(event.object, is_bookmark=event.type == "BOOKMARK")
        if event.type in _CHANGES:
            key = (metadata.namespace, metadata.name)
            kept = None if event.type == "DELETED" else self._read(bytes(event.object))
            if kept is None:
                self.objects.pop(key, None)
            else:
                self.objects[key] = kept
            self._on_change(self.objects)
        elif event.type != "BOOKMARK":
            raise self._nonsense("no event", f"of the unknown type {event.type}")
        self._version = self._oldest = metadata.resourceVersion

    def _metadata(self, item: Raw, *, is_bookmark: bool = False) -> _Metadata:
        try:
            metadata = _object.decode(item).metadata
        except MALFORMED as error:
            raise self._nonsense("no object", error) from None
        if not metadata.resourceVersion or not (metadata.name or is_bookmark):
            raise self._nonsense("no object", "without name or resourceVersion")
        return metadata

    def _nonsense(self, what: str, why: object) -> Unreachable:
        """What a server says that speaks no Kubernetes is no answer at all."""
        return Unreachable(f"watch {self.resource.path}: {what}: {one_line(str(why))}")

    def _heard(self) -> None:
        self._heard_at = self._clock()
        self.last_contact = self._wall_clock()
