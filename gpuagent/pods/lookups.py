"""Fetches the objects that belong to a node's pods by name, and seldom while RBAC denies them."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from gpuagent.pods import objects
from gpuagent.pods.inventory import Availability, NodePod, Unavailable, UnavailableReason
from gpuagent.pods.node_pods import labels_decoder
from gpuagent.pods.objects import ObjectError
from kai import keys
from kai.share import shows_share
from kube.access import AccessError
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from service.backoff import JITTER_AROUND, JITTER_UP, Backoff, jittered
from service.log import JsonLog

T = TypeVar("T")

_SOON_SECONDS: Final = 60.0
"""Pause before a missing object is fetched again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTiming:
    """Intervals of fetches and retries, in seconds."""

    gap: float = 5.0
    """Longest time between two fetches of a kind that is spread."""
    gap_for_each: float = 0.5
    """Longest such time for each object of the kind, so that a node with few objects has them soon."""
    spread: float = 60.0
    """Time in which each object of a kind that is spread is fetched once."""
    first_refused: float = 60.0
    """First pause after a missing right; doubles each time."""
    longest_refused: float = 600.0
    first_pause: float = 1.0
    """First pause after another error; doubles each time."""
    longest_pause: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LookupKind(Generic[T]):
    """A kind of object to fetch."""

    resource: str
    """Name as in RBAC and kubectl: `nodes`."""
    path: str = "/api/v1"
    decode: Callable[[bytes], T]
    """Decodes the object; raises ObjectError if it is malformed."""
    without: str
    """Consequence of missing this kind, in words."""
    accept: str
    """Form in which to fetch it."""
    soon_seconds: float = _SOON_SECONDS
    """Shortest time between two fetches of one object."""
    again_seconds: float
    """Shortest interval of periodic fetches."""
    is_spread: bool = False
    """Whether the fetches of many objects are spread over time."""


@dataclass(slots=True)
class _Entry(Generic[T]):
    object_: T | None = None
    due: float = -math.inf
    fetched_at: float = -math.inf


@dataclass(slots=True)
class _Failure:
    """The failures since the last success."""

    reason: UnavailableReason
    backoff: Backoff
    count: int = 0


_METADATA: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


