"""Kubeconfigs: each kind of credentials, and each kind of error."""

import asyncio
import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from certs.authority import Authority
from kube.access import AccessError, KubeConfig, find_access
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from tests.support.api_server import PODS, ApiServer, refuses
from tests.support.certificates import client_pair, serving_context
from tests.support.kubeconfigs import identity_token

V1 = "client.authentication.k8s.io/v1"


def kubeconfig(
    folder: Path, cluster: Mapping[str, Any], user: Mapping[str, Any], *, namespace: str | None = "elsewhere"
) -> str:
    """Write a kubeconfig with a single context."""
    path = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": namespace}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    return str(path)


def inline(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


@pytest.fixture
def cluster(server: ApiServer, authority: Authority) -> dict[str, str]:
    ca = inline(authority.pair.certificate_pem)
    return {"server": f"https://127.0.0.1:{server.port}/", "certificate-authority-data": ca}


@pytest.fixture
async def strict_server(authority: Authority, tmp_path: Path) -> AsyncIterator[ApiServer]:
    """Run a server that demands a client certificate."""
    server = ApiServer(trust=serving_context(authority, tmp_path, asks_for_certificate=True))
    await server.start()
    yield server
    await server.stop()


@pytest.mark.parametrize(
    ("current", "server"),
    [
        (("1", "2"), "https://127.0.0.1:1"),
        ((None, "2"), "https://127.0.0.1:2"),
        (("", "2"), "https://127.0.0.1:2"),
        (("2", "1"), "https://127.0.0.1:2"),
    ],
)
async def test_of_several_kubeconfigs_the_first_current_context_counts_as_for_kubectl(
    current: tuple[str | None, str], server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [str(tmp_path / "missing")]
    for number, context in zip("12", current, strict=True):
        document: dict[str, Any] = {
            "clusters": [{"name": number, "cluster": {"server": f"https://127.0.0.1:{number}"}}],
            "users": [{"name": number, "user": {"token": "t"}}],
            "contexts": [{"name": number, "context": {"cluster": number, "user": number}}],
        }
        document |= {} if context is None else {"current-context": context}
        files.append(str(tmp_path / number))
        (tmp_path / number).write_text(json.dumps(document))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(files))
    assert (await KubeConfig.load()).server == server
    assert (await KubeConfig.load(context="2")).server == "https://127.0.0.1:2"


async def test_a_token(server: ApiServer, cluster: dict[str, str], tmp_path: Path) -> None:
    server.token = "a-token"
    access = await find_access(kubeconfig(tmp_path, cluster, {"token": "a-token"}))
    async with KubeClient(access) as client:
        await client.get(PODS)
        assert client.server == f"https://127.0.0.1:{server.port}"


async def test_a_relative_token_file_is_read_again(
    server: ApiServer, cluster: dict[str, str], tmp_path: Path
) -> None:
    server.token = "first"
    (tmp_path / "token").write_text("first\n")
    async with KubeClient(
        await KubeConfig.load(kubeconfig(tmp_path, cluster, {"tokenFile": "token"}))
    ) as client:
        await client.get(PODS)
        server.token = "second"
        (tmp_path / "token").write_text("second\n")
        await client.get(PODS)


async def test_a_client_certificate(strict_server: ApiServer, authority: Authority, tmp_path: Path) -> None:
    pair = client_pair(authority, "jane")
    cluster = {
        "server": f"https://127.0.0.1:{strict_server.port}",
        "certificate-authority-data": inline(authority.pair.certificate_pem),
    }
    user = {"client-certificate-data": inline(pair.certificate_pem), "client-key-data": inline(pair.key_pem)}
    async with KubeClient(await KubeConfig.load(kubeconfig(tmp_path, cluster, user))) as client:
        await client.get(PODS)
        assert "Authorization" not in strict_server.requests[0].headers
    async with KubeClient(await KubeConfig.load(kubeconfig(tmp_path, cluster, {}))) as client:
        with pytest.raises(Unreachable):
            await client.get(PODS)


async def test_a_credential_plugin_runs_again_when_its_token_is_refused(
    server: ApiServer, cluster: dict[str, str], tmp_path: Path
) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import json, pathlib\n"
        f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "number = int(count.read_text()) + 1 if count.exists() else 1\n"
        "count.write_text(str(number))\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',"
        " 'status': {'token': f'token-{number}'}}))\n"
    )
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(plugin)],
            "interactiveMode": "Never",
        }
    }
    server.token = "token-1"
    async with KubeClient(await KubeConfig.load(kubeconfig(tmp_path, cluster, user))) as client:
        await client.get(PODS)
        await client.get(PODS)
        server.token = "token-2"
        await client.get(PODS)
        assert (tmp_path / "count").read_text() == "2"
        server.token = "token-9"
        with pytest.raises(ApiError, match="401 Unauthorized"):
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
    (tmp_path / "plugin.py").write_text(
        "import json, pathlib\n"
        f"runs = pathlib.Path({str(tmp_path / 'runs')!r})\n"
        "with runs.open('a') as file:\n"
        "    file.write('run\\n')\n"
        "number = len(runs.read_text().splitlines())\n"
        f"print(json.dumps({{'apiVersion': {V1!r}, 'kind': 'ExecCredential', 'status': {status}}}))\n"
    )
    command = {"command": sys.executable, "args": [str(tmp_path / "plugin.py")]}
    user = {"exec": {"apiVersion": V1, "interactiveMode": "Never", **command}}
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


