"""Everything that is shown of one node, made from an agent's response. Pure."""

from dataclasses import dataclass

from gpuagent.api_types import AgentResponse
from gpuagent.table.gpu_rows import GpuState, ProblemText, gpus_of, nothing_text, problems_of
from gpuagent.table.pod_rows import PodRow, PodState, rows_of


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTable:
    """One response of an agent, as a table."""

    rows: tuple[PodRow, ...] = ()
    """By GPU and pod."""
    gpus: tuple[GpuState, ...] = ()
    problems: tuple[ProblemText, ...] = ()
    pods: int = 0
    flagged: int = 0
    """Pods with a flag."""
    over: int = 0
    """Pods without a flag, in violation within the grace."""
    is_suspended: bool = False
    """Whether verdicts are suspended on the whole node."""
    is_simulated: bool = False
    has_figures: bool = False
    """Whether the response has a current sample; without one it lists no GPU and no pod."""
    nothing: str = ""
    """Why the response has no row; empty if it has some."""

    def causes(self, gpu_uuid: str) -> list[PodRow]:
        """Return the pods above their share on a GPU at risk, the largest first."""
        causes = (row for row in self.rows if row.gpu_uuid == gpu_uuid and row.is_cause)
        return sorted(causes, key=lambda row: -row.risk.excess)

    @classmethod
    def of(cls, agent: str, node: str, response: AgentResponse) -> "NodeTable":
        """Return the table of a response.

        Args:
            agent: identifies the agent in the keys of the rows.
            node: name of the node, safe for a terminal.
            response: of the agent.
        """
        gpus = gpus_of(node, response)
        rows = rows_of(agent, node, response, gpus)
        flagged = {row.key[1] for row in rows if row.state is PodState.FLAGGED}
        return cls(
            rows=rows,
            gpus=gpus,
            problems=problems_of(response, gpus),
            pods=len({row.key[1] for row in rows}),
            flagged=len(flagged),
            over=len({row.key[1] for row in rows if row.state is PodState.IN_GRACE} - flagged),
            is_suspended=response.attribution_ok is False,
            is_simulated=response.simulated,
            has_figures=bool(response.gpus) or response.attribution_ok is True,
            nothing=nothing_text(response),
        )
