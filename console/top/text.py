"""The table as plain text, and everything as one JSON document. Pure."""

import json
from collections.abc import Iterator
from typing import Any, Final

from console.top.arrange import AgentLine, Arrangement, GroupLine, arrange, is_old
from console.top.cluster import AgentState, Cluster
from console.top.columns import agent_text, group_text, layout
from console.top.head import head
from console.top.widths import merge_widths
from gpuagent.api_types import read_document
from service.command import DEFAULT_COLUMNS
from service.text import fold

_INDENT: Final = "     "
"""Indentation of a further line: that of a row's cells, and two columns more."""


def as_text(cluster: Cluster, arrangement: Arrangement, now: float, *, columns: int = DEFAULT_COLUMNS) -> str:
    """Return the head and all lines of the table, each with a line break.

    The table has the columns that fit. The reasons of flags are below a row if they have no column.

    Args:
        cluster: the agents.
        arrangement: which rows, and in what order.
        now: monotonic seconds, on the clock of the agents' state.
        columns: largest width of a line.
    """
    return "".join(f"{line.rstrip()}\n" for line in _lines(cluster, arrangement, now, columns))


def _lines(cluster: Cluster, arrangement: Arrangement, now: float, columns: int) -> Iterator[str]:
    for part in head(cluster, cluster.totals(), now):
        yield from fold(part.text, columns, indent="  ")
    lines = arrange(cluster, arrangement)
    if not lines:
        yield from fold(_no_lines(cluster, arrangement), columns)
        return
    widths = merge_widths(agent.widths for agent in cluster.agents.values())
    chosen = layout(columns, widths, has_bar=False)
    yield ""
    yield chosen.heading()
    for line in lines:
        if isinstance(line, GroupLine):
            yield from fold(group_text(line), columns, indent="   ")
        elif isinstance(line, AgentLine):
            yield from fold(agent_text(line, now), columns, indent=_INDENT)
        else:
            yield chosen.line(line, now, is_old=is_old(cluster, line))
            if line.reasons and not chosen.has_reasons:
                yield from fold(", ".join(line.reasons), columns, head=_INDENT, indent=_INDENT)


def _no_lines(cluster: Cluster, arrangement: Arrangement) -> str:
    if not cluster.agents:
        return f"No agents{cluster.place}."
    if arrangement.namespace or arrangement.flagged_only or arrangement.words:
        return "No pod matches the options."
    return "No pod has a GPU share or uses GPU memory."


def as_json(cluster: Cluster, arrangement: Arrangement, now: float) -> str:
    """Return one document in ASCII, so that no name can act on a terminal.

    Every agent has its node, whether it answered, the age of its answer, the reason of a failure, and its own
    document; the arrangement's namespace and `flagged_only` narrow the pods in it.
    """
    agents = [_agent_json(agent, arrangement, now) for agent in cluster.agents.values()]
    return json.dumps({"agents": agents}, indent=2) + "\n"


def _agent_json(agent: AgentState, arrangement: Arrangement, now: float) -> dict[str, Any]:
    received = agent.received
    document = read_document(received.body) if received else None
    if document is not None:
        document["pods"] = [pod for pod in document.get("pods", ()) if _is_chosen(pod, arrangement)]
    return {
        "agent": agent.ref.name,
        "node": agent.ref.node or (document or {}).get("node"),
        "answered": received is not None and not agent.failure,
        "ageSeconds": round(max(now - received.at, 0.0), 3) if received else None,
        "error": agent.failure or None,
        "shares": document,
    }


def _is_chosen(pod: dict[str, Any], arrangement: Arrangement) -> bool:
    if arrangement.namespace and pod.get("namespace") != arrangement.namespace:
        return False
    return not arrangement.flagged_only or any(verdict.get("flagged") for verdict in pod.get("verdicts", ()))
