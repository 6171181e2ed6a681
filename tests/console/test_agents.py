"""Agents through the API server's proxy: hostile and failing responses."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from aiohttp import web

from console.cluster.agents import (
    MOST_AT_ONCE,
    NETWORK_ADVICE,
    RETRY_SECONDS,
    AgentAtUrl,
    AgentReading,
    Agents,
    ServiceAccountTokens,
    TokenUnavailable,
    age_of_figures,
    agent_address,
)
from gpuagent.api_types import AgentResponse
from gpuagent.server.agent_server import AUDIENCE
from kube import kinds
from kube.answers import Unreachable
from kube.client import KubeClient
from kube.kinds import Pod
from tests.support import top_agents
from tests.support.api_server import Answer, ApiServer, refuses, says
from tests.support.top_agents import gives, serving
from tests.support.waiting import until

PODS = "/api/v1/namespaces/kaishare-agent/pods"
FIGURES = {"node": "n0", "lastGoodSampleTimestamp": 1_800_000_000.0, "gpus": [], "pods": []}


def agent(number: int = 0, **status: Any) -> dict[str, Any]:
    made = top_agents.agent_manifest(f"n{number}", f"agent-{number}")
    return {**made, "status": {**made["status"], **status}}


@pytest.fixture
async def agents(server: ApiServer, client: KubeClient) -> Agents:
    server.path = PODS
    server.pods = {"agent-0": agent()}
    return Agents(client, seconds=0.5, clock=lambda: 50.0)


def answers(server: ApiServer, answers: dict[str, Answer], count: int = 1) -> None:
    server.path, server.refusals = PODS, answers
    server.pods = {f"agent-{number}": agent(number) for number in range(count)}


async def only(agents: Agents) -> Pod:
    (pod,) = await agents.list()
    return pod


async def test_agents_of_the_namespace_are_listed_by_labels(server: ApiServer, agents: Agents) -> None:
    (pod,) = await agents.list("n0")
    assert (pod.metadata.key, pod.spec.node_name) == (("kaishare-agent", "agent-0"), "n0")
    request = server.requests[-1]
    assert request.path == PODS, "a pod of a tenant with the same labels is in another namespace"
    assert request.query["labelSelector"] == (
        "app.kubernetes.io/name=kaishare,app.kubernetes.io/component=agent"
    )
    assert request.query["fieldSelector"] == "spec.nodeName=n0"
    server.pods = {"agent-0": {"metadata": {"name": 7}}}
    with pytest.raises(Unreachable, match="expected a pod"):
        await agents.list()


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        ({"conditions": [], "phase": "Pending"}, "Pending"),
        ({"conditions": []}, "not ready"),
        ({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}, "Unschedulable"),
        ({"conditions": None, "containerStatuses": [{"restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}, "CrashLoopBackOff"),
    ],
)  # fmt: skip
def test_unready_pods(status: dict[str, Any], trouble: str) -> None:
    pod = kinds.PODS.decode(json.dumps(agent(**status)))
    assert (pod.status.is_ready, pod.status.trouble) == (False, trouble)


async def test_figures_and_their_age(server: ApiServer, client: KubeClient, agents: Agents) -> None:
    pod = await only(agents)
    server.refusals = {"/proxy/": says(json.dumps(FIGURES), Date="Fri, 15 Jan 2027 08:00:07 GMT")}
    reading = await agents.read(pod)
    assert reading.failure == ""
    assert reading.received is not None
    age = reading.received.age_at(52.0)
    assert age == pytest.approx(9.0), "7 s by the agent's clock, and 2 s since"
    assert server.requests[-1].path == f"{PODS}/agent-0:9445/proxy/api/v1/shares"
    now = client.server_time()
    assert now is not None
    assert now.year < 2027, "the date of a pod is not the time of the API server"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (says(json.dumps({**FIGURES, "node": "n1\x1b[2J"})), 'the response is for another node: "n1\ufffd[2J"'),
        (says("[" * 100_000), "the response is not from an agent: "),
        (says("moved", status=302, Location="https://elsewhere.example"), "the response is not from an agent: 302, moved"),
        (says("x\x1b]0;\n" * 999, status=500), "the response is not from an agent: 500, x\ufffd]0; x\ufffd"),
        (says("unknown host", status=421), "the agent rejects the host name: 421, unknown host"),
        (says("{}", Content_Encoding="gzip"), "unexpected Content-Encoding gzip"),
        (refuses(403, "Forbidden"), "the caller may not get pods/proxy in kaishare-agent"),
        (refuses(404, "NotFound"), "the pod no longer exists"),
        (
            refuses(503, "ServiceUnavailable", "dial tcp 10.0.0.1:9445: i/o timeout"),
            f"the API server cannot reach the agent: dial tcp 10.0.0.1:9445: i/o timeout; {NETWORK_ADVICE}",
        ),
    ],
)  # fmt: skip
async def test_failures_are_one_line(server: ApiServer, agents: Agents, answer: Answer, words: str) -> None:
    server.refusals = {"/proxy/": answer}
    line = (await agents.read(await only(agents))).failure
    assert line.startswith(words)
    assert line.isprintable()
    assert len(line) <= 600


async def test_a_401_of_a_pod_renews_no_credentials(server: ApiServer, agents: Agents) -> None:
    """A hostile node could otherwise start the caller's login plugin with each request."""
    pod = await only(agents)
    before = len(server.requests)
    server.refusals = {"/proxy/": says("login", status=401)}
    await agents.read(pod)
    urls = server.urls[before:]
    assert len(urls) == len(set(urls)), "none is repeated"


