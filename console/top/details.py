"""All figures of one pod, or of one agent, as lines of text. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from console.top.arrange import AgentLine, GroupLine, Line
from console.top.fleet import AgentState, Fleet
from console.top.layout import agent_text, group_text
from gpuagent.api_types import ApiPod, ApiVerdict, transitions_text
from gpuagent.first_acts import FOR_FLAG, FirstAct
from gpuagent.table.gpu_rows import LONGEST_NAME, NONE, UNKNOWN, known_bytes, plain
from gpuagent.table.node_table import NodeTable
from gpuagent.table.pod_rows import PodRow, figures_text, message_text, why_command
from service.text import counted
from service.units import duration, size

_MOST = 64
"""Largest number of entries of one kind."""
_MOST_CAUSES = 8
_NO_TABLE = NodeTable()


def title_of(line: Line) -> str:
    """Return the title of a line's details."""
    if isinstance(line, GroupLine):
        return line.name
    if isinstance(line, AgentLine):
        return line.agent.node
    return f"{line.namespace}/{line.pod}"


def details_of(line: Line, fleet: Fleet, now: float) -> list[str]:
    """Return everything known about a line.

    Args:
        line: row, heading of a group, or agent.
        fleet: the agents.
        now: monotonic seconds, on the clock of the agents' state.
    """
    if isinstance(line, GroupLine):
        return [group_text(line)]
    if isinstance(line, AgentLine):
        return list(_agent(line.agent, now))
    agent = fleet.agents.get(line.key[0])
    if agent is None:
        return list(_pod(line, [line], _NO_TABLE))
    rows = [row for row in agent.table.rows if row.key[1] == line.key[1]]
    return [*_pod(line, rows, agent.table), "", *_agent(agent, now)]


def summary_of(line: Line, fleet: Fleet) -> list[str]:
    """Return what to know of a line first: the pod's state, its cause, what to do, and the command.

    The list is empty for a line that is no pod's, and has the state only for a pod without trouble.
    """
    if isinstance(line, GroupLine | AgentLine):
        return []
    lines = [f"{line.namespace}/{line.pod}: {line.state_text}"]
    if not line.is_urgent:
        return lines
    agent = fleet.agents.get(line.key[0])
    table = agent.table if agent is not None else _NO_TABLE
    if not line.is_violation and not line.is_cause:
        causes = [f"{cause.namespace}/{cause.pod}: {cause.risk.text}" for cause in _other_causes(line, table)]
        lines += [f"caused by {cause}" for cause in causes[:1]]
    steps = [FOR_FLAG.get(verdict.reason) for verdict in line.verdicts]
    if not any(steps):
        steps = [step for gpu in table.gpus if gpu.uuid == line.gpu_uuid for step in gpu.next_steps]
    lines += [f"do first: {step.text}" for step in steps[:1] if step is not None]
    if command := why_command(line.api_pod):
        lines.append(command)
    return lines


def _pod(row: PodRow, rows: Sequence[PodRow], table: NodeTable) -> Iterator[str]:
    pod = row.api_pod
    yield f"pod         {row.namespace}/{row.pod}"
    if command := why_command(pod):
        yield f"command     {command}"
    yield from _what_to_do(rows, table)
    if row.tenant:
        yield f"in vCluster {row.tenant}"
    yield f"uid         {plain(pod.uid, 64)}"
    yield f"phase       {plain(pod.phase, 64) or NONE}"
    yield f"queue       {row.queue or NONE}"
    yield f"size        {row.size or NONE}"
    yield f"workload    {row.workload or NONE}"
    yield f"GPU groups  {', '.join(plain(group, 64) for group in pod.gpu_groups[:_MOST]) or NONE}"
    yield ""
    for each in rows[:_MOST]:
        yield from _on_gpu(each)
    yield from _sources(pod)
    yield from _notes(pod)


def _what_to_do(rows: Sequence[PodRow], table: NodeTable) -> Iterator[str]:
    """Yield the flags and risks of a pod with their messages, and what to do about each of them."""
    flags = [verdict for verdict in rows[0].api_pod.verdicts if verdict.flagged][:_MOST] if rows else []
    at_risk = [row for row in rows if row.is_cause or row.is_at_risk][:_MOST]
    if flags or at_risk:
        yield ""
    for verdict in flags:
        message = message_text(verdict) or figures_text(verdict)
        yield f"flagged     {plain(verdict.reason, 48)}{f': {message}' if message else ''}"
    yield from _steps(FOR_FLAG.get(verdict.reason) for verdict in flags)
    gpus = {gpu.uuid: gpu for gpu in table.gpus}
    for row in at_risk:
        gpu = gpus.get(row.gpu_uuid)
        if gpu is not None:
            yield f"GPU at risk {gpu.label}: {gpu.risk_text}; the pod: {row.risk.text}"
            yield from _causes(row, table)
            yield from _steps(gpu.next_steps)


