"""The beginning of a command line, read from JSON without decoding the rest."""

import json
from typing import Final

LONGEST_COMMAND_LINE: Final = 16384
"""Characters of a command line that are read, a blank after each word included."""

_string = json.JSONDecoder(strict=False).raw_decode
_BLANKS: Final = " \t\r\n"


def first_words(array: bytes, most: int = LONGEST_COMMAND_LINE) -> list[str]:
    """Read the first words of a JSON array of strings, the one that passes the limit included.

    What is no string ends the list: API servers accept no other command line.

    Args:
        array: valid JSON; nothing but an array has words.
        most: characters to read.
    """
    if not array.lstrip().startswith(b"["):
        return []
    text = array.decode(errors="replace")
    words: list[str] = []
    at = text.index("[") + 1
    while most >= 0:
        at = _next(text, at)
        if text[at : at + 1] != '"':
            break
        word, at = _string(text, at)
        words.append(word)
        most -= len(word) + 1
        at = _next(text, at)
        if text[at : at + 1] != ",":
            break
        at += 1
    return words


def _next(text: str, at: int) -> int:
    """Return the place of the next character that is no blank."""
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at
