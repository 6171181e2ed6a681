"""Results of the checks of `doctor`, and their report as text or JSON."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final

from service.command import DEFAULT_COLUMNS, columns_of, output_has_colour, write_output
from service.text import MOST_LINES, counted, fold, printable, shorten_middle, width

_LEAST: Final = 40
"""Smallest width of the column with the observations; in less room they are below the checks."""

_STACKED: Final = "  "
"""Indentation of an observation below its check."""

_LONGEST: Final = 4000
"""Longest observation and longest advice, in characters."""


class State(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    """The observation may be intended."""
    PROBLEM = "problem"
    UNKNOWN = "unknown"
    """The check could not run; that alone is not a problem."""


_COLOURS: Final = {
    State.OK: "",
    State.WARNING: "\033[33m",
    State.PROBLEM: "\033[31m",
    State.UNKNOWN: "\033[2m",
}
_RESET: Final = "\033[0m"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check: a line of the report."""

    state: State
    what: str
    """The observation, in one line; why the check could not run."""
    advice: str = ""
    """The action for the user, in one line; empty if none is needed."""
    check: str = ""
    """The subject of the check, in a few words; empty for the name of the check in the list."""
    docs: str = ""
    """Place in the documentation that describes the check; empty for none."""


ok: Final = partial(CheckResult, State.OK)
warning: Final = partial(CheckResult, State.WARNING)
problem: Final = partial(CheckResult, State.PROBLEM)
unknown: Final = partial(CheckResult, State.UNKNOWN)


def named(check: str, results: Iterable[CheckResult]) -> Iterator[CheckResult]:
    """Yield results with the name of their check; those that have a name keep it."""
    return (replace(result, check=result.check or check) for result in results)


def limited(results: Sequence[CheckResult], singular: str, plural: str = "") -> Iterator[CheckResult]:
    """Yield the first problems of one kind, and the number of the rest as `more queue` or `more queues`."""
    yield from results[:MOST_LINES]
    rest = len(results) - MOST_LINES
    if rest > 0:
        yield problem(f"and {counted(rest, singular, plural)}")


def exit_status(findings: Sequence[CheckResult]) -> int:
    """Return 1 if a check found a problem, else 0."""
    return int(any(finding.state is State.PROBLEM for finding in findings))


def write_report(
    findings: Sequence[CheckResult], *, output: str, about: Mapping[str, Any], heading: str = ""
) -> int:
    """Write all results to standard output; return the exit status.

    Args:
        findings: results in the order of the report.
        output: `text`, wrapped to the width of the terminal or to 80 columns, or `json`.
        about: see `as_json`.
        heading: see `as_text`.

    Raises:
        UsageError: standard output cannot be written.
    """
    if output == "json":
        text = as_json(findings, about)
    else:
        text = as_text(findings, heading=heading, columns=columns_of(sys.stdout), colour=output_has_colour())
    write_output(text)
    return exit_status(findings)


def as_text(
    findings: Sequence[CheckResult],
    *,
    heading: str = "",
    columns: int = DEFAULT_COLUMNS,
    colour: bool = False,
) -> str:
    """Format a line for each result with its advice and docs below it, and a summary as the last line.

    Args:
        findings: results in the order of the report.
        heading: first line; empty for none.
        columns: largest width of a line, at least 40; see `service.text.fold` for longer words.
        colour: whether to colour the states.
    """
    states = max((len(finding.state) for finding in findings), default=0)
    checks = max((width(printable(finding.check)) for finding in findings), default=0)
    room = columns - states - checks - 4
    indent = " " * (states + checks + 4) if room >= _LEAST else _STACKED
    lines = fold(printable(heading, _LONGEST), columns, indent=_STACKED) if heading else []
    for finding in findings:
        block = [*_observation(finding, states, checks, indent, columns)]
        if colour:
            block[0] = _coloured(block[0], finding.state)
        lines += block
        if finding.advice:
            advice = printable(finding.advice, _LONGEST)
            lines += fold(advice, columns, head=f"{indent}-> ", indent=f"{indent}   ")
        if finding.docs:
            lines += fold(printable(finding.docs), columns, head=f"{indent}see ", indent=f"{indent}    ")
    lines += fold(_summary(findings), columns, indent=_STACKED)
    return "".join(f"{line}\n" for line in lines)


def _observation(finding: CheckResult, states: int, checks: int, indent: str, columns: int) -> Iterator[str]:
    """Yield the state, the check and the observation, in three columns or below each other."""
    check, what = printable(finding.check), printable(finding.what, _LONGEST)
    head = f"{finding.state:<{states}}  "
    if indent == _STACKED:
        yield head + shorten_middle(check, columns - len(head))
        if what:
            yield from fold(what, columns, head=indent, indent=indent)
    else:
        head += f"{check}{' ' * (checks - width(check))}  "
        yield from (line.rstrip(" ") for line in fold(what, columns, head=head, indent=indent))


def as_json(findings: Sequence[CheckResult], about: Mapping[str, Any]) -> str:
    """Format all results as a JSON object in ASCII.

    Args:
        findings: results in the order of the report.
        about: first keys of the object, such as the version and the node.
    """
    entries = [
        {
            "check": finding.check,
            "state": finding.state.value,
            "what": finding.what,
            "advice": finding.advice or None,
            **({"docs": finding.docs} if finding.docs else {}),
        }
        for finding in findings
    ]
    report = {
        **about,
        "problems": _count(findings, State.PROBLEM),
        "warnings": _count(findings, State.WARNING),
        "unknown": _count(findings, State.UNKNOWN),
        "findings": entries,
    }
    return json.dumps(report, indent=2) + "\n"


def _coloured(line: str, state: State) -> str:
    """Colour the state at the beginning of a line."""
    colour = _COLOURS[state]
    return f"{colour}{state}{_RESET}{line.removeprefix(state)}" if colour else line


def _summary(findings: Sequence[CheckResult]) -> str:
    problems, warnings = _count(findings, State.PROBLEM), _count(findings, State.WARNING)
    parts = [counted(problems, "problem") if problems else "no problem"]
    if warnings:
        parts.append(counted(warnings, "warning"))
    parts += [f"{_count(findings, State.UNKNOWN)} unknown", f"{_count(findings, State.OK)} ok"]
    return ", ".join(parts)


def _count(findings: Sequence[CheckResult], state: State) -> int:
    return sum(finding.state is state for finding in findings)
