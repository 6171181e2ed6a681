"""Kubeconfigs; tests/cluster/test_kube.py compares each form and each error with a real kubectl."""

import asyncio
import base64
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from certs.authority import Authority
from kube.access import AccessError, InCluster
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from kube.kubeconfig import KubeConfig
from tests.support.api_server import PODS, ApiServer, refuses
from tests.support.certificates import client_pair, serving_context
from tests.support.credentials import kubeconfig_of

V1 = "client.authentication.k8s.io/v1"
NOWHERE = {"server": "https://127.0.0.1:1"}
PROXY = "http://egress.example"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def kubeconfig(
    folder: Path, cluster: Mapping[str, Any], user: Mapping[str, Any], *, namespace: str | None = "elsewhere"
) -> str:
    path = folder / "kubeconfig"
    path.write_text(json.dumps(kubeconfig_of(cluster, user, namespace=namespace)))
    return str(path)


def plugin(folder: Path, program: str, mode: str = "Never") -> dict[str, Any]:
    (folder / "plugin.py").write_text(program)
    command = {"command": sys.executable, "args": [str(folder / "plugin.py")]}
    return {"exec": {"apiVersion": V1, "interactiveMode": mode, **command}}


def inline(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


@pytest.fixture
def cluster(server: ApiServer, authority: Authority) -> dict[str, str]:
    ca = inline(authority.pair.certificate_pem)
    return {"server": f"https://127.0.0.1:{server.port}/", "certificate-authority-data": ca}


@pytest.fixture
async def strict_server(authority: Authority, tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(trust=serving_context(authority, tmp_path, asks_for_certificate=True))
    await server.start()
    yield server
    await server.stop()


@pytest.mark.parametrize(
    ("current", "number"), [(("1", "2"), "1"), ((None, "2"), "2"), (("", "2"), "2"), (("2", "1"), "2")]
)
async def test_of_several_kubeconfigs_the_first_current_context_counts_as_for_kubectl(
    current: tuple[str | None, str], number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [str(tmp_path / "missing")]
    for name, context in zip("12", current, strict=True):
        cluster = [{"name": name, "cluster": {"server": f"https://127.0.0.1:{name}"}}]
        contexts = [{"name": name, "context": {"cluster": name}}]
        document = {"clusters": cluster, "contexts": contexts, "current-context": context}
        files.append(str(tmp_path / name))
        (tmp_path / name).write_text(json.dumps(document))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(files))
    assert (await KubeConfig.load()).server == f"https://127.0.0.1:{number}"
    assert (await KubeConfig.load(context="2")).server == "https://127.0.0.1:2"
    (tmp_path / "2").write_text("users:\n- token: s3cret: s3cret\n")
    with pytest.raises(AccessError, match=r"2: not a kubeconfig in YAML: line 2, column 16$"):
        await KubeConfig.load()


async def test_each_path_is_relative_to_the_file_that_has_it_and_the_first_entry_with_a_name_counts(
    server: ApiServer, authority: Authority, tmp_path: Path
) -> None:
    server.token = "a-token"
    clusters, users = tmp_path / "clusters", tmp_path / "users"
    clusters.mkdir()
    users.mkdir()
    (clusters / "ca.crt").write_bytes(authority.pair.certificate_pem)
    (users / "token").write_text("a-token\n")
    cluster = {"server": f"https://127.0.0.1:{server.port}", "certificate-authority": "ca.crt"}
    (users / "config").write_text(json.dumps({"users": [{"name": "u", "user": {"tokenFile": "token"}}]}))
    where = f"{users / 'config'}{os.pathsep}{kubeconfig(clusters, cluster, {'as': 'anne'})}"
    access = await KubeConfig.load(where)
    assert await access.headers() == (("Authorization", "Bearer a-token"),), "no second user's `as`"
    async with KubeClient(access) as client:
        await client.get(PODS)


async def test_a_token_file_is_read_again(server: ApiServer, cluster: dict[str, str], tmp_path: Path) -> None:
    server.token = "first"
    (tmp_path / "token").write_text("first\n")
    access = await KubeConfig.load(kubeconfig(tmp_path, cluster, {"tokenFile": "token"}))
    async with KubeClient(access) as client:
        await client.get(PODS)
        server.token = "second"
        (tmp_path / "token").write_text("second\n")
        await client.get(PODS)
        server.token = "third"
        (tmp_path / "token").write_text("s3cret\ns3cret\n")
        with pytest.raises(AccessError, match=r'user "u": the token is not one line of ASCII text$'):
            await client.get(PODS)


async def test_a_client_certificate_leaves_no_key_on_the_disk(
    strict_server: ApiServer, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    pair = client_pair(authority, "jane")
    cluster = {
        "server": f"https://127.0.0.1:{strict_server.port}",
        "certificate-authority-data": inline(authority.pair.certificate_pem),
    }
    user = {"client-certificate-data": inline(pair.certificate_pem), "client-key-data": inline(pair.key_pem)}
    async with KubeClient(await KubeConfig.load(kubeconfig(tmp_path, cluster, user))) as client:
        await client.get(PODS)
        assert "Authorization" not in strict_server.requests[0].headers
    assert list((tmp_path / "temporary").iterdir()) == []
    async with KubeClient(await KubeConfig.load(kubeconfig(tmp_path, cluster, {}))) as client:
        with pytest.raises(Unreachable):
            await client.get(PODS)


@pytest.mark.parametrize("kind", ["token", "certificate"])
async def test_requests_that_are_refused_at_the_same_time_start_the_plugin_once(
    server: ApiServer, cluster: dict[str, str], authority: Authority, tmp_path: Path, kind: str
) -> None:
    pair = client_pair(authority, "jane")
    certificate = {
        "clientCertificateData": pair.certificate_pem.decode(),
        "clientKeyData": pair.key_pem.decode(),
    }
    status = "{'token': f'token-{number}'}" if kind == "token" else repr(certificate)
    user = plugin(
        tmp_path,
        "import json, pathlib\n"
        f"runs = pathlib.Path({str(tmp_path / 'runs')!r})\n"
        "with runs.open('a') as file:\n"
        "    file.write('run\\n')\n"
        "number = len(runs.read_text().splitlines())\n"
        f"print(json.dumps({{'apiVersion': {V1!r}, 'kind': 'ExecCredential', 'status': {status}}}))\n",
    )
    all_sent = asyncio.Barrier(8)

    async def refuses_all(request: web.Request) -> web.StreamResponse:
        await all_sent.wait()
        return await refuses(401, "Unauthorized")(request)

    access = await KubeConfig.load(kubeconfig(tmp_path, cluster, user))
    first = await access.headers()
    async with KubeClient(access) as client:
        server.answers = [refuses_all] * 8
        await asyncio.gather(*(client.get(PODS) for _ in range(8)))
        assert len(server.requests) == 16
        if kind == "token":  # the answer to another request with the first token comes late
            assert await access.headers(refused=first) == (("Authorization", "Bearer token-2"),)
        assert (tmp_path / "runs").read_text() == "run\n" * 2
        server.answers = [refuses(401, "Unauthorized")] * 2
        with pytest.raises(ApiError, match=r"401 Unauthorized.*; log in again$"):
            await client.get(PODS)
    assert (tmp_path / "runs").read_text() == "run\n" * 3, "a second 401 starts nothing"


def identity_token(**claims: float) -> str:
    return f"head.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.signature"


async def test_an_id_token_of_the_auth_provider_oidc_counts_while_it_is_valid(tmp_path: Path) -> None:
    for token in (identity_token(), identity_token(exp=time.time() + 60)):
        user = {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}
        access = await KubeConfig.load(kubeconfig(tmp_path, NOWHERE, user))
        assert await access.headers() == (("Authorization", f"Bearer {token}"),)
    expired, broken = identity_token(exp=time.time() - 1), "s3cret"
    for name, token in (("oidc", expired), ("oidc", broken), ("gcp", identity_token())):
        user = {"auth-provider": {"name": name, "config": {"id-token": token}}}
        with pytest.raises(
            AccessError, match=r'user "u": auth-provider: only oidc with a valid id-token'
        ) as error:
            await KubeConfig.load(kubeconfig(tmp_path, NOWHERE, user))
        assert token not in str(error.value)


@pytest.mark.parametrize(
    "user",
    [
        {"token": "s3cret", "as": "anne"}, {"token": "s3cret", "as-groups": ["system:masters"]}, {"as-uid": "1"},
        {"as-user-extra": {"a": ["b"]}},
        {"username": "me", "password": "s3cret"}, {"password": "s3cret"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_credentials_that_are_not_supported_are_refused(
    tmp_path: Path, user: dict[str, Any], scheme: str
) -> None:
    key = next(key for key in user if key != "token")
    with pytest.raises(AccessError, match=f'user "u": {key}: not supported; kaishare uses token, ') as error:
        await KubeConfig.load(kubeconfig(tmp_path, {"server": f"{scheme}://127.0.0.1:1"}, user))
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "message"), [(401, "Unauthorized"), (403, 'User "system:anonymous" cannot list pods')]
)
@pytest.mark.parametrize("user", [{"token": "s3cret"}, {"exec": {"command": "false", "apiVersion": V1}}])
async def test_without_tls_no_credentials_are_sent_and_a_refusal_says_so(
    tmp_path: Path, user: dict[str, Any], status: int, message: str
) -> None:
    server = ApiServer(trust=None)
    await server.start()
    try:
        address = {"server": f"127.0.0.1:{server.port}"}
        access = await KubeConfig.load(kubeconfig(tmp_path, address, user))
        assert (access.server, await access.headers()) == (f"http://{address['server']}", ())
        async with KubeClient(access) as client:
            await client.get(PODS)
            line = rf"{status} R: {message}; your credentials were not sent, because the address is http://$"
            for request in (client.get(PODS), client.send_through_proxy(PODS)):
                server.answers = [refuses(status, "R", message)] * 2
                with pytest.raises(AccessError, match=line):
                    await request
            server.answers = [refuses(403, "R", 'User "anne" cannot list pods')]  # behind `kubectl proxy`
            with pytest.raises(ApiError, match=r'403 R: User "anne" cannot list pods$'):
                await client.get(PODS)
        async with KubeClient(await KubeConfig.load(kubeconfig(tmp_path, address, {}))) as client:
            server.answers = [refuses(status, "R", message)] * 2
            with pytest.raises(ApiError, match=f"{status} R: {message}$"):
                await client.get(PODS)
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("name", "namespace"),
    [("team-a", "team-a"), (None, "default"), ("", "default"), *((bad, None) for bad in ("a/b", "A", "a" * 64, "a\nb", ".."))],
)  # fmt: skip
async def test_the_namespace_is_the_context_s_and_an_error_where_it_is_used(
    tmp_path: Path, name: str | None, namespace: str | None
) -> None:
    access = await KubeConfig.load(kubeconfig(tmp_path, NOWHERE, {}, namespace=name))
    if namespace is None:
        with pytest.raises(
            AccessError, match=r'context "x": namespace: ".*" is not the name of a namespace$'
        ):
            _ = access.namespace
    else:
        assert access.namespace == namespace


NO_PROXY = [
    (f"https://{server}:6443", {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}, None if is_direct else PROXY)
    for server, no_proxy, is_direct in (
        ("localhost", "", True), ("127.0.0.2", "", True), ("[::1]", "", True), ("10.1.2.3", "", False),
        ("10.1.2.3", "*", True), ("10.1.2.3", "other.example, 10.0.0.0/8", True),
        ("10.1.2.3", "10.2.0.0/16,fd00::/8", False), ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.3:6443", True), ("10.1.2.3", "10.1.2.3:443", False), ("10.1.2.3", "2.3", False),
        ("[fd00::1]", "fd00::/8", True), ("api.example", "example", True), ("api.example", "API.example", True),
        ("api.example", "*.example:6443", True), ("api.example", "*.example:443", False),
        ("api.example", "pi.example", False), ("api.example", ".api.example", False),
        ("api.example", "10.0.0.0/8,,:6443,[,example:port,/", False),
    )
]  # fmt: skip


@pytest.mark.parametrize(
    ("server", "variables", "proxy"),
    [
        ("https://a.example", {}, None), ("https://a.example", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://a.example", {"https_proxy": "egress.example"}, PROXY),
        ("https://a.example", {"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}, None),
        ("http://a.example", {"HTTP_PROXY": PROXY}, PROXY), ("http://a.example", {"HTTPS_PROXY": PROXY}, None),
        *NO_PROXY,
    ],
)  # fmt: skip
async def test_the_proxy_is_that_of_the_environment_unless_no_proxy_covers_the_server(
    server: str, variables: dict[str, str], proxy: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (await KubeConfig.load(kubeconfig(tmp_path, {"server": server}, {}))).route.proxy == proxy


async def test_the_proxy_of_the_cluster_precedes_and_a_pod_uses_none(
    account: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:s3cret@other.example:port")
    with pytest.raises(AccessError, match="HTTPS_PROXY: expected http://HOST:PORT") as error:
        await KubeConfig.load(kubeconfig(tmp_path, {"server": "https://10.96.0.1"}, {}))
    assert "s3cret" not in str(error.value)
    cluster = {"server": "https://10.96.0.1", "proxy-url": PROXY}
    assert (await KubeConfig.load(kubeconfig(tmp_path, cluster, {}))).route.proxy == PROXY
    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert InCluster(folder=account, environment=environment).route.proxy is None


@pytest.mark.parametrize("answer", ["200 Connection established", "407 Proxy Authentication Required"])
async def test_a_request_goes_through_the_proxy_whose_password_is_in_no_error(
    server: ApiServer, cluster: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    requested: list[bytes] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requested.append((await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0])
        writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n".encode())
        from_server, to_server = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(copy(reader, to_server), copy(from_server, writer))

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
        target.close()

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:s3cret@127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        cluster |= {"server": "https://cluster.invalid:6443", "tls-server-name": "localhost"}
        async with KubeClient(await KubeConfig.load(kubeconfig(tmp_path, cluster, {"token": "t"}))) as client:
            if answer.startswith("200"):
                await client.get(PODS)
            else:
                with pytest.raises(Unreachable) as error:
                    await client.get(PODS)
                assert str(error.value) == f"GET {PODS}: the proxy answers {answer}"
    assert requested == [b"CONNECT cluster.invalid:6443 HTTP/1.1"]
