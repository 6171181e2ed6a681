"""The table as plain text, and everything as one JSON document. Pure."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from console.top.arrange import Arrangement, arrange, is_old
from console.top.cluster import AgentState, Cluster
from console.top.columns import everything
from console.top.head import head
from console.top.widths import merge_widths
from gpuagent.api_types import read_document

_LONGEST: Final = 400
"""Largest length of an agent's line."""


def as_text(cluster: Cluster, arrangement: Arrangement, now: float) -> str:
    """Return the head and all lines of the table, each with a line break; nothing is shortened."""
    return "".join(f"{line.rstrip()}\n" for line in _lines(cluster, arrangement, now))


def _lines(cluster: Cluster, arrangement: Arrangement, now: float) -> Iterator[str]:
    yield from (line.text for line in head(cluster, cluster.totals(), now))
    lines = arrange(cluster, arrangement)
    if not lines:
        yield _no_lines(cluster, arrangement)
        return
    layout = everything(merge_widths(agent.widths for agent in cluster.agents.values()))
    yield ""
    yield layout.heading()
    wide = replace(layout, width=max(layout.width, _LONGEST))  # long reasons of agents
    for line in lines:
        yield wide.line(line, now, is_old=is_old(cluster, line))


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
