"""When to try again what failed."""


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
