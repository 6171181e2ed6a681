"""Parses Kubernetes resource quantities (`1`, `500m`, `2Gi`, `1e3`) without rounding.

Source: apimachinery `pkg/api/resource/quantity.go`. Go caps values that do not fit; here they are an error,
since no number of GPUs and no GPU's memory is that large.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

_FORM = re.compile(
    r"([+-]?)(?:([0-9]{1,40})(?:\.([0-9]{0,40}))?|\.([0-9]{1,40}))"
    r"(?:(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)|[eE]([+-]?[0-9]{1,3}))?",
    re.ASCII,
)
FORM: Final = _FORM.pattern
"""The regular expression of a quantity."""
_ANY_QUANTITY = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?")
_ONE = Fraction(1)
_TOO_LARGE = 10**40
_LONGEST = 90  # characters; the longest that _FORM takes has 87
_PLAIN = 40  # digits of a plain integer, as many as _FORM takes
_SUFFIX: dict[str, Fraction] = {
    **{name: Fraction(1024) ** power for power, name in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{name: Fraction(1000) ** power for power, name in enumerate(("n", "u", "m"), -3)},
    **{name: Fraction(1000) ** power for power, name in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
}


def parse_quantity(value: object) -> Fraction:
    """Read a quantity as the API server does: a string, or a number from JSON or YAML.

    Raises:
        ValueError: the value is not a quantity, or has more than 40 digits.
    """
    if type(value) is str and len(value) <= _LONGEST:  # the usual case
        return _parsed(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{type(value).__name__} is not a quantity")
    if isinstance(value, int) and abs(value) >= _TOO_LARGE:  # formatting it would take quadratic time
        raise ValueError("a number of more than 40 digits is not a quantity")
    text = str(value)
    if len(text) > _LONGEST:
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
