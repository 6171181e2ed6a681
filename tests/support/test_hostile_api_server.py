"""Each fault of the hostile API server reaches the client; other requests pass unchanged."""

import asyncio
import gzip
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from certs.authority import Authority
from kube.client import KubeClient
from kube.kubeconfig import KubeConfig
from tests.support.api_faults import (
    Answer,
    Cut,
    Delay,
    Flood,
    HalfOpen,
    OlderData,
    Silence,
    Truncate,
    Upstream,
    html,
    refusal,
    requests,
)
from tests.support.api_server import PODS, ApiServer, event, lists, pod, says, streams
from tests.support.hostile_api_server import (
    HostileApiServer,
    hostile_api_server,
    hostile_api_server_in_thread,
)
from tests.support.waiting import until
from tests.support.watches import running

pytestmark = pytest.mark.nightly  # a test of the tests' own tool


@pytest.fixture
def upstream(server: ApiServer, authority: Authority) -> Upstream:
    trust = ssl.create_default_context(cadata=authority.pair.certificate_pem.decode())
    return Upstream(url=f"https://127.0.0.1:{server.port}", trust=trust)


@pytest.fixture
async def hostile(upstream: Upstream, tmp_path: Path) -> AsyncIterator[HostileApiServer]:
    async with hostile_api_server(upstream, tmp_path) as hostile:
        yield hostile


@pytest.fixture
async def session(hostile: HostileApiServer) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=hostile.access("a-token").trust())
    async with aiohttp.ClientSession(
        base_url=hostile.url, connector=connector, auto_decompress=False
    ) as session:
        yield session


BODY = bytes(range(256)) * 1024
AT_ONCE = aiohttp.ClientTimeout(sock_read=0.5)
GET_BY_ACCOUNT = """
import ssl, sys, urllib.request
from pathlib import Path
folder, url = Path(sys.argv[1]), sys.argv[2]
asked = urllib.request.Request(url, headers={"Authorization": "Bearer " + (folder / "token").read_text()})
trust = ssl.create_default_context(cafile=folder / "ca.crt")
print(urllib.request.urlopen(asked, context=trust).read().decode())
"""


async def receive(session: aiohttp.ClientSession, body: bytearray, **options: Any) -> None:
    """Get `/a`; return the part of the body before an error."""
    async with session.get("/a", **options) as answer:
        async for chunk in answer.content.iter_any():
            body += chunk


async def test_without_faults_requests_and_answers_pass_unchanged(
    hostile: HostileApiServer, server: ApiServer, session: aiohttp.ClientSession
) -> None:
    packed = gzip.compress(BODY)
    server.answers = [says(packed, Content_Encoding="gzip", ETag='"7"'), says(BODY, status=404)]
    query = {"a": "ä b&c", "b": ""}
    async with session.post("/a%2Fb", params=query, data=b"x" * 9000, headers={"X-Mine": "1"}) as answer:
        assert (answer.status, answer.headers["ETag"]) == (200, '"7"')
        assert answer.headers["Content-Encoding"] == "gzip"
        assert await answer.read() == packed
    async with session.get("/c", headers={"Authorization": "Bearer a-token"}) as answer:
        assert (answer.status, await answer.read()) == (404, BODY)
    post, get = server.requests
    assert (post.method, post.raw_path.partition("?")[0], dict(post.query)) == ("POST", "/a%2Fb", query)
    assert post.headers["X-Mine"] == "1"
    assert get.headers["Authorization"] == "Bearer a-token"
    assert [(seen.method, seen.status, seen.token) for seen in hostile.requests] == [
        ("POST", 200, ""),
        ("GET", 404, "a-token"),
    ]
    assert hostile.requests[0].sent_bytes == len(packed)
    assert hostile.link.connections == 1, "connections are kept"


