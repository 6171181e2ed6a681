"""What is left alone for a while, and each time for longer."""

import random
from typing import Final

_SPREAD: Final = 0.2


class Holds:
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

    def is_held(self, key: str, now: float) -> bool:
        """Whether its time is not over."""
        return key in self._holds and now < self._holds[key][0]

    def hold(self, key: str, now: float, at_least: float = 0.0) -> None:
        """Leave it alone for a while: for the first time, or twice as long as the last time."""
        self._holds = {
            one: held for one, held in self._holds.items() if now < held[0] + self._most or one == key
        }
        before = self._holds.get(key)
        is_new = before is None or now >= before[0] + self._most
        seconds = self._first if is_new or before is None else min(2 * before[1], self._most)
        spread = random.uniform(1.0, 1.0 + _SPREAD)  # noqa: S311 - only keeps nodes apart
        self._holds[key] = (now + max(seconds * spread, at_least), seconds)
