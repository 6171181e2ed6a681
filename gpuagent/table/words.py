"""Words of the table, and the text from outside in it. Pure.

Amounts are formatted by `service.units.size`, times by `service.units.duration`.
"""

from typing import Final

from service.names import LONGEST_SUBDOMAIN
from service.text import one_line

UNKNOWN: Final = "unknown"
"""Cell of a value that is unknown, which is never zero; `service.units.size` has the same word."""

NONE: Final = "-"
"""Cell of a value that does not exist."""

LONGEST_NAME: Final = LONGEST_SUBDOMAIN
"""Largest length of a Kubernetes name (DNS-1123 subdomain)."""

_LATIN_END: Final = 0x250
_PUNCTUATION: Final = frozenset("–—‘’“”…•→×≥≤")


def plain(text: str, limit: int = 300) -> str:
    """Return untrusted text on one line, in characters that occupy one column in every terminal.

    Latin letters and common punctuation stay. Terminals and libraries disagree about the width of other
    characters, reorder them or join them, so each becomes U+FFFD. Names in Kubernetes are ASCII.

    Args:
        text: untrusted text.
        limit: largest length of the result in characters.
    """
    if len(text) <= limit and text.isascii() and text.isprintable() and " " not in text:  # most names
        return text
    line = one_line(text, limit)
    if line.isascii():
        return line
    return "".join(
        char if ord(char) < _LATIN_END or char in _PUNCTUATION else "\N{REPLACEMENT CHARACTER}"
        for char in line
    )


def percent(ratio: float | None) -> str:
    """Format a ratio in per cent, in at most seven columns."""
    return UNKNOWN if ratio is None else f"{ratio * 100:.0f}%" if ratio < 99.995 else ">9999%"
