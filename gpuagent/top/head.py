"""The three lines above the table: memory and flags, GPUs, agents. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuagent.table.gpus import GpuState
from gpuagent.top.fleet import AgentState, Fleet
from service.text import counted, listed
from service.units import duration, size


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


def head(fleet: Fleet, now: float) -> tuple[HeadLine, HeadLine, HeadLine]:
    """Return the head.

    Args:
        fleet: the agents.
        now: monotonic seconds, on the clock of the agents' state.
    """
    agents = list(fleet.agents.values())
    gpus = [gpu for agent in agents for gpu in agent.table.gpus]
    return _memory(agents, gpus), _gpus(agents, gpus), _agents(fleet, agents, now)


def _memory(agents: Sequence[AgentState], gpus: Sequence[GpuState]) -> HeadLine:
    """Return the sums. An unknown amount of one GPU makes them lower bounds."""
    is_lower_bound = any(None in (gpu.used, gpu.total, gpu.promised) for gpu in gpus)
    at_least = "≥" if is_lower_bound or not all(agent.table.has_figures for agent in agents) else ""
    flagged = sum(agent.table.flagged for agent in agents)
    used, promised, total = (
        f"{at_least}{size(sum(amount or 0 for amount in amounts))}"
        for amounts in zip(*[(gpu.used, gpu.promised, gpu.total) for gpu in gpus] or [(0, 0, 0)], strict=True)
    )
    return HeadLine(
        f"{flagged} flagged, {sum(agent.table.over for agent in agents)} in grace,"
        f" {counted(sum(agent.table.pods for agent in agents), 'pod')};"
        f" used {used}, promised {promised} of {total}",
        bool(flagged),
    )


def _gpus(agents: Sequence[AgentState], gpus: Sequence[GpuState]) -> HeadLine:
    alarms = []
    if at_risk := [f"{gpu.name}: {gpu.risk_text}" for gpu in gpus if gpu.is_at_risk]:
        alarms.append(_Note(f"{len(at_risk)} AT RISK", "at risk", listed(at_risk)))
    if lost := [gpu.name for gpu in gpus if gpu.is_lost]:
        alarms.append(_Note(f"{len(lost)} LOST", "lost", listed(lost)))
    over = [f"{gpu.name}: {size(gpu.promised)} of {size(gpu.total)}" for gpu in gpus if gpu.is_over_promised]
    if over:
        alarms.append(_Note(f"{len(over)} OVERPROMISED", "overpromised", listed(over)))
    is_complete = agents and all(agent.table.has_figures and not agent.failure for agent in agents)
    text = _joined(alarms) or ("none lost" if is_complete else "none known to be lost")
    return HeadLine(f"{counted(len(gpus), 'GPU')}: {text}", bool(alarms))


def _agents(fleet: Fleet, agents: Sequence[AgentState], now: float) -> HeadLine:
    silent = sorted(
        (agent for agent in agents if agent.failure), key=lambda agent: -agent.silent_seconds(now)
    )
    suspended = [agent.node for agent in agents if agent.table.is_suspended]
    notes = _joined(list(_agent_notes(fleet, agents, silent, suspended, now)))
    if not agents and not notes:
        notes = f"no agent found{fleet.place}" if fleet.is_listed else "listing the agents"
    return HeadLine(
        f"{counted(len({agent.node for agent in agents}), 'node')}: {notes or 'all answer'}",
        bool(silent or suspended or fleet.list_failure),
    )


def _agent_notes(
    fleet: Fleet,
    agents: Sequence[AgentState],
    silent: Sequence[AgentState],
    suspended: Sequence[str],
    now: float,
) -> Iterator[_Note]:
    if fleet.list_failure:
        yield _Note("LIST OF AGENTS FAILED", "list", fleet.list_failure)
    if silent:
        others = f", {len(silent) - 1} more" if len(silent) > 1 else ""
        details = (
            f"{silent[0].node} for {duration(silent[0].silent_seconds(now))}: {silent[0].failure}{others}"
        )
        yield _Note(f"{len(silent)} NOT ANSWERING", "not answering", details)
    if waiting := sum(not agent.failure and agent.received is None for agent in agents):
        yield _Note(f"no answer of {waiting} yet")
    if suspended:
        yield _Note(f"{len(suspended)} WITH VERDICTS SUSPENDED", "suspended", listed(suspended))
    if problems := sum(len(agent.table.problems) for agent in agents):
        yield _Note(counted(problems, "problem"))
    if simulated := sum(agent.table.is_simulated for agent in agents):
        yield _Note(f"{simulated} simulated")


def _joined(notes: Sequence[_Note]) -> str:
    """Join notes: all counts first, so that a narrow terminal cuts only their details."""
    detailed = [note for note in notes if note.details]
    details = "; ".join(
        f"{note.name}: {note.details}" if len(notes) > 1 else note.details for note in detailed
    )
    return "; ".join(note.count for note in notes) + (f" ({details})" if details else "")
