"""Makes untrusted text printable and limits its length; measures text in terminal columns. Pure functions.

Text from a pod, a file, a peer or an API server can be megabytes long. It can contain characters that
terminals, log viewers and browsers interpret: control characters, line breaks, format characters that reverse
or hide text (U+202E, U+200B), and lone surrogates, which UTF-8 cannot encode. Every function cuts the text
first and cleans the rest, so that the cost depends on the limit and not on the text. Limits include the
ellipsis.
"""

import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for text that is not JSON, has a wrong type, is not UTF-8, or is nested too deep."""

ELLIPSIS: Final = "…"  # last character of a shortened text
LONGEST_LINE: Final = 300  # default limit of a line, in characters
LONGEST_VALUE: Final = 48  # default limit of a value within a sentence, in characters
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_BLANKS: Final = 4  # characters read for each character kept, where runs of whitespace collapse


def one_line(text: str, limit: int = LONGEST_LINE) -> str:
    """Return the text on one line: a blank for each run of whitespace, U+FFFD for unprintable characters."""
    head = text[: limit * _BLANKS]
    line = _printable(" ".join(head.split()))
    return line + ELLIPSIS if len(head) < len(text) and len(line) < limit else shorten(line, limit)


def printable(text: str, limit: int = LONGEST_LINE) -> str:
    """Return the text with a blank for each whitespace character and U+FFFD for each unprintable one.

    Each character is replaced by one character, so that a quoted value keeps its length.
    """
    return _printable(shorten(text, limit))


def quoted(value: object, limit: int = LONGEST_VALUE) -> str:
    """Return a value in quotation marks, made printable and shortened to the limit."""
    return f'"{printable(value if isinstance(value, str) else str(value), limit)}"'


def shorten(text: str, limit: int = LONGEST_VALUE) -> str:
    """Shorten a text to the limit in characters; a shortened text ends with an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


def shorten_utf8(text: str, limit: int) -> str:
    """Shorten a text without lone surrogates to a limit of at least 3 bytes of UTF-8, with an ellipsis."""
    head = text[: limit + 1].encode()  # a character has at least one byte
    if len(head) <= limit:
        return text
    return head[: limit - len(ELLIPSIS.encode())].decode(errors="ignore") + ELLIPSIS


def shorten_middle(text: str, columns: int) -> str:
    """Shorten a text in its middle to a number of terminal columns; the ends of generated names differ."""
    if width(text) <= columns:
        return text
    if columns < 1:
        return ""
    tail = (columns - 1) // 2
    return _first_columns(text, columns - 1 - tail) + ELLIPSIS + _first_columns(text[::-1], tail)[::-1]


def _first_columns(text: str, columns: int) -> str:
    """Return the longest beginning that fits into a number of terminal columns."""
    head = text[:columns]
    while width(head) > columns:
        head = head[:-1]
    return head


def fold(text: str, columns: int, *, head: str = "", indent: str = "") -> list[str]:
    """Break a printable text between words into lines of at most a number of terminal columns.

    A word is never broken, so that names, paths and commands can be copied. A word that is too long for the
    room after the indentation has a line of its own with less indentation. Only a word that is longer than a
    line is shortened, in its middle and with an ellipsis. `head` begins the first line, and is shorter than a
    line; `indent` begins each further one.
    """
    if width(head) + width(text) <= columns:
        return [head + text]
    lines: list[str] = []
    line, blanks = head, ""
    for index, word in enumerate(text.split(" ")):
        blanks += " " * bool(index)
        if not word:
            continue
        gap, blanks = blanks, ""
        if width(line) + width(gap) + width(word) <= columns:
            line += gap + word
            continue
        if line.strip(" "):
            lines.append(line.rstrip(" "))
        short = shorten_middle(word, columns)
        line = indent[: max(columns - width(short), 0)] + short
    return [*lines, line.rstrip(" ")]


def width(text: str) -> int:
    """Return the number of terminal columns that a text needs."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def _printable(text: str) -> str:
    """Replace characters that are not `str.isprintable`: Unicode categories C and Z except the blank."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else _REPLACEMENT for char in text)


MOST: Final = 5  # largest number of names in a line
MOST_LINES: Final = 10  # largest number of findings of one kind


def listed(names: Collection[str]) -> str:
    """Return the first names in alphabetical order, and the number of the rest: `a, b and 3 more`."""
    return first_few(sorted(names))


def first_few(names: Sequence[str], most: int = MOST) -> str:
    """Return the first names in their order, and the number of the rest: `b, a and 3 more`."""
    text = ", ".join(map(one_line, names[:most]))
    return f"{text} and {len(names) - most} more" if len(names) > most else text


def counted(count: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun: `1 namespace`, `2 namespaces`; the default plural ends with s."""
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


def joined(parts: Iterable[str]) -> str:
    """Join the parts of a sentence with semicolons."""
    return "; ".join(parts)
