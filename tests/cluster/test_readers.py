"""Both services as the chart runs them with tokens over TLS: the accounts of the chart, and readers of its role."""

import asyncio
import contextlib
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from certs.authority import Authority
from gpuagent.server.agent_server import AUDIENCE
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import from_files, managed_namespace, serving
from tests.support.control_plane import ControlPlane
from tests.support.gpu_node import GpuNode
from tests.support.helm_chart import find_object, rendered
from tests.support.service_log import log_lines
from tests.support.waiting import until
from tests.support.webhook_in_a_pod import in_a_pod

OBJECTS = {"authentication": {"enabled": True}}
AUTHORITY = Authority.create(now=datetime.now(UTC))
Get = Callable[..., Any]


def rules(name: str) -> list[dict[str, Any]]:
    """Return the rules of a ClusterRole of the chart."""
    rules_of_role: list[dict[str, Any]] = find_object(rendered(OBJECTS), "ClusterRole", name)["rules"]
    return rules_of_role


def write_certificate(folder: Path) -> None:
    """Write tls.crt and tls.key for loopback."""
    pair = AUTHORITY.issue(["localhost", "127.0.0.1"], now=datetime.now(UTC), lifetime=timedelta(days=1))
    folder.mkdir(exist_ok=True)
    (folder / "tls.key").write_bytes(pair.key_pem)
    (folder / "tls.crt").write_bytes(pair.certificate_pem)


@contextlib.asynccontextmanager
async def reading(url: str) -> AsyncIterator[Get]:
    """Return a function that requests a path over TLS and trusts only the tests' CA; each on a new connection."""
    trust = ssl.create_default_context(cadata=AUTHORITY.pair.certificate_pem.decode())
    connector = aiohttp.TCPConnector(ssl=trust, force_close=True)
    async with aiohttp.ClientSession(trust_env=False, connector=connector) as session:

        async def get(path: str, **headers: str) -> tuple[int, str]:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            async with session.get(url + path, headers=named) as response:
                return response.status, await response.text()

        yield get


@pytest.mark.slow
async def test_the_agent_answers_readers_of_the_charts_role_over_tls(
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    node = GpuNode(folder=tmp_path, plane=plane, admin=admin)
    uid = await node.pod()
    node.hold({uid: 3000})
    token = await admin.token("agent", *rules("kaishare-agent"))
    reader = await admin.token("reader", *rules("kaishare-metrics-reader"))
    stranger = await admin.token("stranger")
    ours = await admin.audience_token("reader", AUDIENCE)
    certs = tmp_path / "certs"
    write_certificate(certs)
    with node.agent(token, "--authentication=tokens", f"--certs={certs}") as running:
        assert running.url.startswith("https://127.0.0.1:")
        async with reading(running.url) as get:

            async def shows(path: str, text: str, headers: dict[str, str]) -> bool:
                status, body = await get(path, **headers)
                assert status in (200, 503)  # 503: the rate of checks is limited
                return text in body

            for path, text in (
                ("/metrics", "kaishare_pod_gpu_memory"),
                ("/api/v1/shares", uid),
                ("/", "page.js"),
            ):
                for headers in ({"Authorization": f"Bearer {reader}"}, {"X_Kaishare_Token": ours}):
                    await until(
                        lambda path=path, text=text, headers=headers: shows(path, text, headers),  # type: ignore[misc]
                        f"{path} has {text}",
                    )
                status, body = await get(path, Authorization=f"Bearer {stranger}")
                assert status in (403, 503)
                assert text not in body
                assert (await get(path))[0] == 401
            assert await get("/healthz") == (200, "ok\n")
            assert await get("/readyz") == (200, "ok\n")

            top = [sys.executable, "-m", "console", "top", "--url", running.url, "--once", "--token-file=-"]
            for given, wanted, word in (
                (ours, 0, "half"),
                (reader, 2, "the agent refuses the token of --token-file: 401, the token is not valid"),
                ("", 2, "not a token"),
            ):
                process = await asyncio.to_thread(
                    subprocess.run, top, input=given, capture_output=True, text=True, check=False
                )
                assert process.returncode == wanted, process
                assert word in (process.stderr if wanted else process.stdout)

            without = [*top[:-1]]
            process = await asyncio.to_thread(
                subprocess.run, without, capture_output=True, text=True, check=False
            )
            assert process.returncode == 2
            assert "the agent needs --token-file: 401, a bearer token is required" in process.stderr

            # A renewed certificate serves the next connection; half of one does not.
            (certs / "tls.crt").write_text("not a certificate")
            problem = "certificate not reloaded, keeping the last valid one"
            await until(lambda: log_lines(running.log, problem), "the agent names the problem")
            assert await get("/healthz") == (200, "ok\n")
            write_certificate(certs)
            await until(lambda: log_lines(running.log, "certificate reloaded"), "the agent has the new one")
            assert await get("/healthz") == (200, "ok\n")
        assert await asyncio.to_thread(running.stop) == 0
        log = running.log.read_text()
    assert not any(secret in log for secret in (token, reader, stranger, ours))
    assert "403 Forbidden" not in log
    assert "Traceback" not in log


async def test_the_webhooks_ops_port_answers_readers_of_the_charts_role_over_tls(
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    token = await admin.token("webhook", *rules("kaishare-webhook"))
    reader = await admin.token("reader", *rules("kaishare-metrics-reader"))
    stranger = await admin.token("stranger")
    ours = await admin.audience_token("reader", AUDIENCE, "kaishare-webhook")
    agents = await admin.audience_token("reader", AUDIENCE)
    certs = tmp_path / "ops"
    write_certificate(certs)
    pod = in_a_pod(plane, token, tmp_path)
    options = from_files(tmp_path, managed_namespace("secret-project"))
    async with serving(
        tmp_path / "log", *options, "--authentication=tokens", f"--ops-certs={certs}",
        program=pod.program, environment=pod.environment,
    ) as webhook, reading(f"https://{webhook.ops}") as get:  # fmt: skip
        assert webhook.logged("serving")[0]["ops"] == f"https://{webhook.ops}"
        for path, text in (("/metrics", "kaishare_webhook_policies"), ("/policies", "secret-project")):
            for good in (reader, ours):
                status, body = await get(path, Authorization=f"Bearer {good}")
                assert status == 200, body
                assert text in body
            for bad, wanted in ((stranger, 403), (agents, 401)):
                status, body = await get(path, Authorization=f"Bearer {bad}")
                assert status == wanted
                assert text not in body
            assert (await get(path))[0] == 401
            assert (await get(path, X_Kaishare_Token=ours))[0] == 401  # a header of agents only
        assert await get("/healthz") == (200, "ok\n")
        assert await get("/readyz") == (200, "ok\n")
        assert await webhook.stop() == 0
        log = (tmp_path / "log").read_text()
    assert not any(secret in log for secret in (token, reader, stranger, ours, agents))
    assert json.loads(log.splitlines()[-1])["message"] == "stopped"
