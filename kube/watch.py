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
from kube.client import ApiError, KubeClient, Unreachable, api_error

T = TypeVar("T")
Key = tuple[str, str]
"""Namespace and name."""

WATCH_SECONDS: Final = 40
"""How long one watch lasts. Short: each new one is a sign of life, so 60 s without one mean something."""

_GRACE_SECONDS: Final = 8.0
_FIRST_PAUSE_SECONDS: Final = 0.5
_LONGEST_PAUSE_SECONDS: Final = 30.0
_LIVED_SECONDS: Final = 5.0  # a watch that lasted this long was a good one
_GONE: Final = 410


class _Metadata(Struct):
    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""


class _Object(Struct):
    metadata: _Metadata


class _Event(Struct):
    type: str
    object: Raw


class _Status(Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


_event = msgspec.json.Decoder(_Event)
_object = msgspec.json.Decoder(_Object)
_status = msgspec.json.Decoder(_Status)


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


METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class Watch(Generic[T]):
    """One resource, watched."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        read: Callable[[bytes], T | None],
        on_change: Callable[[Mapping[Key, T]], None] = lambda _objects: None,
        on_trouble: Callable[[str], None] = lambda _problem: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; `run` does it.

        Args:
            client: to the API server.
            resource: what to watch.
            read: makes of an object's JSON what is kept; None leaves it out. It must not raise.
            on_change: told all objects after a list and after each event.
            on_trouble: told in one line why the watch began anew, when that was no ordinary end.
            clock: monotonic seconds.
            wall_clock: Unix seconds.
        """
        self.resource = resource
        self.restarts: Counter[str] = Counter()
        """How often it began anew, by cause: `closed`, `gone`, `unreachable`, `credentials` or a status."""
        self.objects: dict[Key, T] = {}
        self.is_synced = False
        """Whether there was a whole list, ever."""
        self.last_contact: float | None = None
        """Unix time at which the API server was last heard; None before the first time."""
        self._client = client
        self._read = read
        self._on_change = on_change
        self._on_trouble = on_trouble
        self._clock = clock
        self._wall_clock = wall_clock
        self._heard_at: float | None = None
        self._version = ""

    def seconds_since_contact(self) -> float:
        """How long ago the API server was last heard; infinite before the first time."""
        return float("inf") if self._heard_at is None else self._clock() - self._heard_at

    async def run(self) -> None:
        """List and watch until cancelled."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            began = self._clock()
            cause, problem = await self._once()
            self.restarts[cause] += 1
            if self._clock() - began >= _LIVED_SECONDS and not problem:
                pause = _FIRST_PAUSE_SECONDS
                continue
            if problem:
                self._on_trouble(problem)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - only spreads the load
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def _once(self) -> tuple[str, str]:
        """List if need be, and watch to the end; return why it ended, and a line if that was trouble."""
        try:
            if not self._version:
                await self._list()
            await self._follow()
        except ApiError as error:
            if error.status == _GONE:
                self._version = ""
                return "gone", ""
            return str(error.status), str(error)
        except Unreachable as error:
            return "unreachable", str(error)
        except AccessError as error:
            return "credentials", str(error)
        return "closed", ""

    async def _list(self) -> None:
        found: dict[Key, T] = {}
        version = ""
        asked = self.resource
        async for page in self._client.pages(asked.path, params=asked.params, accept=asked.accept):
            found.update(self._kept(page.items or ()))
            version = page.metadata.resourceVersion
            self._heard()
        self.objects = found
        self._version = version
        self.is_synced = True
        self._on_change(found)

    def _kept(self, items: Iterable[Raw]) -> Iterable[tuple[Key, T]]:
        for item in items:
            kept = self._read(bytes(item))
            if kept is not None:
                metadata = _object.decode(item).metadata
                yield (metadata.namespace, metadata.name), kept

    async def _follow(self) -> None:
        asked = self.resource
        params = {
            **asked.params,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        async with self._client.lines(
            asked.path,
            params=params,
            accept=asked.accept.replace("List;", ";"),
            idle_seconds=WATCH_SECONDS + _GRACE_SECONDS,
        ) as lines:
            self._heard()
            async for line in lines:
                self._take(line)
                self._heard()

    def _take(self, line: bytes) -> None:
        asked = f"watch {self.resource.path}"
        try:
            event = _event.decode(line)
            if event.type == "ERROR":
                status = _status.decode(event.object)
                raise api_error(status.code, status.reason, status.message, asked)
            metadata = _object.decode(event.object).metadata
        except msgspec.DecodeError as error:
            raise Unreachable(f"{asked}: no event: {error}") from None
        if event.type != "BOOKMARK":
            key = (metadata.namespace, metadata.name)
            kept = None if event.type == "DELETED" else self._read(bytes(event.object))
            if kept is None:
                self.objects.pop(key, None)
            else:
                self.objects[key] = kept
            self._on_change(self.objects)
        self._version = metadata.resourceVersion

    def _heard(self) -> None:
        self._heard_at = self._clock()
        self.last_contact = self._wall_clock()
