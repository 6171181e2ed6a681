"""Asking the API server for one namespace: for a review that is ahead of the watch."""

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from service.backoff import TokenBucket
from webhook.namespaces.decode import ONE, PATH, NamespaceError, reader
from webhook.namespaces.source import PolicyUnknown
from webhook.policy.labels import NamespacePolicy

LONGEST_SECONDS: Final = 1.0
"""How long a review waits for it: a small part of a sensible timeoutSeconds. One that has less time than that
is ended by its own deadline."""

_FOUND_SECONDS: Final = 5.0
"""How long a policy counts that the watch does not have yet; the watch takes milliseconds where it runs."""

_OTHER_SECONDS: Final = 1.0
"""How long it counts that a namespace is not managed, or could not be asked for. Long enough for a Job's
thousand pods; short, because a label that is set meanwhile would be missed."""

_MOST_REMEMBERED: Final = 1024
_MOST_AT_ONCE: Final = 8  # requests; the client has 16 connections, one of which is the watch's
_PER_SECOND: Final = 50.0
_BURST: Final = 200
"""More requests than that are somebody's who invents namespaces: the port knows no callers."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(slots=True)
class _Entry:
    """What was heard of one namespace."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Who holds it asks; whoever else wants to know waits for the answer."""
    until: float = float("-inf")
    policy: NamespacePolicy | None = None
    problem: str = ""


class NamespaceLookups:
    """Policies fetched by name, one request a namespace whoever waits for it, and remembered for a moment."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._read = reader()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._bucket = TokenBucket(per_second=_PER_SECOND, burst=_BURST, clock=clock)
        self._at_once = asyncio.Semaphore(_MOST_AT_ONCE)

    async def find(self, namespace: str) -> NamespacePolicy | None:
        """Ask for a namespace; None if it is not managed, or there is none of that name.

        Raises:
            PolicyUnknown: there was no answer within `LONGEST_SECONDS`, or one that says nothing.
        """
        if not _NAME.fullmatch(namespace):  # anybody can post a review; this becomes part of a path
            return None
        entry = self._entry(namespace)
        if entry.until <= self._clock():
            try:
                async with asyncio.timeout(LONGEST_SECONDS), entry.turn:
                    if entry.until <= self._clock():
                        await self._ask(namespace, entry)
            except TimeoutError:
                self._remember(entry, None, f"GET {PATH}/{namespace}: no answer in time")
        if entry.problem:
            raise PolicyUnknown(entry.problem)
        return entry.policy

    def _entry(self, namespace: str) -> _Entry:
        entry = self._entries.get(namespace)
        if entry is None:
            entry = self._entries[namespace] = _Entry()
            if len(self._entries) > _MOST_REMEMBERED:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(namespace)
        return entry

    async def _ask(self, namespace: str, entry: _Entry) -> None:
        if not self._bucket.take():
            self._remember(entry, None, f"GET {PATH}/{namespace}: too many namespaces are asked for")
            return
        try:
            async with self._at_once:
                found = self._read(await self._client.get(f"{PATH}/{namespace}", accept=ONE))
        except ApiError as error:
            self._remember(entry, None, "" if error.status == 404 else str(error))
        except (Unreachable, AccessError, NamespaceError) as error:
            self._remember(entry, None, str(error))
        else:
            self._remember(entry, found.policy if found else None)

    def _remember(self, entry: _Entry, policy: NamespacePolicy | None, problem: str = "") -> None:
        entry.policy, entry.problem = policy, problem
        entry.until = self._clock() + (_FOUND_SECONDS if policy else _OTHER_SECONDS)
