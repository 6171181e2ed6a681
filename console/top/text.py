"""The three lines above the table, the table as plain text, and one JSON document of all. Pure."""

import json
from collections.abc import Iterator, Sequence
from textwrap import indent
from typing import Any, Final

import msgspec

from console.text_table import column_widths, natural_widths, table_lines
from console.top.fleet import AgentState, Arrangement, Fleet, arrange, chosen_rows, is_old
from console.top.gpu_rows import GPU_HEADINGS, LONGEST_DETAIL, GpuState, act_of, plain
from console.top.layout import layout
from console.top.pod_rows import NO_POD, WITHIN, PodRow, sign
from service.command import DEFAULT_COLUMNS
from service.text import counted, fold, listed
from service.units import duration, size

_INDENT: Final = "     "  # of a further line: that of a row's cells, and two columns more

_MOST_NOTES: Final = 9  # as the agent gives

HeadLine = tuple[str, bool]  # a line of the head, and whether it reports something wrong


def head(fleet: Fleet, now: float) -> tuple[HeadLine, HeadLine, HeadLine]:
    """Return the head: sums, GPUs, agents. `now` are seconds on the clock of the agents' state."""
    agents = list(fleet.agents.values())
    return _memory(agents, fleet.gpus), _gpus(agents, fleet.gpus), _agents(fleet, agents, now)


def _memory(agents: Sequence[AgentState], gpus: Sequence[GpuState]) -> HeadLine:
    """Return the sums. An unknown amount of one GPU makes them lower bounds."""
    amounts = [(gpu.used, gpu.promised, gpu.total) for gpu in gpus]
    is_known = all(None not in of_gpu for of_gpu in amounts)
    at_least = "" if is_known and all(agent.table.has_figures for agent in agents) else "≥"
    used, promised, total = (
        f"{at_least}{size(sum(each[place] or 0 for each in amounts))}" for place in range(3)
    )
    flagged, over, pods = (
        sum(getattr(agent.table, name) for agent in agents) for name in ("flagged", "over", "pods")
    )
    counts = f"{flagged} flagged, {over} in grace, {counted(pods, 'pod')}"
    return f"{counts}; used {used}, promised {promised} of {total}", bool(flagged)


def _gpus(agents: Sequence[AgentState], gpus: Sequence[GpuState]) -> HeadLine:
    groups = {
        "at risk": [f"{gpu.name}: {gpu.risk_text}" for gpu in gpus if gpu.at_risk],
        "lost": [gpu.name for gpu in gpus if gpu.loss == "LOST"],
        "without answer": [gpu.name for gpu in gpus if gpu.loss == "NO ANSWER"],
        "overpromised": [
            f"{gpu.name}: {size(gpu.promised)} of {size(gpu.total)}" for gpu in gpus if gpu.is_over_promised
        ],
    }
    alarms = [
        (f"{len(names)} {name.upper()}", name, listed(names)) for name, names in groups.items() if names
    ]
    is_complete = agents and all(agent.table.has_figures and not agent.failure for agent in agents)
    text = _joined(alarms) or ("none lost" if is_complete else "none known to be lost")
    return f"{counted(len(gpus), 'GPU')}: {text}", bool(alarms)


def _agents(fleet: Fleet, agents: Sequence[AgentState], now: float) -> HeadLine:
    silent = [agent for agent in agents if agent.failure]
    suspended = [agent.node for agent in agents if agent.table.is_suspended]
    failure = fleet.list_failure
    longest = max(silent, key=lambda agent: agent.silent_seconds(now), default=None)
    silence = ""
    if longest is not None:
        others = f", {len(silent) - 1} more" if len(silent) > 1 else ""
        silence = f"{longest.node} for {duration(longest.silent_seconds(now))}: {longest.failure}{others}"
    waiting = sum(not agent.failure and agent.received is None for agent in agents)
    asked = f"asking {counted(waiting, 'agent')}" if waiting == len(agents) else f"no answer of {waiting} yet"
    problems = sum(len(agent.table.problems) for agent in agents)
    simulated = sum(agent.table.is_simulated for agent in agents)
    notes = {
        ("LIST OF AGENTS FAILED", "list", failure): failure,
        (f"{len(silent)} NOT ANSWERING", "not answering", silence): silent,
        (asked, "", ""): waiting,
        (f"{len(suspended)} WITH VERDICTS SUSPENDED", "suspended", listed(suspended)): suspended,
        (counted(problems, "problem"), "", ""): problems,
        (f"{simulated} simulated", "", ""): simulated,
    }
    text = _joined([note for note, is_so in notes.items() if is_so])
    if not agents and not text:
        text = f"no agent found{fleet.place}" if fleet.is_listed else "listing the agents"
    nodes = counted(len({agent.node for agent in agents}), "node")
    return f"{nodes}: {text or 'all answer'}", bool(silent or suspended or failure)


