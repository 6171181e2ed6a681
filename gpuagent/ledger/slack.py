"""Tolerance above a limit: the larger of a byte count and a percentage."""

import re
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

from kai.numbers import parse_quantity
from kai.share import MIB
from service.text import quoted

_FORM = re.compile(r"([^,]+),([0-9]{1,3}(?:\.[0-9]{1,3})?)%")


@dataclass(frozen=True, slots=True)
class Slack:
    """Tolerance above a limit: the larger of `bytes` and `part` of the limit."""

    bytes: int
    part: Fraction

    @classmethod
    def parse(cls, text: str) -> "Slack":
        """Parse a slack such as `256Mi,5%`.

        Raises:
            ValueError: the text has another form; the message shows the allowed form.
        """
        with suppress(ValueError):
            if match := _FORM.fullmatch(text):
                amount, part = parse_quantity(match[1]), Fraction(match[2]) / 100
                if amount >= 0 and amount.denominator == 1 and part <= 1:
                    return cls(int(amount), part)
        allowed = "bytes and a percentage up to 100, such as 256Mi,5%"
        raise ValueError(f"{quoted(text)} is not a slack; allowed: {allowed}")

    def of(self, figure: int) -> int:
        """Return the slack of a limit, in bytes."""
        return max(self.bytes, figure * self.part.numerator // self.part.denominator)


DEFAULT_SLACK = Slack(256 * MIB, Fraction(5, 100))
