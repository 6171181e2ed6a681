"""All figures of one pod, or of one agent, as lines of text. Pure."""

from collections.abc import Iterator

from console.top.arrange import AgentLine, GroupLine, Line
from console.top.cells import NONE, UNKNOWN, amount, percent, plain
from console.top.cluster import AgentState, Cluster
from console.top.columns import agent_text, group_text
from console.top.rows import Row, known_bytes, known_ratio
from gpuagent.api_types import ApiAmount, ApiPod, ApiVerdict, transitions_text
from service.text import counted
from service.units import duration

_MOST = 64
"""Largest number of entries of one kind."""


def title_of(line: Line) -> str:
    """Return the title of a line's details."""
    if isinstance(line, GroupLine):
        return line.name
    if isinstance(line, AgentLine):
        return line.agent.node
    return f"{line.namespace}/{line.pod}"


def details_of(line: Line, cluster: Cluster, now: float) -> list[str]:
    """Return everything known about a line.

    Args:
        line: row, heading of a group, or agent.
        cluster: the agents.
        now: monotonic seconds, on the clock of the agents' state.
    """
    if isinstance(line, GroupLine):
        return [group_text(line)]
    if isinstance(line, AgentLine):
        return list(_agent(line.agent, now))
    agent = cluster.agents.get(line.key[0])
    return [*_row(line), *(("", *_agent(agent, now)) if agent else ())]


def _row(row: Row) -> Iterator[str]:
    pod = row.source
    yield f"pod         {row.namespace}/{row.pod}"
    if pod.vcluster:
        tenant = pod.vcluster
        yield f"in vCluster {plain(tenant.name)}: {plain(tenant.namespace)}/{plain(tenant.pod)}"
    yield f"uid         {plain(pod.uid, 64)}"
    yield f"phase       {plain(pod.phase, 64) or NONE}"
    yield f"queue       {row.queue or NONE}"
    yield f"size        {row.size or NONE}"
    workload = pod.workload
    yield f"workload    {plain(f'{workload.kind} {workload.name}') if workload else NONE}"
    yield f"GPU groups  {', '.join(plain(group, 64) for group in pod.gpu_groups[:_MOST]) or NONE}"
    yield ""
    for uuid in _uuids(pod):
        yield from _on_gpu(pod, uuid)
    yield from _sources(pod)
    yield from _notes(pod)


def _uuids(pod: ApiPod) -> list[str]:
    holdings = [holding.gpu_uuid for holding in pod.gpus]
    verdicts = [verdict.gpu_uuid for verdict in pod.verdicts]
    return list(dict.fromkeys([*holdings, *pod.gpu_uuids, *pod.shares, *verdicts]))[:_MOST]


def _on_gpu(pod: ApiPod, uuid: str) -> Iterator[str]:
    yield f"on GPU {plain(uuid, 64) or '(unknown)'}"
    holding = next((holding for holding in pod.gpus if holding.gpu_uuid == uuid), None)
    if holding is not None:
        number = holding.known_processes
        processes = "" if number is None else f", {counted(number, 'process', 'processes')}"
        yield f"  used         {amount(known_bytes(holding.used_bytes))}{processes}"
        utilization = known_ratio(holding.utilization_ratio)
        if utilization is not None:
            yield f"  utilization  {percent(utilization)}"
    yield f"  share        {_amount(pod.share_on(uuid))}"
    yield f"  limit        {_amount(pod.limits.get(uuid))}"
    for verdict in [verdict for verdict in pod.verdicts if verdict.gpu_uuid == uuid][:_MOST]:
        yield f"  {_verdict(verdict)}"


def _amount(share: ApiAmount | None) -> str:
    return NONE if share is None else f"{amount(known_bytes(share.bytes))} ({plain(share.source, 64)})"


def _verdict(verdict: ApiVerdict) -> str:
    reason = plain(verdict.reason, 48)
    if verdict.lasted_seconds is None:
        state = "FLAGGED, clearing" if verdict.flagged else "in order"
    else:
        lasted = duration(min(verdict.lasted_seconds, 1e10))
        state = f"{'FLAGGED' if verdict.flagged else 'in grace'} for {lasted}"
    balance = verdict.balance_seconds
    balance_text = f", balance {duration(min(balance, 1e10))}" if balance else ""
    used, allowed = known_bytes(verdict.used_bytes), known_bytes(verdict.allowed_bytes)
    figures = f", used {amount(used)}, allowed {amount(allowed)}" if used is not None else ""
    return f"{reason}: {state}{balance_text}{figures}"


def _sources(pod: ApiPod) -> Iterator[str]:
    yield "sources of the share, the best first"
    if not pod.candidates:
        yield f"  {NONE}"
    for candidate in pod.candidates[:_MOST]:
        counts = "" if candidate.counts else " (does not count)"
        amounts = ", ".join(
            f"{amount(known_bytes(size_bytes))}{f' on {plain(uuid, 20)}' if uuid else ''}"
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
    yield f"agent       {plain(agent.ref.name, 253)} on {agent.node}"
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
    if agent.is_simulated:
        yield "simulated   these figures are synthetic"
    if agent.is_suspended:
        yield "Verdicts are suspended until these problems are resolved."
    yield from (f"problem: {problem}" for problem in agent.problems[:_MOST])
    for gpu in agent.gpus[:_MOST]:
        lost = ", LOST" if gpu.is_lost else ""
        over = ", OVERPROMISED" if gpu.is_over_promised else ""
        yield (
            f"{gpu.name}: used {amount(gpu.used)}, promised {amount(gpu.promised)}"
            f" of {amount(gpu.total)}{lost}{over}"
        )
