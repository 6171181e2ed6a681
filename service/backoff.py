"""Rate limiting and back-off."""

import math
import random
import time
from collections.abc import Callable
from typing import Final

Jitter = tuple[float, float]
"""Smallest and largest random factor of a wait. It keeps clients that failed together apart."""

NO_JITTER: Final = (1.0, 1.0)
JITTER_DOWN: Final = (0.5, 1.0)  # for a wait whose length is a maximum
JITTER_AROUND: Final = (0.8, 1.2)  # for a wait whose length is a mean
JITTER_UP: Final = (1.0, 1.2)  # for a wait whose length is a minimum


def jittered(seconds: float, jitter: Jitter) -> float:
    """Return the wait times a random factor."""
    return seconds * random.uniform(*jitter)  # noqa: S311 - spreads load, no secret


class TokenBucket:
    """A token bucket: starts full with `burst` tokens, and gains `per_second` tokens per second."""

    def __init__(
        self,
        *,
        per_second: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
        tokens: float | None = None,
    ) -> None:
        """Create a full bucket, or one with a number of tokens."""
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst) if tokens is None else min(tokens, float(burst))
        self._counted_at = clock()

    def take(self) -> bool:
        """Take a token; return False if there is none."""
        self._count()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def seconds_until_next(self) -> float:
        """Return the seconds until a token is available; 0 if one is available now."""
        self._count()
        return max(0.0, (1 - self._tokens) / self._per_second)

    def _count(self) -> None:
        now = self._clock()
        grown = max(0.0, now - self._counted_at) * self._per_second
        self._tokens, self._counted_at = min(float(self._burst), self._tokens + grown), now


class Backoff:
    """Exponential back-off: waits `first` seconds after the first failure, then doubles up to `most`."""

    __slots__ = ("_due_at", "_first", "_jitter", "_most", "_wait")

    def __init__(self, *, first: float = 1.0, most: float = 60.0, jitter: Jitter = NO_JITTER) -> None:
        """Create a back-off without a failure; `most` is without the jitter."""
        self._first = first
        self._most = most
        self._jitter = jitter
        self._wait = first
        self._due_at = -math.inf

    @property
    def due_at(self) -> float:
        """End of the current wait; minus infinity if there is none."""
        return self._due_at

    def is_due(self, now: float) -> bool:
        """Whether no failure is recorded or the wait is over."""
        return now >= self._due_at

    def step(self, at_least: float = 0.0) -> float:
        """Return the seconds of the next wait, at least a Retry-After, and double the one after it."""
        seconds = max(jittered(self._wait, self._jitter), at_least)
        self._wait = min(self._wait * 2, self._most)
        return seconds

    def back_off(self, now: float, at_least: float = 0.0) -> None:
        """Start the next wait, as after a failure; arguments as for `step`."""
        self._due_at = now + self.step(at_least)

    def end_wait(self) -> None:
        """End the current wait; the length of the next wait does not change."""
        self._due_at = -math.inf

    def reset(self) -> None:
        """Forget all failures, as after a success."""
        self._due_at = -math.inf
        self._wait = self._first


class KeyedBackoff:
    """Exponential back-off by key, with jitter. A key is forgotten `most` seconds after its wait ended."""

    def __init__(self, *, first: float, most: float) -> None:
        self._first = first
        self._most = most
        self._backoffs: dict[str, Backoff] = {}

    def __len__(self) -> int:
        """Return the number of remembered keys."""
        return len(self._backoffs)

    def is_backing_off(self, key: str, now: float) -> bool:
        """Whether the key's wait is not over."""
        return key in self._backoffs and not self._backoffs[key].is_due(now)

    def fail(self, key: str, now: float, at_least: float = 0.0) -> None:
        """Record a failure: start the key's first wait, or one twice as long as the last."""
        self._backoffs = {
            other: backoff for other, backoff in self._backoffs.items() if now < backoff.due_at + self._most
        }
        if key not in self._backoffs:
            self._backoffs[key] = Backoff(first=self._first, most=self._most, jitter=JITTER_UP)
        self._backoffs[key].back_off(now, at_least)
