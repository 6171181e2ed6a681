"""`kaishare` and agents that ask for tokens, through a real API server's proxy, with the accounts of the chart.

The API server reaches the agents as in test_console.py; see tests/support/pod_network.py.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from certs.authority import Authority
from kube.client import KubeClient
from service.http.authentication import OWN_HEADER
from service.http.limits import Address
from tests.cluster.test_agent import PROGRAM
from tests.support.administrator import Administrator
from tests.support.agent_fleet import (
    NAMESPACE,
    agent_pod,
    node_name,
    pod_ip,
    pod_name,
    pod_status,
)
from tests.support.agent_process import Agent, agent
from tests.support.control_plane import ControlPlane
from tests.support.control_plane_fixtures import EGRESS_SOCKET
from tests.support.forked_python import EndedProgram, run_forked
from tests.support.helm_chart import rendered
from tests.support.kai_standin import Binder
from tests.support.kube_objects import GPU_0, fraction, namespace_object, node
from tests.support.pod_network import pod_network

PLAIN, OVER_TLS, STAND_IN = 0, 1, 2
"""Numbers of the nodes of a real agent, a real agent with TLS, and a server that records what it receives."""

READER = {"kind": "ServiceAccount", "name": "platform", "namespace": "team-a"}


@pytest.fixture(scope="module")
def plane(own_proxied_plane: ControlPlane) -> ControlPlane:
    return own_proxied_plane


@pytest.fixture
async def platform(admin: Administrator) -> str:
    """Install the chart's objects for readers; return the token of a service account that is one of them."""
    await admin.ensure(namespace_object(NAMESPACE))
    values = {"authentication": {"enabled": True, "readers": [READER]}}
    for item in rendered(values):
        if item["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "readers":
            await admin.create(item)
    return await admin.token(READER["name"])


async def kaishare(plane: ControlPlane, token: str, *arguments: str) -> EndedProgram:
    """Run the command with a token in its kubeconfig, and without a terminal."""
    command = [*arguments, "--kubeconfig", str(plane.kubeconfig(token=token))]
    done = await asyncio.to_thread(run_forked, "-m", "console", *command)
    assert "Traceback" not in done.err
    return done


# --- real agents as processes ---


@dataclass(kw_only=True)
class Site:
    """Three nodes: two real agents that ask for tokens, one of them with TLS, and a server that records."""

    agents: list[Agent]
    headers: list[dict[str, str]]
    """What the recording server has received."""
    received: dict[str, bytearray]
    """The bytes that the API server has sent to each pod address."""

    def logs(self) -> str:
        return "".join(running.log.read_text() for running in self.agents)


def start_agent(plane: ControlPlane, folder: Path, number: int, token: str, *options: str) -> Any:
    folder.mkdir()
    plane.access(token)
    environment = {**plane.environment, "TMPDIR": str(folder)}
    program = ("-c", PROGRAM, str(plane.account(token)), str(folder / "loaded"))
    usual = f"--node {node_name(number)} --gpus simulated --interval 200ms --log-level debug".split()
    every = (*usual, "--authentication=tokens", *options)
    return agent(folder / "log", *every, program=program, is_forked=True, **environment)


def write_certificate(folder: Path) -> None:
    """Write tls.crt and tls.key of a name that the API server does not ask for."""
    folder.mkdir()
    authority = Authority.create(now=datetime.now(UTC))
    pair = authority.issue(["agent.example"], now=datetime.now(UTC), lifetime=timedelta(days=1))
    (folder / "tls.key").write_bytes(pair.key_pem)
    (folder / "tls.crt").write_bytes(pair.certificate_pem)


@contextlib.asynccontextmanager
async def stand_in(headers: list[dict[str, str]]) -> AsyncIterator[Address]:
    """Run a server in an agent's place that asks for a token, answers, and records what it receives."""
    figures = {"node": node_name(STAND_IN), "gpus": [], "pods": []}

    async def answer(request: web.Request) -> web.StreamResponse:
        headers.append(dict(request.headers))
        if OWN_HEADER not in request.headers:
            return web.Response(status=401, text="a bearer token is required\n")
        return web.json_response(figures)

    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield Address(*runner.addresses[0])
    finally:
        await runner.cleanup()


@pytest.fixture
async def site(plane: ControlPlane, admin: Administrator, tmp_path: Path) -> AsyncIterator[Site]:
    await admin.ensure(namespace_object(NAMESPACE))
    await Binder(admin, gpus=(GPU_0,)).place(fraction("half", node=None), group="a", gpu=GPU_0)
    for number in (PLAIN, OVER_TLS, STAND_IN):
        labels = {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.product": "NVIDIA-A10"}
        await admin.create({**node(**labels), "metadata": {"name": node_name(number), "labels": labels}})
        await create_agent_pod(admin, number, has_tls=number == OVER_TLS)
    rules = next(
        item["rules"]
        for item in rendered({"authentication": {"enabled": True}})
        if (item["kind"], item["metadata"]["name"]) == ("ClusterRole", "kaishare-agent")
    )
    token = await admin.token("agent", *rules)
    certs = tmp_path / "certs"
    write_certificate(certs)
    headers: list[dict[str, str]] = []
    received: dict[str, bytearray] = {}
    with (
        start_agent(plane, tmp_path / "plain", PLAIN, token) as plain,
        start_agent(plane, tmp_path / "tls", OVER_TLS, token, f"--certs={certs}") as over_tls,
    ):
        async with stand_in(headers) as recording:
            servers = {address_of(PLAIN): listening(plain), address_of(OVER_TLS): listening(over_tls)}
            servers[address_of(STAND_IN)] = recording
            agents = [plain, over_tls]
            for running in agents:
                await asyncio.to_thread(running.until, lambda: running.log_lines("pods listed"))  # noqa: B023
                await until_ready(running)
            async with pod_network(plane.folder / EGRESS_SOCKET, servers, received):
                yield Site(agents=agents, headers=headers, received=received)


async def until_ready(running: Agent) -> None:
    """Wait for the first sample, before which an agent shows no pod."""
    async with ClientSession() as session, asyncio.timeout(30):
        while True:
            async with session.get(f"{running.url}/readyz", ssl=False) as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.05)


async def create_agent_pod(admin: Administrator, number: int, *, has_tls: bool = False) -> None:
    await admin.create(agent_pod(number, has_tls=has_tls))
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod_name(number)}/status"
    await admin.merge(path, {"status": pod_status(number)})


