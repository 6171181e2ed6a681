"""Host names that a plain HTTP server accepts, with raw requests."""

import pytest

from service.http.host_names import HostNames, parse_host_name
from tests.support.page_server import serving

HOSTS = HostNames(names=frozenset({"gpu-node-1", "agent.example.com"}), forwarded_paths=frozenset({"/small"}))
MISDIRECTED = 'unknown host "{}"; allow a host name with --host-name\n'


async def status_of(*lines: str) -> tuple[int, str]:
    """Status and body of the answer to a request with these lines."""
    async with serving(host_names=HOSTS) as running:
        client = await running.connect()
        await client.send("\r\n".join([*lines, "", ""]).encode("latin-1"))
        status, _, body = await client.answer()
        return status, body.decode()


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "10.1.2.3:9445",
        "[::1]",
        "[fd00::12]:9445",
        "[FD00::12]:9445",
        "localhost",
        "localhost:8001",
        "LocalHost:9445",
        "localhost.",
        "localhost:",
        "gpu-node-1",
        "GPU-Node-1:9445",
        "gpu-node-1.:9445",
        "agent.example.com",
    ],
)
async def test_a_host_that_is_answered(host: str) -> None:
    assert await status_of("GET /large HTTP/1.1", f"Host: {host}", "Content-Length: 0") == (
        200,
        "x" * (4 << 20),
    )


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9445",
        "gpu-node-1.evil.example",
        "evilgpu-node-1",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost..",
        "127.1",
        "2130706433",
        "0x7f000001",
        "::1",
        "[::1",
        "[::1]evil.example",
        "[127.0.0.1]",
        "[localhost]",
        "localhost:9445:9445",
        "localhost:http",
        "evil.example@localhost",
        "localhost@evil.example",
        "localhost, evil.example",
        "localhost/",
        "",
        ".",
        "*",
        "\xe9",
    ],
)
async def test_a_host_that_is_refused(host: str) -> None:
    status, body = await status_of("GET /large HTTP/1.1", f"Host: {host}")
    assert status in (400, 421)  # aiohttp itself refuses some as no valid header
    if status == 421 and host.isascii():
        assert body == MISDIRECTED.format(host)


async def test_a_long_host_is_cut_in_the_answer() -> None:
    status, body = await status_of("GET /large HTTP/1.1", f"Host: {'e' * 4000}")
    assert status == 421
    assert len(body) < 200


async def test_unknown_paths_and_other_methods_are_refused_for_their_host_first() -> None:
    assert (await status_of("GET /nowhere HTTP/1.1", "Host: evil.example"))[0] == 421
    assert (await status_of("POST /large HTTP/1.1", "Host: evil.example"))[0] == 421


async def test_the_head_without_a_host() -> None:
    assert (await status_of("GET /small HTTP/1.1"))[0] == 400
    assert (await status_of("GET /small HTTP/1.0"))[0] == 200


@pytest.mark.parametrize(
    "hosts", [("localhost", "evil.example"), ("evil.example", "localhost"), ("localhost", "localhost")]
)
async def test_several_hosts(hosts: tuple[str, str]) -> None:
    first, second = (f"Host: {host}" for host in hosts)
    assert (await status_of("GET /small HTTP/1.1", first, second))[0] == 400
    assert (await status_of("GET /small HTTP/1.1", first, second, "X-Forwarded-For: 10.0.0.1"))[0] == 400


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost:9445/large", "localhost", 200),
        ("http://[::1]:9445/large", "localhost", 200),
        ("http://evil.example/large", "localhost", 421),
        ("http://evil.example:9445/large?x=://localhost/", "localhost", 421),
        ("http://localhost@evil.example/large", "localhost", 421),
        ("http://localhost/large", "evil.example", 421),
    ],
)
async def test_an_absolute_target(target: str, host: str, status: int) -> None:
    assert (await status_of(f"GET {target} HTTP/1.1", f"Host: {host}"))[0] == status


async def test_a_forwarded_request_is_answered_under_any_host_on_some_paths() -> None:
    forwarded = ("Host: api.example.com:6443", "X-Forwarded-For: 10.0.0.1")
    assert (await status_of("GET /small HTTP/1.1", *forwarded))[0] == 200
    assert (await status_of("GET /small?all HTTP/1.1", *forwarded))[0] == 200
    assert (await status_of("GET /large HTTP/1.1", *forwarded))[0] == 421
    assert (await status_of("GET /small HTTP/1.1", forwarded[0]))[0] == 421
    assert (await status_of("GET /small HTTP/1.1", forwarded[0], "Forwarded: for=10.0.0.1"))[0] == 421


@pytest.mark.parametrize(
    "header",
    [
        "Accept-Language: de",
        "accept-language:",
        "Origin: http://evil.example:9445",
        "Sec-Fetch-Site: same-origin",
    ],
)
async def test_a_request_of_a_browser_is_not_forwarded(header: str) -> None:
    lines = ("GET /small HTTP/1.1", "Host: evil.example", "X-Forwarded-For: 10.0.0.1", header)
    assert (await status_of(*lines))[0] == 421


async def test_without_host_names_every_host_is_answered() -> None:
    async with serving() as running:
        client = await running.connect()
        await client.send(b"GET /small HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert (await client.answer())[0] == 200


@pytest.mark.parametrize(
    ("text", "name"),
    [("agent.example.com", "agent.example.com"), ("Node-1.", "node-1"), ("a", "a"), ("a_b", "a_b")],
)
def test_configured_host_names(text: str, name: str) -> None:
    assert parse_host_name(text) == name


@pytest.mark.parametrize(
    "text",
    ["", ".", "a:9445", "http://a", "*.example.com", "a b", "-a", "a-", "[::1]", "a" * 254, "\u212a", "a\n"],
)
def test_invalid_host_names(text: str) -> None:
    with pytest.raises(
        ValueError, match="is not a host name; allowed: a name without scheme, port and wildcard"
    ):
        parse_host_name(text)
