"""The check of tokens against a real API server: who may read, what is remembered, and what a flood costs."""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from gpuagent.evaluation.status import Evaluation
from gpuagent.server.agent_server import AUDIENCE, HttpServer
from gpuagent.server.exposition import Metrics
from kube.client import KubeClient
from kube.tokens import (
    ACCESS_REVIEWS,
    ALLOWED_SECONDS,
    AUTHENTICATION_REVIEWS,
    CHECK_SECONDS,
    CLIENT_LIMITS,
    MOST_ALLOWED,
    MOST_CLIENTS,
    REFUSED_SECONDS,
    UNKNOWN_LIMITS,
    TokenAuthorizer,
)
from service.http.authentication import Authentication, BearerToken
from service.http.limits import Address
from service.http.page_server import PortSecurity
from service.log import JsonLog
from tests.support.administrator import Administrator, right
from tests.support.api_server import refuses, says
from tests.support.hostile_api_server import Delay, HostileApiServer, requests
from tests.support.kube_objects import NODE
from tests.support.waiting import until

REVIEWER = (
    right("tokenreviews", "create", group="authentication.k8s.io"),
    right("subjectaccessreviews", "create", group="authorization.k8s.io"),
)
METRICS = {"nonResourceURLs": ["/metrics", "/kaishare/api/v1/shares"], "verbs": ["get"]}
REVIEWS = requests("/apis/auth")
FIGURES = "kaishare_build_info"


@dataclass(kw_only=True)
class AgentPort:
    """An agent's port that asks for tokens, with its clock and its log."""

    authorizer: TokenAuthorizer
    url: str
    clock: list[float]
    session: aiohttp.ClientSession
    stream: io.BytesIO = field(default_factory=io.BytesIO)

    async def get(self, path: str = "/metrics", *, own: str = "", token: str = "") -> tuple[int, str]:
        headers = {"X-Kaishare-Token": own} if own else {}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        async with self.session.get(self.url + path, headers=headers) as response:
            return response.status, await response.text()

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@asynccontextmanager
async def port_of(server: HostileApiServer, token: str) -> AsyncIterator[AgentPort]:
    """Run an agent's port whose checks go through a hostile API server with this service account."""
    status = Evaluation(snapshot=None, attribution_ok=None)
    stream, clock = io.BytesIO(), [1000.0]
    log = JsonLog(stream)
    async with KubeClient(server.access(token)) as client, aiohttp.ClientSession(trust_env=False) as session:
        authorizer = TokenAuthorizer(client, audience=AUDIENCE, clock=lambda: clock[0])
        served = HttpServer(
            status=lambda: status, unhealthy_reason=str, node=NODE, is_simulated=True, log=log,
            metrics=Metrics(node=NODE, is_simulated=True),
        )  # fmt: skip
        authentication = Authentication(authorizer.refusal, accepts_own_header=True, log=log)
        address = await served.start(
            Address("127.0.0.1", 0), security=PortSecurity(authentication=authentication)
        )
        try:
            url = f"http://{address}"
            yield AgentPort(authorizer=authorizer, url=url, clock=clock, session=session, stream=stream)
        finally:
            await session.close()  # the server waits for open connections
            await served.stop()


@pytest.fixture
async def port(hostile: HostileApiServer, admin: Administrator) -> AsyncIterator[AgentPort]:
    async with port_of(hostile, await admin.token("reviewer", *REVIEWER)) as port:
        yield port


async def test_only_a_user_with_the_right_reads_a_figure(port: AgentPort, admin: Administrator) -> None:
    reader = await admin.token("reader", METRICS)
    stranger = await admin.token("stranger")
    status, text = await port.get(token=reader)
    assert status == 200
    assert FIGURES in text
    for path in ("/", "/page.css", "/page.js"):  # beyond the reader's role
        assert (await port.get(path, token=reader))[0] == 403
    for credentials, wanted in (({}, 401), ({"token": stranger}, 403), ({"token": "invented"}, 401)):
        for path in ("/", "/metrics", "/api/v1/shares", "/page.css"):
            port.clock[0] += 1 / CLIENT_LIMITS.per_second
            status, text = await port.get(path, **credentials)
            assert status == wanted, (path, credentials)
            assert FIGURES not in text
            assert "gpus" not in text
    assert (await port.get("/no-page"))[0] == 404
    for path in ("/healthz", "/readyz"):
        status, text = await port.get(path)
        assert (status, "bearer" in text) in ((200, False), (503, False))
    lines = [line for line in port.log if line["message"] == "request refused"]
    assert {line["status"] for line in lines} == {401, 403}
    assert "system:serviceaccount:team-a:stranger" in {line["user"] for line in lines}
    for token in (reader, stranger, "invented"):
        assert token not in port.stream.getvalue().decode()


