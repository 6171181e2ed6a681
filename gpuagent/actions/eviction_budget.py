"""The node's budget of evictions, and the back-off of owners whose pods were evicted."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kube.access import AccessError
from kube.errors import ApiError, Unreachable
from service.backoff import JITTER_DOWN, Backoff, KeyedBackoff, TokenBucket
from service.log import INFO, WARNING, JsonLog
from service.text import quoted
from service.units import parse_duration

KEPT_SECONDS: Final = 3600.0
"""Time for which API servers keep the records, which are Events, by default (`--event-ttl`)."""
_FINAL_STATUSES: Final = frozenset({400, 403, 404, 405, 422})
"""HTTP statuses after which another attempt to read the records is useless."""
_FORM = re.compile(r"([1-9][0-9]{0,2})/(.+)")


@dataclass(frozen=True, slots=True)
class Budget:
    """Maximum number of evictions of this node in a period."""

    evictions: int
    seconds: float

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Parse a budget such as `1/10m`.

        Raises:
            ValueError: the text has another form; the message shows the allowed form.
        """
        match = _FORM.fullmatch(text)
        try:
            seconds = parse_duration(match[2]) if match else 0.0
        except ValueError:
            seconds = 0.0
        if match is None or seconds <= 0:
            raise ValueError(f"{quoted(text)} is not a budget; allowed: a number and a time, such as 1/10m")
        return cls(int(match[1]), seconds)

    @property
    def per_second(self) -> float:
        """Average number of evictions per second."""
        return self.evictions / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEviction:
    """A recorded eviction of this node."""

    seconds_ago: float
    owner: str
    """Digest of the pod's owner, from `eviction_rules.owner_key`; empty if the record has none."""


class EvictionBudget:
    """Counts the evictions of this node, and delays further ones of the same owner."""

    def __init__(
        self, budget: Budget, *, owner_backoff: tuple[float, float], clock: Callable[[], float]
    ) -> None:
        """Set up an unused budget.

        Args:
            budget: maximum number of evictions of this node.
            owner_backoff: first and longest back-off of an owner, in seconds.
            clock: monotonic seconds.
        """
        self._budget = budget
        self._clock = clock
        first, most = owner_backoff
        self._owners = KeyedBackoff(first=first, most=most)
        self._bucket = self._bucket_with(float(budget.evictions))

    def objection(self, owner: str) -> tuple[str, str] | None:
        """Return result and explanation if a pod of the owner must not be evicted now."""
        if self._owners.is_backing_off(owner, self._clock()):
            return "owner-backoff", "the eviction of a pod of the same owner was requested recently"
        if self._bucket.seconds_until_next() > 0:
            return "budget", "the node's eviction budget is exhausted"
        return None

    def charge(self, owner: str) -> None:
        """Count an eviction, and start the back-off of the owner of its pod."""
        self._bucket.take()
        self._owners.fail(owner, self._clock())

    async def recall(
        self, read: Callable[[], Awaitable[Iterable[PastEviction]]], *, seconds: float, log: JsonLog
    ) -> None:
        """Restore budget and back-off from the recorded evictions; without them, allow one eviction.

        Args:
            read: reads the recorded evictions of this node.
            seconds: time of attempts to read them.
            log: receives the result.
        """
        give_up_at = self._clock() + seconds
        backoff = Backoff(first=1.0, most=10.0, jitter=JITTER_DOWN)
        while True:
            try:
                past = list(await read())
                break
            except (ApiError, Unreachable, AccessError) as error:
                is_final = isinstance(error, ApiError) and error.status in _FINAL_STATUSES
                wait = backoff.step((isinstance(error, ApiError) and error.retry_after) or 0.0)
                if is_final or self._clock() + wait > give_up_at:
                    self._bucket = self._bucket_with(1.0)
                    log(
                        "past evictions unavailable",
                        WARNING,
                        error=str(error),
                        problem="the eviction budget starts with one eviction, and owners without a back-off",
                    )
                    return
                await asyncio.sleep(wait)
        now = self._clock()
        for eviction in past:
            if eviction.owner:
                self._owners.fail(eviction.owner, now - eviction.seconds_ago)
        self._bucket = self._bucket_with(remaining_evictions(self._budget, past))
        is_too_long = self._budget.seconds > KEPT_SECONDS
        if past or is_too_long:
            log(
                "past evictions read",
                INFO,
                evictions=len(past),
                secondsUntilNext=round(self._bucket.seconds_until_next()),
                **({"problem": "Events do not cover the budget's period"} if is_too_long else {}),
            )

    def _bucket_with(self, evictions: float) -> TokenBucket:
        return TokenBucket(
            per_second=self._budget.per_second,
            burst=self._budget.evictions,
            clock=self._clock,
            tokens=evictions,
        )


def remaining_evictions(budget: Budget, past: Iterable[PastEviction]) -> float:
    """Return the number of evictions that the budget allows after a restart; less than 1 means none yet.

    Evictions before `KEPT_SECONDS` are unknown, so the budget counts as exhausted at that time. A budget of a
    longer period is therefore not complete after a restart.
    """
    remaining, before = 0.0, KEPT_SECONDS
    for age in sorted((eviction.seconds_ago for eviction in past), reverse=True):
        if age < KEPT_SECONDS:
            remaining = max(_grown(remaining, before - age, budget) - 1, 0.0)
            before = age
    return _grown(remaining, before, budget)


def _grown(remaining: float, seconds: float, budget: Budget) -> float:
    return min(remaining + seconds * budget.per_second, float(budget.evictions))