def _joined(notes: Sequence[tuple[str, str, str]]) -> str:
    """Join counts, and behind them the names and texts of their details, which a narrow terminal cuts."""
    is_named = len(notes) > 1
    details = "; ".join(f"{name}: " * is_named + text for _, name, text in notes if text)
    return "; ".join(count for count, _, _ in notes) + (f" ({details})" if details else "")


def as_text(
    fleet: Fleet,
    arrangement: Arrangement,
    now: float,
    *,
    columns: int = DEFAULT_COLUMNS,
    is_whole: bool = False,
) -> str:
    """Return the head and all lines of the table, with the columns that fit, each with a line break.

    With `is_whole`, for a file or pipe, no name is cut, so that the table may be wider.

    A state without room in its column is below its row, but for `within share`. The table of a single agent
    has each of its GPUs, and what to do first.
    """
    lines = [text for part, _ in head(fleet, now) for text in fold(part, columns, indent="  ")]
    if len(fleet.agents) == 1 and fleet.gpus:
        lines += ["", *gpu_lines(fleet.gpus, columns, is_whole=is_whole)]
        acts: dict[str, list[str]] = {}
        for gpu in fleet.gpus:
            acts.setdefault(gpu.act, []).append(gpu.label)
        for act, labels in acts.items():
            lines += fold(f"{', '.join(labels)}: {act}", columns, indent="  ") if act else ()
    lines += _table_lines(fleet, arrangement, now, columns, is_whole=is_whole)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def gpu_lines(gpus: Sequence[GpuState], columns: int, *, is_whole: bool = False) -> Iterator[str]:
    """Yield the headings and a line for each GPU."""
    rows = [GPU_HEADINGS, *(gpu.cells for gpu in gpus)]
    shrinkable = [{"GPU": 10, "MODEL": 5}.get(name, 0) for name in GPU_HEADINGS]
    fitted = None if is_whole else column_widths(rows, columns, shrinkable)
    yield from table_lines(rows, fitted or natural_widths(rows))


def _table_lines(
    fleet: Fleet, arrangement: Arrangement, now: float, columns: int, *, is_whole: bool
) -> Iterator[str]:
    """Yield the headings and the lines of the table, or why there is none."""
    lines, is_single = arrange(fleet, arrangement), len(fleet.agents) == 1
    if not lines:
        reasons = {agent.table.nothing for agent in fleet.agents.values()}
        reason = reasons.pop() if len(reasons) == 1 else NO_POD
        if arrangement.namespace or arrangement.flagged_only or arrangement.words:
            reason = "No pod matches the options."
        yield from fold(reason if fleet.agents else f"No agents{fleet.place}.", columns)
        return
    # The GPUs of a single agent name its node.
    without = ("bar", "node") if is_single else ("bar",)
    chosen = layout(columns, fleet.widths, without=without, is_whole=is_whole)
    state_width = next((width for column, width in chosen.columns if column.name == "state"), 0)
    yield from ("", chosen.heading())
    for line in lines:
        if not isinstance(line, PodRow):
            yield from fold(line.text(now), columns, indent=_INDENT)
            continue
        yield chosen.row(sign(line, is_old=is_old(fleet, line)), line.cells)
        state = line.cells["state"]
        below = [state] if state != WITHIN and state_width < len(state) else []
        below += [f"note: {plain(note)}" for note in line.api_pod.notes[:_MOST_NOTES]]
        if is_single:
            below += [plain(verdict.message or "", LONGEST_DETAIL) for verdict in line.verdicts]
            below += dict.fromkeys(map(act_of, line.verdicts))
        for text in filter(None, below):
            yield from fold(text, columns, head=_INDENT, indent=_INDENT)


def json_parts(fleet: Fleet, arrangement: Arrangement, now: float) -> Iterator[str]:
    """Yield one document in ASCII, so that no name can act on a terminal, in a part for each agent.

    5,000 agents have 100 MB, which would take a gigabyte of memory as one text.
    """
    start = '{\n  "agents": ['
    for agent in fleet.agents.values():
        text = json.dumps(_agent_json(agent, arrangement, now), indent=2)
        yield f"{start}\n{indent(text, '    ')}"
        start = ","
    yield "\n  ]\n}\n" if fleet.agents else f"{start}]\n}}\n"


def _agent_json(agent: AgentState, arrangement: Arrangement, now: float) -> dict[str, Any]:
    received = agent.received
    answer = received.answer if received else None
    if answer is not None and (arrangement.namespace or arrangement.flagged_only):
        uids = {row.key[1] for row in chosen_rows(agent.table.rows, arrangement)}
        pods = tuple(pod for pod in answer.pods if pod.uid in uids)
        answer = msgspec.structs.replace(answer, pods=pods)
    return {
        "agent": agent.pod.name,
        "node": agent.pod.spec.node_name or (answer.node if answer else None),
        "answered": received is not None and not agent.failure,
        "ageSeconds": round(max(now - received.at, 0.0), 3) if received else None,
        "error": agent.failure or None,
        "shares": msgspec.to_builtins(answer),
    }
