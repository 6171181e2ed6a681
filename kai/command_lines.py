"""Reads the beginning of a command line from JSON without decoding the rest."""

import json
from typing import Final

LONGEST_COMMAND_LINE: Final = 16384
"""Characters of a command line that are read, including a blank after each word."""

_string = json.JSONDecoder(strict=False).raw_decode
_BLANKS: Final = " \t\r\n"


def first_words(array: bytes, limit: int = LONGEST_COMMAND_LINE) -> list[str]:
    """Read the first words of a JSON array of strings, up to and including the word that passes the limit.

    Reading stops at the first item that is not a string; API servers accept only strings there.

    Args:
        array: valid JSON; a value other than an array has no words.
        limit: characters to read.
    """
    if not array.lstrip().startswith(b"["):
        return []
    text = array.decode(errors="replace")
    words: list[str] = []
    at = text.index("[") + 1
    while limit >= 0:
        at = _next(text, at)
        if text[at : at + 1] != '"':
            break
        word, at = _string(text, at)
        words.append(word)
        limit -= len(word) + 1
        at = _next(text, at)
        if text[at : at + 1] != ",":
            break
        at += 1
    return words


def _next(text: str, at: int) -> int:
    """Return the index of the next character that is not a blank."""
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at
