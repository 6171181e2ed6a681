"""Durations and amounts of memory, as options write them and as reports show them."""

import re
from typing import Final

from service.text import quoted

_FORM = re.compile(r"([0-9]{1,9})(ms|s|m|h)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Read a duration; return seconds.

    Raises:
        ValueError: it has another form; the message says which are allowed.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{quoted(text)} is not a duration; allowed: an integer and ms, s, m or h, such as 5s"
        )
    return int(found[1]) * _SECONDS[found[2]]


_A_MOMENT = 0.01
"""Seconds; two sums of the same times differ by less."""

_STEPS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def size(amount: int | None) -> str:
    """Bytes in the largest binary unit that leaves at least 1; `unknown` for None."""
    if amount is None:
        return "unknown"
    for unit, worth in _STEPS:
        if abs(amount) >= worth:
            return f"{amount / worth:.1f} {unit}"
    return f"{amount} B"


def duration(seconds: float) -> str:
    """Seconds, minutes, hours or days, whichever is the largest that fits."""
    for unit, worth in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * worth:
            return f"{seconds / worth:.0f} {unit}"
    return f"{seconds:.0f} s"


def time_over(lasted: float, balance: float) -> str:
    """Say for how long a pod is over: without a break, or all that counts towards the grace if that is more.

    Args:
        lasted: seconds without a break, up to now.
        balance: seconds that count towards the grace.
    """
    return f"{duration(balance)} in all" if balance > lasted + _A_MOMENT else duration(lasted)
