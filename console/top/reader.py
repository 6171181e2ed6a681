"""Interface to the agents that `top` reads, and the reader of one agent by its address."""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from gpuagent.top.client import Agent, NoAnswer, Received
from gpuagent.top.fleet import AgentRef

_TOKEN_START: Final = 8
"""Characters by which a token is recognised in an error; shorter tokens are no secrets."""


class ReadFailed(Exception):
    """An agent, or the list of agents, could not be read; the message is one line."""


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

    def __init__(self, url: str, token: str = "") -> None:
        """Set the address.

        Args:
            url: the agent's address.
            token: token for the agent's audience; empty for an agent that asks for none.

        Raises:
            ValueError: the URL is not an agent's address.
        """
        self._agent = Agent(url, token=token)
        self._token = token

    async def agents(self) -> Sequence[AgentRef]:
        """Return the one agent."""
        return [AgentRef(self._agent.url, "")]

    async def read(self, agent: AgentRef) -> Received:  # noqa: ARG002 - there is one
        """Return the agent's response.

        Raises:
            ReadFailed: the agent does not respond in time, or responds with an error.
        """
        try:
            received = await asyncio.to_thread(self._agent.fetch)
        except NoAnswer as error:
            failure, body = str(error), b""
        else:
            failure, body = "", received.body
        token = self._token  # an error's text is shortened, and may have the beginning of the token only
        if token and (token[:_TOKEN_START] in failure or token.encode() in body):
            failure = "the response is not from an agent: it repeats the token of the request"
        if failure:
            raise ReadFailed(failure)
        return received
