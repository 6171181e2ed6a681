"""The state of all agents, which is read in rounds, and the lines of the table: filter, sort, groups."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple

from console.cluster.agents import AgentReading, Agents, Received
from console.top.gpu_rows import LONGEST_NAME, GpuState, plain
from console.top.layout import COLUMNS, Widths
from console.top.pod_rows import NO_TABLE, SIGN_OLD, Key, NodeTable, PodRow, Tier, node_table
from kube.answers import REQUEST_ERRORS, AccessError, ApiError
from kube.kinds import Pod
from service.command import UsageError
from service.text import counted, one_line
from service.units import duration, size

EVERY_SECONDS: Final = 2.0
LIST_EVERY_SECONDS: Final = 10.0
MOST_A_SECOND: Final = 200
"""Requests a second to agents that have been asked before. With more than 400 agents a round takes longer
than `EVERY_SECONDS`: one table of 5,000 agents must not keep an API server busy."""
_LISTED_IN_A_TURN: Final = 500
"""Agents that are listed every `LIST_EVERY_SECONDS`; more are listed less often. The list of 5,000 pods has
about 40 MB."""
_MOST_FAILING_AT_ONCE: Final = 4
"""Concurrent requests to agents whose last request failed; a node that hangs must not delay the others."""
_SPREAD: Final = 0.8  # part of a round over which its requests are spread


@dataclass(slots=True, kw_only=True)
class AgentState:
    """The last response of one agent, and whether it still responds.

    An agent that does not respond, has not responded yet, or reports problems has a line in the table.
    """

    pod: Pod
    node: str
    since: float  # when the agent was first listed, in monotonic seconds
    received: Received | None = None
    failure: str = ""  # why the agent does not respond; empty while it does
    table: NodeTable = NO_TABLE

    def silent_seconds(self, now: float) -> float:
        """Return the seconds since the last response, or since the agent was first listed."""
        return max(now - (self.since if self.received is None else self.received.at), 0.0)

    @property
    def key(self) -> Key:
        """What identifies the line of the agent across rounds."""
        return ("agent", self.pod.name, "")

    def text(self, now: float) -> str:
        """Return the silence of the agent with age and reason, or its problems."""
        age, table = duration(self.silent_seconds(now)), self.table
        if self.failure:
            state = f"no answer for {age}: {self.failure}"
        elif self.received is None:
            state = f"asked {age} ago, no answer yet"
        else:
            suspended = "verdicts suspended: " if table.is_suspended else ""
            state = suspended + ("; ".join(table.problems) or table.nothing)
        return f" {SIGN_OLD} {self.node}: {state}"


@dataclass(slots=True)
class Fleet:
    """All agents by name."""

    agents: dict[str, AgentState] = field(default_factory=dict)
    place: str = ""  # where the agents are looked for, such as ` on node a`; for messages
    list_failure: str = ""  # why the list of agents is not current; empty while it is
    is_listed: bool = False  # whether the agents have ever been listed
    version: int = 0  # grows with every change

    @property
    def gpus(self) -> list[GpuState]:
        """All GPUs, the lost ones included."""
        return [gpu for agent in self.agents.values() for gpu in agent.table.gpus]

    @property
    def widths(self) -> Widths:
        """The widths that all rows need."""
        all_widths = [agent.table.widths for agent in self.agents.values()] or [{}]
        return {column.name: max(widths.get(column.name, 0) for widths in all_widths) for column in COLUMNS}

    def set_agents(self, pods: Iterable[Pod], now: float) -> None:
        """Take a new list of agents, by node: keep the state of known ones, drop those that are gone."""
        known, self.agents = self.agents, {}
        for pod in sorted(pods, key=lambda pod: (pod.spec.node_name, pod.name)):
            agent = known.get(pod.name) or AgentState(pod=pod, node=plain(pod.name, LONGEST_NAME), since=now)
            agent.pod, agent.node = pod, plain(pod.spec.node_name, LONGEST_NAME) or agent.node
            self.agents[pod.name] = agent
        self.list_failure, self.is_listed = "", True
        self.version += 1

    def set_list_failure(self, reason: str) -> None:
        """Record that the list of agents failed; the known agents stay."""
        self.list_failure = plain(reason)
        self.version += 1

    def set_response(self, name: str, received: Received) -> None:
        """Take the response of an agent."""
        agent = self.agents.get(name)
        if agent is None:  # no longer listed
            return
        self.version += 1
        is_same = agent.received is not None and agent.received.body == received.body
        agent.received, agent.failure = received, ""
        if is_same:
            return
        if not agent.pod.is_bound:
            agent.node = plain(received.answer.node, LONGEST_NAME)
        agent.table = node_table(name, agent.node, received.answer)

    def set_failure(self, name: str, reason: str) -> None:
        """Record that an agent does not respond; its last figures stay."""
        agent = self.agents.get(name)
        if agent is not None:
            agent.failure = plain(reason) or "no reason given"
            self.version += 1


class ListFailed(UsageError):
    """The agents could not be listed; the message is one line."""


class Rounds:
    """Keeps the state of the agents current."""

    def __init__(self, agents: Agents, fleet: Fleet, *, node: str = "") -> None:
        """Set the agents, or the node of the only one, and what receives the responses."""
        self.is_paused = False
        self._agents, self._fleet, self._node = agents, fleet, node
        self._failing_slots = asyncio.Semaphore(_MOST_FAILING_AT_ONCE)
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._listed_at: float | None = None

    async def once(self) -> None:
        """List the agents, or raise ListFailed, and read each of them once."""
        await self._list()
        await asyncio.gather(*(self._start(agent) for agent in self._due()))

    async def run(self) -> None:
        """Read the agents in rounds until cancelled. Each agent has at most one request in flight."""
        try:
            while True:
                began = time.monotonic()
                if not self.is_paused:
                    await self._list_if_due(began)
                    await self._spread()
                await asyncio.sleep(max(EVERY_SECONDS - (time.monotonic() - began), 0.1))
        finally:
            for task in self._in_flight.values():
                task.cancel()

    async def _list_if_due(self, now: float) -> None:
        every = LIST_EVERY_SECONDS * max(1.0, len(self._fleet.agents) / _LISTED_IN_A_TURN)
        if self._listed_at is None or now - self._listed_at >= every:
            try:
                await self._list()
                self._listed_at = now
            except ListFailed as error:
                self._fleet.set_list_failure(str(error))

    async def _list(self) -> None:
        try:
            pods = await self._agents.list(self._node)
        except REQUEST_ERRORS as error:
            if not isinstance(error, ApiError) or not error.is_forbidden:
                raise ListFailed(str(error)) from None
            place = f"{self._agents.namespace}{f' as {one_line(error.user)}' if error.user else ''}"
            raise ListFailed(f"the agents are not visible to you: you may not list pods in {place}") from None
        self._fleet.set_agents(pods, time.monotonic())

    async def _spread(self) -> None:
        """Start the requests of a round one by one; responses that arrive together would delay the keys."""
        due, next_at = self._due(), asyncio.get_running_loop().time()
        for agent in due:
            self._start(agent)
            pause = _SPREAD * EVERY_SECONDS / len(due)
            is_first = agent.received is None and not agent.failure
            next_at += pause if is_first else max(pause, 1 / MOST_A_SECOND)
            await asyncio.sleep(max(next_at - asyncio.get_running_loop().time(), 0))

    def _due(self) -> list[AgentState]:
        """Return the agents without a request in flight; those that answered last time come first."""
        agents = self._fleet.agents
        due = [agent for name, agent in agents.items() if name not in self._in_flight]
        return sorted(due, key=lambda agent: bool(agent.failure))

    def _start(self, agent: AgentState) -> asyncio.Task[None]:
        task = asyncio.create_task(self._read(agent.pod, is_failing=bool(agent.failure)))
        self._in_flight[agent.pod.name] = task
        return task

    async def _read(self, pod: Pod, *, is_failing: bool) -> None:
        async with self._failing_slots if is_failing else nullcontext():
            try:
                reading = await self._agents.read(pod)
            except AccessError as error:
                reading = AgentReading(pod=pod, failure=str(error))
            finally:
                self._in_flight.pop(pod.name, None)
        if reading.received is not None:
            self._fleet.set_response(pod.name, reading.received)
        else:
            trouble = pod.status.trouble
            self._fleet.set_failure(pod.name, f"{reading.failure}{f'; pod: {trouble}' if trouble else ''}")


SORTS: Final[Mapping[str, Callable[[PodRow], Any]]] = {
    "flags": attrgetter("rank"),  # flagged first, then in violation, then at risk, then by use of the share
    "used": lambda row: 1 if row.used is None else -row.used,  # unknown ones last
    "pod": lambda row: row.cells["name"],
    "node": lambda _: 0,
}
"""Sorting is stable, and the rows come by node, GPU and pod."""

GROUPS: Final[Mapping[str, Callable[[PodRow], str]]] = {
    "none": lambda _: "",
    "node": lambda row: row.cells["node"],
    "namespace": lambda row: row.cells["namespace"],
    "queue": lambda row: row.cells["queue"] if row.api_pod.queue else "(no queue)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """The choices of a person at the table: its order, and which rows it has."""

    sort: str = "flags"  # of SORTS
    group: str = "none"  # of GROUPS
    flagged_only: bool = False
    """Only flagged rows, and those of the pods on a GPU at risk that cause the risk or are at risk."""
    words: tuple[str, ...] = ()  # lower-case words; a row has to contain all of them
    namespace: str = ""


class GroupLine(NamedTuple):
    """Heading of a group, with its sums."""

    name: str
    sums: str

    @property
    def key(self) -> Key:
        """What identifies the line across rounds."""
        return ("group", self.name, "")

    def text(self, _now: float) -> str:
        """Return the line."""
        return f"── {self.name}: {self.sums}"


Line = PodRow | GroupLine | AgentState


def is_old(fleet: Fleet, row: PodRow) -> bool:
    """Return whether a row has figures of the past, since its agent no longer responds."""
    agent = fleet.agents.get(row.key[0])
    return agent is None or bool(agent.failure)


def arrange(fleet: Fleet, arrangement: Arrangement) -> list[Line]:
    """Return the lines of the table.

    Agents that do not respond or report problems have a line each, after the rows that are flagged, in
    violation or at risk. In any other order than `flags`, and in groups, they come first.
    """
    every_row = (row for agent in fleet.agents.values() for row in agent.table.rows)
    rows = sorted(chosen_rows(every_row, arrangement), key=SORTS[arrangement.sort])
    agents: list[Line] = [*_shown_agents(fleet, arrangement)]
    if arrangement.group != "none":
        return agents + _grouped(rows, GROUPS[arrangement.group])
    calm = (index for index, row in enumerate(rows) if row.tier is Tier.CALM)
    place = next(calm, len(rows)) if arrangement.sort == "flags" else 0
    return [*rows[:place], *agents, *rows[place:]]


def chosen_rows(rows: Iterable[PodRow], arrangement: Arrangement) -> Iterable[PodRow]:
    """Return the rows that an arrangement shows."""
    if arrangement.flagged_only:
        rows = (row for row in rows if row.tier is Tier.FLAGGED or row.risk.text)
    if arrangement.namespace:
        rows = (row for row in rows if row.cells["namespace"] == arrangement.namespace)
    words = arrangement.words
    return (row for row in rows if all(word in row.haystack for word in words)) if words else rows


def _shown_agents(fleet: Fleet, arrangement: Arrangement) -> list[AgentState]:
    if arrangement.flagged_only:
        return []
    return [
        agent
        for agent in fleet.agents.values()
        if (agent.failure or not agent.table.has_figures or agent.table.problems or agent.table.is_suspended)
        and all(word in f"{agent.node} {agent.pod.name}".lower() for word in arrangement.words)
    ]


def _grouped(rows: Sequence[PodRow], name_of: Callable[[PodRow], str]) -> list[Line]:
    """Return the rows under headings, the groups with the most urgent row first, then by name."""
    members: dict[str, list[PodRow]] = {}
    for row in rows:
        members.setdefault(name_of(row), []).append(row)
    groups = sorted((min(row.tier for row in of_group), name) for name, of_group in members.items())
    lines: list[Line] = []
    for _, name in groups:
        lines += [GroupLine(name, _sums(members[name])), *members[name]]
    return lines


def _sums(rows: Sequence[PodRow]) -> str:
    tiers, used, share, is_lower_bound = [0] * len(Tier), 0, 0, False
    for row in rows:  # one pass; this runs for every row of a cluster when a key is pressed
        tiers[row.tier] += 1
        used += row.used or 0
        share += row.share or 0
        is_lower_bound = is_lower_bound or row.used is None or (row.has_share and row.share is None)
    at_risk = f" {tiers[Tier.AT_RISK]} at risk," if tiers[Tier.AT_RISK] else ""
    flags = f"{tiers[Tier.FLAGGED]} flagged, {tiers[Tier.IN_GRACE]} in grace,{at_risk}"
    at_least = "≥" if is_lower_bound else ""
    return (
        f"{counted(len(rows), 'row')}, {flags} used {at_least}{size(used)} of shares {at_least}{size(share)}"
    )
