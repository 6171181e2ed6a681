"""All figures of one pod, or of one agent, as lines of text. Pure."""

from collections.abc import Iterator, Sequence

from gpuagent.api_types import ApiPod, ApiVerdict, transitions_text
from gpuagent.table.gpus import known_bytes
from gpuagent.table.rows import PodRow, figures_text
from gpuagent.table.words import LONGEST_NAME, NONE, UNKNOWN, plain
from gpuagent.top.arrange import AgentLine, GroupLine, Line
from gpuagent.top.fleet import AgentState, Fleet
from gpuagent.top.layout import agent_text, group_text
from service.names import is_dns_label, is_dns_subdomain
from service.units import duration, size

_MOST = 64
"""Largest number of entries of one kind."""


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
        return list(_pod(line, [line]))
    rows = [row for row in agent.table.rows if row.key[1] == line.key[1]]
    return [*_pod(line, rows), "", *_agent(agent, now)]


def _pod(row: PodRow, rows: Sequence[PodRow]) -> Iterator[str]:
    pod = row.api_pod
    yield f"pod         {row.namespace}/{row.pod}"
    if row.tenant:
        yield f"in vCluster {row.tenant}"
    yield f"uid         {plain(pod.uid, 64)}"
    yield f"phase       {plain(pod.phase, 64) or NONE}"
    yield f"queue       {row.queue or NONE}"
    yield f"size        {row.size or NONE}"
    yield f"workload    {row.workload or NONE}"
    yield f"GPU groups  {', '.join(plain(group, 64) for group in pod.gpu_groups[:_MOST]) or NONE}"
    if is_dns_label(pod.namespace) and is_dns_subdomain(pod.name):  # an agent's word, for a shell
        yield f"its story   kaishare why -n {pod.namespace} {pod.name}"
    yield ""
    for each in rows[:_MOST]:
        yield from _on_gpu(each)
    yield from _sources(pod)
    yield from _notes(pod)


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
        yield f"  {plain(candidate.source, 64)}{counts}: {plain(candidate.says)} = {amounts or NONE}"


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
    yield from (f"problem: {problem.text}" for problem in table.problems[:_MOST])
    yield from (gpu.text for gpu in table.gpus[:_MOST])