async def test_a_stream_arrives_as_it_is_made_and_its_end_reaches_the_server(
    hostile: HostileApiServer, server: ApiServer, session: aiohttp.ClientSession
) -> None:
    query = {"watch": "1", "resourceVersion": "1", "timeoutSeconds": "60"}
    async with session.get(PODS, params=query) as answer:
        for number in range(3):
            server.change("ADDED", pod(f"pod-{number}"))
            assert f"pod-{number}".encode() in await answer.content.readline()
    await until(lambda: not server._watchers)


@pytest.mark.parametrize(
    ("fault", "status", "body"),
    [
        (refusal(429, "TooManyRequests", Retry_After="7"), 429, b'"TooManyRequests"'),
        (html(502), 502, b"<h1>Bad Gateway</h1>"),
        (Answer(status=200), 200, b""),
        (Delay(seconds=0.01), 200, BODY),
        (Truncate(after=1000), 200, BODY[:1000]),
        (Truncate(after=0), 200, b""),
        (Flood(size=300_000, head=b"{"), 200, b"{" + b"x" * 65536 * 5),
    ],
)
async def test_injected_answers_are_complete(
    hostile: HostileApiServer, server: ApiServer, session: aiohttp.ClientSession, fault: Any, status: int, body: bytes
) -> None:  # fmt: skip
    server.always = says(BODY)
    hostile.inject(fault)
    async with session.get("/a") as answer:
        assert answer.status == status
        assert body in await answer.read()
        assert answer.headers.get("Retry-After") == ("7" if status == 429 else None)
    assert hostile.requests[0].fault is fault


@pytest.mark.parametrize("is_reset", [True, False])
@pytest.mark.parametrize(("after", "got"), [(0, b""), (1000, BODY[:1000]), (200_000, BODY[:200_000])])
async def test_a_cut_ends_the_connection_after_so_many_bytes(
    hostile: HostileApiServer, server: ApiServer, session: aiohttp.ClientSession, after: int, got: bytes, is_reset: bool
) -> None:  # fmt: skip
    server.always = says(BODY)
    hostile.inject(Cut(after=after, is_reset=is_reset))
    received = bytearray()
    with pytest.raises(aiohttp.ClientError):
        await receive(session, received)
    assert received == got


@pytest.mark.parametrize("is_reset", [True, False])
async def test_a_cut_before_the_head_is_no_answer(
    hostile: HostileApiServer, session: aiohttp.ClientSession, is_reset: bool
) -> None:
    hostile.inject(Cut(after=None, is_reset=is_reset))
    with pytest.raises(aiohttp.ClientConnectionError) as caught:
        await session.post("/a")
    assert isinstance(caught.value, OSError) is is_reset


@pytest.mark.parametrize(("fault", "status", "got"), [(HalfOpen(), None, b""), (Silence(after=0), 200, b""), (Silence(after=9), 200, BODY[:9])])  # fmt: skip
async def test_silence_leaves_the_connection_open(
    hostile: HostileApiServer, server: ApiServer, session: aiohttp.ClientSession, fault: Any, status: int | None, got: bytes
) -> None:  # fmt: skip
    server.always = says(BODY)
    hostile.inject(fault)
    received = bytearray()
    with pytest.raises(aiohttp.SocketTimeoutError):
        await receive(session, received, timeout=AT_ONCE)
    assert received == got
    assert hostile.requests[0].status == status


async def test_a_rule_counts_its_requests_and_the_next_rule_follows(
    hostile: HostileApiServer, server: ApiServer, session: aiohttp.ClientSession
) -> None:
    server.always = says(BODY)
    first = hostile.inject(html(500), requests("/a", method="GET", watch=False), count=2)
    hostile.inject(html(503), requests("/a"))

    async def ask(path: str, method: str = "GET") -> int:
        async with session.request(method, path) as answer:
            return answer.status

    paths = ["/a", "/b", "/a?watch=1", "/a", "/a"]
    assert [await ask(path) for path in paths] == [500, 200, 503, 500, 503]
    assert await ask("/a", "DELETE") == 503
    assert first.used == 2
    assert len(hostile.seen(requests("/a", watch=True))) == 1
    hostile.heal()
    assert await ask("/a") == 200