async def test_a_token_of_a_token_request_needs_the_agents_audience_in_its_own_header(
    port: AgentPort, admin: Administrator
) -> None:
    usual = await admin.token("reader", METRICS)
    ours = await admin.audience_token("reader", AUDIENCE)
    others = await admin.audience_token("reader", "kaishare-webhook")
    assert (await port.get("/api/v1/shares", own=ours))[0] == 200
    assert (await port.get("/api/v1/shares", own=others))[0] == 401
    assert (await port.get("/api/v1/shares", own=usual))[0] == 401
    assert (await port.get("/api/v1/shares", token=others))[0] == 401
    # A Prometheus may have a token that works nowhere else.
    assert (await port.get("/api/v1/shares", token=ours))[0] == 200
    # The header for the agent alone decides where both are sent.
    assert (await port.get("/api/v1/shares", own=others, token=usual))[0] == 401
    # The administrator's token has no audience: the authenticator of static tokens knows none.
    assert (await port.get("/api/v1/shares", own="admin-of-this-test"))[0] == 401
    assert (await port.get("/api/v1/shares", token="admin-of-this-test"))[0] == 200


async def test_an_authenticator_without_audiences_does_not_accept_a_token_for_the_agent_alone(
    port: AgentPort, hostile: HostileApiServer
) -> None:
    # The answer of such an authenticator: authenticated, and no audiences.
    status = {"authenticated": True, "user": {"username": "admin", "groups": ["system:masters"]}}
    review = json.dumps({"kind": "TokenReview", "status": status}).encode()
    hostile.inject(says(review, status=201), requests(AUTHENTICATION_REVIEWS))
    assert (await port.get(own="opaque"))[0] == 401
    assert (await port.get(token="opaque"))[0] == 200


async def test_results_are_remembered_for_a_short_time(
    port: AgentPort, admin: Administrator, hostile: HostileApiServer
) -> None:
    reader, stranger = await admin.token("reader", METRICS), await admin.token("stranger")

    async def reviews(token: str) -> tuple[int, int]:
        before = len(hostile.seen(REVIEWS))
        statuses = {(await port.get(token=token))[0] for _ in range(5)}
        assert len(statuses) == 1
        return statuses.pop(), len(hostile.seen(REVIEWS)) - before

    assert await reviews(reader) == (200, 2)
    assert await reviews(stranger) == (403, 2)
    port.clock[0] += REFUSED_SECONDS + 1
    assert await reviews(reader) == (200, 0)
    assert await reviews(stranger) == (403, 2)
    # The role is taken away.
    await admin.delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/reader")
    await asyncio.sleep(1)  # the API server's authorizer learns it by a watch
    assert await reviews(reader) == (200, 0)
    port.clock[0] += ALLOWED_SECONDS
    assert await reviews(reader) == (403, 2)


async def test_requests_at_once_share_a_review(
    port: AgentPort, admin: Administrator, hostile: HostileApiServer
) -> None:
    reader = await admin.token("reader", METRICS)
    hostile.inject(Delay(seconds=0.5), requests(AUTHENTICATION_REVIEWS))
    answers = await asyncio.gather(*(port.get(token=reader) for _ in range(10)))
    assert {status for status, _ in answers} == {200}
    assert len(hostile.seen(REVIEWS)) == 2


async def test_an_api_server_that_is_down_refuses_with_503_and_health_goes_on(
    port: AgentPort, admin: Administrator, hostile: HostileApiServer
) -> None:
    reader = await admin.token("reader", METRICS)
    assert (await port.get(token=reader))[0] == 200
    hostile.inject(refuses(500, "InternalError", f"no: {reader}"))
    assert (await port.get(token=reader))[0] == 200  # remembered
    port.clock[0] += ALLOWED_SECONDS + 1
    status, text = await port.get(token=reader)
    assert (status, text) == (503, "the token cannot be checked now; the log has the reason\n")
    assert (await port.get("/healthz")) == (200, "ok\n")
    (line,) = (line for line in port.log if line["message"] == "request refused")
    assert line["status"] == 503
    assert "500 InternalError" in line["problem"]
    assert reader[:40] not in port.stream.getvalue().decode()
    hostile.heal()
    assert (await port.get(token=reader))[0] == 200


async def test_an_agent_without_the_right_to_review_says_so(
    admin: Administrator, hostile: HostileApiServer
) -> None:
    reader = await admin.token("reader", METRICS)
    async with port_of(hostile, await admin.token("without")) as port:
        assert (await port.get(token=reader))[0] == 503
        (line,) = port.log
        assert 'cannot create resource "tokenreviews"' in line["problem"]


@pytest.mark.parametrize("path", [AUTHENTICATION_REVIEWS, ACCESS_REVIEWS])
@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"[]", b'{"kind":"Evaluation","status":"Success"}', b'{"kind":"TokenReview"}'],
    ids=str,
)
async def test_an_answer_that_is_no_review_refuses(
    path: str, body: bytes, port: AgentPort, admin: Administrator, hostile: HostileApiServer
) -> None:
    reader = await admin.token("reader", METRICS)
    hostile.inject(says(body, status=201), requests(path))
    status, text = await port.get(token=reader)
    assert status == 503
    assert FIGURES not in text


