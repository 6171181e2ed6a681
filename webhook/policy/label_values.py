"""Reads the values of policy labels, and describes invalid ones.

Each reader takes the text of one value and returns None if the value is not allowed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kai import keys
from kai.share import Share
from service.names import LONGEST_LABEL, SUBDOMAIN_FORM, is_dns_subdomain
from service.text import printable, quoted, shorten

A_NAME: Final = "a DNS-1123 subdomain (a-z, 0-9, - and .) of at most 63 characters"
A_FRACTION: Final = "0.02 to 0.99 with at most two decimals"
AN_AMOUNT: Final = "MiB as a plain positive integer, such as 2000"
LONGEST_SHOWN: Final = 120
"""Maximum length of a key or value in a problem, in characters. API servers allow keys of 317 characters."""
LONGEST_NAME: Final = LONGEST_LABEL
"""Maximum length of a label's value, in characters."""


_FRACTION = re.compile(r"0\.(?:0[2-9]|[1-9][0-9]?)")
_MAX_FRACTION = re.compile(r"1|0\.(?:0[2-9]|[1-9][0-9]?)")
_INTEGER = re.compile(r"[1-9][0-9]{0,18}")
MOST_MIB: Final = (1 << 63) - 1
"""Largest amount of memory in MiB."""
FRACTION_FORM: Final = _FRACTION.pattern
MAX_FRACTION_FORM: Final = _MAX_FRACTION.pattern
MIB_FORM: Final = _INTEGER.pattern
NAME_FORM: Final = SUBDOMAIN_FORM
"""The forms of values. Python and the API server's CEL (RE2) read these regular expressions alike."""


@dataclass(frozen=True, slots=True)
class LabelProblem:
    """One invalid policy label, or the invalid selector of a size, which is an annotation."""

    label: str
    value: str
    wrong: str
    """The problem and the allowed values, as the end of a sentence that begins with label and value."""
    against: tuple[str, ...] = ()
    """The labels that this one conflicts with."""
    is_annotation: bool = False

    @classmethod
    def of(
        cls,
        key: str,
        values: Mapping[str, str],
        wrong: str,
        against: tuple[str, ...] = (),
        *,
        is_annotation: bool = False,
    ) -> "LabelProblem":
        """Describe the value of a key; both are shortened."""
        value = shorten(values[key], LONGEST_SHOWN)
        return cls(printable(key, LONGEST_SHOWN), value, wrong, against, is_annotation)

    def __str__(self) -> str:
        kind = "annotation " if self.is_annotation else ""
        return f"{kind}{self.label}: {quoted(self.value)} {self.wrong}"


@dataclass(frozen=True)
class PolicyShare:
    """A share that a policy gives to pods: the annotation to write, and its value."""

    annotation: str
    value: str

    @cached_property
    def request(self) -> Share | None:
        """The share that KAI reads from the annotation."""
        return Share.from_annotations({self.annotation: self.value})

    def __str__(self) -> str:
        unit = " MiB" if self.annotation == keys.GPU_MEMORY else ""
        return f"{self.annotation} {self.value}{unit}"


def read_name(value: str) -> str | None:
    """Read the name of a queue, scheduler or PriorityClass."""
    return value if len(value) <= LONGEST_NAME and is_dns_subdomain(value) else None


def read_fraction(value: str) -> str | None:
    """Read a fraction of a GPU; the text is kept as written."""
    return value if _FRACTION.fullmatch(value) else None


def read_mib(value: str) -> int | None:
    """Read an amount of memory in MiB."""
    return int(value) if _INTEGER.fullmatch(value) and int(value) <= MOST_MIB else None


def read_max_fraction(value: str) -> float | None:
    """Read a cap in GPUs: a fraction, or 1."""
    return float(value) if _MAX_FRACTION.fullmatch(value) else None
