"""Text from outside, made safe to show and bounded in length; and how wide text is in a terminal. Pure.

Text from a pod, a file, a peer or an API server can be megabytes long and can hold what a terminal, a log
viewer or a browser obeys: control characters, line breaks, format characters that reverse or hide other text
(U+202E, U+200B), and lone surrogates, which UTF-8 cannot encode. Every function here cuts first and cleans
what is left, so that its cost depends on the limit and not on the text.
"""

import unicodedata
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for a text that is not JSON, has another shape, is not UTF-8, or is nested too deep."""

ELLIPSIS: Final = "…"
"""Ends a text that was cut."""

LONGEST_LINE: Final = 300
"""Characters of a line, unless the caller says otherwise."""

LONGEST_VALUE: Final = 48
"""Characters of a value that stands in a sentence."""

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"

_BLANKS: Final = 4
"""How many characters are read for one that is kept, where runs of blanks collapse."""


def one_line(text: str, limit: int = LONGEST_LINE) -> str:
    """Return the text on one line: runs of whitespace become one blank, what is not printable U+FFFD.

    Args:
        text: from outside.
        limit: characters of the result, the ellipsis included.
    """
    head = text[: limit * _BLANKS]
    line = _printable(" ".join(head.split()))
    return line + ELLIPSIS if len(head) < len(text) and len(line) < limit else shorten(line, limit)


def printable(text: str, limit: int = LONGEST_LINE) -> str:
    """Return the text with a blank for each whitespace character and U+FFFD for each unprintable one.

    The result has one character for each of the text, so that a quoted value keeps its shape.

    Args:
        text: from outside.
        limit: characters of the result, the ellipsis included.
    """
    return _printable(shorten(text, limit))


def quoted(value: object, limit: int = LONGEST_VALUE) -> str:
    """Return a value in quotation marks, printable and cut."""
    return f'"{printable(value if isinstance(value, str) else str(value), limit)}"'


def shorten(text: str, limit: int = LONGEST_VALUE) -> str:
    """Cut a text that has more characters than the limit; an ellipsis shows it."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


def shorten_utf8(text: str, limit: int) -> str:
    """Cut a text that has more bytes of UTF-8 than the limit, at a character; an ellipsis shows it.

    Args:
        text: without lone surrogates.
        limit: bytes of the result, the ellipsis included; at least 3.
    """
    head = text[: limit + 1].encode()  # a character has at least one byte
    if len(head) <= limit:
        return text
    return head[: limit - len(ELLIPSIS.encode())].decode(errors="ignore") + ELLIPSIS


def width(text: str) -> int:
    """How many columns a text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def _printable(text: str) -> str:
    """Replace every character that `str.isprintable` refuses: categories C and Z, but for the blank."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else _REPLACEMENT for char in text)


MOST: Final = 5
"""Names that one line shows."""

MOST_LINES: Final = 10
"""Findings of one kind."""


def listed(names: Collection[str]) -> str:
    """The first few, in order, and how many more."""
    shown = ", ".join(map(one_line, sorted(names)[:MOST]))
    return f"{shown} and {len(names) - MOST} more" if len(names) > MOST else shown


def counted(count: int, one: str, many: str = "") -> str:
    """`1 namespace`, `2 namespaces`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def joined(parts: Iterable[str]) -> str:
    """Parts of a sentence."""
    return "; ".join(parts)