# --- agents that ask for authentication ---


class TokenIssuer:
    """Answers TokenRequests with `issued-1`, `issued-2` and so on."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        status = {"token": f"issued-{len(self.requests)}"}
        return web.json_response({"kind": "TokenRequest", "status": status}, status=201)


@dataclass
class TokenAgent:
    """An agent that answers 401 without an accepted token, and records the tokens of its requests."""

    accepted: str = ""
    sent: list[str] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        token = request.headers.get("X-Kaishare-Token", "")
        self.sent.append(token)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0.001)
        self.in_flight -= 1
        if self.accepted and token.startswith(self.accepted):
            return web.json_response(FIGURES)
        return web.Response(status=401, text="a bearer token is required")


async def test_a_token_is_sent_after_a_401_and_to_no_other(server: ApiServer, client: KubeClient) -> None:
    guarded, issuer, others = TokenAgent("issued"), TokenIssuer(), []

    async def answer(request: web.Request) -> web.StreamResponse:
        others.append(request.headers.get("X-Kaishare-Token"))
        return web.json_response({**FIGURES, "node": "n1"})

    answers(
        server, {"/agent-0:9445/proxy/": guarded, "/agent-1:9445/proxy/": answer, "/token": issuer}, count=2
    )
    agents = Agents(client)
    first, second = await agents.list()
    for _ in range(3):
        assert (await agents.read(first)).failure == (await agents.read(second)).failure == ""
    assert guarded.sent == ["", "issued-1", "issued-1", "issued-1"]
    assert others == [None] * 3
    (request,) = issuer.requests
    assert request["spec"]["audiences"] == [AUDIENCE]


async def test_many_agents_cost_one_token_and_sixteen_slots(server: ApiServer, client: KubeClient) -> None:
    guarded, issuer = TokenAgent("issued"), TokenIssuer()
    answers(server, {"/proxy/": guarded, "/token": issuer}, count=40)
    agents = Agents(client)
    await asyncio.gather(*map(agents.read, await agents.list()))
    assert len(issuer.requests) == 1
    assert guarded.sent.count("issued-1") == 40
    assert 2 <= guarded.most_in_flight <= MOST_AT_ONCE


async def test_an_agent_that_refuses_each_token_causes_few_requests(
    server: ApiServer, client: KubeClient
) -> None:
    now = 50.0
    guarded, issuer = TokenAgent(), TokenIssuer()
    answers(server, {"/proxy/": guarded, "/token": issuer})
    agents = Agents(client, clock=lambda: now)
    pod = await only(agents)
    refuses_account = "the agent refuses the service account kaishare-reader in kaishare-agent: 401"
    for _ in range(30):  # a minute of rounds
        assert (await agents.read(pod)).failure == f"{refuses_account}, a bearer token is required"
        now += 2.0
    assert (len(issuer.requests), len(guarded.sent)) == (1, 31)
    for _ in range(2):
        await agents.read(pod)
    assert guarded.sent[31:33] == ["issued-1", "issued-2"], "after a minute the refused token is replaced"
    assert len(issuer.requests) == 2


async def hangs(_request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    raise AssertionError


ASKS = "; the agent asks for authentication"
RIGHT = "create serviceaccounts/token of kaishare-reader in kaishare-agent"
TOKEN_PATH = "/api/v1/namespaces/kaishare-agent/serviceaccounts/kaishare-reader/token"
NO_TOKEN = f"POST {TOKEN_PATH}: the answer is not a TokenRequest{ASKS}"
NOT_AN_AGENT = "the response is not from an agent"


@pytest.mark.parametrize(
    ("token_answer", "agent_status", "line", "missing_right"),
    [
        (refuses(403, "Forbidden", "long text"), 401, f"the caller may not {RIGHT}{ASKS}", RIGHT),
        (refuses(404, "NotFound"), 401, f"the service account kaishare-reader does not exist in kaishare-agent{ASKS}", ""),
        (refuses(429, "TooManyRequests", "later"), 401, f"POST {TOKEN_PATH}: 429 TooManyRequests: later{ASKS}", ""),
        (says("<html>"), 401, NO_TOKEN, ""),
        (says('{"kind": "Pod", "status": {"token": "sec"}}'), 401, NO_TOKEN, ""),
        (says(json.dumps({"kind": "TokenRequest", "status": {"token": "sec\r\nret: x"}})), 401, NO_TOKEN, ""),
        (hangs, 401, f"POST {TOKEN_PATH}: no answer in time{ASKS}", ""),
        (TokenIssuer(), 403, "the agent refuses the service account kaishare-reader in kaishare-agent: 403, no right", ""),
        (TokenIssuer(), 503, "the agent cannot check the token: 503, no right", ""),
        (TokenIssuer(), 302, f"{NOT_AN_AGENT}: 302, no right", ""),
    ],
)  # fmt: skip
async def test_each_failure_of_a_token_is_one_line_and_asked_for_once(
    server: ApiServer, agents: Agents, token_answer: Answer, agent_status: int, line: str, missing_right: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("console.cluster.agents.REQUEST_SECONDS", 0.3)

    async def answer(request: web.Request) -> web.StreamResponse:
        has_token = "X-Kaishare-Token" in request.headers
        headers = {"Location": "/api/v1/namespaces/kaishare-agent/pods/agent-0:1/proxy/collect"}
        return web.Response(status=agent_status if has_token else 401, text="no right\n", headers=headers)

    server.refusals = {"/proxy/": answer, "/token": token_answer}
    pod = await only(agents)
    for reading in await asyncio.gather(*(agents.read(pod) for _ in range(9))):
        assert (reading.failure, reading.missing_right) == (line, missing_right)
    assert len(server.requested_paths("/token")) == 1
    assert server.requested_paths("collect") == [], "a redirect is not followed"


async def test_a_401_of_the_api_server_itself_requests_no_token(server: ApiServer, agents: Agents) -> None:
    issuer = TokenIssuer()
    server.refusals = {"/proxy/": refuses(401, "Unauthorized"), "/token": issuer}
    reading = await agents.read(top_agents.agent_pod("n0", "agent-0"))
    assert (reading.failure, issuer.requests) == ("proxy: 401 Unauthorized: told to", [])


# --- tokens of the service account ---


class Tokens(ServiceAccountTokens):
    """Tokens with a clock that a test sets, from an issuer."""

    def __init__(self, server: ApiServer, client: KubeClient) -> None:
        super().__init__(
            client, namespace="kaishare-agent", account="kaishare-reader", clock=lambda: self.now
        )
        self.now, self.server, self.issuer = 1000.0, server, TokenIssuer()
        self.answer(self.issuer)

    @property
    def requested(self) -> int:
        return len(self.server.requested_paths("/token"))

    def answer(self, answer: Answer) -> None:
        self.server.refusals = {"/token": answer}


@pytest.fixture
def tokens(server: ApiServer, client: KubeClient) -> Tokens:
    return Tokens(server, client)


async def test_a_token_is_requested_when_needed_and_renewed_after_half_of_its_life(tokens: Tokens) -> None:
    assert tokens.requested == 0
    for seconds, token in ((0, "issued-1"), (299, "issued-1"), (1, "issued-2")):
        tokens.now += seconds
        assert await tokens.token() == token
    assert tokens.issuer.requests[0]["spec"] == {"audiences": [AUDIENCE], "expirationSeconds": 600}
    assert "issued" not in repr(tokens)
    tokens.answer(refuses(500, "InternalError"))
    tokens.now += 599
    for _ in range(20):
        assert await tokens.token() == "issued-2", "while a renewal fails the last token serves"
    assert tokens.requested == 3, "a failure is remembered"
    tokens.now += 1
    with pytest.raises(TokenUnavailable, match="500 InternalError"):
        await tokens.token()
    tokens.answer(tokens.issuer)
    tokens.now += RETRY_SECONDS
    assert await tokens.token() == "issued-3"


async def test_a_caller_that_is_cancelled_leaves_the_others_their_token(tokens: Tokens) -> None:
    release = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return await tokens.issuer(request)

    tokens.answer(slow)
    first = asyncio.create_task(tokens.token())
    await until(lambda: tokens.requested > 0)
    others = [asyncio.create_task(tokens.token()) for _ in range(3)]
    first.cancel()
    release.set()
    assert len(set(await asyncio.gather(*others))) == 1
    assert tokens.requested == 2


# --- agents with TLS ---


@pytest.mark.parametrize(
    ("scheme", "name"), [("HTTPS", "https:agent-0"), ("HTTP", "agent-0"), ("", "agent-0")]
)
async def test_the_scheme_is_the_probes(server: ApiServer, agents: Agents, scheme: str, name: str) -> None:
    item = agent()
    own = {
        **item["spec"]["containers"][0],
        "readinessProbe": {"httpGet": {"path": "/readyz", "scheme": scheme}},
    }
    ports = [{"name": "mesh", "containerPort": 15021}]
    item["spec"]["containers"] = [{"ports": ports, "readinessProbe": {"httpGet": {"scheme": "HTTPS"}}}, own]
    server.pods = {"agent-0": item}
    server.refusals = {"/proxy/": says(json.dumps(FIGURES))}
    pod = await only(agents)
    assert (await agents.read(pod)).failure == ""
    assert server.requested_paths("/proxy/") == [f"{PODS}/{name}:9445/proxy/api/v1/shares"]


async def test_a_pod_that_is_gone_or_without_a_node_is_not_asked(server: ApiServer, agents: Agents) -> None:
    server.pods = {}
    assert await agents.list() == []
    count = len(server.requests)
    assert (
        await agents.read(top_agents.agent_pod("", "agent-0"))
    ).failure == "the pod is not bound to a node"
    ending = top_agents.agent_pod("n0", "agent-0", deletionTimestamp="2026-11-01T10:00:00Z")
    assert (await agents.read(ending)).failure == "the pod is terminating"
    assert len(server.requests) == count


# --- one agent at its address ---


def raw(*chunks: bytes, pause: float = 0.0) -> top_agents.Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        for chunk in chunks:
            handler.wfile.write(chunk)
            handler.wfile.flush()
            time.sleep(pause)
        handler.close_connection = True

    return answer


async def read_at(url: str, **options: Any) -> AgentReading:
    async with KubeClient(agent_address(url)) as client:
        agents = AgentAtUrl(client, url, **options)
        (pod,) = await agents.list()
        return await agents.read(pod)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (gives(b"not found", 404), "the response is not from an agent: 404, not found"),
        (gives(b"<html>"), "the response is not from an agent: "),
        (gives(b"[]"), "the response is not from an agent: Expected `object`, got `array`"),
        (gives(b'{"node": "n", "gpus": [{"uuid": 1}]}'), "the response is not from an agent: "),
        (gives(b'{"node": "\xff"}'), "the response is not from an agent: "),
        (raw(b"SSH-2.0-x\r\n"), "Bad status line"),
        (raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"), "the answer was cut short"),
        (raw(b"HTTP/1.1 200 OK\r\n\r\n", *[b" "] * 40, pause=0.05), "no answer within 0.6 s"),
        (raw(b"SSH-2.0-a-secret-tok\r\n"), "it repeats the token of the request"),
        (gives(b"a-secret-tok", 401), "it repeats the token of the request"),
        (gives(b'{"node": "a-secret-token"}'), "it repeats the token of the request"),
    ],
)  # fmt: skip
async def test_a_server_that_is_no_agent_is_one_line(answer: top_agents.Answer, message: str) -> None:
    token = "a-secret-token" if "repeats" in message else ""
    with serving(answer) as url:
        seconds = 0.6 if "within" in message else 5.0
        text = (await read_at(url, token=token, seconds=seconds)).failure
    assert message in text
    assert text.isprintable()
    assert len(text) < 500
    assert "tok" not in text.replace("the token of", "")


async def test_a_pod_that_writes_the_beginning_of_a_token_hides_no_figures() -> None:
    body = json.dumps({**FIGURES, "pods": [], "problems": [{"reason": "a-secret"}]}).encode()
    with serving(gives(body)) as url:
        assert (await read_at(url, token="a-secret-token")).failure == ""


async def test_the_age_is_by_the_agents_clock_without_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled 7 s before the answer, on a node whose clock is years away from ours."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    body = json.dumps({**FIGURES, "lastGoodSampleTimestamp": 1_000_000_000.0}).encode()
    with serving(gives(body, Date="Sun, 09 Sep 2001 01:46:47 GMT")) as url:
        reading = await read_at(url)
    assert reading.received is not None
    assert reading.received.age == 7.0


@pytest.mark.parametrize(
    "date", ["", "yesterday", "Mon, 01 Jan 2020 00:00:00 +99999999999999999999", f"Mon, {'9' * 30} Jan 2020 00:00:00 +0000"],
)  # fmt: skip
def test_without_a_valid_date_the_age_is_unknown(date: str) -> None:
    answer = AgentResponse(node="n", last_good_sample_timestamp=100.0)
    assert age_of_figures(answer, date) is None


@pytest.mark.parametrize(
    ("url", "server", "is_verified"),
    [
        ("127.0.0.1:9445", "http://127.0.0.1:9445", False),
        ("http://127.0.0.1:9445/api/v1/shares", "http://127.0.0.1:9445", False),
        ("https://localhost/gpu/api/v1/shares", "https://localhost/gpu", False),
        ("https://[::1]:9445/", "https://[::1]:9445", False),
        ("https://agent.example:9445", "https://agent.example:9445", True),
    ],
)
def test_an_address_and_its_certificate(url: str, server: str, is_verified: bool) -> None:
    address = agent_address(url)
    assert address.server == server
    assert address.trust().check_hostname == is_verified
