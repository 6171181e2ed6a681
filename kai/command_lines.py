"""Command lines of containers: the first words in JSON, scripts of a shell, and values of options."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

LONGEST_COMMAND_LINE: Final = 16384
"""Characters of a command line that are read, including a blank after each word."""

_SHELLS = frozenset({"sh", "bash", "ash", "dash", "zsh"})
_string = json.JSONDecoder(strict=False).raw_decode
_BLANKS: Final = " \t\r\n"
_PIECE: Final = re.compile(
    r"""(?P<blank>\s+)|(?P<operator>[;&|()<>]+)|(?P<plain>[^\s'"\\;&|()<>]+)"""
    r"""|'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|\\(?P<escaped>.)""",
    re.DOTALL,
)
"""The next piece of a script; none at a quote without an end, and at a backslash at the end."""
_ESCAPE: Final = re.compile(r"""\\(["\\])""")
"""The escapes within double quotes; before other characters a backslash stands for itself."""


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
    """Return the words of a command line; those of a script take the place of `sh -c SCRIPT`."""
    for index, word in enumerate(line[:-1]):
        if program(word) in _SHELLS:
            script = _script(line[index + 1 :])
            if script is not None:
                return [*line[:index], *_split(script)]
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


@lru_cache(maxsize=2)  # several rules read the script of one container
def _split(script: str) -> Sequence[str]:
    """Split a script into words as a shell does, without comments and without expansions.

    Operators of the shell, such as `;` and `&&`, are words of their own. A script with a quote that does not
    end is split at its blanks.
    """
    joined = script.replace("\\\n", " ")
    words = shell_words(joined, _PIECE, _ESCAPE, has_comments=True)
    return tuple(joined.split() if words is None else words)


def shell_words(
    script: str, pieces: re.Pattern[str], escapes: re.Pattern[str], *, has_comments: bool
) -> list[str] | None:
    """Split a script into words; None where no piece matches, and at a comment that it must not have.

    Pieces have groups as `_PIECE`, and perhaps `continued` for the end of a line within a word. `escapes` are
    those within double quotes.
    """
    words: list[str] = []
    word: list[str] = []
    at = 0
    while 0 <= at < len(script):
        if script[at] == "#" and not word:
            if not has_comments:
                return None
            at = script.find("\n", at)
            continue
        piece = pieces.match(script, at)
        if piece is None:
            return None
        at, kind, text = piece.end(), piece.lastgroup, piece[piece.lastindex or 0]
        if kind in ("blank", "operator"):
            words += ["".join(word)] if word else []
            words += [text] if kind == "operator" else []
            word = []
        elif kind != "continued":
            word.append(escapes.sub(r"\1", text) if kind == "double" else text)
    return [*words, "".join(word)] if word else words


def option_values(words: Iterable[str]) -> Mapping[str, str]:
    """Return the values of a command line's options, after `=` or as the next word; the last one counts.

    The names begin with their hyphens, and have hyphens in place of underscores.
    """
    values: dict[str, str] = {}
    pending = ""
    for word in words:
        if pending:
            values[pending] = word
            pending = ""
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            name = name.replace("_", "-")
            values[name] = value
            pending = "" if equals else name
    return values


def option_value(option: str, words: Iterable[str]) -> str | None:
    """Return the value of an option's last occurrence; None if absent. See `option_values`."""
    return option_values(words).get(option)


def program(word: str) -> str:
    """Return the name of a program without its folder."""
    return word.rpartition("/")[2]
