"""The state of all agents: merges responses and failures. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from console.agent_client import Received
from console.top.columns import Widths, measure
from gpuagent.table.gpu_rows import LONGEST_NAME, plain
from gpuagent.table.node_table import NodeTable

_NO_TABLE = NodeTable()


@dataclass(frozen=True, slots=True)
class AgentRef:
    """One agent of the cluster."""

    name: str
    """Name of its pod, or its address; unique among the agents."""
    node: str
    """Name of its node by the API server; empty if only the agent itself can name it."""


@dataclass(slots=True, kw_only=True)
class AgentState:
    """The last response of one agent, and whether it still responds."""

    ref: AgentRef
    node: str
    since: float
    """When the agent was first listed, in monotonic seconds."""
    received: Received | None = None
    failure: str = ""
    """Why the agent does not respond; empty while it does."""
    table: NodeTable = _NO_TABLE
    """The last response as a table."""
    widths: Widths = field(default_factory=dict)

    def silent_seconds(self, now: float) -> float:
        """Return the seconds since the last response, or since the agent was first listed."""
        return max(now - (self.since if self.received is None else self.received.at), 0.0)


@dataclass(slots=True)
class Fleet:
    """All agents by name."""

    agents: dict[str, AgentState] = field(default_factory=dict)
    place: str = ""
    """Where the agents are looked for, such as ` on node a`; for messages."""
    list_failure: str = ""
    """Why the list of agents is not current; empty while it is."""
    is_listed: bool = False
    """Whether the agents have ever been listed."""
    version: int = 0
    """Grows with every change."""

    def set_agents(self, refs: Iterable[AgentRef], now: float) -> None:
        """Take a new list of agents, by node: keep the state of known ones, drop those that are gone."""
        known = self.agents
        self.agents = {
            ref.name: known.get(ref.name)
            or AgentState(ref=ref, node=plain(ref.node or ref.name, LONGEST_NAME), since=now)
            for ref in sorted(refs, key=lambda ref: (ref.node, ref.name))
        }
        self.list_failure = ""
        self.is_listed = True
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
        if not agent.ref.node:
            agent.node = plain(received.answer.node, LONGEST_NAME)
        agent.table = NodeTable.of(name, agent.node, received.answer)
        agent.widths = measure(agent.table.rows)

    def set_failure(self, name: str, reason: str) -> None:
        """Record that an agent does not respond; its last figures stay."""
        agent = self.agents.get(name)
        if agent is not None:
            agent.failure = plain(reason) or "no reason given"
            self.version += 1
