"""Results of the checks of `doctor`, and their report as text or JSON."""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, TypeVar

from console.help import link
from service.command import DEFAULT_COLUMNS, columns_of, output_has_colour, write_output
from service.text import MOST_LINES, counted, fold, printable, shorten_middle, width

K = TypeVar("K")
V = TypeVar("V")

_LEAST: Final = 40
"""Smallest width of the column with the observations; in less room they are below the checks."""
_STACKED: Final = "  "  # indentation of an observation below its check
_LONGEST: Final = 4000  # longest observation and longest advice, in characters


class State(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"  # the observation may be intended
    PROBLEM = "problem"
    UNKNOWN = "unknown"  # the check could not run; that alone is not a problem


_COLOURS: Final = {State.WARNING: "\033[33m", State.PROBLEM: "\033[31m", State.UNKNOWN: "\033[2m"}
_RESET: Final = "\033[0m"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check: a line of the report."""

    state: State
    what: str  # the observation, in one line; why the check could not run
    advice: str = ""  # the action for the user, in one line; empty if none is needed
    check: str = ""  # the subject of the check, in a few words; empty for the name of the check in the list
    docs: str = ""  # place in the documentation that describes the check; empty for none


ok: Final = partial(CheckResult, State.OK)
warning: Final = partial(CheckResult, State.WARNING)
problem: Final = partial(CheckResult, State.PROBLEM)
unknown: Final = partial(CheckResult, State.UNKNOWN)


def named(check: str, results: Iterable[CheckResult]) -> Iterator[CheckResult]:
    """Yield results with the name of their check; those that have a name keep it."""
    return (replace(result, check=result.check or check) for result in results)


def limited(results: Sequence[CheckResult], singular: str, plural: str = "") -> Iterator[CheckResult]:
    """Yield the first results of one kind, and the number of the rest as `more queue` or `more queues`."""
    yield from results[:MOST_LINES]
    rest = len(results) - MOST_LINES
    if rest > 0:
        yield CheckResult(results[0].state, f"and {counted(rest, singular, plural)}")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    groups: defaultdict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)


def exit_status(findings: Sequence[CheckResult]) -> int:
    return int(any(finding.state is State.PROBLEM for finding in findings))


def write_report(findings: Sequence[CheckResult], *, output: str, about: Mapping[str, Any]) -> int:
    """Write all results to standard output, as `json` or as wrapped text; return the exit status.

    Raises:
        UsageError: standard output cannot be written.
    """
    if output == "json":
        write_output(as_json(findings, about))
    else:
        write_output(as_text(findings, columns=columns_of(sys.stdout), colour=output_has_colour()))
    return exit_status(findings)


def as_text(findings: Sequence[CheckResult], *, columns: int = DEFAULT_COLUMNS, colour: bool = False) -> str:
    """Format a line for each result with its advice and docs below it, and a summary as the last line.

    A line is at most `columns` wide, which is at least 40; see `service.text.fold` for longer words.
    """
    states = max((len(finding.state) for finding in findings), default=0)
    checks = max((width(printable(finding.check)) for finding in findings), default=0)
    room = columns - states - checks - 4
    indent = " " * (states + checks + 4) if room >= _LEAST else _STACKED
    lines: list[str] = []
    for finding in findings:
        check, what = printable(finding.check), printable(finding.what, _LONGEST)
        head = f"{finding.state:<{states}}  "
        if indent == _STACKED:
            first, text = head + shorten_middle(check, columns - len(head)), _STACKED
            block = [first, *(fold(what, columns, head=text, indent=text) if what else ())]
        else:
            head += f"{check}{' ' * (checks - width(check))}  "
            block = [line.rstrip(" ") for line in fold(what, columns, head=head, indent=indent)]
        if colour and finding.state in _COLOURS:
            block[0] = f"{_COLOURS[finding.state]}{finding.state}{_RESET}{block[0][len(finding.state) :]}"
        lines += block
        for word, text in (("-> ", finding.advice), ("see ", finding.docs and link(finding.docs))):
            if text:
                head = f"{indent}{word}"
                lines += fold(printable(text, _LONGEST), columns, head=head, indent=" " * len(head))
    lines += fold(_summary(findings), columns, indent=_STACKED)
    return "".join(f"{line}\n" for line in lines)


def as_json(findings: Sequence[CheckResult], about: Mapping[str, Any]) -> str:
    """Format all results as a JSON object in ASCII; `about` are its first keys, such as the version."""
    counts = Counter(finding.state for finding in findings)
    report = {
        **about,
        "problems": counts[State.PROBLEM],
        "warnings": counts[State.WARNING],
        "unknown": counts[State.UNKNOWN],
        "findings": [
            {
                "check": finding.check,
                "state": finding.state.value,
                "what": finding.what,
                "advice": finding.advice or None,
                **({"docs": finding.docs} if finding.docs else {}),
            }
            for finding in findings
        ],
    }
    return json.dumps(report, indent=2) + "\n"


def _summary(findings: Sequence[CheckResult]) -> str:
    counts = Counter(finding.state for finding in findings)
    parts = [counted(counts[State.PROBLEM], "problem") if counts[State.PROBLEM] else "no problem"]
    if counts[State.WARNING]:
        parts.append(counted(counts[State.WARNING], "warning"))
    return ", ".join([*parts, f"{counts[State.UNKNOWN]} unknown", f"{counts[State.OK]} ok"])
