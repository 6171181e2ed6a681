"""Parses durations of options, and formats durations and bytes for reports."""

import re
from typing import Final

from service.text import quoted

_FORM = re.compile(r"([0-9]{1,9})(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Read a duration such as `5s`; return seconds. The message of its ValueError names the allowed forms."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{quoted(text)} is not a duration; allowed: an integer and ms, s, m or h, such as 5s"
        )
    return int(match[1]) * _SECONDS[match[2]]


_A_MOMENT = 0.01
"""Seconds; the rounding error between two sums of the same times is smaller."""

_STEPS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def size(amount: int | None) -> str:
    """Format bytes in the largest binary unit with a value of at least 1; `unknown` for None."""
    if amount is None:
        return "unknown"
    for unit, worth in _STEPS:
        if abs(amount) >= worth:
            return f"{amount / worth:.1f} {unit}"
    return f"{amount} B"


def duration(seconds: float) -> str:
    """Format seconds in the largest unit (s, min, h, d) with a value of at least 2."""
    for unit, worth in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * worth:
            return f"{seconds / worth:.0f} {unit}"
    return f"{seconds:.0f} s"


def time_over(lasted: float, balance: float) -> str:
    """Format how long a pod has been over its share: in one piece, or in all as for the grace if longer."""
    return f"{duration(balance)} in all" if balance > lasted + _A_MOMENT else duration(lasted)
