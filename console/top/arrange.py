"""Which lines the table has, and in what order: filter, sort, groups. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

from console.top.fleet import AgentState, Fleet
from gpuagent.table.pod_rows import BY_URGENCY, Key, PodRow, PodState


class Sort(StrEnum):
    """The order of the rows."""

    FLAGS = "flags"
    """Flagged first, then in violation, then at risk, then by use of the share."""
    USED = "used"
    SHARE = "use of share"
    OVER = "time over"
    POD = "pod"
    NODE = "node"


class GroupBy(StrEnum):
    """What the rows are grouped by."""

    NONE = "none"
    NODE = "node"
    NAMESPACE = "namespace"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """The choices of a person at the table."""

    sort: Sort = Sort.FLAGS
    group: GroupBy = GroupBy.NONE
    flagged_only: bool = False
    """Only flagged rows, and those of the pods on a GPU at risk that cause the risk or are at risk."""
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
    at_risk: int
    used: int
    share: int
    is_lower_bound: bool
    """Whether the memory of a row is unknown."""

    @property
    def key(self) -> Key:
        """Return what identifies the line across rounds."""
        return ("group", self.name, "")


@dataclass(frozen=True, slots=True)
class AgentLine:
    """An agent that does not respond, has not responded yet, or reports problems."""

    agent: AgentState

    @property
    def key(self) -> Key:
        """Return what identifies the line across rounds."""
        return ("agent", self.agent.ref.name, "")


Line = PodRow | GroupLine | AgentLine
NO_QUEUE: Final = "(no queue)"


def is_old(fleet: Fleet, line: Line) -> bool:
    """Return whether a line has figures of the past, since its agent no longer responds."""
    if not isinstance(line, PodRow):
        return False
    agent = fleet.agents.get(line.key[0])
    return agent is None or bool(agent.failure)


def arrange(fleet: Fleet, arrangement: Arrangement) -> list[Line]:
    """Return the lines of the table.

    Agents that do not respond or report problems have a line each, after the rows that are flagged, in
    violation or at risk. In any other order than `Sort.FLAGS`, and in groups, they come first.
    """
    rows = list(_chosen(fleet, arrangement))
    if arrangement.sort is not Sort.NODE:
        rows.sort(key=_KEYS[arrangement.sort])
    agents: list[Line] = [AgentLine(agent) for agent in _shown_agents(fleet, arrangement)]
    if arrangement.group is not GroupBy.NONE:
        return agents + _grouped(rows, arrangement.group)
    if arrangement.sort is not Sort.FLAGS or not agents:
        return [*agents, *rows]
    place = next((index for index, row in enumerate(rows) if not row.is_urgent), len(rows))
    return [*rows[:place], *agents, *rows[place:]]


def _shown_agents(fleet: Fleet, arrangement: Arrangement) -> list[AgentState]:
    if arrangement.flagged_only:
        return []
    agents = (
        agent
        for agent in fleet.agents.values()
        if agent.failure or not agent.table.has_figures or agent.table.problems or agent.table.is_suspended
    )
    if arrangement.words:
        agents = (
            agent
            for agent in agents
            if all(word in f"{agent.node} {agent.ref.name}".lower() for word in arrangement.words)
        )
    return sorted(agents, key=lambda agent: agent.node)


def _chosen(fleet: Fleet, arrangement: Arrangement) -> Iterable[PodRow]:
    rows: Iterable[PodRow] = (row for agent in fleet.agents.values() for row in agent.table.rows)
    if arrangement.flagged_only:
        rows = (row for row in rows if row.is_flagged_or_at_risk)
    if arrangement.namespace:
        rows = (row for row in rows if row.namespace == arrangement.namespace)
    for word in arrangement.words:
        rows = _containing(rows, word)
    return rows


def _containing(rows: Iterable[PodRow], word: str) -> Iterable[PodRow]:
    return (row for row in rows if word in row.haystack)


def _last(value: float | None) -> float:
    """Return a sort key that puts large values first and unknown ones last."""
    return 1.0 if value is None else -value


_KEYS: Final[dict[Sort, Callable[[PodRow], Any]]] = {
    Sort.FLAGS: BY_URGENCY,
    Sort.USED: lambda row: _last(row.used),
    Sort.SHARE: lambda row: _last(row.ratio),
    Sort.OVER: lambda row: _last(row.over_seconds),
    Sort.POD: attrgetter("by_pod"),
}
"""Sorting is stable, and the rows come by node, GPU and pod."""

_GROUPS: Final[dict[GroupBy, Callable[[PodRow], str]]] = {
    GroupBy.NODE: lambda row: row.node,
    GroupBy.NAMESPACE: lambda row: row.namespace,
    GroupBy.QUEUE: lambda row: row.queue or NO_QUEUE,
}


def _grouped(rows: Sequence[PodRow], group: GroupBy) -> list[Line]:
    """Return the rows under headings; flags first, then violations, then risks, then by name."""
    name_of = _GROUPS[group]
    members: dict[str, list[PodRow]] = {}
    for row in rows:
        members.setdefault(name_of(row), []).append(row)
    headings = [_heading(name, group_rows) for name, group_rows in members.items()]
    lines: list[Line] = []
    for heading in sorted(headings, key=_group_order):
        lines.append(heading)
        lines += members[heading.name]
    return lines


def _group_order(line: GroupLine) -> tuple[bool, bool, bool, str]:
    return not line.flagged, not line.over, not line.at_risk, line.name


def _heading(name: str, rows: Sequence[PodRow]) -> GroupLine:
    flagged = over = at_risk = used = share = 0
    is_lower_bound = False
    for row in rows:  # one pass; this runs for every row of a cluster when a key is pressed
        flagged += row.state is PodState.FLAGGED
        over += row.state is PodState.IN_GRACE
        at_risk += row.is_at_risk
        used += row.used or 0
        share += row.share or 0
        is_lower_bound = is_lower_bound or row.used is None or row.share_is_unknown
    return GroupLine(name, len(rows), flagged, over, at_risk, used, share, is_lower_bound)
