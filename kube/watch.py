"""A set of objects kept as the API server has them: the whole state first, then each change, for ever.

The whole state comes as the initial events of a watch (the watch-list API, on by default since Kubernetes
1.34), or else as one list from the API server's cache. Both are read object by object: memory holds what is
kept and one object more.

The watch survives what API servers and proxies do: a forgotten resourceVersion (410), tokens that end, errors
that are no JSON, streams that close at once or go silent, and servers that are gone for long.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from kube.watch_events import ObjectMetadata, read_event, read_metadata
from service.tasks import LoopYield

T = TypeVar("T")
Key = tuple[str, str]
"""Namespace and name."""

METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_GONE: Final = 410
_TOO_NEW: Final = 504
"""Among other things: no server has a version that new, as after a restore from a backup."""
_NO_WATCH_LIST: Final = frozenset({400, 422})
"""Statuses of an API server without the watch-list API; Kubernetes 1.36.3 without the gate answers 422."""
_LIST_INSTEAD_SECONDS: Final = 600.0
"""How long a watch keeps to lists after the watch-list API failed; API servers are upgraded meanwhile."""
_WHOLE_WATCH: Final = 0.9
"""Part of a watch's time after which its end is the API server's own time-out."""
_USUAL: Final = frozenset({"closed", "gone"})
"""How a watch ends when nothing is wrong, unless it ends so again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTiming:
    """How long a watch waits for what, in seconds."""

    watch: int = 40
    """How long one watch lasts. Short: each new one is a sign of life, so 60 s without one mean something."""
    initial: float = 30.0
    """How long the initial events of a watch may take."""
    grace: float = 8.0
    """How much longer a stream may be silent before it counts as dead."""
    first_pause: float = 0.5
    longest_pause: float = 30.0
    healthy_after: float = 5.0
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


