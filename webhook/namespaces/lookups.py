"""Fetches single namespaces by name, for reviews that arrive before the watch has the namespace."""

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from service.names import is_dns_label
from webhook.namespaces.decode import ONE, PATH, NamespaceError, reader
from webhook.namespaces.source import PolicyUnknown
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
        elif self.policy is not None and self.policy.selected_mode in modes:
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

        Args:
            namespace: its name.
            modes: those for which the API server sends the review.
            peer: the sender of the review.

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
            entry = self._entries[key] = _Entry()
            if len(self._entries) > _MOST_REMEMBERED:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        return entry

    def _take(self, peer: str) -> bool:
        """Count a request; return False if the peer has had its part."""
        now = self._clock()
        if now >= self._window_ends_at:
            self._window_ends_at = now + _WINDOW_SECONDS
            self._requests.clear()
        peers = len(self._requests) + (peer not in self._requests)
        if peers > _MOST_PEERS or self._requests[peer] >= max(_LEAST_IN_WINDOW, _MOST_IN_WINDOW // peers):
            return False
        self._requests[peer] += 1
        return True

    async def _fetch(self, namespace: str, entry: _Entry, peer: str) -> None:
        if not self._take(peer):
            del self._entries[peer, namespace]
            raise PolicyUnknown(f"GET {PATH}/{namespace}: too many namespaces are requested")
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
