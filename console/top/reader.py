"""Interface to the agents that `top` reads, and the reader of one agent by its address."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuagent.top.client import Agent, NoAnswer, Received


class ReadFailed(Exception):
    """An agent, or the list of agents, could not be read; the message is one line."""


@dataclass(frozen=True, slots=True)
class AgentRef:
    """One agent of the cluster."""

    name: str
    """Name of its pod, or its address; unique among the agents."""
    node: str
    """Name of its node by the API server; empty if only the agent itself can name it."""


class AgentReader(Protocol):
    """Lists the agents and reads their figures."""

    async def agents(self) -> Sequence[AgentRef]:
        """List the agents.

        Raises:
            ReadFailed: the list is not available.
        """
        ...

    async def read(self, agent: AgentRef) -> Received:
        """Return the agent's response to `/api/v1/shares`.

        Raises:
            ReadFailed: the agent does not respond in time, or responds with an error.
        """
        ...


class UrlReader:
    """Reads one agent by its address."""

    def __init__(self, url: str) -> None:
        """Set the address.

        Raises:
            ValueError: the URL is not an agent's address.
        """
        self._agent = Agent(url)

    async def agents(self) -> Sequence[AgentRef]:
        """Return the one agent."""
        return [AgentRef(self._agent.url, "")]

    async def read(self, agent: AgentRef) -> Received:  # noqa: ARG002 - there is one
        """Return the agent's response.

        Raises:
            ReadFailed: the agent does not respond in time, or responds with an error.
        """
        try:
            return await asyncio.to_thread(self._agent.fetch)
        except NoAnswer as error:
            raise ReadFailed(str(error)) from None