def address_of(number: int) -> str:
    return f"{pod_ip(number)}:9445"


def listening(running: Agent) -> Address:
    host, _, port = running.url.partition("://")[2].rpartition(":")
    return Address(host, int(port))


@pytest.mark.slow
async def test_a_named_reader_reads_real_agents_with_and_without_tls(
    plane: ControlPlane, site: Site, platform: str
) -> None:
    text = await kaishare(plane, platform, "top", "--once")
    assert (text.status, text.err) == (0, "")
    assert text.out.splitlines()[2].startswith("3 nodes: ")
    assert "NOT ANSWERING" not in text.out
    assert " half " in text.out

    (over_tls,) = json.loads(
        (await kaishare(plane, platform, "top", "-o", "json", "--node", node_name(OVER_TLS))).out
    )["agents"]
    assert (over_tls["answered"], over_tls["shares"]["node"]) == (True, node_name(OVER_TLS))

    report = json.loads((await kaishare(plane, platform, "doctor", "-o", "json")).out)
    responses = [entry["what"] for entry in report["findings"] if entry["check"] == "agent responses"]
    assert responses == ["3 agents answer through the API server"]

    assert platform not in text.out + site.logs() + str(site.headers)
    sent = {headers[OWN_HEADER] for headers in site.headers if OWN_HEADER in headers}
    assert len(sent) == 2, "each command that reads this node has requested one token"
    for headers in site.headers:
        assert "Authorization" not in headers
    plain = bytes(site.received[address_of(PLAIN)])
    assert b"GET /api/v1/shares HTTP/1.1" in plain
    assert platform.encode() not in plain
    assert b"Authorization" not in plain
    assert any(token.encode() in plain for token in sent)
    assert not any(token in site.logs() for token in sent)
    assert not any(token.encode() in bytes(site.received[address_of(OVER_TLS)]) for token in sent)
    # The token that a node could collect: the API server accepts it for nothing.
    for token in sent:
        async with KubeClient(plane.access(token)) as client:
            for path in ("/metrics", f"/api/v1/namespaces/{NAMESPACE}/pods"):
                with pytest.raises(Exception, match="401 Unauthorized"):
                    await client.get(path)


# --- many agents in this process ---
