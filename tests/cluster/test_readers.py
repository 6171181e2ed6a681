"""Both services as the chart runs them with tokens over TLS: the accounts of the chart, and readers of its role."""

import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp

from certs.authority import Authority
from gpuagent.server.agent_server import AUDIENCE
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import from_files, managed_namespace, serving
from tests.support.control_plane import ControlPlane
from tests.support.helm_chart import find_object, rendered
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
