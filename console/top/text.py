"""The table as plain text, with the three lines above it, and everything as one JSON document. Pure."""

import json
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import compress
from textwrap import indent
from typing import Any, Final

from console.agent_client import Received, not_an_answer
from console.text_table import column_widths
from console.text_table import table_lines as text_lines
from console.top.arrange import AgentLine, Arrangement, GroupLine, Line, arrange, is_old
from console.top.columns import merge_widths
from console.top.fleet import AgentState, Fleet
from console.top.layout import Layout, agent_text, group_text, layout
from gpuagent.api_types import NotAnAnswer, read_document, transitions_text
from gpuagent.first_acts import FOR_FLAG, FirstAct
from gpuagent.table.gpu_rows import GPU_HEADINGS, NO_POD, UNKNOWN, GpuState, plain
from gpuagent.table.pod_rows import PodState, message_text
from service.command import DEFAULT_COLUMNS
from service.text import counted, fold, listed
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


_INDENT: Final = "     "
"""Indentation of a further line: that of a row's cells, and two columns more."""

_LEFT_OUT: Final = frozenset({"FREE"})
"""Headings of the table of GPUs that a narrow terminal lacks."""

_BEFORE_UNIT: Final = re.compile(r"(?<=[0-9]) (?=(?:[GMK]i)?B\b)")
_NO_BREAK: Final = "\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True)
class TextLine:
    """One line of text, and what it is about."""

    text: str
    line: Line | None = None
    is_old: bool = False
    """Whether the figures are of the past."""
    is_alarm: bool = False
    """Whether the line reports something wrong; a line of the table has a state instead."""


def as_text(fleet: Fleet, arrangement: Arrangement, now: float, *, columns: int = DEFAULT_COLUMNS) -> str:
    """Return the head and all lines of the table, each with a line break.

    The table has the columns that fit. A state without room in its column is below
    its row, but for `within share`.

    Args:
        fleet: the agents.
        arrangement: which rows, and in what order.
        now: monotonic seconds, on the clock of the agents' state.
        columns: largest width of a line.
    """
    lines = (
        *head_lines(fleet, now, columns),
        *table_lines(fleet, arrangement, now, columns, with_advice=True),
    )
    return "".join(f"{line.text.rstrip()}\n" for line in lines)


def head_lines(fleet: Fleet, now: float, columns: int) -> Iterator[TextLine]:
    """Return the lines above the table; those of a single agent have its sample and each of its GPUs."""
    for part in head(fleet, now):
        for text in _folded(part.text, columns):
            yield TextLine(text, is_alarm=part.is_alarm)
    if len(fleet.agents) != 1:
        return
    (agent,) = fleet.agents.values()
    if agent.received is not None:
        for text in fold(_sample_text(agent.node, agent.received, now), columns, indent="  "):
            yield TextLine(text, is_old=bool(agent.failure))
    if agent.table.gpus:
        yield TextLine("")
        yield from _gpu_lines(agent.table.gpus, columns, is_old=bool(agent.failure))


def _gpu_lines(gpus: Sequence[GpuState], columns: int, *, is_old: bool) -> Iterator[TextLine]:
    """Return the table of the GPUs, with FREE if that fits, or a sentence for each of them."""
    blocks = [_folded(gpu.text, columns) for gpu in gpus]
    for left_out in (frozenset(), _LEFT_OUT):
        kept = [name not in left_out for name in GPU_HEADINGS]
        rows = [tuple(compress(cells, kept)) for cells in (GPU_HEADINGS, *(gpu.cells for gpu in gpus))]
        widths = column_widths(rows, columns, [5 if name == "MODEL" and left_out else 0 for name in rows[0]])
        if widths is not None:
            heading, *lines = text_lines(rows, widths)
            yield TextLine(heading)
            blocks = [[line] for line in lines]
            break
    for gpu, block in zip(gpus, blocks, strict=True):
        yield from (TextLine(text, is_old=is_old, is_alarm=gpu.is_alarming) for text in block)
    steps: dict[FirstAct, list[str]] = {}
    for gpu in gpus:
        for step in gpu.next_steps:
            steps.setdefault(step, []).append(gpu.label)
    for step, labels in steps.items():
        text = f"{', '.join(labels)}: {step.line}"
        yield from (TextLine(part, is_old=is_old) for part in fold(text, columns, indent="  "))


def _sample_text(node: str, received: Received, now: float) -> str:
    age, answer = received.age_at(now), received.answer
    transitions = transitions_text(answer)
    return (
        f"{node}: {'simulated: these figures are synthetic; ' if answer.simulated else ''}"
        f"driver {plain(answer.driver_version or UNKNOWN, 64)},"
        f" {'no sample yet' if age is None else f'sample of {duration(age)} ago'}"
        f"{f'; flags since the agent started: {transitions}' if transitions else ''}"
    )


def _folded(text: str, columns: int, *, head: str = "", indent: str = "  ") -> list[str]:
    """Break a text into lines, but never between an amount and its unit."""
    whole = _BEFORE_UNIT.sub(_NO_BREAK, text)
    return [line.replace(_NO_BREAK, " ") for line in fold(whole, columns, head=head, indent=indent)]


