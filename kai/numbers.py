"""Numbers as Go's `strconv` and Kubernetes' resource quantities parse them, without rounding.

Python's `float()` and `int()` accept blanks, signs and non-ASCII digits that Go rejects, and reject the
hexadecimal floats that Go accepts. Source: Go `strconv/atof.go` (readFloat, special) and `atoi.go`
(underscoreOK).

Source: apimachinery `pkg/api/resource/quantity.go`. Go caps values that do not fit; here they are an error,
since no number of GPUs and no GPU's memory is that large.
"""

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

_DECIMAL = re.compile(r"[+-]?(?:[0-9_]+(?:\.[0-9_]*)?|\.[0-9_]+)(?:[eE][+-]?[0-9][0-9_]*)?", re.ASCII)
_HEX = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F_]+(?:\.[0-9a-fA-F_]*)?|\.[0-9a-fA-F_]+)[pP][+-]?[0-9][0-9_]*", re.ASCII
)
_SPECIAL = re.compile(r"[+-]?inf(?:inity)?|nan", re.ASCII | re.IGNORECASE)
_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_HAS_DIGIT = re.compile(r"[0-9a-fA-F]", re.ASCII)
_MISPLACED = re.compile(r"(?<![0-9])_|_(?![0-9])")
_MISPLACED_HEX = re.compile(r"(?<![0-9a-fA-FxX])_|_(?![0-9a-fA-F])")
"""An underscore that is not between digits, nor between the prefix of a base and a digit (`underscoreOK`)."""
_LONGEST = 400  # characters; Python parses longer integers in quadratic time, and no share needs them


def parse_float(text: str) -> float:
    """Read a float64 as `strconv.ParseFloat(text, 64)` does, including NaN, infinities and hexadecimal.

    ValueError where Go returns an error, for example for a value out of range.
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
    if (_MISPLACED_HEX if is_hex else _MISPLACED).search(text):
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
    """Read an integer as `strconv.ParseUint(text, 10, 64)`: ASCII digits, below 2^64; else ValueError."""
    if len(text) > _LONGEST or not _DIGITS.fullmatch(text):
        raise ValueError("not an unsigned integer")
    value = int(text)
    if value >= 1 << 64:
        raise ValueError("out of range")
    return value


def parse_int(text: str) -> int:
    """Read an integer as `strconv.ParseInt(text, 10, 64)`: a sign or none, digits, int64; else ValueError."""
    negative = text.startswith("-")
    digits = text[1:] if text[:1] in ("+", "-") else text
    if len(text) > _LONGEST or not _DIGITS.fullmatch(digits):
        raise ValueError("not an integer")
    value = -int(digits) if negative else int(digits)
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("out of range")
    return value


_FORM = re.compile(
    r"([+-]?)(?:([0-9]{1,40})(?:\.([0-9]{0,40}))?|\.([0-9]{1,40}))"
    r"(?:(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)|[eE]([+-]?[0-9]{1,3}))?",
    re.ASCII,
)
FORM: Final = _FORM.pattern  # the regular expression of a quantity
_ANY_QUANTITY = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_ONE = Fraction(1)
_TOO_LARGE = 10**40
_LONGEST_QUANTITY = 90  # characters; the longest that _FORM takes has 87
_PLAIN = 40  # digits of a plain integer, as many as _FORM takes
_SUFFIX: dict[str, Fraction] = {
    **{name: Fraction(1024) ** power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{name: Fraction(1000) ** power for power, name in enumerate(("n", "u", "m"), -3)},
    **{name: Fraction(1000) ** power for power, name in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
}


def parse_quantity(value: object) -> Fraction:
    """Read a quantity as the API server does: a string, or a number from JSON or YAML.

    ValueError for another value, and for one of more than 40 digits.
    """
    if type(value) is str and len(value) <= _LONGEST_QUANTITY:  # the usual case
        return _parsed(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{type(value).__name__} is not a quantity")
    if isinstance(value, int) and abs(value) >= _TOO_LARGE:  # formatting it would take quadratic time
        raise ValueError("a number of more than 40 digits is not a quantity")
    text = str(value)
    if len(text) > _LONGEST_QUANTITY:
        raise ValueError(f'"{text[:40]}" is not a quantity')
    return _parsed(text)


@lru_cache(maxsize=256)
def _parsed(text: str) -> Fraction:
    """Read a quantity; cached, since the containers of a pod repeat the same few."""
    if text.isdecimal() and text.isascii() and len(text) <= _PLAIN:
        return Fraction(int(text))
    match = _FORM.fullmatch(text)
    if not match:
        raise ValueError(f'"{text[:40]}" is not a quantity')
    sign, whole, decimals, only_decimals, suffix, exponent = match.groups()
    decimals = decimals or only_decimals or ""
    scale = _SUFFIX[suffix] if suffix else Fraction(10) ** int(exponent) if exponent else _ONE
    number = int(f"{sign}{whole or ''}{decimals}")
    return Fraction(number * scale.numerator, 10 ** len(decimals) * scale.denominator)


def is_quantity(text: str) -> bool:
    """Whether the API server's parser accepts the text, with an exponent of any size."""
    return _ANY_QUANTITY.fullmatch(text) is not None
