"""Whether a kind of object can be read from the API server."""

from dataclasses import dataclass
from enum import StrEnum

from service.log import JsonLog
from service.log_changes import OngoingProblem, problem_logger


class UnavailableReason(StrEnum):
    """Why a kind of object cannot be read."""

    DENIED = "denied"
    NOT_SERVED = "not-served"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """A kind of object that cannot be read."""

    resource: str
    reason: UnavailableReason
    line: str
    """One line for a person: the error, its consequence, and the remedy if there is one."""


class Availability:
    """The current state of one kind; logs each change of the reason."""

    def __init__(self, resource: str, log: JsonLog) -> None:
        self.problem: Unavailable | None = None
        """None while the kind can be read."""
        self._ongoing = OngoingProblem(
            problem_logger(log, "resource unavailable", "resource available again", resource=resource)
        )

    def update(self, problem: Unavailable | None) -> None:
        """Set the state."""
        self.problem = problem
        if problem is None:
            self._ongoing.update("")
        else:
            self._ongoing.update(problem.line, kind=problem.reason)
