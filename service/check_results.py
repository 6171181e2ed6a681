"""What a check of a machine or a cluster found, and the report of all: lines of text, or JSON. Pure."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from service.text import printable, width

_LEAST: Final = 40
"""Columns for what was seen, however narrow the terminal is."""

_LONGEST: Final = 4000
"""Characters of what was seen, and of the advice."""


class State(StrEnum):
    """What became of a check."""

    OK = "ok"
    WARNING = "warning"
    """It may be meant, and may not."""
    PROBLEM = "problem"
    UNKNOWN = "unknown"
    """It could not be checked; that alone is nothing wrong."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check saw: a line of the report."""

    state: State
    check: str
    """What was looked at, in a few words."""
    what: str
    """What was seen, in one line."""
    advice: str = ""
    """What to do, in one line; empty where there is nothing."""


def ok(check: str, what: str) -> CheckResult:
    """All is well."""
    return CheckResult(State.OK, check, what)


def warning(check: str, what: str, advice: str = "") -> CheckResult:
    """Nothing is broken, but somebody should know."""
    return CheckResult(State.WARNING, check, what, advice)


def problem(check: str, what: str, advice: str = "") -> CheckResult:
    """Something is wrong."""
    return CheckResult(State.PROBLEM, check, what, advice)


def unknown(check: str, what: str, advice: str = "") -> CheckResult:
    """There is no telling, and why."""
    return CheckResult(State.UNKNOWN, check, what, advice)


def exit_status(findings: Sequence[CheckResult]) -> int:
    """1 if something is wrong, else 0."""
    return int(any(finding.state is State.PROBLEM for finding in findings))


def as_text(findings: Sequence[CheckResult], *, heading: str = "", columns: int | None = None) -> str:
    """Write a line for each, what to do under it, and how many are wrong.

    Args:
        findings: in order.
        heading: a line before all others.
        columns: where to break lines; None: nowhere.
    """
    states = max((len(finding.state) for finding in findings), default=0)
    checks = max((width(printable(finding.check)) for finding in findings), default=0)
    indent = " " * (states + checks + 4)
    lines = [heading] if heading else []
    for finding in findings:
        check = printable(finding.check)
        head = f"{finding.state:<{states}}  {check}{' ' * (checks - width(check))}  "
        lines += _folded(printable(finding.what, _LONGEST), head, indent, columns)
        if finding.advice:
            lines += _folded(f"-> {printable(finding.advice, _LONGEST)}", indent, indent + "   ", columns)
    lines.append(_summary(findings))
    return "".join(f"{line}\n" for line in lines)


def as_json(findings: Sequence[CheckResult], about: Mapping[str, Any]) -> str:
    """Write everything, in ASCII.

    Args:
        findings: in order.
        about: what the report is about, as the first keys.
    """
    found = [
        {
            "check": finding.check,
            "state": finding.state.value,
            "what": finding.what,
            "advice": finding.advice or None,
        }
        for finding in findings
    ]
    report = {
        **about,
        "problems": _count(findings, State.PROBLEM),
        "warnings": _count(findings, State.WARNING),
        "unknown": _count(findings, State.UNKNOWN),
        "findings": found,
    }
    return json.dumps(report, indent=2) + "\n"


def _summary(findings: Sequence[CheckResult]) -> str:
    problems, warnings = _count(findings, State.PROBLEM), _count(findings, State.WARNING)
    parts = [_number(problems, "problem") if problems else "no problem"]
    if warnings:
        parts.append(_number(warnings, "warning"))
    parts += [f"{_count(findings, State.UNKNOWN)} unknown", f"{_count(findings, State.OK)} ok"]
    return ", ".join(parts)


def _number(count: int, one: str) -> str:
    return f"{count} {one}{'' if count == 1 else 's'}"


def _count(findings: Sequence[CheckResult], state: State) -> int:
    return sum(finding.state is state for finding in findings)


def _folded(text: str, head: str, indent: str, columns: int | None) -> list[str]:
    if columns is None:
        return [head + text]
    room = max(columns, len(indent) + _LEAST)
    wrapper = textwrap.TextWrapper(
        room, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.wrap(text)
