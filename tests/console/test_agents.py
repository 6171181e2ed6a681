"""Agents through the API server's proxy: hostile and failing responses."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from console.agents import NETWORK_ADVICE, AgentPod, Agents
from kube.client import KubeClient
from kube.errors import Unreachable
from tests.support.agent_fleet import LABELS
from tests.support.api_server import Answer, ApiServer, refuses, says

PODS = "/api/v1/namespaces/kaishare-agent/pods"
SHARES = f"{PODS}/agent-0:9445/proxy/api/v1/shares"
FIGURES = {"node": "n0", "lastGoodSampleTimestamp": 1_800_000_000.0, "gpus": [], "pods": []}


def agent(number: int = 0, **status: Any) -> dict[str, Any]:
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], **status}
    return {
        "metadata": {
            "name": f"agent-{number}", "namespace": "kaishare-agent", "uid": f"u{number}", "labels": LABELS,
            "creationTimestamp": "2026-11-01T10:00:00Z",
        },
        "spec": {"nodeName": f"n{number}", "containers": [{"ports": [{"name": "http", "containerPort": 9445}]}]},
        "status": ready,
    }  # fmt: skip


@pytest.fixture
async def agents(server: ApiServer, client: KubeClient) -> Agents:
    server.path = PODS
    server.pods = {"agent-0": agent()}
    return Agents(client, seconds=0.5, clock=lambda: 50.0, wall_clock=lambda: 0.0)


async def only(agents: Agents) -> AgentPod:
    (pod,) = await agents.list()
    return pod


async def failure(server: ApiServer, agents: Agents, answer: Answer) -> str:
    server.refusals = {"/proxy/": answer}
    reading = await agents.read(await only(agents))
    assert reading.received is None
    assert "\n" not in reading.failure
    return reading.failure


async def test_the_agents_of_the_namespace_are_listed_by_their_labels(
    server: ApiServer, agents: Agents
) -> None:
    pod = await only(agents)
    assert (pod.name, pod.node, pod.port, pod.version, pod.is_ready) == ("agent-0", "n0", 9445, "0.1.0", True)
    request = server.requests[-1]
    assert request.path == PODS, "a pod of a tenant with the same labels is in another namespace"
    assert request.query["labelSelector"] == (
        "app.kubernetes.io/name=kaishare,app.kubernetes.io/component=agent"
    )


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        ({"conditions": [], "phase": "Pending"}, "Pending"),
        ({"conditions": []}, "not ready"),
        ({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}, "Unschedulable"),
        (
            {"conditions": None, "containerStatuses": [
                {"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
            ]},
            "CrashLoopBackOff",
        ),
    ],
)  # fmt: skip
async def test_why_a_pod_is_not_ready(
    server: ApiServer, agents: Agents, status: dict[str, Any], trouble: str
) -> None:
    server.pods = {"agent-0": agent(**status)}
    pod = await only(agents)
    assert (pod.is_ready, pod.trouble) == (False, trouble)


async def test_figures_and_their_age(server: ApiServer, agents: Agents) -> None:
    server.refusals = {"/proxy/": says(json.dumps(FIGURES), Date="Fri, 15 Jan 2027 08:00:07 GMT")}
    reading = await agents.read(await only(agents))
    assert reading.failure == ""
    assert reading.age_at(52.0) == pytest.approx(9.0), "7 s by the agent's clock, and 2 s since"
    assert reading.silent_seconds(52.0) == 0.0
    assert server.requests[-1].path == SHARES


async def test_a_response_for_another_node_does_not_count(server: ApiServer, agents: Agents) -> None:
    foreign = says(json.dumps({**FIGURES, "node": "n1\x1b[2J"}))
    assert await failure(server, agents, foreign) == 'the response is for another node: "n1\ufffd[2J"'


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (says("<html>"), "the response is not from an agent: "),
        (says('{"node": 7}'), "the response is not from an agent: "),
        (says("[" * 100_000), "the response is not from an agent: "),
        (
            says("moved", status=302, Location="https://elsewhere.example"),
            "the response is not an agent's: 302, moved",
        ),
        (says("x\x1b]0;\n" * 999, status=500), "the response is not an agent's: 500, x\ufffd]0; x\ufffd"),
        (says("login", status=401), "the agent asks for authentication: 401, login"),
        (says("unknown host", status=421), "the agent rejects the host name: 421, unknown host"),
        (says("{}", Content_Encoding="gzip"), "unexpected Content-Encoding gzip"),
        (refuses(403, "Forbidden"), "the caller may not get pods/proxy in kaishare-agent"),
        (refuses(404, "NotFound"), "the pod no longer exists"),
        (
            refuses(503, "ServiceUnavailable", "dial tcp 10.0.0.1:9445: i/o timeout"),
            f"the API server cannot reach the agent: dial tcp 10.0.0.1:9445: i/o timeout; {NETWORK_ADVICE}",
        ),
    ],
)
async def test_failures_are_one_line_each(
    server: ApiServer, agents: Agents, answer: Answer, words: str
) -> None:
    line = await failure(server, agents, answer)
    assert line.startswith(words)
    assert line.isprintable()
    assert len(line) <= 600


async def test_an_endless_response_ends_at_sixteen_mebibytes(server: ApiServer, client: KubeClient) -> None:
    sent_mib = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent_mib
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            await response.write(b" " * (1 << 20))
            sent_mib += 1

    server.path = PODS
    server.pods = {"agent-0": agent()}
    server.refusals = {"/proxy/": endless}
    agents = Agents(client, seconds=20.0)
    reading = await agents.read(await only(agents))
    assert reading.failure == "an answer of more than 16777216 bytes"
    assert sent_mib < 64, "the rest is buffers of the connection"


async def test_a_401_of_a_pod_renews_no_credentials(server: ApiServer, agents: Agents, account: Path) -> None:
    """A hostile node could otherwise start the caller's login plugin with each request."""
    pod = await only(agents)
    (account / "token").write_text("second-token\n")
    before = len(server.requests)
    server.refusals = {"/proxy/": says("login", status=401)}
    await agents.read(pod)
    (request,) = server.requests[before:]
    assert request.headers["Authorization"] == "Bearer first-token"


