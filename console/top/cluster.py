"""The state of all agents: merges responses and failures, and adds up the figures. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from console.top.cells import plain
from console.top.reader import AgentRef
from console.top.rows import GpuState, Row, Tier, gpu_names, gpus_of, problems_of, rows_of
from console.top.widths import Widths, measure
from gpuagent.top.client import Received


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
    rows: tuple[Row, ...] = ()
    gpus: tuple[GpuState, ...] = ()
    gpu_names: dict[str, str] = field(default_factory=dict)
    """Names of the GPUs in the last response, and of the lost ones, by UUID."""
    problems: tuple[str, ...] = ()
    flagged: int = 0
    """Pods with a flag."""
    over: int = 0
    """Pods without a flag, in violation within the grace."""
    pods: int = 0
    widths: Widths = field(default_factory=dict)
    is_suspended: bool = False
    """Whether verdicts are suspended on the whole node."""
    is_simulated: bool = False
    has_figures: bool = False
    """Whether the last response has a current sample; without one it lists no GPU and no pod."""

    def silent_seconds(self, now: float) -> float:
        """Return the seconds since the last response, or since the agent was first listed."""
        return max(now - (self.since if self.received is None else self.received.at), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over all agents. An unknown amount of one GPU makes a sum a lower bound."""

    agents: int
    nodes: int
    gpus: int
    used: int
    total: int
    promised: int
    is_lower_bound: bool
    pods: int
    flagged: int
    """Rows with a flag."""
    over: int
    """Rows in violation within the grace."""
    lost: tuple[GpuState, ...]
    over_promised: tuple[GpuState, ...]
    silent: tuple[AgentState, ...]
    """Agents whose last request failed, the longest silence first."""
    waiting: int
    """Agents that have not responded and not failed yet."""
    without_figures: int
    """Agents whose response has no current sample."""
    suspended: tuple[AgentState, ...]
    problems: int
    simulated: int


@dataclass(slots=True)
class Cluster:
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
            or AgentState(ref=ref, node=plain(ref.node or ref.name, 253), since=now)
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
        answer = received.answer
        if not agent.ref.node:
            agent.node = plain(answer.node, 253)
        agent.rows = rows_of(name, agent.node, answer)
        agent.widths = measure(agent.rows)
        flagged = {row.key[1] for row in agent.rows if row.tier is Tier.FLAGGED}
        agent.flagged = len(flagged)
        agent.over = len({row.key[1] for row in agent.rows if row.tier is Tier.OVER} - flagged)
        agent.pods = len({row.key[1] for row in agent.rows})
        agent.gpu_names = gpu_names(answer, agent.gpu_names)
        agent.gpus = gpus_of(agent.node, answer, agent.gpu_names)
        agent.problems = problems_of(answer, agent.gpu_names)
        agent.is_suspended = answer.attribution_ok is False
        agent.is_simulated = answer.simulated
        agent.has_figures = bool(answer.gpus) or answer.attribution_ok is True

    def set_failure(self, name: str, reason: str) -> None:
        """Record that an agent does not respond; its last figures stay."""
        agent = self.agents.get(name)
        if agent is not None:
            agent.failure = plain(reason) or "no reason given"
            self.version += 1

    def totals(self) -> Totals:
        """Add up all agents."""
        agents = self.agents.values()
        gpus = [gpu for agent in agents for gpu in agent.gpus]
        silent = (agent for agent in agents if agent.failure)
        return Totals(
            agents=len(self.agents),
            nodes=len({agent.node for agent in agents}),
            gpus=len(gpus),
            used=sum(gpu.used or 0 for gpu in gpus),
            total=sum(gpu.total or 0 for gpu in gpus),
            promised=sum(gpu.promised or 0 for gpu in gpus),
            is_lower_bound=any(None in (gpu.used, gpu.total, gpu.promised) for gpu in gpus)
            or any(not agent.has_figures for agent in agents),
            pods=sum(agent.pods for agent in agents),
            flagged=sum(agent.flagged for agent in agents),
            over=sum(agent.over for agent in agents),
            lost=tuple(gpu for gpu in gpus if gpu.is_lost),
            over_promised=tuple(gpu for gpu in gpus if gpu.is_over_promised),
            silent=tuple(
                sorted(silent, key=lambda agent: agent.since if not agent.received else agent.received.at)
            ),
            waiting=sum(not agent.failure and agent.received is None for agent in agents),
            without_figures=sum(agent.received is not None and not agent.has_figures for agent in agents),
            suspended=tuple(agent for agent in agents if agent.is_suspended),
            problems=sum(len(agent.problems) for agent in agents),
            simulated=sum(agent.is_simulated for agent in agents),
        )
