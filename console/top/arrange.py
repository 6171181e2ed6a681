"""Which lines the table has, and in what order: filter, sort, groups. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from console.top.cluster import AgentState, Cluster
from console.top.rows import Key, Row, Tier


class Sort(StrEnum):
    """The order of the rows."""

    FLAGS = "flags"
    """Flagged first, then in violation, then by use of the share."""
    USED = "used"
    SHARE = "use of share"
    OVER = "time over"
    POD = "pod"
    NODE = "node"


class Group(StrEnum):
    """What the rows are grouped by."""

    NONE = "none"
    NODE = "node"
    NAMESPACE = "namespace"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """The choices of a person at the table."""

    sort: Sort = Sort.FLAGS
    group: Group = Group.NONE
    flagged_only: bool = False
    words: tuple[str, ...] = ()
    """Lower-case words; a row has to contain all of them."""
    namespace: str = ""
    """Only rows of this namespace; empty for all."""


@dataclass(frozen=True, slots=True)
class GroupLine:
    """Heading of a group, with its sums."""

    name: str
    rows: int
    flagged: int
    over: int
    used: int
    share: int
    is_lower_bound: bool
    """Whether the memory of a row is unknown."""


@dataclass(frozen=True, slots=True)
class AgentLine:
    """An agent that does not respond, has not responded yet, or reports problems."""

    agent: AgentState


Line = Row | GroupLine | AgentLine
LineKey = Key | str

NO_QUEUE: Final = "(no queue)"


def key_of(line: Line) -> LineKey:
    """Return what identifies a line across rounds."""
    if isinstance(line, Row):
        return line.key
    return f"group {line.name}" if isinstance(line, GroupLine) else f"agent {line.agent.ref.name}"


def is_old(cluster: Cluster, line: Line) -> bool:
    """Return whether a line has figures of the past, since its agent no longer responds."""
    if not isinstance(line, Row):
        return False
    agent = cluster.agents.get(line.key[0])
    return agent is None or bool(agent.failure)


def arrange(cluster: Cluster, arrangement: Arrangement) -> list[Line]:
    """Return the lines of the table.

    Agents that do not respond or report problems have a line each, after the rows that are flagged or in
    violation. In any other order than `Sort.FLAGS`, and in groups, they come first.
    """
    rows = sorted(_chosen(cluster, arrangement), key=_KEYS[arrangement.sort])
    agents: list[Line] = [AgentLine(agent) for agent in _shown_agents(cluster, arrangement)]
    if arrangement.group is not Group.NONE:
        return agents + _grouped(rows, arrangement.group)
    if arrangement.sort is not Sort.FLAGS or not agents:
        return [*agents, *rows]
    place = next((index for index, row in enumerate(rows) if row.tier is Tier.REST), len(rows))
    return [*rows[:place], *agents, *rows[place:]]


def _shown_agents(cluster: Cluster, arrangement: Arrangement) -> list[AgentState]:
    if arrangement.flagged_only:
        return []
    agents = (
        agent
        for agent in cluster.agents.values()
        if agent.failure or agent.received is None or agent.problems or agent.is_suspended
    )
    if arrangement.words:
        agents = (
            agent
            for agent in agents
            if all(word in f"{agent.node} {agent.ref.name}".lower() for word in arrangement.words)
        )
    return sorted(agents, key=lambda agent: agent.node)


def _chosen(cluster: Cluster, arrangement: Arrangement) -> Iterable[Row]:
    rows: Iterable[Row] = (row for agent in cluster.agents.values() for row in agent.rows)
    if arrangement.flagged_only:
        rows = (row for row in rows if row.tier is Tier.FLAGGED)
    if arrangement.namespace:
        rows = (row for row in rows if row.namespace == arrangement.namespace)
    for word in arrangement.words:
        rows = _containing(rows, word)
    return rows


def _containing(rows: Iterable[Row], word: str) -> Iterable[Row]:
    return (row for row in rows if word in row.haystack)


def _last(value: float | None) -> float:
    """Return a sort key that puts large values first and unknown ones last."""
    return 1.0 if value is None else -value


def _by_flags(row: Row) -> Any:
    first = _last(row.ratio) if row.tier is Tier.REST else _last(row.over_seconds)
    return (row.tier, first, row.by_node)


_KEYS: Final[dict[Sort, Callable[[Row], Any]]] = {
    Sort.FLAGS: _by_flags,
    Sort.USED: lambda row: (_last(row.used), row.by_node),
    Sort.SHARE: lambda row: (_last(row.ratio), row.by_node),
    Sort.OVER: lambda row: (_last(row.over_seconds), row.by_node),
    Sort.POD: lambda row: row.by_pod,
    Sort.NODE: lambda row: row.by_node,
}

_GROUPS: Final[dict[Group, Callable[[Row], str]]] = {
    Group.NODE: lambda row: row.node,
    Group.NAMESPACE: lambda row: row.namespace,
    Group.QUEUE: lambda row: row.queue or NO_QUEUE,
}


def _grouped(rows: Sequence[Row], group: Group) -> list[Line]:
    """Return the rows under headings; groups with flags come first, then by name."""
    name_of = _GROUPS[group]
    members: dict[str, list[Row]] = {}
    for row in rows:
        members.setdefault(name_of(row), []).append(row)
    headings = [_heading(name, group_rows) for name, group_rows in members.items()]
    lines: list[Line] = []
    for heading in sorted(headings, key=lambda line: (not line.flagged, not line.over, line.name)):
        lines.append(heading)
        lines += members[heading.name]
    return lines


def _heading(name: str, rows: Sequence[Row]) -> GroupLine:
    return GroupLine(
        name=name,
        rows=len(rows),
        flagged=sum(row.tier is Tier.FLAGGED for row in rows),
        over=sum(row.tier is Tier.OVER for row in rows),
        used=sum(row.used or 0 for row in rows),
        share=sum(row.share or 0 for row in rows),
        is_lower_bound=any(row.used is None or row.share_is_unknown for row in rows),
    )
