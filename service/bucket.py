"""A token bucket: so many at once, and so many in the long run."""

import time
from collections.abc import Callable


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
