"""Parses numbers like Go's `strconv`, with which KAI parses annotations.

Python's `float()` and `int()` accept blanks, signs and non-ASCII digits that Go rejects, and reject the
hexadecimal floats that Go accepts. Source: Go `strconv/atof.go` (readFloat, special) and `atoi.go`
(underscoreOK).
"""

import math
import re

_DECIMAL = re.compile(r"[+-]?(?:[0-9_]+(?:\.[0-9_]*)?|\.[0-9_]+)(?:[eE][+-]?[0-9][0-9_]*)?", re.ASCII)
_HEX = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F_]+(?:\.[0-9a-fA-F_]*)?|\.[0-9a-fA-F_]+)[pP][+-]?[0-9][0-9_]*", re.ASCII
)
_SPECIAL = re.compile(r"[+-]?inf(?:inity)?|nan", re.ASCII | re.IGNORECASE)
_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_HAS_DIGIT = re.compile(r"[0-9a-fA-F]", re.ASCII)
_LONGEST = 400  # characters; Python parses longer integers in quadratic time, and no share needs them


def parse_float(text: str) -> float:
    """Read a float64 as `strconv.ParseFloat(text, 64)` does, including NaN, infinities and hexadecimal.

    Raises:
        ValueError: Go would return an error, for example for a value out of range.
    """
    if len(text) > _LONGEST:
        raise ValueError("number too long")
    if _SPECIAL.fullmatch(text):
        return float(text)
    is_hex = _HEX.fullmatch(text) is not None
    if not is_hex and not _DECIMAL.fullmatch(text):
        raise ValueError("not a number")
    mantissa = text.lower().partition("p" if is_hex else "e")[0].lstrip("+-")
    if not _HAS_DIGIT.search(mantissa[2:] if is_hex else mantissa):
        raise ValueError("no digits")
    if "_" in text and not _underscores_separate_digits(text):
        raise ValueError("misplaced underscore")
    plain = text.replace("_", "")
    try:
        value = float.fromhex(plain) if is_hex else float(plain)
    except OverflowError:
        raise ValueError("out of range") from None
    if math.isinf(value):
        raise ValueError("out of range")
    return value


def parse_uint(text: str) -> int:
    """Read an integer as `strconv.ParseUint(text, 10, 64)` does: ASCII digits only, below 2^64.

    Raises:
        ValueError: Go would return an error.
    """
    if len(text) > _LONGEST or not _DIGITS.fullmatch(text):
        raise ValueError("not an unsigned integer")
    value = int(text)
    if value >= 1 << 64:
        raise ValueError("out of range")
    return value


def parse_int(text: str) -> int:
    """Read an integer as `strconv.ParseInt(text, 10, 64)` does: an optional sign, ASCII digits, int64.

    Raises:
        ValueError: Go would return an error.
    """
    negative = text.startswith("-")
    digits = text[1:] if text[:1] in ("+", "-") else text
    if len(text) > _LONGEST or not _DIGITS.fullmatch(digits):
        raise ValueError("not an integer")
    value = -int(digits) if negative else int(digits)
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("out of range")
    return value


def _underscores_separate_digits(text: str) -> bool:
    """Check Go's rule for `_` in literals: only between digits, or after a base prefix (`underscoreOK`)."""
    body = text[1:] if text[:1] in ("+", "-") else text
    is_hex = False
    last = "^"
    if len(body) >= 2 and body[0] == "0" and body[1] in "bBoOxX":
        is_hex = body[1] in "xX"
        last = "0"  # the prefix counts as a digit
        body = body[2:]
    for char in body:
        if char.isdigit() or (is_hex and char in "abcdefABCDEF"):
            last = "0"
        elif char == "_":
            if last != "0":
                return False
            last = "_"
        else:
            if last == "_":
                return False
            last = "!"
    return last != "_"