class Fetcher(Generic[T]):
    """Keeps copies of the requested objects of one kind, as far as they can be fetched."""

    def __init__(
        self,
        client: KubeClient,
        kind: LookupKind[T],
        *,
        on_change: Callable[[], None],
        log: JsonLog,
        clock: Callable[[], float] = time.monotonic,
        timing: FetchTiming | None = None,
    ) -> None:
        """Set up the fetches; call `run` to start them."""
        self._client = client
        self._kind = kind
        self._on_change = on_change
        self._clock = clock
        self._timing = timing or FetchTiming()
        self._entries: dict[str, _Entry[T]] = {}
        """By name."""
        self._failure: _Failure | None = None
        self._next_at = -math.inf
        """Earliest time of the next fetch of a kind that is spread."""
        self._wake = asyncio.Event()
        self.availability = Availability(kind.resource, log)
        self.settled = asyncio.Event()
        """Set once every object of the first request has been fetched or has failed."""
        self._is_requested = False

    @property
    def objects(self) -> Iterator[T]:
        """Fetched objects."""
        return (entry.object_ for entry in self._entries.values() if entry.object_ is not None)

    def request(self, names: Iterable[str], *, renewed: Iterable[str] = ()) -> None:
        """Fetch these objects, and forget all others. A name in a namespace is `NAMESPACE/NAME`.

        Those in `renewed` are fetched again now, unless they were fetched within the kind's `soon_seconds`.
        """
        before, self._is_requested = self._entries, True
        self._entries = {name: before.get(name) or _Entry() for name in names}
        for name in renewed:
            entry = self._entries[name]
            if entry.fetched_at + self._kind.soon_seconds <= self._clock():
                entry.due = min(entry.due, self._clock())  # after those that are due for longer
        self._wake.set()

    async def run(self) -> None:
        """Fetch until cancelled, one object after the other."""
        while True:
            self._wake.clear()
            name, due = self._next()
            seconds = due - self._clock()
            if name is not None and seconds <= 0:
                await self._fetch(name)
                continue
            are_fetched = all(math.isfinite(entry.fetched_at) for entry in self._entries.values())
            if self._is_requested and (are_fetched or self._failure is not None):
                self.settled.set()
            try:
                async with asyncio.timeout(None if math.isinf(due) else seconds):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _next(self) -> tuple[str | None, float]:
        """Return the name of the next object to fetch, and when."""
        name = min(self._entries, key=lambda name: self._entries[name].due, default=None)
        due = math.inf if name is None else self._entries[name].due
        pause_ends = self._failure.backoff.due_at if self._failure else -math.inf
        return name, max(due, pause_ends, self._next_at)

    async def _fetch(self, name: str) -> None:
        if self._kind.is_spread:
            timing, count = self._timing, len(self._entries)
            gap = min(timing.gap, timing.gap_for_each * count, timing.spread / count)
            self._next_at = self._clock() + jittered(gap, JITTER_AROUND)
        namespace, _, short = name.rpartition("/")
        resource, without = self._kind.resource, self._kind.without
        place = f"/namespaces/{namespace}" if namespace else ""
        path = f"{self._kind.path}{place}/{resource.partition('.')[0]}/{short}"
        object_, line, retry_after, reason = None, "", 0.0, UnavailableReason.ERROR
        try:
            # The API server answers from its memory, not from etcd; the object may be a little old.
            body = await self._client.get(path, params={"resourceVersion": "0"}, accept=self._kind.accept)
            object_ = self._kind.decode(body)
        except ApiError as error:
            if error.status == 404 and error.reason == "NotFound":
                self._store(name, None)
                return
            if error.status == 404:
                reason = UnavailableReason.NOT_SERVED
            line, retry_after = f"{error}: {without}", error.retry_after or 0.0
            if error.status == 403:
                reason, retry_after = UnavailableReason.DENIED, 0.0
                line = f"no right to get {resource}: {without}; grant the right to change that"
        except ObjectError as error:
            line = f"{error}: {without}"
        except (Unreachable, AccessError):
            pass  # the watch of the pods reports the error
        if object_ is None:
            self._fail(name, reason, line, retry_after)
        else:
            self._store(name, object_)

    def _store(self, name: str, object_: T | None) -> None:
        self._failure = None
        self.availability.update(None)
        entry = self._entries.get(name)
        if entry is None:
            return  # its pods were removed in the meantime
        # The API server's memory may be older than the pod, so a missing object is soon fetched again.
        again = _SOON_SECONDS if object_ is None else self._kind.again_seconds
        entry.fetched_at = self._clock()
        entry.due = entry.fetched_at + jittered(again, JITTER_UP)
        if object_ != entry.object_:
            entry.object_ = object_
            self._on_change()

    def _fail(self, name: str, reason: UnavailableReason, line: str, retry_after: float) -> None:
        """Pause, and then fetch another object first, so that a malformed one does not block the rest.

        A single error is not reported, and neither is one without a line.
        """
        timing, failure, is_denied = self._timing, self._failure, reason is not UnavailableReason.ERROR
        if failure is None or failure.reason is not reason:
            first = timing.first_refused if is_denied else timing.first_pause
            longest = timing.longest_refused if is_denied else timing.longest_pause
            backoff = Backoff(first=first, most=longest, jitter=JITTER_AROUND)
            failure = self._failure = _Failure(reason, backoff)
        failure.count += 1
        failure.backoff.back_off(self._clock(), retry_after)
        if name in self._entries:
            self._entries[name].due = failure.backoff.due_at
        if line and (is_denied or failure.count > 1):
            self.availability.update(Unavailable(resource=self._kind.resource, reason=reason, line=line))


NODES: Final[LookupKind[objects.Node | objects.Namespace]] = LookupKind(
    resource="nodes",
    decode=labels_decoder("Node", objects.Node),
    without="GPU memory is the driver's figure instead of the node label that KAI uses",
    accept="application/json",
    again_seconds=300.0,
)
NAMESPACES: Final[LookupKind[objects.Node | objects.Namespace]] = LookupKind(
    resource="namespaces",
    decode=labels_decoder("Namespace", objects.Namespace),
    without="namespaces cannot enable eviction or set their own grace, and pods have no names of a vCluster",
    accept=_METADATA,
    again_seconds=1800.0,
    is_spread=True,
)


def may_be_kais(pod: NodePod) -> bool:
    """Whether KAI may have placed a pod: by its immutable scheduler name, or by any sign of a share.

    Static pods have no scheduler.
    """
    if keys.MIRROR_POD in pod.annotations:
        return False
    return pod.scheduler_name != keys.DEFAULT_SCHEDULER or shows_share((*pod.annotations, *pod.labels))
