"""The three lines above the table, the table as plain text, one JSON document of all, and details. Pure."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from textwrap import indent
from typing import Any, Final, NamedTuple

import msgspec

from console.cluster.agents import Received
from console.text_table import column_widths, natural_widths, table_lines
from console.top.fleet import (
    AgentState,
    Arrangement,
    Fleet,
    GroupLine,
    Line,
    arrange,
    chosen_rows,
    is_old,
)
from console.top.gpu_rows import (
    BRIEF_HEADINGS,
    GPU_HEADINGS,
    LONGEST_NAME,
    NO_POD,
    NONE,
    UNKNOWN,
    Act,
    GpuState,
    act_of,
    known_bytes,
    plain,
)
from console.top.layout import Layout, layout, merge_widths
from console.top.pod_rows import (
    MAX_SECONDS,
    NO_TABLE,
    NodeTable,
    PodRow,
    PodState,
    figures_text,
    message_text,
)
from gpuagent.api_types import (
    ApiContainerLimit,
    ApiPod,
    ApiVerdict,
    transitions_text,
)
from service.command import DEFAULT_COLUMNS
from service.text import counted, fold, listed
from service.units import duration, size

_INDENT: Final = "     "  # of a further line: that of a row's cells, and two columns more
_MOST: Final = 64  # entries of one kind in the details
_MOST_CAUSES: Final = 8


class HeadLine(NamedTuple):
    """One line of the head, and whether it reports something wrong."""

    text: str
    is_alarm: bool


class _Note(NamedTuple):
    """A part of a line: a count, and perhaps the details behind it, with a name for them."""

    counts: str
    name: str = ""
    details: str = ""


def head(fleet: Fleet, now: float) -> tuple[HeadLine, HeadLine, HeadLine]:
    """Return the head: sums, GPUs, agents. `now` are seconds on the clock of the agents' state."""
    agents = list(fleet.agents.values())
    return _memory(agents, fleet.gpus), _gpus(agents, fleet.gpus), _agents(fleet, agents, now)


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
    at_risk = [f"{gpu.name}: {gpu.risk_text}" for gpu in gpus if gpu.at_risk]
    lost = [gpu.name for gpu in gpus if gpu.is_gone]
    silent = [gpu.name for gpu in gpus if gpu.is_lost and not gpu.is_gone]
    over = [f"{gpu.name}: {size(gpu.promised)} of {size(gpu.total)}" for gpu in gpus if gpu.is_over_promised]
    groups = (("at risk", at_risk), ("lost", lost), ("without answer", silent), ("overpromised", over))
    alarms = [_Note(f"{len(names)} {name.upper()}", name, listed(names)) for name, names in groups if names]
    is_complete = agents and all(agent.table.has_figures and not agent.failure for agent in agents)
    text = _joined(alarms) or ("none lost" if is_complete else "none known to be lost")
    return HeadLine(f"{counted(len(gpus), 'GPU')}: {text}", bool(alarms))


def _agents(fleet: Fleet, agents: Sequence[AgentState], now: float) -> HeadLine:
    silent = [agent for agent in agents if agent.failure]
    suspended = [agent.node for agent in agents if agent.table.is_suspended]
    failure = fleet.list_failure
    notes = [_Note("LIST OF AGENTS FAILED", "list", failure)] if failure else []
    if silent:
        longest = max(silent, key=lambda agent: agent.silent_seconds(now))
        others = f", {len(silent) - 1} more" if len(silent) > 1 else ""
        since = duration(longest.silent_seconds(now))
        details = f"{longest.node} for {since}: {longest.failure}{others}"
        notes.append(_Note(f"{len(silent)} NOT ANSWERING", "not answering", details))
    if waiting := sum(not agent.failure and agent.received is None for agent in agents):
        asked = f"asking {counted(waiting, 'agent')}"
        notes.append(_Note(asked if waiting == len(agents) else f"no answer of {waiting} yet"))
    if suspended:
        notes.append(_Note(f"{len(suspended)} WITH VERDICTS SUSPENDED", "suspended", listed(suspended)))
    if problems := sum(len(agent.table.problems) for agent in agents):
        notes.append(_Note(counted(problems, "problem")))
    if simulated := sum(agent.table.is_simulated for agent in agents):
        notes.append(_Note(f"{simulated} simulated"))
    text = _joined(notes)
    if not agents and not text:
        text = f"no agent found{fleet.place}" if fleet.is_listed else "listing the agents"
    return HeadLine(
        f"{counted(len({agent.node for agent in agents}), 'node')}: {text or 'all answer'}",
        bool(silent or suspended or failure),
    )


