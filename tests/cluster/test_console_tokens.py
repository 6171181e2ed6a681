"""`kaishare` and agents that ask for tokens, through a real API server's proxy, with the accounts of the chart.

The API server reaches the agents as in test_console.py; see tests/support/pod_network.py.
"""

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientSession

from certs.authority import Authority
from gpuagent.server.agent_server import AUDIENCE
from kube.client import KubeClient
from service.http.authentication import OWN_HEADER
from service.http.limits import Address
from tests.cluster.test_agent import PROGRAM
from tests.support.administrator import Administrator
from tests.support.agent_fleet import NAMESPACE, agent_pod, node_name, pod_ip, pod_name, pod_status
from tests.support.agent_process import Agent, agent
from tests.support.cluster_webhook import from_files, managed_namespace, serving
from tests.support.control_plane import ControlPlane
from tests.support.control_plane_fixtures import EGRESS_SOCKET
from tests.support.forked_python import EndedProgram, run_forked
from tests.support.helm_chart import find_object, rendered
from tests.support.kai_standin import placed_by_kai
from tests.support.kube_objects import GPU_0, fraction, made, namespace_object, node
from tests.support.pod_network import pod_network
from tests.support.webhook_in_a_pod import in_a_pod

PLAIN, OVER_TLS = 0, 1
"""Numbers of the nodes of a real agent, and of a real agent with TLS."""

AUTHORITY = Authority.create(now=datetime.now(UTC))
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


@dataclass(kw_only=True)
class Site:
    """Two nodes with real agents that ask for tokens, one of them with TLS."""

    agents: list[Agent]
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


def rules(name: str) -> list[dict[str, Any]]:
    """Return the rules of a ClusterRole of the chart."""
    objects = rendered({"authentication": {"enabled": True}})
    rules_of_role: list[dict[str, Any]] = find_object(objects, "ClusterRole", name)["rules"]
    return rules_of_role


@pytest.fixture
async def site(plane: ControlPlane, admin: Administrator, tmp_path: Path) -> AsyncIterator[Site]:
    await admin.ensure(namespace_object(NAMESPACE))
    await placed_by_kai(admin, fraction("half", node=None), group="a", gpu=GPU_0)
    for number in (PLAIN, OVER_TLS):
        labels = {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.product": "NVIDIA-A10"}
        await admin.create({**node(**labels), "metadata": {"name": node_name(number), "labels": labels}})
        await admin.create(agent_pod(number, has_tls=number == OVER_TLS))
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod_name(number)}/status"
        await admin.merge(path, {"status": pod_status(number)})
    token = await admin.token("agent", *rules("kaishare-agent"))
    certs = tmp_path / "certs"
    write_certificate(certs)
    received: dict[str, bytearray] = {}
    with (
        start_agent(plane, tmp_path / "plain", PLAIN, token) as plain,
        start_agent(plane, tmp_path / "tls", OVER_TLS, token, f"--certs={certs}") as over_tls,
    ):
        servers = {address_of(PLAIN): listening(plain), address_of(OVER_TLS): listening(over_tls)}
        for running in (plain, over_tls):
            await asyncio.to_thread(running.until, lambda: running.log_lines("pods listed"))  # noqa: B023
            await until_ready(running)
        async with pod_network(plane.folder / EGRESS_SOCKET, servers, received):
            yield Site(agents=[plain, over_tls], received=received)


async def until_ready(running: Agent) -> None:
    """Wait for the first sample, before which an agent shows no pod."""
    async with ClientSession() as session, asyncio.timeout(30):
        while True:
            async with session.get(f"{running.url}/readyz", ssl=False) as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.05)


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
    assert text.out.splitlines()[2].startswith("2 nodes: ")
    assert "NOT ANSWERING" not in text.out
    assert " half " in text.out

    read = await kaishare(plane, platform, "top", "-o", "json", "--node", node_name(OVER_TLS))
    (over_tls,) = json.loads(read.out)["agents"]
    assert (over_tls["answered"], over_tls["shares"]["node"]) == (True, node_name(OVER_TLS))

    report = json.loads((await kaishare(plane, platform, "doctor", "-o", "json")).out)
    responses = [entry["what"] for entry in report["findings"] if entry["check"] == "agent responses"]
    assert responses == ["2 agents answer through the API server"]

    assert platform not in text.out + site.logs()
    plain = bytes(site.received[address_of(PLAIN)])
    assert b"GET /api/v1/shares HTTP/1.1" in plain
    assert platform.encode() not in plain
    assert b"Authorization" not in plain
    sent = {match.decode() for match in re.findall(rb"(?i)%s: (\S+)" % OWN_HEADER.encode(), plain)}
    assert len(sent) == 2, "each command that reads this node has requested one token"
    assert not any(token in site.logs() for token in sent)
    assert not any(token.encode() in bytes(site.received[address_of(OVER_TLS)]) for token in sent)
    # The token that a node could collect: the API server accepts it for nothing.
    for token in sent:
        async with KubeClient(plane.access(token)) as client:
            for path in ("/metrics", f"/api/v1/namespaces/{NAMESPACE}/pods"):
                with pytest.raises(Exception, match="401 Unauthorized"):
                    await client.get(path)


