"""How the doctor counts and names things: some of many, and how many more."""

from collections.abc import Collection, Iterable
from typing import Final

from service.text import one_line

MOST: Final = 5
"""Names that one line shows."""

MOST_LINES: Final = 10
"""Findings of one kind."""


def listed(names: Collection[str]) -> str:
    """The first few, in order, and how many more."""
    shown = ", ".join(map(one_line, sorted(names)[:MOST]))
    return f"{shown} and {len(names) - MOST} more" if len(names) > MOST else shown


def counted(count: int, one: str, many: str = "") -> str:
    """`1 namespace`, `2 namespaces`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def joined(parts: Iterable[str]) -> str:
    """Parts of a sentence."""
    return "; ".join(parts)
