"""Whether a kind of object can be read from the API server."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


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


OnUnavailable = Callable[[Unavailable, bool], None]
"""Called when a kind becomes unavailable (True) or available again (False)."""


class Availability:
    """The current state of one kind; reports each change of the reason."""

    def __init__(self, on_unavailable: OnUnavailable) -> None:
        self.problem: Unavailable | None = None
        """None while the kind can be read."""
        self._on_unavailable = on_unavailable

    def update(self, problem: Unavailable | None) -> None:
        """Set the state."""
        before, self.problem = self.problem, problem
        if before is not None and (problem is None or problem.reason is not before.reason):
            self._on_unavailable(before, False)
        if problem is not None and (before is None or problem.reason is not before.reason):
            self._on_unavailable(problem, True)
