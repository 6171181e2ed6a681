"""Reads the agents for `top`: all of a cluster, or one by its address."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from console.agents import AgentPod, Agents
from gpuagent.top.client import Agent, ReadFailed, Received
from gpuagent.top.fleet import AgentRef
from kube.access import AccessError
from kube.errors import REQUEST_ERRORS, ApiError, Unreachable
from service.text import one_line


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

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def agents(self) -> Sequence[AgentRef]:
        """Return the one agent."""
        return [AgentRef(self._agent.url, "")]

    async def read(self, agent: AgentRef) -> Received:  # noqa: ARG002 - there is one
        """Return the agent's response.

        Raises:
            ReadFailed: the agent does not respond in time, or responds with an error.
        """
        return await asyncio.to_thread(self._agent.fetch)


class ClusterReader:
    """Lists and reads the agents through the API server."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._pods: dict[str, AgentPod] = {}

    async def agents(self) -> Sequence[AgentRef]:
        """List the agents' pods.

        Raises:
            ReadFailed: the API server does not list them.
        """
        try:
            pods = await self._agents.list()
        except ApiError as error:
            raise ReadFailed(self._denied(error) if error.is_forbidden else str(error)) from None
        except (Unreachable, AccessError) as error:
            raise ReadFailed(str(error)) from None
        self._pods = {pod.name: pod for pod in pods}
        return [AgentRef(pod.name, pod.node) for pod in pods]

    def _denied(self, error: ApiError) -> str:
        user = f" as {one_line(error.user)}" if error.user else ""
        return f"the agents are not visible to you: you may not list pods in {self._agents.namespace}{user}"

    async def read(self, agent: AgentRef) -> Received:
        """Return the agent's response.

        Raises:
            ReadFailed: the agent does not respond in time, or responds with an error.
        """
        pod = self._pods.get(agent.name)
        if pod is None:
            raise ReadFailed("the pod no longer exists")
        try:
            reading = await self._agents.read(pod)
        except REQUEST_ERRORS as error:
            raise ReadFailed(str(error)) from None
        if reading.received is None:
            trouble = f"; pod: {pod.trouble}" if pod.trouble else ""
            raise ReadFailed(f"{reading.failure}{trouble}")
        return reading.received
