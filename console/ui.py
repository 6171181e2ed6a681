"""Command `ui`: serves the agents' page on loopback, and the figures of all agents to it.

The address has a random token, since its holder reads what the caller may. Requests under another host's
name, and those of another origin's page, are refused. Nothing is stored.
"""

import argparse
import asyncio
import secrets
import time
import webbrowser
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec
from aiohttp import web

from console.caller import add_cluster_options, cluster_access
from console.cluster.agents import Agents, NoAnswer, Received, add_agent_options, parse_agent_options
from console.top.fleet import Fleet, Rounds
from gpuagent.api_types import HISTORY_PATH, SHARES_PATH, AgentResponse
from kube.answers import AccessError
from kube.client import KubeClient
from service.command import UsageError, write_output
from service.http.page_server import Page
from service.log_writer import discard_library_logs
from service.page import HEADERS, static_pages
from service.text import one_line

_IDLE_SECONDS: Final = 15.0  # time without a request of a page after which the agents are no longer read
_HIGHEST_PORT: Final = 65535
MOST_BYTES: Final = 4 << 20  # largest answer of one agent: that of a node with 8 GPUs and 512 pods has 1 MB
_JSON: Final = {**HEADERS, "Content-Type": "application/json"}
_DIGITS: Final = 12

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `ui`."""
    add_cluster_options(command)
    command.description = (
        "Serves the agents' page over all nodes on a port of this machine, until it is interrupted. It reads"
        " the agents through the API server with the rights of your kubeconfig. The address that it prints"
        " has a secret: do not pass it on."
    )
    add_agent_options(command)
    command.add_argument(
        "--port", type=int, default=9446, help="port on 127.0.0.1; 0 for any (default %(default)s)"
    )
    command.add_argument("--open", action="store_true", help="open the page in a browser")


def run(arguments: argparse.Namespace) -> int:
    """Serve the page until interrupted. Raises UsageError about the port, and AccessError."""
    discard_library_logs()
    if not 0 <= arguments.port <= _HIGHEST_PORT:
        raise UsageError(f"--port {arguments.port}: allowed: 0 to {_HIGHEST_PORT}")
    return asyncio.run(_run(arguments))


async def _run(arguments: argparse.Namespace) -> int:
    async with KubeClient(await cluster_access(arguments)) as client:
        server = PageOfAllNodes(Agents(client, options=parse_agent_options(arguments)))
        address = await server.start(arguments.port)
        write_output(f"{address}\nCtrl-C ends it.\n")
        if arguments.open:
            await asyncio.to_thread(webbrowser.open, address)
        try:
            await server.run()
        finally:
            await server.stop()
    return 0


@dataclass(slots=True)
class Answers(Fleet):
    """The newest answer of each agent, as JSON that was decoded and encoded again.

    What an agent sends is not passed on as it is: one malformed answer would make the document of all nodes
    unreadable.
    """

    changed: dict[str, int] = field(default_factory=dict)  # the version at which each agent last changed

    def set_response(self, name: str, received: Received) -> None:
        """Take the response of an agent."""
        answer = msgspec.structs.replace(received.answer, runbooks_url=None, fleet_url=None)
        body = msgspec.json.encode(answer)
        if len(body) > MOST_BYTES:
            self.set_failure(name, f"the response has more than {MOST_BYTES >> 20} MiB")
        elif name in self.agents:
            agent = self.agents[name]
            agent.node = agent.pod.spec.node_name or received.answer.node
            is_same = agent.received is not None and agent.received.body == body and not agent.failure
            kept = AgentResponse(agent.node)  # the bytes are a fifth of the objects
            agent.received = Received(answer=kept, body=body, at=received.at, age=received.age)
            agent.failure = ""
            if not is_same:  # the page knows the age of what it has
                self._mark(name)

    def set_failure(self, name: str, reason: str) -> None:
        """Record that an agent does not respond; its last figures stay."""
        is_same = name in self.agents and self.agents[name].failure == reason
        Fleet.set_failure(self, name, reason)
        if not is_same:
            self._mark(name)

    def _mark(self, name: str) -> None:
        self.version += 1
        self.changed = {each: self.changed[each] for each in self.changed if each in self.agents}
        self.changed[name] = self.version

    def document(self, since: int, now: float, namespace: str) -> bytes:
        """Return what has changed since the version of the page's last document, 0 for all.

        `names` are the nodes of all listed agents, which are in the namespace. `now` are monotonic seconds.
        """
        if since > self.version:  # of an earlier process
            since = 0
        nodes = []
        for name, agent in self.agents.items():
            received, failure = agent.received, agent.failure
            if self.changed.get(name, 0) > since and (received is not None or failure):
                act = f"Read the agent's log: kubectl logs -n {namespace} {one_line(agent.pod.name)}."
                nodes.append(
                    {
                        "node": agent.node,
                        "failure": failure or None,
                        "firstAct": act if failure else None,
                        "ageSeconds": received and received.age_at(now),
                        "answer": received and msgspec.Raw(received.body),
                    }
                )
        names = [agent.node for agent in self.agents.values()]
        whole = {"version": self.version, "names": names, "failure": self.list_failure}
        return msgspec.json.encode({**whole, "isListed": self.is_listed, "nodes": nodes})


class PageOfAllNodes:
    """Serves the page and its documents, and reads the agents while a page asks."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._answers = Answers()
        self._rounds = Rounds(agents, self._answers)
        self._pausing: asyncio.TimerHandle | None = None
        self._token = secrets.token_urlsafe(24)
        self._hosts: frozenset[str] = frozenset()
        application = web.Application(middlewares=[self._guarded])
        for path, page in static_pages().items():
            application.router.add_get(f"/{self._token}{path}", _static(page))
        application.router.add_get(f"/{self._token}{SHARES_PATH}", self._shares)
        application.router.add_get(f"/{self._token}{HISTORY_PATH}", self._history)
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False)

    async def start(self, port: int) -> str:
        """Listen on loopback; return the page's address. Raises UsageError."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, "127.0.0.1", port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise UsageError(f"port {port}: {error.strerror or error}; choose another with --port") from None
        number = self._runner.addresses[0][1]
        self._hosts = frozenset({f"127.0.0.1:{number}", f"localhost:{number}"})
        return f"http://127.0.0.1:{number}/{self._token}/"

    async def run(self) -> None:
        """Read the agents until cancelled, at first without waiting for the page."""
        self._keep_reading()
        await self._rounds.run()

    async def stop(self) -> None:
        """Close the port."""
        await self._runner.cleanup()

    @web.middleware
    async def _guarded(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Refuse requests under another host's name, and those of other origins' pages."""
        origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "none")
        if request.host not in self._hosts:
            return web.Response(status=421, text="unknown host\n")
        if origin not in (None, f"http://{request.host}") or site not in ("none", "same-origin"):
            return web.Response(status=403, text="the page of another origin\n")
        return await handler(request)

    def _keep_reading(self) -> None:
        self._rounds.is_paused = False
        if self._pausing is not None:
            self._pausing.cancel()
        loop = asyncio.get_running_loop()
        self._pausing = loop.call_later(_IDLE_SECONDS, setattr, self._rounds, "is_paused", True)

    async def _shares(self, request: web.Request) -> web.Response:
        self._keep_reading()
        text = request.query.get("since", "0")
        since = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
        body = self._answers.document(since, time.monotonic(), self._agents.namespace)
        return web.Response(body=body, headers=_JSON)

    async def _history(self, request: web.Request) -> web.Response:
        """Return the last 15 minutes of the pods of the node in the query, read now."""
        node = request.query.get("node", "")
        agents = self._answers.agents.values()
        pod = next((agent.pod for agent in agents if agent.node == node), None)
        if pod is None:
            return web.Response(status=404, text="no agent on this node\n")
        try:
            body = msgspec.json.encode(await self._agents.history(pod))
        except (AccessError, NoAnswer) as error:
            return web.Response(status=502, text=f"{error}\n")
        return web.Response(body=body, headers=_JSON)


def _static(page: Page) -> _Handler:
    async def serve(_request: web.Request) -> web.Response:
        return web.Response(body=page.body, headers=page.headers)

    return serve
