"""Requests: their answers, and every kind of failure."""

import asyncio
import gzip
import json
import ssl
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from certs.authority import Authority
from kube.access import AccessError, InCluster
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient, RequestLimitReached
from tests.support.api_server import PODS, Answer, ApiServer, lists, pod, refuses, says, status_object
from tests.support.certificates import serving_context
from tests.support.markers import scaled


async def read_lines(client: KubeClient) -> None:
    async with client.lines(PODS, params={}, accept="*/*", idle_seconds=1) as lines:
        async for together in lines:
            assert all(line.strip() for line in together)


async def read_list(client: KubeClient) -> None:
    async with client.list_objects(PODS) as pods:
        async for item in pods:
            assert item.startswith(b"{")


async def test_requests_have_a_token_and_a_user_agent(server: ApiServer, client: KubeClient) -> None:
    server.answers = [says('{"kind": "Pod"}')]
    assert await client.get(f"{PODS}/a") == b'{"kind": "Pod"}'
    (request,) = server.requests
    assert request.headers["Authorization"] == "Bearer first-token"
    assert request.headers["User-Agent"].startswith("kaishare/")
    assert (client.server, client.namespace) == (f"https://127.0.0.1:{server.port}", "kaishare")


async def test_a_refused_token_is_read_again(server: ApiServer, client: KubeClient, account: Path) -> None:
    async def renewed_meanwhile(request: web.Request) -> web.StreamResponse:
        (account / "token").write_text("second-token\n")
        return await refuses(401, "Unauthorized")(request)

    server.token, server.answers = "second-token", [renewed_meanwhile]
    assert json.loads(await client.get(PODS))["kind"] == "PodList"
    tokens = [request.headers["Authorization"] for request in server.requests]
    assert tokens == ["Bearer first-token", "Bearer second-token"]
    server.token = "third-token"
    (account / "token").unlink()
    with pytest.raises(AccessError, match="token: No such file or directory"):
        await client.get(PODS)


async def test_a_limited_client_counts_each_http_request(server: ApiServer, client: KubeClient) -> None:
    limited = client.limited(5)
    await limited.get(PODS)
    server.answers = [refuses(401, "Unauthorized"), lists(pod("a"))]
    await read_list(limited)
    assert (limited.remaining, len(server.requests)) == (2, 3), "a repetition counts"
    await limited.send_through_proxy(f"{PODS}/a:80/proxy/")
    await limited.request("POST", PODS, body=b"{}")
    for work in (
        limited.get(PODS),
        read_list(limited),
        limited.send_through_proxy(PODS),
        read_lines(limited),
    ):
        with pytest.raises(RequestLimitReached, match="not requested: the limit of requests is reached"):
            await work
    assert len(server.requests) == 5
    await client.get(PODS)
    assert (limited.server, limited.namespace) == (client.server, client.namespace)
    assert limited.server_time() is not None


MISSING = {
    **status_object(404, "NotFound", 'pods "a" not found'),
    "details": {"name": "a\x1b", "kind": "pods"},
}


@pytest.mark.parametrize(
    ("status", "body", "line"),
    [
        (404, json.dumps(MISSING), '404 NotFound: pods "a" not found'),
        (404, "404 page not found\n", "404 Not Found: 404 page not found"),
        (409, json.dumps({"reason": None, "message": None}), "409 Conflict"), (500, "", "500 Internal Server Error"),
        (500, "two\nlines\x1b[31m", "500 Internal Server Error: two lines\N{REPLACEMENT CHARACTER}[31m"),
        (500, b"\xff\xfe", "500 Internal Server Error: \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"),
        (500, "x" * 1_000_000, "500 Internal Server Error: xxx"), (301, "moved", "301 Moved Permanently: moved"),
        (401, "<h1>log in first</h1>", "401 Unauthorized: <h1>log in first</h1>"),
    ],
    ids=range(9),
)  # fmt: skip
async def test_an_error_is_one_line_for_any_body(
    server: ApiServer, client: KubeClient, status: int, body: bytes | str, line: str
) -> None:
    server.always = says(body, status=status, kind="text/html")
    with pytest.raises(ApiError) as caught:
        await client.get(PODS)
    error = caught.value
    assert str(error).startswith(f"GET {PODS}: {line}")
    assert len(str(error)) < 400 if len(body) > 1000 else str(error) == f"GET {PODS}: {line}"
    assert (error.status, error.is_not_found) == (status, status == 404)
    assert error.object_name == ("a\ufffd" if "details" in str(body) else "")
    assert len(server.requests) == 1 + (status == 401), "a refused token is read again once"


async def never(_request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(30)
    return web.Response()


LARGE = gzip.compress(b"[" * 50_000_000, 1)


async def trickle(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(600):
        await response.write(b" ")
        await asyncio.sleep(0.05)
    return response


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (never, "no answer in time"), (trickle, "no answer in time"),
        (says(b" " * 20_000_000), "an answer of more than 16777216 bytes"),
        *(
            (
                says(LARGE, Content_Encoding=kind),
                f"unexpected Content-Encoding {kind}",
            )
            for kind in ("gzip", "deflate", "br", "zstd", "x-nonsense")
        ),
        (None, "127.0.0.1:PORT: Connection refused"),
    ],
    ids=["never", "trickle", "without end", "gzip", "deflate", "br", "zstd", "x-nonsense", "no listener"],
)  # fmt: skip
async def test_an_answer_that_cannot_be_used_is_given_up(
    server: ApiServer, client: KubeClient, answer: Answer | None, line: str
) -> None:
    server.always = answer
    readings = (read_list(client), read_lines(client)) if "Encoding" in line else ()
    if answer is None:
        await server.stop()
    began = time.monotonic()
    for reading in (client.get(PODS, seconds=0.3 if answer in (never, trickle) else 30), *readings):
        with pytest.raises(Unreachable) as caught:
            await reading
        assert str(caught.value) == f"GET {PODS}: {line.replace('PORT', str(server.port))}"
    assert time.monotonic() - began < 10
    assert {request.headers["Accept-Encoding"] for request in server.requests} <= {"identity"}