@dataclass(frozen=True, slots=True)
class _End:
    """Why one round was over."""

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
        timing: WatchTiming | None = None,
    ) -> None:
        """Prepare; `run` does it.

        Args:
            client: to the API server.
            resource: what to watch.
            read: makes of an object's JSON what is kept; None leaves it out. It must not raise.
            on_change: told all objects when the whole state is there, and after changes; changes that arrive
                together are told once.
            on_trouble: told in one line what is wrong when that changes, and "" when all is well again.
            clock: monotonic seconds.
            wall_clock: Unix seconds.
            timing: other than usual.
        """
        self.resource = resource
        self.restarts: Counter[str] = Counter()
        """How often it began anew, by cause: `closed`, `gone`, `unreachable`, `credentials` or a status."""
        self.objects: dict[Key, T] = {}
        self.is_synced = False
        """Whether the whole state was there, ever."""
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
        self._timing = timing or WatchTiming()
        self._turns = LoopYield()
        self._heard_at: float | None = None
        self._opened_at: float | None = None
        self._version = ""
        """From which to go on; empty: begin with the whole state."""
        self._oldest = "0"
        """What a list must not be older than, 0 for any; empty: let the server read from etcd."""
        self._has_told_version = False
        """Whether the current stream has told a version, by an event or a bookmark."""
        self._lists_until = -float("inf")
        """Until when the whole state is listed; the watch-list API is tried after that."""

    def seconds_since_contact(self) -> float:
        """How long ago the API server last said something of it; infinite before the first time.

        An error is not counted: it says nothing of the objects. Neither is a part of the whole state: what is
        known meanwhile is as old as before.
        """
        return float("inf") if self._heard_at is None else self._clock() - self._heard_at

    async def run(self) -> None:
        """Keep the objects until cancelled."""
        pause = self._timing.first_pause
        before = ""
        while True:
            self._opened_at = None
            end = await self._once()
            self.restarts[end.cause] += 1
            lived = 0.0 if self._opened_at is None else self._clock() - self._opened_at
            is_good = lived >= self._timing.healthy_after
            is_usual = end.cause in _USUAL and (is_good or end.cause != before)
            before = end.cause
            if is_good:
                pause = self._timing.first_pause
            if not is_usual:
                self._say(end.problem)
            elif is_good:
                self._say("")
                continue
            spread = random.uniform(0.5, 1.0)  # noqa: S311 - only keeps a thousand agents apart
            await asyncio.sleep(max(pause * spread, end.retry_after))
            pause = min(pause * 2, self._timing.longest_pause)

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._on_trouble(problem)

    async def _once(self) -> _End:
        """Get the whole state if need be, and watch to the end."""
        try:
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
        return _End("closed", f"{self._asked}: the server closes every stream at once")

    async def _follow(self) -> None:
        if not self._version and self._clock() >= self._lists_until:
            try:
                await self._watch()
            except ApiError as error:
                if self._version or error.status not in _NO_WATCH_LIST:
                    raise
                self._list_instead()
            else:
                return
        if not self._version:
            await self._list()
        await self._watch()

    def _list_instead(self) -> None:
        self._lists_until = self._clock() + _LIST_INSTEAD_SECONDS

    async def _list(self) -> None:
        """Get the whole state as a list."""
        objects: dict[Key, T] = {}
        params = dict(self.resource.params)
        if self._oldest:
            params |= {"resourceVersion": self._oldest, "resourceVersionMatch": "NotOlderThan"}
        try:
            async with self._client.list_objects(
                self.resource.path, params=params, accept=self.resource.accept
            ) as listed:
                async for item in listed:
                    self._put(objects, read_metadata(item, self._asked), item)
        except ApiError as error:
            if error.status in (_GONE, _TOO_NEW):
                self._oldest = ""
            raise
        self._heard()
        self._replace(objects, listed.resource_version)

    async def _watch(self) -> None:
        """Watch from the version that is known; without one, get the whole state as initial events first."""
        timing = self._timing
        params = {
            **self.resource.params,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(timing.watch),
        }
        if self._version:
            params["resourceVersion"] = self._version
        else:  # without a version the state is the newest, and comes from the API server's cache all the same
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        async with self._client.lines(
            self.resource.path,
            params=params,
            accept=self.resource.accept.replace("List;", ";"),
            idle_seconds=timing.watch + timing.grace,
        ) as batches:
            self._has_told_version = False
            if not self._version:
                await self._take_initial(batches)
            self._heard()
            self._opened_at = opened_at = self._clock()
            async for batch in batches:
                await self._take(batch)
        if not self._has_told_version and self._clock() - opened_at >= timing.watch * _WHOLE_WATCH:
            # The API server sends a bookmark shortly before the end of a watch. For a version newer than its
            # own, as after a restore of etcd, it opens a watch that stays silent (Kubernetes 1.36.3).
            self._version = ""

    async def _take_initial(self, batches: AsyncIterator[list[bytes]]) -> None:
        """Take events until the whole state is there; until then what was known stays.

        Whatever goes wrong, a list comes next: that may take longer, and may come from a cache that lags.

        Raises:
            ApiError, Unreachable: as `KubeClient.lines`, and if the stream ended first or took too long.
        """
        objects: dict[Key, T] = {}
        try:
            async with asyncio.timeout(self._timing.initial):
                async for batch in batches:
                    await self._take(batch, objects)
                    if self._version:
                        return
        except TimeoutError:
            raise Unreachable(
                f"{self._asked}: the initial events did not end within {self._timing.initial:g} s"
            ) from None
        finally:
            if not self._version:
                self._list_instead()
        raise Unreachable(f"{self._asked}: the stream ended within the initial events")

    async def _take(self, lines: list[bytes], initial: dict[Key, T] | None = None) -> None:
        """Take events that arrived together.

        Args:
            lines: the events.
            initial: what is known of the whole state while that is incomplete.
        """
        is_changed = False
        try:
            for line in lines:
                event = read_event(line, self._asked)
                if not self._version and initial is not None:
                    if event.ends_initial_events:
                        self._replace(initial, event.metadata.resourceVersion)
                    elif not event.is_bookmark:
                        self._put(initial, event.metadata, None if event.is_deletion else event.object)
                else:
                    if not event.is_bookmark:
                        self._put(self.objects, event.metadata, None if event.is_deletion else event.object)
                        is_changed = True
                    self._version = self._oldest = event.metadata.resourceVersion
                    self._has_told_version = True
                    self._heard()
                await self._turns.maybe_yield()
        finally:
            if is_changed:
                self._on_change(self.objects)

    def _put(self, objects: dict[Key, T], metadata: ObjectMetadata, item: bytes | None) -> None:
        """Add, replace or (None) remove an object."""
        key = (metadata.namespace, metadata.name)
        kept = None if item is None else self._read(item)
        if kept is None:
            objects.pop(key, None)
        else:
            objects[key] = kept

    def _replace(self, objects: dict[Key, T], version: str) -> None:
        """Put the whole state in the place of the old one."""
        self.objects = objects
        self._version = self._oldest = version
        self._has_told_version = True
        self.is_synced = True
        self._on_change(objects)

    @property
    def _asked(self) -> str:
        """The question, for messages."""
        return f"watch {self.resource.path}"

    def _heard(self) -> None:
        self._heard_at = self._clock()
        self.last_contact = self._wall_clock()
