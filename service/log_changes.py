"""Reports of a state that lasts: only its changes are logged."""

from collections.abc import Callable
from typing import Any

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
