"""Policies from the namespaces of a cluster: a watch, and a request by name where the watch is behind."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

from kube.access import AccessError
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from kube.watch import Resource, Watch, WatchTiming
from service.log import WARNING, FirstLines, JsonLog, problem_logger
from service.names import is_dns_label
from service.tasks import restart_on_error
from webhook.namespaces.policy_source import (
    ANY_MODE,
    LIST,
    MANAGED,
    ONE,
    PATH,
    ManagedNamespace,
    NamespaceError,
    PolicyUnknown,
    reader,
)
from webhook.policy.labels import Mode, NamespacePolicy

LONGEST_SECONDS: Final = 1.0
"""Maximum time that a review waits for a fetch: a small part of a sensible timeoutSeconds."""

_EXPECTED_SECONDS: Final = 5.0
"""Time for which a policy is cached that has a mode for which the API server sends reviews."""

_PROBLEM_SECONDS: Final = 1.0
"""Time for which an error is cached."""

_OTHER_SECONDS: Final = 0.1
"""Time for which another answer is cached: no policy, or one with another mode.

The API server sends a review only for an expected mode, so the labels have probably changed since the answer.
The time covers the thousand pods of a Job, and clients that invent reviews.
"""

_MOST_REMEMBERED: Final = 1024
_MOST_AT_ONCE: Final = 12  # requests; the client has 16 connections, one of which serves the watch
_MOST_AT_ONCE_OF_A_PEER: Final = 8
_MOST_IN_WINDOW: Final = 200
"""Requests in a window for all peers of the window, in equal parts. A peer that came first may have had more.
More than 200 would come from a client that invents namespace names."""

_LEAST_IN_WINDOW: Final = 4
_WINDOW_SECONDS: Final = 4.0
_MOST_PEERS: Final = 1024


@dataclass(slots=True)
class _Entry:
    """The cached result for one namespace."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the request in flight; concurrent callers wait for its result."""
    fetched_at: float = float("-inf")
    policy: NamespacePolicy | None = None
    problem: str = ""

    def is_fresh(self, modes: Collection[Mode], now: float) -> bool:
        """Whether the result answers a review that the API server sends for one of the modes."""
        if self.problem:
            lasts = _PROBLEM_SECONDS
        elif self.policy is not None and self.policy.labelled_mode in modes:
            lasts = _EXPECTED_SECONDS
        else:
            lasts = _OTHER_SECONDS
        return now - self.fetched_at < lasts


class NamespaceLookups:
    """Fetches policies by namespace name, caches them briefly, and combines concurrent requests.

    Any client can name namespaces in invented reviews, so each peer has its own results, and its own part of
    the requests.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        default_mode: Mode = Mode.DEFAULT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._clock = clock
        self._read = reader(default_mode)
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        """Results by peer and namespace."""
        self._window_ends_at = float("-inf")
        self._requests: Counter[str] = Counter()
        """Requests of the window by peer."""
        self._at_once = asyncio.Semaphore(_MOST_AT_ONCE)
        self._at_once_of_peer: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def find(self, namespace: str, modes: Collection[Mode], peer: str = "") -> NamespacePolicy | None:
        """Return a namespace's policy; None if the namespace is not managed or does not exist.

        Raises:
            PolicyUnknown: the request failed, took longer than `LONGEST_SECONDS`, or exceeds the peer's part.
        """
        if not is_dns_label(namespace):  # any client can post a review; guards the path
            return None
        entry = self._entry(peer, namespace)
        if not entry.is_fresh(modes, self._clock()):
            try:
                async with asyncio.timeout(LONGEST_SECONDS), entry.lock:
                    if not entry.is_fresh(modes, self._clock()):
                        await self._fetch(namespace, entry, peer)
            except TimeoutError:
                self._remember(entry, None, f"GET {PATH}/{namespace}: no answer in time")
        if entry.problem:
            raise PolicyUnknown(entry.problem)
        return entry.policy

    def _entry(self, peer: str, namespace: str) -> _Entry:
        key = peer, namespace
        entry = self._entries.get(key)
        if entry is None:
            self._check(peer, namespace)  # a refused name displaces no entry
            entry = self._entries[key] = _Entry()
            if len(self._entries) > _MOST_REMEMBERED:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        return entry

    def _check(self, peer: str, namespace: str) -> None:
        """Raise PolicyUnknown if the peer has had its part of the window."""
        now = self._clock()
        if now >= self._window_ends_at:
            self._window_ends_at = now + _WINDOW_SECONDS
            self._requests.clear()
        peers = len(self._requests) + (peer not in self._requests)
        if peers > _MOST_PEERS or self._requests[peer] >= max(_LEAST_IN_WINDOW, _MOST_IN_WINDOW // peers):
            raise PolicyUnknown(f"GET {PATH}/{namespace}: too many namespaces are requested")

    async def _fetch(self, namespace: str, entry: _Entry, peer: str) -> None:
        self._check(peer, namespace)
        self._requests[peer] += 1
        try:
            own = self._at_once_of_peer.setdefault(peer, asyncio.Semaphore(_MOST_AT_ONCE_OF_A_PEER))
            async with own, self._at_once:
                managed = self._read(await self._client.get(f"{PATH}/{namespace}", accept=ONE))
        except ApiError as error:
            self._remember(entry, None, "" if error.status == 404 else str(error))
        except (Unreachable, AccessError, NamespaceError) as error:
            self._remember(entry, None, str(error))
        else:
            self._remember(entry, managed.policy if managed else None)

    def _remember(self, entry: _Entry, policy: NamespacePolicy | None, problem: str = "") -> None:
        entry.policy, entry.problem = policy, problem
        entry.fetched_at = self._clock()


STALE_SECONDS: Final = 75.0
"""Time without contact after which policies count as stale.