@pytest.mark.slow
async def test_the_role_view_reads_the_figures_of_its_own_namespace(
    plane: ControlPlane, admin: Administrator, site: Site
) -> None:
    """The controller that aggregates ClusterRoles does not run here: the chart's part is bound itself."""
    for name in ("research", "team-a"):
        await admin.ensure(namespace_object(name))
    developers = {"kind": "ServiceAccount", "name": "developer", "namespace": "team-a"}
    view = {"subjects": [developers], "namespaces": ["research", "team-a"]}
    for item in rendered({"authentication": {"enabled": True, "namespaceView": view}}):
        if item["metadata"]["name"] == "kaishare-viewer":
            await admin.create(item)
    token = await admin.token("developer")
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kaishare-viewer"}
    binding = made("RoleBinding", "developer-views", "research", roleRef=role, subjects=[developers])
    await admin.create(binding)

    own = await kaishare(plane, token, "top", "-n", "research", "-o", "json")
    agents = json.loads(own.out)["agents"]
    assert (own.status, [entry["answered"] for entry in agents]) == (0, [True, True])
    pods = [pod for entry in agents for pod in entry["shares"]["pods"]]
    assert [(pod["namespace"], pod["name"]) for pod in pods if pod["shares"]] == [("research", "half")]
    gpus = [gpu for entry in agents for gpu in entry["shares"]["gpus"]]
    assert [(gpu["model"], gpu["usedBytes"]) for gpu in gpus] == [("Simulated NVIDIA-A10", None)]
    text = await kaishare(plane, token, "top", "-n", "research", "--once")
    assert text.status == 0
    assert " half " in text.out

    for arguments in (("-n", "team-a"), ()):
        refused = await kaishare(plane, token, "top", "--once", *arguments)
        assert refused.status == 1
        assert "NOT ANSWERING" in refused.out
        assert " half " not in refused.out

    viewer = await admin.audience_token("kaishare-viewer", AUDIENCE)
    async with reading(site.agents[OVER_TLS].url) as get:
        answers = {
            path: (await get(path, X_Kaishare_Token=viewer))[0]
            for path in (
                "/api/v1/shares?namespace=team-a",
                "/api/v1/shares?namespace=research",
                "/api/v1/shares",
                "/api/v1/history?namespace=team-a",
                "/metrics?namespace=team-a",
                "/?namespace=team-a",
            )
        }
    assert list(answers.values()) == [200, 403, 403, 403, 403, 403], answers


def write_certificate(folder: Path) -> None:
    """Write tls.crt and tls.key for loopback."""
    pair = AUTHORITY.issue(["localhost", "127.0.0.1"], now=datetime.now(UTC), lifetime=timedelta(days=1))
    folder.mkdir(exist_ok=True)
    (folder / "tls.key").write_bytes(pair.key_pem)
    (folder / "tls.crt").write_bytes(pair.certificate_pem)


@contextlib.asynccontextmanager
async def reading(url: str) -> AsyncIterator[Callable[..., Any]]:
    """Return a function that requests a path over TLS and trusts only the tests' CA; each on a new connection."""
    trust = ssl.create_default_context(cadata=AUTHORITY.pair.certificate_pem.decode())
    connector = aiohttp.TCPConnector(ssl=trust, force_close=True)
    async with aiohttp.ClientSession(trust_env=False, connector=connector) as session:

        async def get(path: str, **headers: str) -> tuple[int, str]:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            async with session.get(url + path, headers=named) as response:
                return response.status, await response.text()

        yield get


async def test_the_webhooks_ops_port_answers_readers_of_the_charts_role_over_tls(
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    token = await admin.token("webhook", *rules("kaishare-webhook"))
    reader = await admin.token("reader", *rules("kaishare-metrics-reader"))
    stranger = await admin.token("stranger")
    ours = await admin.audience_token("reader", AUDIENCE, "kaishare-webhook")
    agents = await admin.audience_token("reader", AUDIENCE)
    certs = tmp_path / "ops"
    write_certificate(certs)
    pod = in_a_pod(plane, token, tmp_path)
    options = from_files(tmp_path, managed_namespace("secret-project"))
    async with serving(
        tmp_path / "log", *options, "--authentication=tokens", f"--ops-certs={certs}",
        program=pod.program, environment=pod.environment,
    ) as webhook, reading(f"https://{webhook.ops}") as get:  # fmt: skip
        assert webhook.logged("serving")[0]["ops"] == f"https://{webhook.ops}"
        for path, text in (("/metrics", "kaishare_webhook_policies"), ("/policies", "secret-project")):
            for good in (reader, ours):
                status, body = await get(path, Authorization=f"Bearer {good}")
                assert status == 200, body
                assert text in body
            for bad, wanted in ((stranger, 403), (agents, 401)):
                status, body = await get(path, Authorization=f"Bearer {bad}")
                assert status == wanted
                assert text not in body
            assert (await get(path))[0] == 401
            assert (await get(path, X_Kaishare_Token=ours))[0] == 401  # a header of agents only
        assert await get("/healthz") == (200, "ok\n")
        assert await get("/readyz") == (200, "ok\n")
        assert await webhook.stop() == 0
        log = (tmp_path / "log").read_text()
    assert not any(secret in log for secret in (token, reader, stranger, ours, agents))
    assert json.loads(log.splitlines()[-1])["message"] == "stopped"
