"""Kubeconfigs: each kind of credentials, and each kind of error."""

import base64
import json
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from certs.authority import Authority
from kube.access import AccessError, KubeConfig, find_access
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from tests.support.api_server import PODS, ApiServer
from tests.support.certificates import client_pair, serving_context


def kubeconfig(folder: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> str:
    """Write a kubeconfig with a single context."""
    path = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "elsewhere"}}],
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
        ("", "kubeconfig: not a kubeconfig$"),
        ("[1, 2]", "kubeconfig: not a kubeconfig$"),
        ("a: [", "kubeconfig: "),
        ("current-context: x", "kubeconfig: Invalid kube-config file"),
        ("\0", "kubeconfig: "),
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
        ({}, {}, "incomplete kubeconfig"),
        ({"insecure-skip-tls-verify": True}, {}, "has no server"),
        ({"server": "https://127.0.0.1:1", "certificate-authority": "gone.crt"}, {}, "File does not exists"),
        ({"server": "https://127.0.0.1:1", "certificate-authority-data": "bm8="}, {}, "CA certificate"),
        (
            {"server": "https://127.0.0.1:1"},
            {"client-certificate-data": "bm8=", "client-key-data": "bm8="},
            "client certificate",
        ),
        (
            {"server": "https://127.0.0.1:1"},
            {"exec": {"apiVersion": "v1", "command": "/no/such/plugin"}},
            "/no/such/plugin",
        ),
        (
            {"server": "https://127.0.0.1:1"},
            {"exec": {"apiVersion": "v1", "command": "false"}},
            "exec: process returned 1",
        ),
    ],
)
async def test_a_wrong_field_of_a_kubeconfig_is_an_error_of_one_line(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], line: str
) -> None:
    with pytest.raises(AccessError, match=line) as caught:
        await KubeConfig.load(kubeconfig(tmp_path, cluster, user))
    assert "\n" not in str(caught.value)


def test_the_big_library_is_loaded_for_a_kubeconfig_only(account: Path, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}, {})
    program = f"""
import asyncio, sys
from pathlib import Path
import kube.access, kube.client, kube.watch
kube.access.InCluster(folder=Path({str(account)!r}))
assert "kubernetes_asyncio" not in sys.modules, "in a cluster"
asyncio.run(kube.access.find_access({path!r}))
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
