"""Logs only what changes: problems that last, and lines that were there before."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from service.log import INFO, WARNING, JsonLog


class OngoingProblem:
    """A problem that is reported when it begins or changes, and once when it is over."""

    def __init__(self, report: Callable[[str], None]) -> None:
        """Begin without a problem.

        Args:
            report: receives one line when the problem begins or changes, and "" when it is over.
        """
        self.line = ""
        """The present problem; empty if there is none."""
        self._report = report
        self._kind: object = ""

    def update(self, line: str, *, kind: object = None) -> None:
        """Set the present problem.

        Args:
            line: one line for a person; empty if there is no problem.
            kind: identifies a problem whose line varies; None if its line identifies it.
        """
        before, self._kind = self._kind, (line if kind is None else kind) if line else ""
        self.line = line
        if self._kind != before:
            self._report(line)


def problem_logger(
    log: JsonLog, began: str, over: str, *, field: str = "error", **fields: Any
) -> Callable[[str], None]:
    """Return a function that logs a problem, or with "" its end: the report of an `OngoingProblem`.

    Args:
        log: receives the events.
        began: message of a problem.
        over: message of its end.
        field: name of the field with the problem's line.
        fields: further fields of both messages.
    """

    def report(line: str) -> None:
        if line:
            log(began, WARNING, **fields, **{field: line})
        else:
            log(over, INFO, **fields)

    return report


MOST_NEW_LINES: Final = 20
"""Largest number of lines that are logged at once: users can write new invalid values at any time."""


class NewLines:
    """Compares the lines of each round with those of the last one, so that a line is logged once."""

    def __init__(self) -> None:
        self._last: Mapping[str, None] = {}

    def update(self, lines: Iterable[str]) -> tuple[list[str], int]:
        """Return the first new lines, and the number of further ones.

        Args:
            lines: all lines of this round.
        """
        now = dict.fromkeys(lines)
        new = [line for line in now if line not in self._last]
        self._last = now
        return new[:MOST_NEW_LINES], max(len(new) - MOST_NEW_LINES, 0)


class FirstLines:
    """Knows the first lines of a kind, so that each of them is logged once, and later ones not at all."""

    def __init__(self) -> None:
        self._lines: set[str] = set()

    def add(self, line: str) -> bool:
        """Return whether the line is new and to be logged."""
        if line in self._lines or len(self._lines) == MOST_NEW_LINES:
            return False
        self._lines.add(line)
        return True