async def test_the_date_of_a_pod_is_not_the_time_of_the_api_server(
    server: ApiServer, client: KubeClient, agents: Agents
) -> None:
    pod = await only(agents)
    server.refusals = {"/proxy/": says(json.dumps(FIGURES), Date="Fri, 15 Jan 1999 08:00:07 GMT")}
    await agents.read(pod)
    time = client.server_time()
    assert time is not None
    assert time.year > 1999


async def test_a_pod_that_is_gone_is_forgotten(server: ApiServer, agents: Agents) -> None:
    server.refusals = {"/proxy/": says(json.dumps(FIGURES))}
    pod = await only(agents)
    await agents.read(pod)
    server.pods = {}
    assert await agents.list() == []
    server.refusals = {"/proxy/": refuses(404, "NotFound")}
    reading = await agents.read(pod)
    assert (reading.received, reading.failure) == (None, "the pod no longer exists")


async def test_a_pod_without_a_node_is_not_asked(server: ApiServer, agents: Agents) -> None:
    item = agent()
    del item["spec"]["nodeName"]
    server.pods = {"agent-0": item}
    pod = await only(agents)
    count = len(server.requests)
    assert (await agents.read(pod)).failure == "the pod is not bound to a node"
    assert len(server.requests) == count


async def test_readiness(server: ApiServer, agents: Agents) -> None:
    pod = await only(agents)
    server.refusals = {"/proxy/readyz": says("ok\n", kind="text/plain")}
    assert (await agents.ready(pod)).is_ready is True
    server.refusals = {"/proxy/readyz": says("no sample\x1b yet\nno pods\n", status=503, kind="text/plain")}
    unready = await agents.ready(pod)
    assert (unready.is_ready, unready.reasons) == (False, ("no sample\ufffd yet", "no pods"))
    server.refusals = {"/proxy/readyz": refuses(503, "ServiceUnavailable", "connection refused")}
    assert (await agents.ready(pod)).is_ready is None


async def test_an_item_that_is_not_a_pod(server: ApiServer, agents: Agents) -> None:
    server.pods = {"agent-0": {"metadata": {"name": 7}}}
    with pytest.raises(Unreachable, match="not a pod"):
        await agents.list()
