"""Colours of the demo's output."""

import os
import sys
from dataclasses import dataclass

from service.command import DEFAULT_COLUMNS
from service.text import fold

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "cyan": "36"}


@dataclass(frozen=True, slots=True)
class Style:
    """Paints text for a terminal; returns it unchanged without colour."""

    has_colour: bool

    @classmethod
    def of_output(cls) -> "Style":
        """Use colour on a terminal, unless NO_COLOR is set (no-color.org) or TERM is `dumb`."""
        is_wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(is_wanted and sys.stdout.isatty())

    def paint(self, text: str, name: str) -> str:
        """Return the text in a colour, or in bold or dim type."""
        return f"\033[{_CODES[name]}m{text}\033[0m" if self.has_colour else text

    def heading(self, text: str) -> str:
        """Return the heading of a part of the demo."""
        return self.folded(text, "bold", indent="")

    def folded(self, text: str, name: str, *, indent: str = "    ") -> str:
        """Return a text in a colour, in lines of at most 80 columns; those after the first are indented."""
        return "\n".join(self.paint(line, name) for line in fold(text, DEFAULT_COLUMNS, indent=indent))
