"""Host names that a plain HTTP server accepts."""

import itertools

import pytest
from aiohttp import HttpVersion10, HttpVersion11
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from service.http.host_names import HostNames, parse_host_name
from tests.support.page_server import serving

HOSTS = HostNames(names=frozenset({"gpu-node-1", "agent.example.com"}), forwarded_paths=frozenset({"/small"}))
FORWARDED = ("X-Forwarded-For", "10.0.0.1")


def status(*hosts: str, path: str = "/large", more: tuple[tuple[str, str], ...] = ()) -> int:
    """Return the status of the refusal of a request; 200 if it is accepted."""
    headers = CIMultiDict([*(("Host", host) for host in hosts), *more])
    refusal = HOSTS.refusal(make_mocked_request("GET", path, headers=headers, version=HttpVersion11))
    return refusal.status if refusal else 200


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "10.1.2.3:9445", "[::1]", "[fd00::12]:9445", "[FD00::12]:9445", "localhost", "localhost:8001",
        "LocalHost:9445", "localhost.", "localhost:", "gpu-node-1", "GPU-Node-1:9445", "gpu-node-1.:9445",
        "agent.example.com",
    ],
)  # fmt: skip
def test_a_host_that_is_accepted(host: str) -> None:
    assert status(host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:9445", "gpu-node-1.evil.example", "evilgpu-node-1", "localhost.evil.example",
        "127.0.0.1.evil.example", "localhost..", "127.1", "2130706433", "0x7f000001", "::1", "[::1",
        "[::1]evil.example", "[127.0.0.1]", "[localhost]", "localhost:9445:9445", "localhost:http",
        "evil.example@localhost", "localhost@evil.example", "localhost, evil.example", "localhost/", "", ".", "*",
        "\xe9",
    ],
)  # fmt: skip
def test_a_host_that_is_refused(host: str) -> None:
    assert status(host) == 421


@pytest.mark.parametrize(
    ("target", "host", "expected"),
    [
        ("http://localhost:9445/large", "localhost", 200), ("http://[::1]:9445/large", "localhost", 200),
        ("http://evil.example/large", "localhost", 421),
        ("http://evil.example:9445/large?x=://localhost/", "localhost", 421),
        ("http://localhost@evil.example/large", "localhost", 421), ("http://localhost/large", "evil.example", 421),
    ],
)  # fmt: skip
def test_an_absolute_target(target: str, host: str, expected: int) -> None:
    assert status(host, path=target) == expected


@pytest.mark.parametrize(
    ("path", "more", "expected"),
    [
        ("/small", [FORWARDED], 200), ("/small?all", [FORWARDED], 200), ("/large", [FORWARDED], 421),
        ("/small", [], 421), ("/small", [("Forwarded", "for=10.0.0.1")], 421),
    ],
)  # fmt: skip
def test_a_forwarded_request_may_have_any_host(path: str, more: list[tuple[str, str]], expected: int) -> None:
    assert status("api.example.com:6443", path=path, more=tuple(more)) == expected


@pytest.mark.parametrize(
    "header",
    [
        ("Accept-Language", "de"), ("accept-language", ""), ("Origin", "http://evil.example:9445"),
        ("Sec-Fetch-Site", "same-origin"),
    ],
)  # fmt: skip
def test_a_request_of_a_browser_is_not_forwarded(header: tuple[str, str]) -> None:
    assert status("evil.example", path="/small", more=(FORWARDED, header)) == 421


@pytest.mark.parametrize("hosts", [(), *itertools.product(("localhost", "evil"), repeat=2)])
def test_http_1_1_needs_one_host(hosts: tuple[str, ...]) -> None:
    assert status(*hosts, path="/small") == status(*hosts, path="/small", more=(FORWARDED,)) == 400
    old = make_mocked_request("GET", "/small", version=HttpVersion10)
    assert HOSTS.refusal(old) is None


@pytest.mark.parametrize(
    ("request_line", "host", "code", "line"),
    [
        ("GET /large HTTP/1.1", "localhost", 200, ""),
        ("GET /nowhere HTTP/1.1", "evil.example", 421, 'unknown host "evil.example"; allow a host name with --host-name\n'),
        ("POST /large HTTP/1.1", "evil.example", 421, 'unknown host "evil.example"; allow a host name with --host-name\n'),
        ("GET /small HTTP/1.0", None, 200, ""),
        ("GET /large HTTP/1.1", "\xe9" + "e" * 4000, 421, ""),
    ],
    ids=["own", "unknown path", "other method", "no host", "a long host"],
)  # fmt: skip
async def test_a_host_is_refused_first(request_line: str, host: str | None, code: int, line: str) -> None:
    async with serving(host_names=HOSTS) as running:
        client = await running.connect()
        lines = [request_line, *([] if host is None else [f"Host: {host}"]), "", ""]
        await client.send("\r\n".join(lines).encode("latin-1"))
        answered, _, body = await client.answer()
        assert answered == code or (code, answered) == (421, 400)
        assert line in ("", body.decode())
        assert code == 200 or len(body) < 200


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
