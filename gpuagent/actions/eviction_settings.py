"""Settings of the node's administrator for evictions: mode and budget."""

import re
from dataclasses import dataclass
from enum import StrEnum

from service.text import quoted
from service.units import parse_duration

_FORM = re.compile(r"([1-9][0-9]{0,2})/(.+)")


class EvictionMode(StrEnum):
    """Value of `--eviction`."""

    OFF = "off"
    DRY_RUN = "dry-run"
    """Count and log decisions, without a request to the API server."""
    ON = "on"


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
