"""Interface to the agents that `top` reads, and the reader of one agent by its address."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from gpuagent.top.client import Agent, Received
from gpuagent.top.fleet import AgentRef


class AgentReader(Protocol):
    """Lists the agents and reads their figures."""

    async def agents(self) -> Sequence[AgentRef]:
        """List the agents.

        Raises:
            gpuagent.top.client.ReadFailed: the list is not available.
        """
        ...

    async def read(self, agent: AgentRef) -> Received:
        """Return the agent's response to `/api/v1/shares`.

        Raises:
            gpuagent.top.client.ReadFailed: the agent does not respond in time, or responds with an error.
        """
        ...


class UrlReader:
    """Reads one agent by its address."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def agents(self) -> Sequence[AgentRef]:
        """Return the one agent."""
        return [AgentRef(self._agent.url, "")]

    async def read(self, agent: AgentRef) -> Received:  # noqa: ARG002 - there is one
        """Return the agent's response.

        Raises:
            gpuagent.top.client.ReadFailed: the agent does not respond in time, or responds with an error.
        """
        return await asyncio.to_thread(self._agent.fetch)
