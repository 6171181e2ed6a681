"""What the administrator of a node says of evictions."""

import re
from dataclasses import dataclass
from enum import StrEnum

from service.text import quoted
from service.units import parse_duration

_FORM = re.compile(r"([1-9][0-9]{0,2})/(.+)")


class EvictionMode(StrEnum):
    """`--eviction`."""

    OFF = "off"
    DRY_RUN = "dry-run"
    """Decide and count, and ask the API server for nothing."""
    ON = "on"


@dataclass(frozen=True, slots=True)
class Budget:
    """So many evictions in so many seconds, from this node."""

    evictions: int
    seconds: float

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Read `1/10m`.

        Raises:
            ValueError: it has another form; the message says which is allowed.
        """
        found = _FORM.fullmatch(text)
        try:
            seconds = parse_duration(found[2]) if found else 0.0
        except ValueError:
            seconds = 0.0
        if found is None or seconds <= 0:
            raise ValueError(f"{quoted(text)} is not a budget; allowed: a number and a time, such as 1/10m")
        return cls(int(found[1]), seconds)

    @property
    def per_second(self) -> float:
        """In the long run."""
        return self.evictions / self.seconds
