"""Rate limiting and back-off."""

import random
import time
from collections.abc import Callable
from typing import Final

_SPREAD: Final = 0.2
"""Largest random part added to a wait of `KeyedBackoff`, as a fraction of the wait."""


class TokenBucket:
    """A token bucket: starts full with `burst` tokens, and gains `per_second` tokens per second."""

    def __init__(self, *, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
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
        self._tokens = min(float(self._burst), self._tokens + grown)
        self._counted_at = now


class Backoff:
    """Exponential back-off: waits `first` seconds after the first failure, then doubles up to `most`."""

    def __init__(self, *, first: float = 1.0, most: float = 60.0) -> None:
        self._first = first
        self._most = most
        self._wait = first
        self._due_at: float | None = None

    def is_due(self, now: float) -> bool:
        """Whether no failure is recorded or the wait is over."""
        return self._due_at is None or now >= self._due_at

    def failed(self, now: float) -> None:
        """Record a failure: start a wait, and double the next one."""
        self._due_at = now + self._wait
        self._wait = min(self._wait * 2, self._most)

    def end_wait(self) -> None:
        """End the current wait; the length of the next wait does not change."""
        self._due_at = None

    def succeeded(self) -> None:
        """Record a success: forget all failures."""
        self._due_at = None
        self._wait = self._first


class KeyedBackoff:
    """Exponential back-off by key, with jitter. A key is forgotten `most` seconds after its wait ended."""

    def __init__(self, *, first: float, most: float) -> None:
        """Create an empty back-off.

        Args:
            first: seconds of the first wait.
            most: seconds of the longest wait.
        """
        self._first = first
        self._most = most
        self._holds: dict[str, tuple[float, float]] = {}
        """By key: the end of the wait, and its length without jitter, in seconds."""

    def __len__(self) -> int:
        """Return the number of remembered keys."""
        return len(self._holds)

    def is_backing_off(self, key: str, now: float) -> bool:
        """Whether the key's wait is not over."""
        return key in self._holds and now < self._holds[key][0]

    def fail(self, key: str, now: float, at_least: float = 0.0) -> None:
        """Record a failure: start the key's first wait, or one twice as long as the last.

        Args:
            key: the object that failed.
            now: monotonic seconds.
            at_least: shortest wait in seconds, such as a Retry-After.
        """
        self._holds = {
            other: wait for other, wait in self._holds.items() if now < wait[0] + self._most or other == key
        }
        before = self._holds.get(key)
        is_new = before is None or now >= before[0] + self._most
        seconds = self._first if is_new or before is None else min(2 * before[1], self._most)
        spread = random.uniform(1.0, 1.0 + _SPREAD)  # noqa: S311 - jitter between nodes, no secret
        self._holds[key] = (now + max(seconds * spread, at_least), seconds)
