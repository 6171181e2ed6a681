"""The findings as text and as JSON. Pure."""

import json
import textwrap
from collections.abc import Sequence
from typing import Final

from gpuagent.doctor.finding import Finding, State
from gpuagent.top.text import width

_LEAST: Final = 40
"""Columns for what was seen, however narrow the terminal is."""


def as_text(findings: Sequence[Finding], *, simulated: bool, columns: int | None = None) -> str:
    """Write a line for each, what to do under it, and how many are wrong.

    Args:
        findings: in order.
        simulated: whether the GPUs are made up.
        columns: where to break lines; None: nowhere.
    """
    states = max((len(finding.state) for finding in findings), default=0)
    checks = max((width(_safe(finding.check)) for finding in findings), default=0)
    indent = " " * (states + checks + 4)
    lines = ["simulated: GPUs, processes and pods are made up"] if simulated else []
    for finding in findings:
        check = _safe(finding.check)
        head = f"{finding.state:<{states}}  {check}{' ' * (checks - width(check))}  "
        lines += _folded(_safe(finding.what), head, indent, columns)
        if finding.advice:
            lines += _folded(f"-> {_safe(finding.advice)}", indent, indent + "   ", columns)
    problems = _count(findings, State.PROBLEM)
    unknowns = _count(findings, State.UNKNOWN)
    verdict = f"{problems} problem{'' if problems == 1 else 's'}" if problems else "no problem"
    lines.append(f"{verdict}, {unknowns} unknown, {_count(findings, State.OK)} ok")
    return "".join(f"{line}\n" for line in lines)


def as_json(findings: Sequence[Finding], *, node: str, simulated: bool) -> str:
    """Write everything, in ASCII."""
    found = [
        {
            "check": finding.check,
            "state": finding.state.value,
            "what": finding.what,
            "advice": finding.advice or None,
        }
        for finding in findings
    ]
    return (
        json.dumps(
            {
                "node": node or None,
                "simulated": simulated,
                "problems": _count(findings, State.PROBLEM),
                "unknown": _count(findings, State.UNKNOWN),
                "findings": found,
            },
            indent=2,
        )
        + "\n"
    )


def _safe(text: str) -> str:
    """Without control characters, whatever a pod or a file is named."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


def _count(findings: Sequence[Finding], state: State) -> int:
    return sum(finding.state is state for finding in findings)


def _folded(text: str, head: str, indent: str, columns: int | None) -> list[str]:
    if columns is None:
        return [head + text]
    room = max(columns, len(indent) + _LEAST)
    wrapper = textwrap.TextWrapper(
        room, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.wrap(text)