def _joined(notes: Sequence[_Note]) -> str:
    """Join notes: all counts first, so that a narrow terminal cuts only their details."""
    is_named = len(notes) > 1
    details = "; ".join(f"{note.name}: " * is_named + note.details for note in notes if note.details)
    return "; ".join(note.counts for note in notes) + (f" ({details})" if details else "")


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
    has its sample, each of its GPUs, and what to do first.
    """
    lines = [text for part in head(fleet, now) for text in fold(part.text, columns, indent="  ")]
    if len(fleet.agents) == 1:
        (agent,) = fleet.agents.values()
        if agent.received is not None:
            lines += fold(_sample_text(agent.node, agent.received, now), columns, indent="  ")
        if agent.table.gpus:
            lines += ["", *_gpu_lines(agent.table.gpus, columns, is_whole=is_whole)]
    lines += _table_lines(fleet, arrangement, now, columns, is_whole=is_whole)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _gpu_lines(gpus: Sequence[GpuState], columns: int, *, is_whole: bool) -> Iterator[str]:
    """Yield the table of the GPUs, with FREE if that fits, or a sentence for each of them."""
    lines: Iterable[str] = (line for gpu in gpus for line in fold(gpu.text, columns, indent="  "))
    for is_narrow in (False, True):
        kept = [name != "FREE" or not is_narrow for name in GPU_HEADINGS]
        rows = [tuple(compress(cells, kept)) for cells in (GPU_HEADINGS, *(gpu.cells for gpu in gpus))]
        is_cut = is_narrow and not is_whole
        widths = column_widths(rows, columns, [5 if name == "MODEL" and is_cut else 0 for name in rows[0]])
        if widths is not None or (is_narrow and is_whole):
            lines = table_lines(rows, widths or natural_widths(rows))
            break
    yield from lines
    acts: dict[Act, list[str]] = {}
    for gpu in gpus:
        if gpu.act is not None:
            acts.setdefault(gpu.act, []).append(gpu.label)
    for act, labels in acts.items():
        yield from fold(f"{', '.join(labels)}: {act.line}", columns, indent="  ")


def gpu_overview(fleet: Fleet, columns: int, most: int) -> Iterator[str]:
    """Yield the headings and a line for each GPU, those in trouble first, in at most so many lines."""
    gpus = sorted(fleet.gpus, key=lambda gpu: not (gpu.is_lost or gpu.at_risk or gpu.is_over_promised))
    shown = gpus if len(gpus) < most else gpus[: most - 2]
    if not shown:
        return
    rows = [BRIEF_HEADINGS, *(gpu.brief for gpu in shown)]
    shrinkable = [{"GPU": 10, "MODEL": 5}.get(name, 0) for name in BRIEF_HEADINGS]
    yield from table_lines(rows, column_widths(rows, columns, shrinkable) or natural_widths(rows))
    if len(shown) < len(gpus):
        yield f"and {counted(len(gpus) - len(shown), 'more GPU')}"


def _sample_text(node: str, received: Received, now: float) -> str:
    age, answer = received.age_at(now), received.answer
    transitions = transitions_text(answer)
    return (
        f"{node}: {'simulated: these figures are synthetic; ' if answer.simulated else ''}"
        f"driver {plain(answer.driver_version or UNKNOWN, 64)},"
        f" {'no sample yet' if age is None else f'sample of {duration(age)} ago'}"
        f"{f'; flags since the agent started: {transitions}' if transitions else ''}"
    )


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
    widths = merge_widths(agent.widths for agent in fleet.agents.values())
    without = {"bar", "node"} if is_single else {"bar"}  # the head names the one node
    chosen = layout(columns, widths, without=without, is_whole=is_whole)
    yield from ("", chosen.heading())
    for line in lines:
        if not isinstance(line, PodRow):
            yield from fold(line.text(now), columns, indent=_INDENT)
            continue
        yield chosen.row(line, is_old=is_old(fleet, line))
        for text in _below(line, chosen, with_advice=is_single):
            yield from fold(text, columns, head=_INDENT, indent=_INDENT)


def _below(row: PodRow, chosen: Layout, *, with_advice: bool) -> Iterator[str]:
    """Yield the state of a row where that has no column, the messages of its flags, and what to do first."""
    state_width = next((width for column, width in chosen.columns if column.name == "state"), 0)
    if row.state_text != PodState.WITHIN and state_width < len(row.state_text):
        yield row.state_text
    yield from (f"note: {plain(note)}" for note in row.api_pod.notes)
    if with_advice:
        yield from filter(None, map(message_text, row.verdicts))
        yield from (act.line for act in dict.fromkeys(map(act_of, row.verdicts)) if act)


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


def details_of(line: Line, fleet: Fleet, now: float) -> list[str]:
    """Return everything known about a line; `now` are seconds on the clock of the agents' state."""
    if isinstance(line, GroupLine):
        return [line.text(now)]
    if isinstance(line, AgentState):
        return list(_agent(line, now))
    agent = fleet.agents.get(line.key[0])
    if agent is None:
        return list(_pod(line, [line], NO_TABLE))
    rows = [row for row in agent.table.rows if row.key[1] == line.key[1]]
    return [*_pod(line, rows, agent.table), "", *_agent(agent, now)]