async def test_a_slow_api_server_holds_few_requests_and_no_health_check(
    port: AgentPort, admin: Administrator, hostile: HostileApiServer
) -> None:
    hostile.inject(Delay(seconds=60), REVIEWS)
    began = time.monotonic()
    flood = [asyncio.create_task(port.get(token=f"junk{number}")) for number in range(200)]
    # All but a few are refused at once, so that their connections are free for others.
    await until(
        lambda: sum(not task.done() for task in flood) <= CLIENT_LIMITS.most_waiting, seconds=CHECK_SECONDS
    )
    assert len(hostile.seen(REVIEWS)) <= CLIENT_LIMITS.concurrent
    before = time.monotonic()
    assert (await port.get("/healthz"))[0] == 200
    assert time.monotonic() - before < 1
    answers = await asyncio.gather(*flood)
    assert {status for status, _ in answers} == {503}
    assert time.monotonic() - began < CHECK_SECONDS + 2


async def test_slow_checks_of_many_clients_hold_few_requests(
    port: AgentPort, hostile: HostileApiServer
) -> None:
    hostile.inject(Delay(seconds=60), REVIEWS)
    flood = [
        asyncio.create_task(port.authorizer.refusal(junk(number), "/metrics", client=f"10.0.0.{number}"))
        for number in range(200)
    ]
    await until(
        lambda: sum(not task.done() for task in flood) == UNKNOWN_LIMITS.most_waiting, seconds=CHECK_SECONDS
    )
    await until(lambda: hostile.seen(REVIEWS))
    assert len(hostile.seen(REVIEWS)) <= UNKNOWN_LIMITS.concurrent
    assert {refusal.status for refusal in await asyncio.gather(*flood) if refusal} == {503}


async def test_a_flood_of_one_client_keeps_no_new_reader_of_another_out(
    port: AgentPort, admin: Administrator
) -> None:
    reader = await admin.token("reader", METRICS)
    for number in range(3000):
        port.clock[0] += 0.001
        assert await port.authorizer.refusal(junk(number), "/metrics", client="10.0.0.1") is not None
    assert (await port.get(token=reader))[0] == 200


async def test_limits_of_few_clients_are_remembered(port: AgentPort) -> None:
    for number in range(MOST_CLIENTS + 50):
        await port.authorizer.refusal(junk(0), "/metrics", client=f"10.0.{number // 250}.{number % 250}")
        port.clock[0] += REFUSED_SECONDS + 1
    assert len(port.authorizer._clients) == MOST_CLIENTS


def junk(number: int) -> BearerToken:
    return BearerToken(value=f"junk{number}", is_own=True)


async def test_thousands_of_tokens_cost_few_reviews_and_little_memory_and_keep_no_reader_out(
    port: AgentPort, admin: Administrator, hostile: HostileApiServer
) -> None:
    reader, stranger = await admin.token("reader", METRICS), await admin.token("stranger")
    assert (await port.get(token=reader))[0] == 200
    before = len(hostile.seen(REVIEWS))
    began = port.clock[0]

    async def send(number: int) -> None:
        port.clock[0] += 0.001  # a thousand tokens per second
        token = BearerToken(value=f"{stranger}{number}", is_own=False)
        refused = await port.authorizer.refusal(token, "/metrics", client=f"10.0.0.{number % 250}")
        assert refused is not None

    for start in range(0, 4000, 100):
        await asyncio.gather(*(send(number) for number in range(start, start + 100)))
        status, _ = await port.get(token=reader)
        assert status == 200
    seconds = port.clock[0] - began
    checks = UNKNOWN_LIMITS.burst + UNKNOWN_LIMITS.per_second * seconds
    assert len(hostile.seen(REVIEWS)) - before <= 2 * checks
    # The reader's right ends in the middle of the flood, and is checked again before all strangers.
    port.clock[0] += ALLOWED_SECONDS + 1
    results = await asyncio.gather(
        *(port.get(token=f"late{number}") for number in range(100)), port.get(token=reader)
    )
    assert results[-1][0] == 200


async def test_memory_of_results_is_bounded(
    admin: Administrator, port: AgentPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 100
    monkeypatch.setattr("kube.tokens.MOST_REFUSED", most)  # fewer requests to the API server
    port.authorizer._unknown.checks._tokens = port.authorizer._unknown.checks._burst = 10_000
    for number in range(most + 50):
        client = f"10.0.0.{number % 250}"
        refused = await port.authorizer.refusal(junk(number), "/metrics", client)
        assert refused is not None
        assert refused.status == 401
    assert len(port.authorizer._refused) == most
    assert len(port.authorizer._allowed) <= MOST_ALLOWED
    assert port.authorizer._checks == {}
    kept = [*port.authorizer._refused, *port.authorizer._allowed]
    assert all(isinstance(digest, bytes) and len(digest) == 32 for digest, *_ in kept)