def table_lines(
    fleet: Fleet,
    arrangement: Arrangement,
    now: float,
    columns: int,
    *,
    is_compact: bool = False,
    with_advice: bool = False,
) -> Iterator[TextLine]:
    """Return the headings and the lines of the table, or why there is none.

    `is_compact` gives each line of the table one line of text, and the state the first column with room.
    `with_advice` adds the messages of flags and what to do first, if there is one agent.
    """
    lines = arrange(fleet, arrangement)
    if not lines:
        yield from map(TextLine, fold(_no_lines(fleet, arrangement), columns))
        return
    without = {"bar"} | ({"node"} if len(fleet.agents) == 1 else set())  # the head names the one node
    widths = merge_widths(agent.widths for agent in fleet.agents.values())
    chosen = layout(columns, widths, without=without, first="state" if is_compact else "")
    if not is_compact:
        yield TextLine("")
    yield TextLine(chosen.heading())
    for line in lines:
        is_past = is_old(fleet, line)
        texts = [chosen.line(line, now, is_old=is_past)]
        if not is_compact:
            texts = _whole_texts(
                line, texts[0], chosen, now, with_advice=with_advice and len(fleet.agents) == 1
            )
        yield from (TextLine(text, line, is_past) for text in texts)


def _whole_texts(line: Line, first: str, chosen: Layout, now: float, *, with_advice: bool) -> list[str]:
    """Return all text of a line of the table.

    A row has its notes, its state where that has no column, and with advice the messages of its flags and
    what to do first.
    """
    if isinstance(line, GroupLine):
        return fold(group_text(line), chosen.width, indent="   ")
    if isinstance(line, AgentLine):
        return fold(agent_text(line, now), chosen.width, indent=_INDENT)
    below = [f"note: {plain(note)}" for note in line.api_pod.notes]
    if line.state_text != PodState.WITHIN and not chosen.shows_state(line):
        below.insert(0, line.state_text)
    if with_advice:
        steps = dict.fromkeys(FOR_FLAG.get(verdict.reason) for verdict in line.verdicts if verdict.flagged)
        below += [*filter(None, map(message_text, line.verdicts)), *(step.line for step in steps if step)]
    return [
        first,
        *(part for text in below for part in _folded(text, chosen.width, head=_INDENT, indent=_INDENT)),
    ]


def _no_lines(fleet: Fleet, arrangement: Arrangement) -> str:
    if not fleet.agents:
        return f"No agents{fleet.place}."
    if arrangement.namespace or arrangement.flagged_only or arrangement.words:
        return "No pod matches the options."
    reasons = {agent.table.nothing for agent in fleet.agents.values()}
    return reasons.pop() if len(reasons) == 1 else NO_POD


def json_parts(fleet: Fleet, arrangement: Arrangement, now: float) -> Iterator[str]:
    """Yield one document in ASCII, so that no name can act on a terminal, in a part for each agent.

    5,000 agents have 100 MB, which would take a gigabyte of memory as one text.

    Every agent has its node, whether it answered, the age of its answer, the reason of a failure, and its own
    document; the arrangement's namespace and `flagged_only` narrow the pods in it. An agent whose document
    has an unreadable field, which the table does not show, becomes a failure in the fleet.
    """
    start = '{\n  "agents": ['
    for agent in fleet.agents.values():
        try:
            text = json.dumps(_agent_json(agent, arrangement, now), indent=2)
        except (NotAnAnswer, RecursionError) as error:
            fleet.set_failure(agent.ref.name, not_an_answer(error))
            text = json.dumps(_agent_entry(agent, None, now), indent=2)
        yield f"{start}\n{indent(text, '    ')}"
        start = ","
    yield "\n  ]\n}\n" if fleet.agents else f"{start}]\n}}\n"


def _agent_json(agent: AgentState, arrangement: Arrangement, now: float) -> dict[str, Any]:
    received = agent.received
    document = read_document(received.body) if received else None
    if document is not None:
        at_risk = {row.key[1] for row in agent.table.rows if row.is_cause or row.is_at_risk}
        document["pods"] = [pod for pod in document.get("pods", ()) if _is_chosen(pod, arrangement, at_risk)]
    return _agent_entry(agent, document, now)


def _agent_entry(agent: AgentState, document: dict[str, Any] | None, now: float) -> dict[str, Any]:
    received = agent.received
    return {
        "agent": agent.ref.name,
        "node": agent.ref.node or (document or {}).get("node"),
        "answered": received is not None and not agent.failure,
        "ageSeconds": round(max(now - received.at, 0.0), 3) if received else None,
        "error": agent.failure or None,
        "shares": document,
    }


def _is_chosen(pod: dict[str, Any], arrangement: Arrangement, at_risk: Set[str]) -> bool:
    if arrangement.namespace and pod.get("namespace") != arrangement.namespace:
        return False
    is_flagged = any(verdict.get("flagged") for verdict in pod.get("verdicts", ()))
    return not arrangement.flagged_only or is_flagged or pod.get("uid") in at_risk
