"""Formats names, amounts and times for the page. Pure.

Every text from outside goes through `safe`, which limits its length. The templates escape it for HTML.
"""

from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final

from service.text import printable
from service.units import size

ABSENT: Final = "–"
"""Stands for a figure that does not exist, or that is unknown."""

LONGEST_NAME: Final = 253
LONGEST_TEXT: Final = 1000
_CLOCK_ONLY_SECONDS: Final = 20 * 3600.0
_MAX_PERCENT: Final = 999


def safe(text: object, longest: int = LONGEST_NAME) -> str:
    """Return text from outside in printable characters, shortened to a number of them."""
    return printable(str(text), longest)


def amount(number: int | None) -> str:
    """Format bytes; a dash for None."""
    return ABSENT if number is None else size(number)


def percent(ratio: float | None) -> str:
    """Format a ratio as a percentage; a dash for None."""
    if ratio is None:
        return ABSENT
    return f"{ratio:.0%}".replace("%", " %") if ratio * 100 <= _MAX_PERCENT else f"> {_MAX_PERCENT} %"


def clock_time(at: float, now: float) -> str:
    """Format a Unix time in UTC: the time of day, or the date and time if that is long ago."""
    moment = datetime.fromtimestamp(at, UTC)
    is_recent = abs(now - at) < _CLOCK_ONLY_SECONDS
    return f"{moment:%H:%M:%S}" if is_recent else f"{moment:%b} {moment.day} {moment:%H:%M}"


def anchor(kind: str, *parts: str) -> str:
    """Return an element ID that stays the same in each rendering, and holds no text from outside."""
    digest = blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=6).hexdigest()
    return f"{kind}-{digest}"