def summary_of(line: Line, fleet: Fleet) -> list[str]:
    """Return what to know of a pod first: its state, and in trouble the cause, what to do, the command."""
    if not isinstance(line, PodRow):
        return []
    lines = [f"{line.namespace}/{line.pod}: {line.state_text}"]
    if not line.is_urgent:
        return lines
    agent = fleet.agents.get(line.key[0])
    table = agent.table if agent is not None else NO_TABLE
    if not line.is_violation and not line.is_cause:
        causes = [f"{each.namespace}/{each.pod}: {each.risk.text}" for each in table.other_causes(line)]
        lines += [f"caused by {cause}" for cause in causes[:1]]
    acts = [*map(act_of, line.verdicts), *(gpu.act for gpu in table.gpus if gpu.uuid == line.key[2])]
    lines += [f"do first: {act.text}" for act in list(filter(None, acts))[:1]]
    return [*lines, line.why_command] if line.why_command else lines


def _pod(row: PodRow, rows: Sequence[PodRow], table: NodeTable) -> Iterator[str]:
    pod = row.api_pod
    yield f"pod         {row.namespace}/{row.pod}"
    if row.why_command:
        yield f"command     {row.why_command}"
    yield from _what_to_do(rows, table)
    if pod.not_evicted:
        yield f"not evicted {plain(pod.not_evicted, 48)}"
    if pod.vcluster is not None:
        yield f"in vCluster {row.cells['tenant']}"
    yield f"uid         {plain(pod.uid, 64)}"
    yield f"phase       {plain(pod.phase, 64) or NONE}"
    for name in ("queue", "size", "workload"):
        yield f"{name:<12}{row.cells[name]}"
    yield f"GPU groups  {', '.join(plain(group, 64) for group in pod.gpu_groups[:_MOST]) or NONE}"
    yield ""
    for each in rows[:_MOST]:
        yield from _on_gpu(each)
    yield from _sources(pod)
    yield from _notes(pod)


def _what_to_do(rows: Sequence[PodRow], table: NodeTable) -> Iterator[str]:
    """Yield the flags and risks of a pod with their messages, and what to do about each of them."""
    flags = [verdict for verdict in rows[0].api_pod.verdicts if verdict.flagged][:_MOST] if rows else []
    at_risk = [row for row in rows if row.risk.text][:_MOST]
    if flags or at_risk:
        yield ""
    for verdict in flags:
        message = message_text(verdict) or figures_text(verdict)
        yield f"flagged     {plain(verdict.reason, 48)}{f': {message}' if message else ''}"
    yield from _acts(map(act_of, flags))
    gpus = {gpu.uuid: gpu for gpu in table.gpus}
    for row in at_risk:
        gpu = gpus.get(row.key[2])
        if gpu is None:
            continue
        yield f"GPU at risk {gpu.label}: {gpu.risk_text}; the pod: {row.risk.text}"
        others = table.other_causes(row)
        for other in others[:_MOST_CAUSES]:
            also = f"; {other.why_command}" if other.why_command else ""
            yield f"caused by   {other.namespace}/{other.pod}: {other.risk.text}{also}"
        if len(others) > _MOST_CAUSES:
            yield f"caused by   {counted(len(others) - _MOST_CAUSES, 'more pod')}"
        yield from _acts([gpu.act])


def _acts(acts: Iterable[Act | None]) -> Iterator[str]:
    """Yield each act once, and nothing for what has none."""
    for act in filter(None, dict.fromkeys(acts)):
        yield f"do first    {act.text}"
        yield f"runbook     {act.runbook}"