A watch is reopened every 40 s. A silent one is detected after 48 s, and its successor may take 10 s to be
answered.
"""

PACE: Final = WatchTiming(longest_pause=3.0)
"""Timing of the watch.

The pause is short, because each second of delay after an outage costs pods: see `ready`.
"""

_GATHER_SECONDS: Final = 0.1

Managed = Mapping[str, ManagedNamespace]
"""Managed namespaces by name."""


class ClusterPolicies:
    """The policies of all managed namespaces of a cluster, kept up to date by a watch."""

    def __init__(
        self,
        *,
        client: KubeClient,
        log: JsonLog,
        default_mode: Mode = Mode.DEFAULT,
        on_change: Callable[[Managed], Awaitable[None]] | None = None,
        on_error: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        timing: WatchTiming = PACE,
    ) -> None:
        """Set up the watch; call `run` to start it. `find` works before that, too.

        `on_change` is called with all managed namespaces after the first list, and when a policy changes;
        `on_error` for each unexpected error.
        """
        self._log = log
        self._on_change = on_change
        self._on_error = on_error
        self._read = reader(default_mode)
        self._unreadable = FirstLines()
        self._changed = asyncio.Event()
        self._lookups = NamespaceLookups(client, default_mode=default_mode, clock=clock)
        self.watch: Watch[ManagedNamespace] = Watch(
            client,
            Resource(name="namespaces", path=PATH, params=MANAGED, accept=LIST),
            read=self._decode,
            on_change=lambda _namespaces: self._changed.set(),
            on_trouble=problem_logger(log, "API server unavailable", "API server available again"),
            on_unreadable=self._log_unreadable,
            clock=clock,
            timing=timing,
        )
        """The watch on namespaces, for its metrics."""

    async def find(
        self, namespace: str, *, modes: Collection[Mode] = ANY_MODE, peer: str = ""
    ) -> NamespacePolicy | None:
        """Return the namespace's policy, or None if it is not managed.

        The API server sends a review only if the namespace has the queue label and one of the modes. If the
        watch disagrees, it is behind or has not listed yet, and the namespace is requested by name. A policy
        that is known although its label was removed is harmless, because no reviews arrive then.

        Raises:
            PolicyUnknown: the watch does not have the policy, and the API server does not answer.
        """
        known = self.watch.objects.get(("", namespace))
        if known is not None and known.policy.labelled_mode in modes:
            return known.policy
        return await self._lookups.find(namespace, modes, peer)

    def all(self) -> Mapping[str, NamespacePolicy] | None:
        """Return the policies by namespace; None before the first list."""
        if not self.watch.is_synced:
            return None
        return {name: namespace.policy for name, namespace in self._managed().items()}

    @property
    def ready(self) -> bool:
        """Whether the policies have been listed and the last contact is less than `STALE_SECONDS` ago.

        The check takes a single replica out of service that has lost its connection; the others have newer
        policies. If the API server itself is down, every replica becomes unready, without harm: no reviews
        arrive, and no endpoints change. After such an outage replicas must be ready again before controllers
        create the overdue pods, which is why `PACE` is short. A restart of the API server must not make them
        unready, which is why `STALE_SECONDS` has slack. Reviews are always answered, with the last known
        policies.
        """
        return self.watch.is_synced and self.watch.seconds_since_contact() < STALE_SECONDS

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(restart_on_error(self.watch.run, on_error=self._log_error))
            group.create_task(restart_on_error(self._report_changes, on_error=self._log_error))

    async def _report_changes(self) -> None:
        """Report changes of policies; other changes of namespaces are not reported."""
        reported: Managed | None = None
        while True:
            await self._changed.wait()
            await asyncio.sleep(_GATHER_SECONDS)
            self._changed.clear()
            managed = self._managed()
            if managed == reported:
                continue
            message = "policies listed" if reported is None else "policies changed"
            self._log(message, namespaces=len(managed))
            if self._on_change is not None:
                await self._on_change(managed)
            reported = managed

    def _managed(self) -> Managed:
        return {name: namespace for (_, name), namespace in self.watch.objects.copy().items()}

    def _decode(self, data: bytes) -> ManagedNamespace | None:
        namespace = self._read(data)
        if namespace is None:
            return None
        known = self.watch.objects.get(("", namespace.policy.namespace))
        return known if known == namespace else namespace

    def _log_unreadable(self, line: str) -> None:
        if self._unreadable.add(line):
            self._log("skipping invalid namespace", WARNING, error=line)

    def _log_error(self, error: Exception) -> None:
        self._on_error()
        self._log.failure("internal error", error, stage="policies")
        self._changed.set()
