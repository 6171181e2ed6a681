"""The proxy of the environment, whose rules are those of golang.org/x/net/http/httpproxy."""

import asyncio
import json
from pathlib import Path

import pytest

from kube.access import AccessError, InCluster, KubeConfig
from kube.answers import Unreachable
from kube.client import KubeClient
from kube.kubeconfig_login import environment_proxy
from tests.support.api_server import PODS, ApiServer

PROXY = "http://egress.example"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("server", "environment", "proxy"),
    [
        ("https://a.example", {}, None),
        ("https://a.example", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://a.example", {"https_proxy": PROXY}, PROXY),
        ("https://a.example", {"https_proxy": "http://other.example:1", "HTTPS_PROXY": PROXY}, PROXY),
        ("https://a.example", {"HTTPS_PROXY": "egress.example"}, PROXY),
        ("https://a.example", {"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}, None),
        ("http://a.example", {"HTTP_PROXY": PROXY}, PROXY),
        ("http://a.example", {"HTTPS_PROXY": PROXY}, None),
    ],
)
def test_the_variable_is_that_of_the_servers_scheme(
    server: str, environment: dict[str, str], proxy: str | None
) -> None:
    assert environment_proxy(server, environment) == proxy


@pytest.mark.parametrize(
    ("server", "no_proxy", "is_direct"),
    [
        ("https://localhost:6443", "", True),
        ("https://127.0.0.2:6443", "", True),
        ("https://[::1]:6443", "", True),
        ("https://10.1.2.3:6443", "", False),
        ("https://10.1.2.3:6443", "*", True),
        ("https://10.1.2.3:6443", "other.example, 10.0.0.0/8", True),
        ("https://10.1.2.3:6443", "10.1.2.1/24", True),
        ("https://10.1.2.3:6443", "10.2.0.0/16,fd00::/8", False),
        ("https://10.1.2.3:6443", "10.1.2.3", True),
        ("https://10.1.2.3:6443", "10.1.2.3:6443", True),
        ("https://10.1.2.3:6443", "10.1.2.3:443", False),
        ("https://10.1.2.3:6443", "2.3", False),
        ("https://[fd00::1]:6443", "fd00::/8", True),
        ("https://[fd00::1]:6443", "[FD00:0::1]:6443", True),
        ("https://[fd00::1]", "[fd00::1]:443", True),
        ("https://api.example:6443", "example", True),
        ("https://api.example:6443", "API.example", True),
        ("https://api.example:6443", ".example", True),
        ("https://api.example:6443", "*.example:6443", True),
        ("https://api.example:6443", "*.example:443", False),
        ("https://api.example:6443", "pi.example", False),
        ("https://api.example:6443", ".api.example", False),
        ("https://api.example:6443", "10.0.0.0/8", False),
        ("https://api.example:6443", ",:6443,[,example:port,/", False),
    ],
)
def test_servers_on_this_machine_and_in_no_proxy_are_reached_directly(
    server: str, no_proxy: str, is_direct: bool
) -> None:
    environment = {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}
    assert environment_proxy(server, environment) == (None if is_direct else PROXY)


@pytest.mark.parametrize(
    ("url", "line"),
    [
        (
            "socks5://me:s3cret@egress.example:1080",
            r'^HTTPS_PROXY: scheme "socks5" is not supported; allowed: ',
        ),
        ("http://me:s3cret@", "^HTTPS_PROXY: not a URL; "),
        ("me:s3cret@egress.example:port", "^HTTPS_PROXY: not a URL; "),
        ("http://me:s3cret@proxy..example", "^HTTPS_PROXY: not a URL; "),
        ("http://me:s3cret-€@egress.example", "^HTTPS_PROXY: its user name or password has characters"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_an_error_without_its_password(url: str, line: str) -> None:
    with pytest.raises(AccessError, match=line) as error:
        environment_proxy("https://a.example", {"HTTPS_PROXY": url})
    assert "s3cret" not in str(error.value)
    assert environment_proxy("https://a.example", {"HTTPS_PROXY": url, "NO_PROXY": "a.example"}) is None


def kubeconfig(folder: Path, server: str, **cluster: object) -> str:
    document = {
        "clusters": [
            {"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True, **cluster}}
        ],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(document))
    return str(path)


async def test_a_request_goes_through_the_proxy_of_the_environment(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requested.append((await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0])
        from_server, to_server = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(copy(reader, to_server), copy(from_server, writer))

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
        target.close()

    proxy = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with proxy:
        port = proxy.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        async with KubeClient(
            await KubeConfig.load(kubeconfig(tmp_path, "https://cluster.invalid:6443"))
        ) as client:
            await client.get(PODS)
    assert requested == [b"CONNECT cluster.invalid:6443 HTTP/1.1"]


async def test_the_refusal_of_a_proxy_is_an_error_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    proxy = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with proxy:
        port = proxy.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:s3cret@127.0.0.1:{port}")
        access = await KubeConfig.load(kubeconfig(tmp_path, "https://cluster.invalid:6443"))
        async with KubeClient(access) as client:
            with pytest.raises(Unreachable) as error:
                await client.get(PODS)
    assert str(error.value) == f"GET {PODS}: the proxy answers 407 Proxy Authentication Required"


async def test_the_proxy_of_the_cluster_precedes_and_a_pod_uses_none(
    account: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://other.example")
    monkeypatch.setenv("NO_PROXY", "*")
    access = await KubeConfig.load(kubeconfig(tmp_path, "https://10.96.0.1", **{"proxy-url": PROXY}))
    assert access.route.proxy == PROXY
    monkeypatch.delenv("NO_PROXY")
    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert InCluster(folder=account, environment=environment).route.proxy is None
