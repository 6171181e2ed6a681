"""The three lines above the table: memory and flags, GPUs, agents. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuagent.table.gpus import GpuState
from gpuagent.top.fleet import Fleet, Totals
from service.text import counted
from service.units import duration, size

_NAMED = 5
"""Largest number of GPUs or nodes that a line names."""


@dataclass(frozen=True, slots=True)
class HeadLine:
    """One line of the head."""

    text: str
    is_alarm: bool
    """Whether the line reports something wrong."""


@dataclass(frozen=True, slots=True)
class _Note:
    """A part of a line: a count, and perhaps the names behind it."""

    count: str
    name: str = ""
    """What the details are about."""
    details: str = ""


def head(fleet: Fleet, totals: Totals, now: float) -> tuple[HeadLine, HeadLine, HeadLine]:
    """Return the head.

    Args:
        fleet: the agents.
        totals: sums of the same state.
        now: monotonic seconds, on the clock of the agents' state.
    """
    return _memory(totals), _gpus(totals), _agents(fleet, totals, now)


def _memory(totals: Totals) -> HeadLine:
    at_least = "≥" if totals.is_lower_bound else ""
    return HeadLine(
        f"{totals.flagged} flagged, {totals.over} in grace, {counted(totals.pods, 'pod')};"
        f" used {at_least}{size(totals.used)}, promised {at_least}{size(totals.promised)}"
        f" of {at_least}{size(totals.total)}",
        bool(totals.flagged),
    )


def _gpus(totals: Totals) -> HeadLine:
    alarms = []
    if totals.lost:
        alarms.append(_Note(f"{len(totals.lost)} LOST", "lost", _names(totals.lost)))
    if totals.over_promised:
        worst = [f"{gpu.name}: {size(gpu.promised)} of {size(gpu.total)}" for gpu in totals.over_promised]
        alarms.append(_Note(f"{len(worst)} OVERPROMISED", "overpromised", _first(worst)))
    has_gaps = totals.silent or totals.waiting or totals.without_figures
    is_complete = totals.agents and not has_gaps
    text = _joined(alarms) or ("none lost" if is_complete else "none known to be lost")
    return HeadLine(f"{counted(totals.gpus, 'GPU')}: {text}", bool(alarms))


def _agents(fleet: Fleet, totals: Totals, now: float) -> HeadLine:
    notes = _joined(list(_agent_notes(fleet, totals, now)))
    if not totals.agents and not notes:
        notes = f"no agent found{fleet.place}" if fleet.is_listed else "listing the agents"
    return HeadLine(
        f"{counted(totals.nodes, 'node')}: {notes or 'all answer'}",
        bool(totals.silent or totals.suspended or fleet.list_failure),
    )


def _agent_notes(fleet: Fleet, totals: Totals, now: float) -> Iterator[_Note]:
    if fleet.list_failure:
        yield _Note("LIST OF AGENTS FAILED", "list", fleet.list_failure)
    if totals.silent:
        first = totals.silent[0]
        others = f", {len(totals.silent) - 1} more" if len(totals.silent) > 1 else ""
        details = f"{first.node} for {duration(first.silent_seconds(now))}: {first.failure}{others}"
        yield _Note(f"{len(totals.silent)} NOT ANSWERING", "not answering", details)
    if totals.waiting:
        yield _Note(f"no answer of {totals.waiting} yet")
    if totals.suspended:
        names = _first([agent.node for agent in totals.suspended])
        yield _Note(f"{len(totals.suspended)} WITH VERDICTS SUSPENDED", "suspended", names)
    if totals.problems:
        yield _Note(counted(totals.problems, "problem"))
    if totals.simulated:
        yield _Note(f"{totals.simulated} simulated")


def _joined(notes: Sequence[_Note]) -> str:
    """Join notes: all counts first, so that a narrow terminal cuts only their details."""
    detailed = [note for note in notes if note.details]
    details = "; ".join(
        f"{note.name}: {note.details}" if len(notes) > 1 else note.details for note in detailed
    )
    return "; ".join(note.count for note in notes) + (f" ({details})" if details else "")


def _names(gpus: Sequence[GpuState]) -> str:
    return _first([gpu.name for gpu in gpus])


def _first(names: Sequence[str]) -> str:
    more = f", {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
