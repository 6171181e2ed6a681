"""All figures of one pod, or of one agent, as lines of text. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from console.top.fleet import AgentLine, AgentState, Fleet, GroupLine, Line
from console.top.gpu_rows import LONGEST_NAME, NONE, UNKNOWN, Act, act_of, known_bytes, plain
from console.top.layout import CELLS
from console.top.pod_rows import MAX_SECONDS, NO_TABLE, NodeTable, PodRow, figures_text, message_text
from gpuagent.api_types import ApiPod, ApiVerdict, transitions_text
from service.text import counted
from service.units import duration, size

_MOST = 64  # entries of one kind
_MOST_CAUSES = 8


def details_of(line: Line, fleet: Fleet, now: float) -> list[str]:
    """Return everything known about a line; `now` are seconds on the clock of the agents' state."""
    if isinstance(line, GroupLine):
        return [line.text(now)]
    if isinstance(line, AgentLine):
        return list(_agent(line.agent, now))
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
    if row.tenant:
        yield f"in vCluster {row.tenant}"
    yield f"uid         {plain(pod.uid, 64)}"
    yield f"phase       {plain(pod.phase, 64) or NONE}"
    for name in ("queue", "size", "workload"):
        yield f"{name:<12}{CELLS[name](row)}"
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
    yield f"on GPU {row.gpu} {plain(row.key[2], 64)}".rstrip()
    limit = row.api_pod.limits.get(row.key[2])
    sources = {"share": row.share_source, "limit": plain(limit.source, 64) if limit else ""}
    for name in ("state", "used", "processes", "utilization", "share", "limit"):
        source = f" ({sources[name]})" if sources.get(name) else ""
        yield f"  {name:<13}{CELLS[name](row)}{source}"
    verdicts = [verdict for verdict in row.api_pod.verdicts if verdict.gpu_uuid == row.key[2]]
    yield from (f"  {_verdict(verdict)}" for verdict in verdicts[:_MOST])


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
        yield AgentLine(agent).text(now).strip()
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