def _causes(row: PodRow, table: NodeTable) -> Iterator[str]:
    """Yield a line for each of the first other pods above their share on the GPU of a row."""
    others = _other_causes(row, table)
    for other in others[:_MOST_CAUSES]:
        command = why_command(other.api_pod)
        also = f"; {command}" if command else ""
        yield f"caused by   {other.namespace}/{other.pod}: {other.risk.text}{also}"
    if len(others) > _MOST_CAUSES:
        yield f"caused by   {counted(len(others) - _MOST_CAUSES, 'more pod')}"


def _other_causes(row: PodRow, table: NodeTable) -> list[PodRow]:
    """Return the other pods above their share on the GPU of a row, the largest first."""
    return [other for other in table.causes(row.gpu_uuid) if other.key != row.key]


def _steps(steps: Iterable[FirstAct | None]) -> Iterator[str]:
    """Yield each step once, and nothing for a reason without one."""
    for step in filter(None, dict.fromkeys(steps)):
        yield f"do first    {step.text}"
        yield f"runbook     {step.runbook}"


def _on_gpu(row: PodRow) -> Iterator[str]:
    yield f"on GPU {row.gpu} {plain(row.gpu_uuid, 64)}".rstrip()
    yield f"  state        {row.state_text}"
    yield f"  used         {row.used_text}"
    yield f"  processes    {row.processes_text}"
    yield f"  utilization  {row.utilization_text}"
    yield f"  share        {_with_source(row.share_text, row.share_source)}"
    limit = row.api_pod.limits.get(row.gpu_uuid)
    yield f"  limit        {_with_source(row.limit_text, limit.source if limit else '')}"
    verdicts = [verdict for verdict in row.api_pod.verdicts if verdict.gpu_uuid == row.gpu_uuid]
    yield from (f"  {_verdict(verdict)}" for verdict in verdicts[:_MOST])


def _with_source(amount: str, source: str) -> str:
    return f"{amount} ({plain(source, 64)})" if source else amount


def _verdict(verdict: ApiVerdict) -> str:
    reason = plain(verdict.reason, 48)
    if verdict.lasted_seconds is None:
        state = "flagged, not over now" if verdict.flagged else "in order"
    else:
        lasted = duration(min(verdict.lasted_seconds, 1e10))
        state = f"{'flagged' if verdict.flagged else 'in grace'} for {lasted}"
    balance = verdict.balance_seconds
    balance_text = f", balance {duration(min(balance, 1e10))}" if balance else ""
    figures = figures_text(verdict)
    return f"{reason}: {state}{balance_text}{f', {figures}' if figures else ''}"


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
    if pod.share_changed:
        yield f"share changed: {plain(pod.share_changed)}"
    if pod.gpu_unresolved:
        yield "The GPU of the share is unknown."
    if pod.lacks_reservation:
        yield "The pod's GPU group has no reservation pod."
    if pod.has_unsized_gpus:
        yield "The pod has GPUs of a ResourceClaim or of a resource without a known size."
    if pod.over_share_policy is not None:
        grace = pod.over_share_policy.grace_seconds
        after = f" after {duration(min(grace, 1e10))}" if grace is not None else ""
        action = "evict" if pod.over_share_policy.evict else "report"
        yield f"above the share: {action}{after}, by the namespace"
    yield from (f"note: {plain(note)}" for note in pod.notes[:_MOST])


def _agent(agent: AgentState, now: float) -> Iterator[str]:
    yield f"agent       {plain(agent.ref.name, LONGEST_NAME)} on {agent.node}"
    yield (
        f"answer      {duration(agent.silent_seconds(now))} ago" if agent.received else "answer      none yet"
    )
    if agent.failure:
        yield agent_text(AgentLine(agent), now).strip()
    if agent.received is not None:
        answer, age = agent.received.answer, agent.received.age_at(now)
        yield f"sample      {f'{duration(age)} old' if age is not None else 'none'}"
        yield f"driver      {plain(answer.driver_version or NONE, 64)}"
        flags = (transitions_text(answer) or "none raised") if answer.flag_transitions else UNKNOWN
        yield f"flags       {flags} since the agent started"
    table = agent.table
    if table.is_simulated:
        yield "simulated   these figures are synthetic"
    if table.is_suspended:
        yield "Verdicts are suspended until these problems are resolved."
    for problem in table.problems[:_MOST]:
        yield f"problem: {problem.text}"
        yield from _steps([problem.next_step])
    for gpu in table.gpus[:_MOST]:
        yield gpu.text
        yield from _steps(gpu.next_steps)
