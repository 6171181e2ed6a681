"""Formats the answer of `kaishare why` for a terminal and as JSON. Pure functions."""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final

from console.why.explanation import Explanation, PodFinding, Remedy, Step
from service.text import fold, printable

_RED, _YELLOW, _DIM, _RESET = "\033[31m", "\033[33m", "\033[2m", "\033[0m"
_INDENT: Final = "  "
_LONGEST: Final = 4000
"""Longest sentence, in characters."""
_LEAST: Final = 40
"""Smallest width of the story's texts; in less room they are below time and event."""
_REPEATED_BY_KAI: Final = 25
"""KAI writes an Event at most 25 times for an object (client-go, `events_cache.go`)."""
_OWN_PROGRAM: Final = "kaishare "
_UNDERSCORE: Final = re.compile(r"_([a-z])")


def as_text(answer: Explanation, *, columns: int, colour: bool, program: str) -> list[str]:
    """Return the lines for a terminal: cause, what to do, notes, story, and the page about the cause.

    Args:
        answer: the answer.
        columns: largest width of a line, at least 40. A command is never broken, so it can be wider.
        colour: whether to colour the state and what is not visible.
        program: the name under which the user started the program, for the commands.
    """
    lines = fold(printable(f"{answer.state}: {answer.cause.sentence}", _LONGEST), columns, indent=_INDENT)
    if colour:
        lines[0] = _coloured(lines[0], answer)
    lines += _section("What to do", _remedies(answer.cause.remedies, columns, program))
    lines += _section("Also", _notes(answer.findings[1:], columns, program))
    lines += _section("Story (times in UTC)", _story(answer.story, columns))
    lines.append("")
    for note in answer.notes:
        lines += fold(printable(note, _LONGEST), columns, head="note: ", indent=_INDENT)
    if answer.not_visible:
        names = printable(", ".join(answer.not_visible), _LONGEST)
        hidden = fold(f"not visible to you: {names}", columns, indent=_INDENT)
        lines += (f"{_DIM}{line}{_RESET}" if colour else line for line in hidden)
    return [*lines, *fold(f"More: {answer.cause.code.page}", columns, indent=_INDENT)]


def _coloured(line: str, answer: Explanation) -> str:
    """Colour the state: yellow while the pod waits, red for another problem."""
    if answer.is_fine or not line.startswith(answer.state):
        return line
    colour = _YELLOW if answer.state in ("Pending", "Terminating") else _RED
    return f"{colour}{answer.state}{_RESET}{line.removeprefix(answer.state)}"


def _section(title: str, lines: Iterator[str]) -> list[str]:
    """Return a heading and its lines after an empty line; nothing without lines."""
    body = list(lines)
    return ["", title, *body] if body else []


def _remedies(remedies: Sequence[Remedy], columns: int, program: str) -> Iterator[str]:
    for remedy in remedies:
        yield from fold(printable(remedy.text, _LONGEST), columns, head=f"{_INDENT}- ", indent=_INDENT * 2)
        if remedy.command:
            yield f"{_INDENT * 3}{_command(remedy.command, program)}"


def _command(command: str, program: str) -> str:
    """Return a command with the name under which the user started the program."""
    is_own = command.startswith(_OWN_PROGRAM)
    return printable(f"{program} {command.removeprefix(_OWN_PROGRAM)}" if is_own else command, _LONGEST)


def _notes(findings: Sequence[PodFinding], columns: int, program: str) -> Iterator[str]:
    for finding in findings:
        text = printable(f"{finding.sentence} ({finding.code.value})", _LONGEST)
        yield from fold(text, columns, head=_INDENT, indent=_INDENT * 2)
        yield from _remedies(finding.remedies, columns, program)


def _story(steps: Sequence[Step], columns: int) -> Iterator[str]:
    """Yield time, event and text of each step, in columns or below each other."""
    times = _times([step.at for step in steps])
    first = max(map(len, times), default=0)
    second = max((len(step.what) for step in steps), default=0)
    room = columns - len(_INDENT) * 3 - first - second
    for time, step in zip(times, steps, strict=True):
        head = f"{_INDENT}{time:<{first}}{_INDENT}{step.what:<{second}}{_INDENT}"
        text = printable(step.text, _LONGEST) + _repetition(step)
        if room >= _LEAST:
            lines = fold(text, columns, head=head, indent=" " * len(head))
        else:
            lines = [_INDENT + head.strip(), *fold(text, columns, head=_INDENT * 2, indent=_INDENT * 2)]
        yield from (line.rstrip(" ") for line in lines)


def _times(times: Sequence[datetime | None]) -> list[str]:
    """Format times in UTC; the date is left out where all times have the same one."""
    days = {time.astimezone(UTC).date() for time in times if time is not None}
    form = "%H:%M:%S" if len(days) == 1 else "%Y-%m-%d %H:%M:%S"
    return [time.astimezone(UTC).strftime(form) if time is not None else "" for time in times]


def _repetition(step: Step) -> str:
    """Return how often a step was repeated, and until when."""
    if step.times < 2 and step.last is None:
        return ""
    more = " or more" if step.times == _REPEATED_BY_KAI and step.what == "waiting" else ""
    until = ""
    if step.last is not None:
        until = f", last at {_times([step.at, step.last])[1]}"
    return f" ({step.times} times{more}{until})"


def as_json(answer: Explanation) -> str:
    """Format the answer as a JSON object in ASCII. Unknown values are null; times are in UTC (RFC 3339)."""
    document = {
        "namespace": answer.namespace,
        "kind": answer.kind,
        "name": answer.name,
        "state": answer.state,
        "fine": answer.is_fine,
        "findings": [_finding(finding) for finding in answer.findings],
        "story": [_step(step) for step in answer.story],
        "notVisible": list(answer.not_visible),
        "notes": list(answer.notes),
    }
    return json.dumps(document, indent=2) + "\n"


def _finding(finding: PodFinding) -> dict[str, Any]:
    return {
        "code": finding.code.value,
        "fine": finding.code.is_fine,
        "sentence": finding.sentence,
        "remedies": [{"text": each.text, "command": each.command or None} for each in finding.remedies],
        "details": {_camel_case(key): _known(value) for key, value in finding.details.items()},
        "page": finding.code.page,
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        "at": _rfc3339(step.at),
        "last": _rfc3339(step.last),
        "times": step.times,
        "what": step.what,
        "text": step.text,
    }


def _camel_case(key: str) -> str:
    return _UNDERSCORE.sub(lambda match: match[1].upper(), key)


def _known(value: float | str) -> float | str | None:
    """Return a figure, or None for one that JSON cannot express."""
    return None if isinstance(value, float) and not isfinite(value) else value


def _rfc3339(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
