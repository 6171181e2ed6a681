"""Tables of text for a number of terminal columns, and coloured lines."""

import sys
from collections.abc import Iterator, Sequence
from typing import Final

from service.command import output_has_colour
from service.text import shorten_middle, width

GAP: Final = "  "  # blanks between two columns


_COLOURS: Final = {"+": "\033[32m", "-": "\033[31m", "@": "\033[36m"}
_RESET: Final = "\033[0m"


def paint(text: str, sign: str) -> str:
    """Colour a line where colours are shown, by its sign: `+` for added, `-` for bad, `@` for a title."""
    return f"{_COLOURS[sign]}{text}{_RESET}" if sign in _COLOURS and output_has_colour() else text


def natural_widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the widths of the columns of a table without shortened cells."""
    return [max(map(width, column)) for column in zip(*rows, strict=True)]


def column_widths(rows: Sequence[Sequence[str]], columns: int, shrinkable: Sequence[int]) -> list[int] | None:
    """Return the widths of a table in lines of at most so many columns; None if it does not fit.

    The widest of the shrinkable columns give way first. `shrinkable` has the smallest width of each column; 0
    for a column whose cells are not shortened.
    """
    widths = natural_widths(rows)
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - columns
    while excess > 0:
        index = max(
            (i for i, least in enumerate(shrinkable) if least and widths[i] > least),
            key=lambda i: widths[i],
            default=None,
        )
        if index is None:
            return None
        widths[index] -= 1
        excess -= 1
    return widths


def shown_widths(rows: Sequence[Sequence[str]], columns: int, shrinkable: Sequence[int]) -> list[int]:
    """Return the widths of a table on standard output: no cell is cut but to fit a terminal's columns."""
    natural = natural_widths(rows)
    if not sys.stdout.isatty():
        return natural
    narrowest = [min(own, least or own) for own, least in zip(natural, shrinkable, strict=True)]
    return column_widths(rows, columns, shrinkable) or narrowest


def table_lines(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a table. A cell that is too wide is shortened in its middle."""
    for row in rows:
        cells = (shorten_middle(cell, columns) for cell, columns in zip(row, widths, strict=True))
        padded = (cell + " " * (columns - width(cell)) for cell, columns in zip(cells, widths, strict=True))
        yield GAP.join(padded).rstrip(" ")
