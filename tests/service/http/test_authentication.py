"""Tokens of requests: where they stand, what is open, and what the log and the client read of a refusal."""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import aiohttp
import pytest

from service.http.authentication import AccessRefusal, Authentication, BearerToken
from service.http.page_server import Page, PageServer, PortSecurity, text_page
from service.log import BURST, JsonLog
from tests.support.page_server import ANY_PORT, LIMITS

SECRET = "s3cr3t"


@dataclass
class RecordingAuthorizer:
    answer: AccessRefusal | None = None
    error: Exception | None = None
    checks: list[tuple[str, bool, str]] = field(default_factory=list)

    async def refusal(
        self, token: BearerToken, path: str, client: str, namespace: str = ""
    ) -> AccessRefusal | None:
        assert client == "127.0.0.1"
        self.checks.append((token.value, token.is_own, f"{path}?{namespace}" if namespace else path))
        if self.error:
            raise self.error
        return self.answer


@contextlib.asynccontextmanager
async def port(
    authorizer: RecordingAuthorizer, stream: io.BytesIO, *, own: bool = True
) -> AsyncIterator[str]:
    async def figures() -> Page:
        return text_page("figures\n")

    async def part(namespace: str) -> Page:
        return text_page(f"figures of {namespace}\n")

    log = JsonLog(stream)
    pages, parts = {"/figures": figures, "/metrics": figures, "/healthz": figures}, {"/figures": part}
    server = PageServer(pages, not_found="no such page", method_not_allowed="GET only", log=log, parts=parts)
    authentication = Authentication(authorizer.refusal, accepts_own_header=own, log=log)
    address = await server.start(ANY_PORT, LIMITS, security=PortSecurity(authentication=authentication))
    try:
        yield f"http://{address}"
    finally:
        await server.stop(0.1)


async def answered(url: str, headers: Sequence[tuple[str, str]] = (), method: str = "GET") -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(trust_env=False) as session,
        session.request(method, url, headers=headers) as response,
    ):
        return response.status, await response.text()


OTHER = ("Authorization", "Bearer other")
OWN = ("X-Kaishare-Token", SECRET)


@pytest.mark.parametrize(
    ("headers", "own", "check"),
    [
        ([("Authorization", f"Bearer {SECRET}")], True, (SECRET, False, "/figures")),
        ([("Authorization", f"bearer  {SECRET}")], True, (SECRET, False, "/figures")),
        ([OWN], True, (SECRET, True, "/figures")),
        ([OTHER, OWN], True, (SECRET, True, "/figures")),
        ([OTHER, OWN], False, ("other", False, "/figures")),
    ],
)
async def test_the_token_that_counts(
    headers: list[tuple[str, str]], own: bool, check: tuple[str, bool, str]
) -> None:
    authorizer = RecordingAuthorizer()
    async with port(authorizer, io.BytesIO(), own=own) as url:
        assert await answered(f"{url}/figures", headers) == (200, "figures\n")
        assert (await answered(f"{url}/figures", headers, method="HEAD"))[0] == 200
        for path, method, status in (
            ("/healthz", "GET", 200), ("/other", "GET", 404), ("/figures", "POST", 405), ("/healthz/", "GET", 404),
        ):  # fmt: skip
            assert (await answered(f"{url}{path}", headers, method))[0] == status, (
                "health is open, and only pages are checked"
            )
    assert authorizer.checks == [check, check]
    assert SECRET not in repr(BearerToken(value=SECRET, is_own=True))


@pytest.mark.parametrize(
    ("query", "status", "text", "checked"),
    [
        ("/figures?namespace=team-a", 200, "figures of team-a\n", ["/figures?team-a"]),
        ("/figures?namespace=team-a&namespace=team-b", 400, "namespace: ", []),
        ("/figures?namespace=", 400, "namespace: ", []),
        ("/figures?namespace=a/b", 400, "namespace: ", []),
        ("/figures?other=a", 200, "figures\n", ["/figures"]),
        # The right to a namespace's part is none to a page without parts.
        ("/metrics?namespace=team-a", 200, "figures\n", ["/metrics"]),
    ],
)
async def test_a_part_of_a_page_is_checked(query: str, status: int, text: str, checked: list[str]) -> None:
    authorizer = RecordingAuthorizer()
    async with port(authorizer, io.BytesIO()) as url:
        answer = await answered(f"{url}{query}", [("X-Kaishare-Token", SECRET)])
    assert (answer[0], answer[1].startswith(text)) == (status, True)
    assert [check[2] for check in authorizer.checks] == checked


@pytest.mark.parametrize("status", [401, 403, 503])
async def test_a_refusal_is_one_line_and_the_reason_of_a_failed_check_is_for_the_log(status: int) -> None:
    stream = io.BytesIO()
    problem = "POST /apis: 10.0.0.1:443: Connection refused"
    authorizer = RecordingAuthorizer(AccessRefusal(status=status, problem=problem, user="mallory"))
    async with port(authorizer, stream) as url:
        got, text = await answered(f"{url}/figures", [("Authorization", f"Bearer {SECRET}")])
    assert got == status
    assert text.count("\n") == 1
    assert ("10.0.0.1" in text) is (status != 503)
    (line,) = (json.loads(line) for line in stream.getvalue().splitlines())
    assert {key: line[key] for key in ("message", "level", "status", "path", "user", "problem", "client")} == {
        "message": "request refused", "level": "warning", "status": status, "path": "/figures", "user": "mallory",
        "problem": problem, "client": "127.0.0.1",
    }  # fmt: skip
    assert SECRET not in stream.getvalue().decode()


async def test_an_unexpected_error_refuses() -> None:
    stream = io.BytesIO()
    async with port(RecordingAuthorizer(error=RuntimeError("boom")), stream) as url:
        status, text = await answered(f"{url}/figures", [("Authorization", f"Bearer {SECRET}")])
    assert status == 500
    assert "figures" not in text
    assert SECRET not in stream.getvalue().decode()


async def test_a_flood_of_refusals_does_not_flood_the_log() -> None:
    stream = io.BytesIO()
    async with port(RecordingAuthorizer(), stream) as url, aiohttp.ClientSession(trust_env=False) as session:

        async def once() -> int:
            async with session.get(f"{url}/figures") as response:
                return response.status

        for _ in range(20):
            assert set(await asyncio.gather(*(once() for _ in range(8)))) == {401}
    assert len(stream.getvalue().splitlines()) <= BURST + 10
