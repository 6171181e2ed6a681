"""Tokens of a service account: what is requested, when a token is renewed, and what a failure costs."""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from console.cluster.agents import (
    REPLACE_SECONDS,
    REQUEST_SECONDS,
    RETRY_SECONDS,
    TOKEN_SECONDS,
    ServiceAccountTokens,
    TokenUnavailable,
)
from kube.client import KubeClient
from tests.support.api_server import Answer, ApiServer, refuses, says
from tests.support.token_requests import TokenIssuer

PATH = "/api/v1/namespaces/kaishare-agent/serviceaccounts/kaishare-reader/token"


@dataclass
class Tokens:
    """A source of tokens with its clock and its API server."""

    source: ServiceAccountTokens
    server: ApiServer
    clock: list[float]
    issuer: TokenIssuer = field(default_factory=TokenIssuer)

    @property
    def requested(self) -> int:
        return len(self.server.requested_paths("/token"))

    def answer(self, answer: Answer) -> None:
        self.server.refusals = {"/token": answer}


@pytest.fixture
def tokens(server: ApiServer, client: KubeClient) -> Tokens:
    clock = [1000.0]
    of = {"namespace": "kaishare-agent", "account": "kaishare-reader"}
    made = Tokens(ServiceAccountTokens(client, **of, clock=lambda: clock[0]), server, clock)
    made.answer(made.issuer)
    return made


async def failure(ask: Callable[[], object]) -> TokenUnavailable:
    with pytest.raises(TokenUnavailable) as caught:
        await ask()  # type: ignore[misc]
    assert "\n" not in str(caught.value)
    return caught.value


async def test_a_request_names_one_audience_and_the_shortest_lifetime(tokens: Tokens) -> None:
    assert tokens.requested == 0, "no request before the first token is needed"
    assert await tokens.source.token() == "issued-1"
    (request,) = tokens.server.requests
    assert (request.method, request.path) == ("POST", PATH)
    (body,) = tokens.issuer.requests
    assert body["kind"] == "TokenRequest"
    assert body["spec"] == {"audiences": ["kaishare-agent"], "expirationSeconds": TOKEN_SECONDS}
    assert TOKEN_SECONDS == 600


async def test_a_caller_that_is_cancelled_leaves_the_others_their_token(tokens: Tokens) -> None:
    release = asyncio.Event()

    async def slow(request: object) -> object:
        await release.wait()
        return await tokens.issuer(request)  # type: ignore[arg-type]

    tokens.answer(slow)  # type: ignore[arg-type]
    first = asyncio.create_task(tokens.source.token())
    while not tokens.requested:
        await asyncio.sleep(0)
        await asyncio.sleep(0.005)
    others = [asyncio.create_task(tokens.source.token()) for _ in range(3)]
    first.cancel()
    release.set()
    assert len(set(await asyncio.gather(*others))) == 1
    assert tokens.requested == 2


async def test_a_token_is_renewed_after_half_of_its_life(tokens: Tokens) -> None:
    """The simulated server's clock is years from this machine's wall clock."""
    assert await tokens.source.token() == "issued-1"
    tokens.clock[0] += 299
    assert await tokens.source.token() == "issued-1"
    tokens.clock[0] += 1
    assert await tokens.source.token() == "issued-2"
    assert tokens.requested == 2


async def test_while_a_renewal_fails_the_last_token_serves_until_it_expires(tokens: Tokens) -> None:
    await tokens.source.token()
    tokens.answer(refuses(500, "InternalError"))
    tokens.clock[0] += 599
    for _ in range(20):
        assert await tokens.source.token() == "issued-1"
    assert tokens.requested == 2, "a failure is remembered"
    tokens.clock[0] += 1
    assert "500 InternalError" in str(await failure(tokens.source.token))


async def test_a_refused_token_is_replaced_unless_it_is_recent(tokens: Tokens) -> None:
    first = await tokens.source.token()
    for _ in range(50):
        assert await tokens.source.token(first) == first
    assert tokens.requested == 1, "a server that refuses each token causes no further request"
    tokens.clock[0] += REPLACE_SECONDS
    assert await tokens.source.token(first) == "issued-2"
    assert await tokens.source.token(first) == "issued-2", "another caller has replaced it"
    assert await tokens.source.token() == "issued-2"
    assert tokens.requested == 2


@pytest.mark.parametrize(
    ("answer", "message", "missing_right"),
    [
        (
            refuses(403, "Forbidden", "long text"),
            "the caller may not create serviceaccounts/token of kaishare-reader in kaishare-agent",
            "create serviceaccounts/token of kaishare-reader in kaishare-agent",
        ),
        (refuses(404, "NotFound"), "the service account kaishare-reader does not exist in kaishare-agent", ""),
        (refuses(429, "TooManyRequests", "later"), f"POST {PATH}: 429 TooManyRequests: later", ""),
        (says("<html>"), f"POST {PATH}: the answer is not a TokenRequest", ""),
        (says('{"kind": "Pod", "status": {}}'), f"POST {PATH}: the answer is not a TokenRequest", ""),
        (says(json.dumps({"kind": "TokenRequest", "status": {"token": "sec\r\nret: x"}})), f"POST {PATH}: the answer is not a TokenRequest", ""),
    ],
)  # fmt: skip
async def test_a_failure_is_one_line_that_names_its_cause_and_is_remembered(
    tokens: Tokens, answer: Answer, message: str, missing_right: str
) -> None:
    tokens.answer(answer)
    for _ in range(20):
        error = await failure(tokens.source.token)
        assert (str(error), error.missing_right) == (message, missing_right)
        assert "sec" not in str(error).replace("seconds", "")
    assert tokens.requested == 1
    tokens.answer(tokens.issuer)
    tokens.clock[0] += RETRY_SECONDS
    assert await tokens.source.token() == "issued-1"


async def test_an_api_server_that_does_not_answer(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(request: object) -> object:
        await asyncio.sleep(60)
        raise AssertionError

    tokens.answer(hang)  # type: ignore[arg-type]
    monkeypatch.setattr("console.cluster.agents.REQUEST_SECONDS", 0.5)
    errors = await asyncio.gather(*(failure(tokens.source.token) for _ in range(40)))
    assert {str(error) for error in errors} == {f"POST {PATH}: no answer in time"}
    assert tokens.requested == 1
    assert REQUEST_SECONDS <= 5.0


async def test_no_representation_shows_the_token(tokens: Tokens, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = await tokens.source.token()
    assert token not in repr(tokens.source)
    assert token not in caplog.text
