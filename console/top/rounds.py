"""Reads all agents again and again, a bounded number at once, and merges each response when it arrives."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Final, Protocol

from console.agent_client import Agent, ReadFailed, Received
from console.agents import AgentPod, Agents
from console.top.fleet import AgentRef, AgentState, Fleet
from kube.access import AccessError
from kube.answers import REQUEST_ERRORS, ApiError, Unreachable
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


EVERY_SECONDS: Final = 2.0
LIST_EVERY_SECONDS: Final = 10.0
MOST_A_SECOND: Final = 200
"""Largest number of requests a second to agents that have been asked before. With more than 400 agents a
round takes longer than `EVERY_SECONDS`: one table of 5,000 agents must not keep an API server busy."""

_LISTED_IN_A_TURN: Final = 500
"""Largest number of agents that are listed every `LIST_EVERY_SECONDS`; more are listed less often. The list
of 5,000 pods has about 40 MB."""

MOST_AT_ONCE: Final = 16
"""Largest number of concurrent requests."""

_MOST_FAILING_AT_ONCE: Final = 4
"""Of these, for agents whose last request failed; a node that hangs must not delay the others."""

_SPREAD: Final = 0.8
"""Part of a round over which its requests are spread."""


class Rounds:
    """Keeps the state of the agents current."""

    def __init__(
        self,
        reader: AgentReader,
        fleet: Fleet,
        *,
        node: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set what is read.

        Args:
            reader: lists and reads the agents.
            fleet: receives the responses.
            node: only agents of this node; empty for all.
            clock: monotonic seconds, the clock of `Received.at`.
        """
        self.is_paused = False
        self._reader = reader
        self._fleet = fleet
        self._node = node
        self._clock = clock
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._failing_slots = asyncio.Semaphore(_MOST_FAILING_AT_ONCE)
        self._in_flight: dict[str, asyncio.Task[None]] = {}
        self._listed_at: float | None = None

    async def once(self) -> None:
        """List the agents and read each of them once.

        Raises:
            ReadFailed: the list is not available.
        """
        await self._list()
        await asyncio.gather(*(self._start(agent) for agent in self._due()))

    async def run(self) -> None:
        """Read the agents in rounds until cancelled. Each agent has at most one request in flight."""
        try:
            while True:
                began = self._clock()
                if not self.is_paused:
                    await self._list_if_due(began)
                    await self._spread()
                await asyncio.sleep(max(EVERY_SECONDS - (self._clock() - began), 0.1))
        finally:
            for task in self._in_flight.values():
                task.cancel()

    async def _list_if_due(self, now: float) -> None:
        every = LIST_EVERY_SECONDS * max(1.0, len(self._fleet.agents) / _LISTED_IN_A_TURN)
        if self._listed_at is not None and now - self._listed_at < every:
            return
        try:
            await self._list()
        except ReadFailed as error:
            self._fleet.set_list_failure(str(error))
        else:
            self._listed_at = now

    async def _list(self) -> None:
        refs = await self._reader.agents()
        self._fleet.set_agents(
            (ref for ref in refs if not self._node or self._node == ref.node), self._clock()
        )

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
        task = asyncio.create_task(self._read(agent.ref, is_failing=bool(agent.failure)))
        self._in_flight[agent.ref.name] = task
        return task

    async def _read(self, ref: AgentRef, *, is_failing: bool) -> None:
        async with self._failing_slots if is_failing else nullcontext(), self._slots:
            try:
                received = await self._reader.read(ref)
            except ReadFailed as error:
                self._fleet.set_failure(ref.name, str(error))
            else:
                self._fleet.set_response(ref.name, received)
            finally:
                self._in_flight.pop(ref.name, None)
