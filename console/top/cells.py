"""Text that fits a terminal cell: safe characters of one column each. Pure."""

from typing import Final

from service.text import one_line, shorten_middle

UNKNOWN: Final = "?"
"""Cell of a value that is unknown, which is never zero."""

NONE: Final = "-"
"""Cell of a value that does not exist."""

_LATIN_END: Final = 0x250
_PUNCTUATION: Final = frozenset("–—‘’“”…•→×≥≤")
_UNITS: Final = (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10))
_BLOCKS: Final = " ▏▎▍▌▋▊▉█"


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


def fit(text: str, width: int, *, is_right: bool = False) -> str:
    """Return a text in exactly the given number of columns; the text comes from `plain`."""
    if len(text) > width:
        text = shorten_middle(text, width)
    return text.rjust(width) if is_right else text.ljust(width)


def amount(size_bytes: int | None) -> str:
    """Format bytes in the notation of Kubernetes, with one decimal, in at most eight columns."""
    if size_bytes is None:
        return UNKNOWN
    for unit, worth in _UNITS:
        if abs(size_bytes) >= worth:
            return f"{min(size_bytes / worth, 99999.9):.1f}{unit}"
    return str(size_bytes)


def percent(ratio: float | None) -> str:
    """Format a ratio in per cent, in at most five columns."""
    return UNKNOWN if ratio is None else f"{ratio * 100:.0f}%" if ratio < 99.995 else ">9999"


def bar(ratio: float | None, width: int) -> str:
    """Draw a ratio from 0 to 1 in blocks; a larger ratio ends with a mark."""
    if ratio is None:
        return " " * width
    if ratio > 1:
        return "█" * (width - 1) + "▶"
    eighths = round(max(ratio, 0.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_BLOCKS[rest] if rest else "")).ljust(width)