async def test_a_name_of_the_server_other_than_its_address(
    server: ApiServer, cluster: dict[str, str], tmp_path: Path
) -> None:
    named = {**cluster, "tls-server-name": "api.example"}
    async with KubeClient(await KubeConfig.load(kubeconfig(tmp_path, named, {"token": "t"}))) as client:
        await client.get(PODS)
    other = {**cluster, "tls-server-name": "other.example"}
    async with KubeClient(await KubeConfig.load(kubeconfig(tmp_path, other, {"token": "t"}))) as client:
        with pytest.raises(Unreachable, match="its certificate is not trusted: Hostname mismatch"):
            await client.get(PODS)


async def test_a_cluster_without_certificate_verification(server: ApiServer, tmp_path: Path) -> None:
    cluster = {"server": f"https://127.0.0.1:{server.port}", "insecure-skip-tls-verify": True}
    access = await KubeConfig.load(kubeconfig(tmp_path, cluster, {"token": "t"}))
    assert access.trust().verify_mode is ssl.CERT_NONE
    async with KubeClient(access) as client:
        await client.get(PODS)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "kubeconfig: no current-context, and no context was given$"),
        ("[1, 2]", "kubeconfig: not a kubeconfig$"),
        ("a: [", "kubeconfig: not YAML: line 1, column 5$"),
        ("current-context: x", 'kubeconfig: no context "x"$'),
        ("\0", "kubeconfig: not YAML$"),
        ("[" * 5000, "kubeconfig: not YAML"),
        ('a: !!int ""', "kubeconfig: not YAML$"),
        ("a: !!timestamp x", "kubeconfig: not YAML$"),
        ("a: !!bool x", "kubeconfig: not YAML$"),
    ],
)
async def test_an_invalid_kubeconfig_is_an_error_of_one_line(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(AccessError, match=line) as caught:
        await KubeConfig.load(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cluster", "user", "line"),
    [
        ({}, {}, 'cluster "c": server: not set; allowed: https://HOST:PORT$'),
        ({"insecure-skip-tls-verify": True}, {}, "server: not set"),
        (
            {"server": "https://127.0.0.1:1", "certificate-authority": "gone.crt"},
            {},
            'cluster "c": certificate-authority: gone.crt: No such file or directory$',
        ),
        ({"server": "https://127.0.0.1:1", "certificate-authority-data": "bm8="}, {}, "CA certificate"),
        (
            {"server": "https://127.0.0.1:1"},
            {"client-certificate-data": "bm8=", "client-key-data": "bm8="},
            "client certificate",
        ),
        (
            {"server": "https://127.0.0.1:1"},
            {"exec": {"apiVersion": V1, "command": "/no/such/plugin", "interactiveMode": "Never"}},
            'user "u": exec: /no/such/plugin: No such file or directory$',
        ),
        (
            {"server": "https://127.0.0.1:1"},
            {"exec": {"apiVersion": V1, "command": "false", "interactiveMode": "Never"}},
            'user "u": exec: false: exit status 1$',
        ),
    ],
)
async def test_a_wrong_field_of_a_kubeconfig_is_an_error_of_one_line(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], line: str
) -> None:
    with pytest.raises(AccessError, match=line) as caught:
        await KubeConfig.load(kubeconfig(tmp_path, cluster, user))
    assert "\n" not in str(caught.value)