def _on_gpu(row: PodRow) -> Iterator[str]:
    yield f"on GPU {row.cells['gpu']} {plain(row.key[2], 64)}".rstrip()
    limit, sources = row.api_pod.limits.get(row.key[2]), {"share": row.cells["source"]}
    if limit:
        sources["limit"] = f"{plain(limit.source, 64)}{'' if limit.counts else ', does not count'}"
    for name in ("state", "used", "processes", "utilization", "share", "limit"):
        source = f" ({sources[name]})" if sources.get(name, NONE) != NONE else ""
        yield f"  {name:<13}{row.cells[name]}{source}"
    for each in [each for each in row.api_pod.driver_limits if each.gpu_uuid == row.key[2]][:_MOST]:
        yield f"  driver       {_driver_limit(each)}"
    verdicts = [verdict for verdict in row.api_pod.verdicts if verdict.gpu_uuid == row.key[2]]
    yield from (f"  {_verdict(verdict)}" for verdict in verdicts[:_MOST])


def _driver_limit(limit: ApiContainerLimit) -> str:
    """Describe what the driver holds a container to, beside what it was promised."""
    held, promised = known_bytes(limit.hard), known_bytes(limit.promised)
    parts = [f"{plain(limit.container, 64)}: {size(held) if held is not None else 'no known limit'}"]
    if promised is not None:
        parts.append(f"promised {size(promised)} by {plain(limit.source or '', 48)}")
    if limit.cause:
        parts.append(plain(limit.cause, 48))
    return ", ".join(parts)


def _verdict(verdict: ApiVerdict) -> str:
    state = "flagged, not over now" if verdict.flagged else "in order"
    if verdict.lasted_seconds is not None:
        lasted = duration(min(verdict.lasted_seconds, MAX_SECONDS))
        state = f"{'flagged' if verdict.flagged else 'in grace'} for {lasted}"
    balance = verdict.balance_seconds
    balance_text = f"balance {duration(min(balance, MAX_SECONDS))}" if balance else ""
    parts = filter(None, (state, balance_text, figures_text(verdict)))
    return f"{plain(verdict.reason, 48)}: {', '.join(parts)}"


def _sources(pod: ApiPod) -> Iterator[str]:
    yield "sources of the share, the best first"
    if not pod.candidates:
        yield f"  {NONE}"
    for candidate in pod.candidates[:_MOST]:
        counts = "" if candidate.counts else " (does not count)"
        amounts = ", ".join(
            f"{size(known_bytes(size_bytes))}{f' on {plain(uuid, 20)}' if uuid else ''}"
            for uuid, size_bytes in list(candidate.bytes_per_gpu.items())[:_MOST]
        )
        text = plain(candidate.text) or UNKNOWN  # an older agent has it under another name
        yield f"  {plain(candidate.source, 64)}{counts}: {text} = {amounts or NONE}"


def _notes(pod: ApiPod) -> Iterator[str]:
    sentences = {
        f"share changed: {plain(pod.share_changed or '')}": pod.share_changed,
        "The GPU of the share is unknown.": pod.gpu_unresolved,
        "The pod's GPU group has no reservation pod.": pod.lacks_reservation,
        "The pod has GPUs of a ResourceClaim or of a resource without a known size.": pod.has_unsized_gpus,
    }
    yield from (sentence for sentence, is_so in sentences.items() if is_so)
    if pod.over_share_policy is not None:
        grace = pod.over_share_policy.grace_seconds
        after = f" after {duration(min(grace, MAX_SECONDS))}" if grace is not None else ""
        action = "evict" if pod.over_share_policy.evict else "report"
        yield f"above the share: {action}{after}, by the namespace"
    yield from (f"note: {plain(note)}" for note in pod.notes[:_MOST])


def _agent(agent: AgentState, now: float) -> Iterator[str]:
    received, table = agent.received, agent.table
    yield f"agent       {plain(agent.pod.name, LONGEST_NAME)} on {agent.node}"
    yield f"answer      {f'{duration(agent.silent_seconds(now))} ago' if received else 'none yet'}"
    if agent.failure:
        yield agent.text(now).strip()
    if received is not None:
        answer, age = received.answer, received.age_at(now)
        yield f"sample      {f'{duration(age)} old' if age is not None else 'none'}"
        yield f"driver      {plain(answer.driver_version or NONE, 64)}"
        flags = (transitions_text(answer) or "none raised") if answer.flag_transitions else UNKNOWN
        yield f"flags       {flags} since the agent started"
    if table.is_simulated:
        yield "simulated   these figures are synthetic"
    if table.is_suspended:
        yield "Verdicts are suspended until these problems are resolved."
    for problem in table.problems[:_MOST]:
        yield f"problem: {problem.text}"
        yield from _acts([problem.act])
    for gpu in table.gpus[:_MOST]:
        yield gpu.text
        yield from _acts([gpu.act])
