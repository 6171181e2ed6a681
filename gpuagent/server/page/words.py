"""Formats times and element IDs for the page. Pure.

Texts from outside are in characters of `gpuagent.table.words.plain`; the templates escape them for HTML.
"""

from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final

_CLOCK_ONLY_SECONDS: Final = 20 * 3600.0


def clock_time(at: float, now: float) -> str:
    """Format a Unix time in UTC: the time of day, or the date and time if that is long ago."""
    moment = datetime.fromtimestamp(at, UTC)
    is_recent = abs(now - at) < _CLOCK_ONLY_SECONDS
    return f"{moment:%H:%M:%S}" if is_recent else f"{moment:%b} {moment.day} {moment:%H:%M}"


def anchor(kind: str, *parts: str) -> str:
    """Return an element ID that stays the same in each rendering, and holds no text from outside."""
    digest = blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=6).hexdigest()
    return f"{kind}-{digest}"
