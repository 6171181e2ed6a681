"""Agents of many nodes in one process: the real HTTP server of the agent, and servers that misbehave."""

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from gpuagent.evaluation.status import Evaluation
from gpuagent.server.agent_server import HttpServer
from gpuagent.server.exposition import Metrics
from service.http.limits import Address
from service.http.page_server import OPEN_PORT, PortSecurity
from service.log import JsonLog
from service.version import version
from tests.support.kinds import made
from tests.support.pod_network import ending_at_once

NAMESPACE = "kaishare-agent"
LABELS = {
    "app.kubernetes.io/name": "kaishare",
    "app.kubernetes.io/component": "agent",
    "app.kubernetes.io/version": version(),
}


def node_name(number: int) -> str:
    return f"gpu-node-{number}"


def pod_name(number: int) -> str:
    return f"kaishare-agent-{number}"


def pod_ip(number: int) -> str:
    return f"10.77.0.{number + 1}"


def gpu_node(number: int, **labels: str) -> dict[str, Any]:
    own = {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.memory": "23028", **labels}
    kept = {key: value for key, value in own.items() if value}
    return made("Node", node_name(number), labels=kept)


def agent_pod(number: int, *, has_tls: bool = False) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "agent", "image": "i"}
    container["ports"] = [{"name": "http", "containerPort": 9445}]
    if has_tls:
        container["readinessProbe"] = {"httpGet": {"path": "/readyz", "port": "http", "scheme": "HTTPS"}}
    spec = {"nodeName": node_name(number), "containers": [container]}
    return made("Pod", pod_name(number), NAMESPACE, labels=LABELS, spec=spec)


def pod_status(number: int, *, ready: bool = True) -> dict[str, Any]:
    return {
        "phase": "Running", "podIP": pod_ip(number), "podIPs": [{"ip": pod_ip(number)}],
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
    }  # fmt: skip


@dataclass
class AgentFleet:
    addresses: dict[str, Address] = field(default_factory=dict)
    """Server by pod address, as IP:PORT."""
    statuses: dict[int, Evaluation] = field(default_factory=dict)
    """What each agent serves; a test may replace it."""
    servers: list[HttpServer] = field(default_factory=list)


@contextlib.asynccontextmanager
async def agent_fleet(
    count: int, status: Evaluation, security: Callable[[int], PortSecurity] = lambda _: OPEN_PORT
) -> AsyncIterator[AgentFleet]:
    """Run the agents of nodes 0 to `count` - 1, and one of node `count` that never answers."""
    fleet = AgentFleet(statuses=dict.fromkeys(range(count), status))
    async with contextlib.AsyncExitStack() as stack:
        for number in range(count):
            server = _server(fleet, number)
            fleet.servers.append(server)
            fleet.addresses[f"{pod_ip(number)}:9445"] = await server.start(
                Address("127.0.0.1", 0), security=security(number)
            )
            stack.push_async_callback(server.stop)
        fleet.addresses[f"{pod_ip(count)}:9445"] = await stack.enter_async_context(hanging_server())
        yield fleet


def _server(fleet: AgentFleet, number: int) -> HttpServer:
    def status() -> Evaluation:
        return fleet.statuses[number]

    node = node_name(number)
    return HttpServer(
        status=status, unhealthy_reason=str, metrics=Metrics(node=node, is_simulated=True), node=node,
        is_simulated=True, log=JsonLog(io.BytesIO()),
    )  # fmt: skip


@contextlib.asynccontextmanager
async def hanging_server() -> AsyncIterator[Address]:
    writers: set[asyncio.StreamWriter] = set()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        with contextlib.suppress(OSError):
            while await reader.read(1 << 16):
                pass
        writer.close()
        writers.discard(writer)

    async with ending_at_once(await asyncio.start_server(hang, "127.0.0.1", 0), writers) as server:
        host, port = server.sockets[0].getsockname()
        yield Address(host, port)
