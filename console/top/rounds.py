"""Reads all agents again and again, a bounded number at once, and merges each response when it arrives."""

import asyncio
import time
from contextlib import nullcontext
from typing import Final

from console.cluster.agents import AgentReading, Agents
from console.top.fleet import AgentState, Fleet
from kube.answers import REQUEST_ERRORS, AccessError, ApiError
from kube.kinds import Pod
from service.command import UsageError
from service.text import one_line

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
            pods = await self._agents.list()
        except REQUEST_ERRORS as error:
            if not isinstance(error, ApiError) or not error.is_forbidden:
                raise ListFailed(str(error)) from None
            place = f"{self._agents.namespace}{f' as {one_line(error.user)}' if error.user else ''}"
            raise ListFailed(f"the agents are not visible to you: you may not list pods in {place}") from None
        self._fleet.set_agents(
            (pod for pod in pods if not self._node or self._node == pod.spec.node_name), time.monotonic()
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