async def test_each_path_is_relative_to_the_file_that_has_it(
    server: ApiServer, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.token = "a-token"
    clusters, users = tmp_path / "clusters", tmp_path / "users"
    clusters.mkdir()
    users.mkdir()
    (clusters / "ca.crt").write_bytes(authority.pair.certificate_pem)
    (users / "token").write_text("a-token\n")
    cluster = {"server": f"https://127.0.0.1:{server.port}", "certificate-authority": "ca.crt"}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    (clusters / "config").write_text(
        json.dumps({"clusters": [{"name": "c", "cluster": cluster}], "contexts": [context]})
    )
    (users / "config").write_text(
        json.dumps({"users": [{"name": "u", "user": {"tokenFile": "token"}}], "current-context": "x"})
    )
    monkeypatch.setenv("KUBECONFIG", f"{clusters / 'config'}{os.pathsep}{users / 'config'}")
    async with KubeClient(await KubeConfig.load()) as client:
        await client.get(PODS)


async def test_of_users_with_the_same_name_the_first_file_s_is_used_whole(
    cluster: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    first.write_text(json.dumps({"users": [{"name": "u", "user": {"as": "anne"}}]}))
    second = kubeconfig(tmp_path, cluster, {"token": "t", "as-groups": ["g"]})
    monkeypatch.setenv("KUBECONFIG", f"{first}{os.pathsep}{second}")
    access = await KubeConfig.load()
    assert await access.headers() == (("Impersonate-User", "anne"),)


async def test_a_second_file_that_is_no_yaml_is_an_error_of_one_line(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    second = tmp_path / "second"
    second.write_text("users:\n- token: s3cret: s3cret\n")
    where = f"{kubeconfig(tmp_path, cluster, {'token': 't'})}{os.pathsep}{second}"
    with pytest.raises(AccessError, match=r"second: not YAML: line 2, column 16$"):
        await KubeConfig.load(where)


async def test_impersonation_is_sent_with_every_kind_of_request(
    server: ApiServer, cluster: dict[str, str], tmp_path: Path
) -> None:
    user = {
        "token": "t",
        "as": "anne",
        "as-uid": "1",
        "as-groups": ["first", "second"],
        "as-user-extra": {"Example.com/Key %ä": ["a", "b"]},
    }
    async with KubeClient(await KubeConfig.load(kubeconfig(tmp_path, cluster, user))) as client:
        await client.get(PODS)
        await client.get_from_pod(PODS, headers={"impersonate-user": "other", "X-Own": "1"})
        async with client.list_objects(PODS) as objects:
            assert [item async for item in objects] == []
        async with client.lines(PODS, params={}, accept="*/*", idle_seconds=5):
            pass
    assert len(server.requests) == 4
    for request in server.requests:
        sent = [(name.lower(), value) for name, value in request.headers.items()]
        assert [(name, value) for name, value in sent if name.startswith("impersonate")] == [
            ("impersonate-user", "anne"),
            ("impersonate-uid", "1"),
            ("impersonate-group", "first"),
            ("impersonate-group", "second"),
            ("impersonate-extra-example.com%2fkey%20%25%c3%a4", "a"),
            ("impersonate-extra-example.com%2fkey%20%25%c3%a4", "b"),
        ]
        assert ("authorization", "Bearer t") in sent


async def test_without_tls_no_credentials_are_sent_as_by_kubectl(tmp_path: Path) -> None:
    user = {"token": "t", "as": "anne", "exec": {"command": "false", "apiVersion": V1}}
    access = await KubeConfig.load(kubeconfig(tmp_path, {"server": "127.0.0.1:8001"}, user))
    assert (access.server, await access.headers()) == ("http://127.0.0.1:8001", ())


@pytest.mark.parametrize(("name", "namespace"), [("team-a", "team-a"), (None, "default"), ("", "default")])
async def test_the_namespace_is_the_context_s(
    cluster: dict[str, str], tmp_path: Path, name: str | None, namespace: str
) -> None:
    path = kubeconfig(tmp_path, cluster, {}, namespace=name)
    assert (await KubeConfig.load(path)).namespace == namespace


@pytest.mark.parametrize("name", ["a/b", "A", "a" * 64, "a\nb", ".."])
async def test_a_namespace_that_no_path_can_have_is_an_error_where_it_is_used(
    cluster: dict[str, str], tmp_path: Path, name: str
) -> None:
    access = await KubeConfig.load(kubeconfig(tmp_path, cluster, {}, namespace=name))
    with pytest.raises(AccessError, match=r'context "x": namespace: ".*" is not the name of a namespace$'):
        _ = access.namespace


async def test_a_token_that_no_header_can_carry_is_an_error_when_it_is_renewed(
    server: ApiServer, cluster: dict[str, str], tmp_path: Path
) -> None:
    server.token = "second"
    (tmp_path / "token").write_text("first\n")
    access = await KubeConfig.load(kubeconfig(tmp_path, cluster, {"tokenFile": "token"}))
    (tmp_path / "token").write_text("s3cret\ns3cret\n")
    async with KubeClient(access) as client:
        with pytest.raises(AccessError, match=r'"u": tokenFile: token: a token has one line, got 2 lines$'):
            await client.get(PODS)


async def test_no_private_key_stays_on_disk(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    pair = client_pair(authority, "jane")
    user = {"client-certificate-data": inline(pair.certificate_pem), "client-key-data": inline(pair.key_pem)}
    await KubeConfig.load(kubeconfig(tmp_path, {"server": "https://127.0.0.1:1"}, user))
    assert list(temporary.iterdir()) == []


async def test_an_auth_provider_in_an_image_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes_asyncio", None)  # as if it were not installed
    provider = {"name": "oidc", "config": {"id-token": identity_token("x")}}
    path = kubeconfig(tmp_path, {"server": "https://127.0.0.1:1"}, {"auth-provider": provider})
    with pytest.raises(AccessError, match=r"auth-provider: oidc needs the package kubernetes-asyncio$"):
        await KubeConfig.load(path)


def test_the_big_library_is_loaded_for_an_auth_provider_only(account: Path, tmp_path: Path) -> None:
    cluster = {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}
    plain, provided = tmp_path / "plain", tmp_path / "provided"
    plain.mkdir()
    provided.mkdir()
    path = kubeconfig(plain, cluster, {"token": "t"})
    provider = {"name": "oidc", "config": {"id-token": identity_token("x")}}
    other = kubeconfig(provided, cluster, {"auth-provider": provider})
    program = f"""
import asyncio, sys
from pathlib import Path
import kube.access, kube.client, kube.watch
kube.access.InCluster(folder=Path({str(account)!r}))
assert "yaml" not in sys.modules, "in a cluster"
asyncio.run(kube.access.find_access({path!r}))
assert "kubernetes_asyncio" not in sys.modules, "with a token"
asyncio.run(kube.access.find_access({other!r}))
assert "kubernetes_asyncio" in sys.modules, "this test can fail"
"""
    environment = {**os.environ, "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
