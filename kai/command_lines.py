"""Command lines of containers: the first words in JSON, scripts of a shell, and values of options."""

import json
import shlex
from collections.abc import Sequence
from typing import Final

LONGEST_COMMAND_LINE: Final = 16384
"""Characters of a command line that are read, including a blank after each word."""

_SHELLS = frozenset({"sh", "bash", "ash", "dash", "zsh"})
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


def beginning(line: Sequence[str]) -> Sequence[str]:
    """Cut a command line to the characters that are read; a shorter line is returned unchanged."""
    left = LONGEST_COMMAND_LINE
    for index, word in enumerate(line):
        left -= len(word) + 1  # the blank after the word, so that empty words count too
        if left < 0:
            return [*line[:index], word[: left + len(word) + 1]]
    return line


def script_words(line: Sequence[str]) -> Sequence[str]:
    """Return the words of a command line; for `sh -c SCRIPT`, the words of the script."""
    for index, word in enumerate(line[:-1]):
        if program(word) in _SHELLS:
            script = _script(line[index + 1 :])
            if script is not None:
                return _split(script)
            break
    return line


def _script(options: Sequence[str]) -> str | None:
    """Return the script after a shell's `-c`, `-lc`, `-euo pipefail -c` and the like; None without one."""
    is_script = False
    words = iter(options)
    for word in words:
        if word[:1] not in ("-", "+") or word in ("-", "--"):
            return word if is_script else None
        if not word.startswith("--"):
            is_script = is_script or "c" in word
            if word.endswith(("o", "O")):  # as in `-o pipefail`
                next(words, None)
    return None


def _split(script: str) -> list[str]:
    """Split a script into words; operators of the shell, such as `;` and `&&`, are words of their own."""
    joined = script.replace("\\\n", " ")
    words = shlex.shlex(joined, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    try:
        return list(words)
    except ValueError:  # an unterminated quote
        return joined.split()


def option_value(option: str, words: Sequence[str]) -> str | None:
    """Return the value of an option's last occurrence, after `=` or as the next word; None if absent."""
    last_value = None
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == option:
            last_value = value if equals else (words[index + 1] if index + 1 < len(words) else "")
    return last_value


def program(word: str) -> str:
    """Return the name of a program without its folder."""
    return word.rpartition("/")[2]