async def test_older_data_comes_from_another_server(
    hostile: HostileApiServer, server: ApiServer, session: aiohttp.ClientSession, served: ssl.SSLContext, upstream: Upstream
) -> None:  # fmt: skip
    older = ApiServer(trust=served, always=lists(pod("old")))
    await older.start()
    try:
        hostile.inject(
            OlderData(server=Upstream(url=f"https://127.0.0.1:{older.port}", trust=upstream.trust))
        )
        async with session.get(PODS) as answer:
            assert [item["metadata"]["name"] for item in (await answer.json())["items"]] == ["old"]
    finally:
        await older.stop()


async def test_an_unreachable_server_is_a_cut(
    hostile: HostileApiServer, server: ApiServer, session: aiohttp.ClientSession
) -> None:
    await server.stop()
    with pytest.raises(aiohttp.ClientConnectionError):
        await session.get("/a")


async def test_the_link_falls_silent_loses_its_far_end_and_resets(
    hostile: HostileApiServer, server: ApiServer, session: aiohttp.ClientSession
) -> None:
    server.always = says(BODY)

    async def ask() -> int:
        async with session.get("/a", timeout=AT_ONCE) as answer:
            return len(await answer.read())

    assert await ask() == len(BODY)
    hostile.link.half_open()
    with pytest.raises(aiohttp.SocketTimeoutError):
        await ask()
    assert await ask() == len(BODY), "a new connection works"
    hostile.link.fall_silent()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await ask()
    hostile.heal()
    assert await ask() == len(BODY)
    hostile.link.go_down()
    for _ in range(3):
        with pytest.raises(aiohttp.ClientError):
            await ask()
    hostile.heal()
    assert await ask() == len(BODY)


async def test_a_reset_ends_a_stream(
    hostile: HostileApiServer, server: ApiServer, session: aiohttp.ClientSession
) -> None:
    query = {"watch": "1", "resourceVersion": "1", "timeoutSeconds": "60"}
    async with session.get(PODS, params=query) as answer:
        hostile.link.reset()
        with pytest.raises(aiohttp.ClientError):
            await answer.content.readline()
    await until(lambda: not server._watchers)


async def test_a_service_account_and_a_kubeconfig_lead_to_it(
    hostile: HostileApiServer, server: ApiServer
) -> None:
    server.token = "a-token"
    for access in (hostile.access("a-token"), await KubeConfig.load(str(hostile.kubeconfig("a-token")))):
        async with KubeClient(access) as client:
            assert json.loads(await client.get(PODS))["kind"] == "PodList"
    assert [seen.token for seen in hostile.requests] == ["a-token"] * 2


async def test_in_a_thread_it_serves_a_test_that_blocks_and_subprocesses(
    server: ApiServer, upstream: Upstream, tmp_path: Path
) -> None:
    server.answers = [streams(event("ADDED", pod("a")))]

    def block() -> None:
        with hostile_api_server_in_thread(upstream, tmp_path) as hostile:
            program = [
                sys.executable,
                "-c",
                GET_BY_ACCOUNT,
                str(hostile.account("a-token")),
                hostile.url + PODS,
            ]
            hostile.inject(html(500), count=1)
            errors = subprocess.run(program, capture_output=True, text=True, check=False).stderr
            assert "HTTP Error 500" in errors
            done = subprocess.run(program, capture_output=True, text=True, check=True)
            assert json.loads(done.stdout)["type"] == "ADDED"
            assert [seen.token for seen in hostile.requests] == ["a-token"] * 2

    await asyncio.to_thread(block)


async def test_it_stops_while_a_watch_and_a_hanging_request_are_open(
    hostile: HostileApiServer, server: ApiServer
) -> None:
    async with KubeClient(hostile.access("a-token")) as client, running(client) as run:
        await until(lambda: run.watch.is_synced)
        hostile.inject(HalfOpen(), requests("/hang"))
        hanging = asyncio.create_task(client.get("/hang"))
        await until(lambda: hostile.seen(requests("/hang")))
        hanging.cancel()
