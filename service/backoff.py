"""Rate limits and back-off."""

import random
import time
from collections.abc import Callable
from typing import Final


class TokenBucket:
    """Holds `burst` tokens at first and at most, and gets `per_second` new ones."""

    def __init__(self, *, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._counted_at = clock()

    def take(self) -> bool:
        """Take a token; False if there is none."""
        self._count()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def seconds_until_next(self) -> float:
        """How long until there is a token; 0 if there is one."""
        self._count()
        return max(0.0, (1 - self._tokens) / self._per_second)

    def _count(self) -> None:
        now = self._clock()
        grown = max(0.0, now - self._counted_at) * self._per_second
        self._tokens = min(float(self._burst), self._tokens + grown)
        self._counted_at = now


class Backoff:
    """Waits that double: `first` seconds after the first failure, at most `most`."""

    def __init__(self, *, first: float = 1.0, most: float = 60.0) -> None:
        self._first = first
        self._most = most
        self._wait = first
        self._due_at: float | None = None

    def is_due(self, now: float) -> bool:
        """Whether nothing failed yet, or the wait is over."""
        return self._due_at is None or now >= self._due_at

    def failed(self, now: float) -> None:
        """Wait, and the next time twice as long."""
        self._due_at = now + self._wait
        self._wait = min(self._wait * 2, self._most)

    def hurry(self) -> None:
        """Be due now; the next wait is as long as it would have been."""
        self._due_at = None

    def succeeded(self) -> None:
        """Forget every failure."""
        self._due_at = None
        self._wait = self._first


_SPREAD: Final = 0.2


class KeyedBackoff:
    """Times by key. What was left alone for `most` after its time is forgotten."""

    def __init__(self, *, first: float, most: float) -> None:
        """Take seconds."""
        self._first = first
        self._most = most
        self._holds: dict[str, tuple[float, float]] = {}
        """Until when, and how long that was."""

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._holds)

    def is_backing_off(self, key: str, now: float) -> bool:
        """Whether its time is not over."""
        return key in self._holds and now < self._holds[key][0]

    def fail(self, key: str, now: float, at_least: float = 0.0) -> None:
        """Leave it alone for a while: for the first time, or twice as long as the last time."""
        self._holds = {
            one: held for one, held in self._holds.items() if now < held[0] + self._most or one == key
        }
        before = self._holds.get(key)
        is_new = before is None or now >= before[0] + self._most
        seconds = self._first if is_new or before is None else min(2 * before[1], self._most)
        spread = random.uniform(1.0, 1.0 + _SPREAD)  # noqa: S311 - only keeps nodes apart
        self._holds[key] = (now + max(seconds * spread, at_least), seconds)
