"""One line of the doctor's report."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What became of a check."""

    OK = "ok"
    PROBLEM = "problem"
    UNKNOWN = "unknown"
    """It could not be checked; that alone is nothing wrong."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check saw."""

    state: State
    check: str
    """What was looked at, in a few words."""
    what: str
    """What was seen, in one line."""
    advice: str = ""
    """What to do, in one line; empty where there is nothing."""


def ok(check: str, what: str) -> Finding:
    """All is well."""
    return Finding(State.OK, check, what)


def problem(check: str, what: str, advice: str = "") -> Finding:
    """Something is wrong."""
    return Finding(State.PROBLEM, check, what, advice)


def unknown(check: str, what: str, advice: str = "") -> Finding:
    """There is no telling, and why."""
    return Finding(State.UNKNOWN, check, what, advice)