async def test_lists_and_answers_through_the_proxy_have_limits_of_their_own(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kube.client._LIST_SECONDS", 0.2)
    server.always = trickle
    with pytest.raises(Unreachable, match=r"GET /api/v1/pods: no answer in time"):
        await read_list(client)
    server.always = says(b" " * 1_000_000)
    with pytest.raises(Unreachable, match="an answer of more than 100000 bytes"):
        await client.send_through_proxy(PODS, most_bytes=100_000)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("", None), ("Wed, 21 Oct 2026", None), ("9" * 40, 300.0), ("-1", None)],
)
async def test_retry_after_is_read_where_it_is_seconds(
    server: ApiServer, client: KubeClient, header: str, seconds: float | None
) -> None:
    server.answers = [refuses(429, "TooManyRequests", Retry_After=header)]
    with pytest.raises(ApiError) as caught:
        await client.get(PODS)
    assert caught.value.retry_after == seconds


async def test_a_list_is_read_on_demand(server: ApiServer, client: KubeClient) -> None:
    written = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"kind":"PodList","metadata":{"resourceVersion":"1"},"items":[{}')
        while True:
            await response.write(b',{"a":"' + b"x" * 65536 + b'"}')
            written += 65536

    server.answers = [endless]
    async with client.list_objects(PODS) as pods:
        async for item in pods:
            assert item == b"{}"
            break
        await asyncio.sleep(0.2)
        waiting = written
        await asyncio.sleep(0.2)
        assert written == waiting, "the server waits for the reader"
    assert json.loads(await client.get(PODS))["kind"] == "PodList"


@pytest.mark.parametrize(
    ("days", "why"), [(2, "certificate has expired"), (-2, "certificate is not yet valid")]
)
async def test_an_expired_certificates_error_names_the_local_date(
    client: KubeClient, server: ApiServer, authority: Authority, tmp_path: Path, days: int, why: str
) -> None:
    await server.stop()
    server.trust = serving_context(authority, tmp_path, age=timedelta(days=days))
    await server.start()
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    # OpenSSL 3.6 adds "or the system clock is incorrect".
    with pytest.raises(Unreachable, match=rf": {why}( or .+)? \(this machine's date is {today}\)$"):
        await client.get(PODS)


async def test_cookies_of_a_load_balancer_are_not_kept(server: ApiServer, account: Path) -> None:
    environment = {**server.environment, "KUBERNETES_SERVICE_HOST": "localhost"}
    server.always = says("{}", Set_Cookie="sticky=1")
    async with KubeClient(InCluster(folder=account, environment=environment)) as client:
        await client.get(PODS)
        await client.get(PODS)
    assert "Cookie" not in server.requests[1].headers


def complete(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


BYTES = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=80).map(lambda rest: b"HTTP/1.1 200 OK\r\n" + rest),
    st.binary(max_size=80).map(lambda rest: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + rest),
    st.binary(max_size=80).map(lambda rest: b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + rest),
    st.binary(max_size=80).map(lambda rest: b"HTTP/1.1 500 \r\nContent-Length: 60\r\n\r\n" + rest),
    st.binary(max_size=80).map(lambda rest: b"HTTP/1.1 302 Found\r\nLocation: //%zz\r\n\r\n" + rest),
    st.binary(max_size=80).map(complete),
)


@given(garbage=BYTES)
@example(garbage=complete(b"{}"))
@example(garbage=complete(b'{"items":[1]}'))
@example(garbage=complete(b"a\n\nb\n"))
@settings(max_examples=scaled(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_bytes_are_answer_or_error(served: ssl.SSLContext, account: Path, garbage: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(garbage)
        await writer.drain()
        writer.transport.abort()

    listening = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=served)
    port = listening.sockets[0].getsockname()[1]
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}

    readings: list[Callable[[KubeClient], Coroutine[Any, Any, object]]] = [
        lambda client: client.get(PODS, seconds=1),
        read_lines,
        read_list,
    ]
    async with listening, KubeClient(InCluster(folder=account, environment=environment)) as client:
        for reading in readings:
            (answer,) = await asyncio.gather(reading(client), return_exceptions=True)
            if isinstance(answer, BaseException):
                assert isinstance(answer, ApiError | Unreachable), repr(answer)
                assert str(answer).isprintable()


async def test_the_servers_time_is_not_the_local_clocks(server: ApiServer, account: Path) -> None:
    ticks = [100.0]
    access = InCluster(folder=account, environment=server.environment)
    async with KubeClient(access, clock=lambda: ticks[0]) as client:
        assert client.server_time() is None
        server.always = says("{}", Date="Mon, 01 Mar 2027 12:00:00 GMT")
        await client.get(PODS)
        ticks[0] += 90
        assert client.server_time() == datetime(2027, 3, 1, 12, 1, 30, tzinfo=UTC)
        server.always = refuses(502, "BadGateway", Date="Mon, 01 Mar 2055 12:00:00 GMT")
        with pytest.raises(ApiError):
            await client.get(PODS)
        assert client.server_time() == datetime(2027, 3, 1, 12, 1, 30, tzinfo=UTC)
        for unusable in (
            "whenever",
            "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
            "Fri, 31 Dec 9999 23:59:59 GMT",
        ):
            server.always = says("{}", Date=unusable)
            await client.get(PODS)
            ticks[0] += 90
            assert client.server_time() is None
