"""How an API server reaches the webhook, and the fate of pods if it cannot."""

import asyncio
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from certs.authority import Authority
from kube.answers import ApiError
from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import (
    Canary,
    bare_pod,
    ca_of,
    configured,
    ensure_namespaces,
    failed_open,
    from_cluster,
    from_files,
    installed,
    is_unchanged,
    kubectl,
    managed_namespace,
    our_configurations,
    serving,
)
from tests.support.control_plane import ControlPlane
from tests.support.waiting import until
from webhook.registration.configurations import VALIDATE_PODS

REACHED = managed_namespace("reached", gpu_fraction="0.5", priority="train")
ENFORCED = managed_namespace("reached-enforced", gpu_fraction="0.5", priority="train", mode="enforce")
UNMANAGED = {"kind": "Namespace", "metadata": {"name": "unmanaged"}}
MANY = 1000


async def create_many(client: KubeClient, namespace: str, count: int) -> list[dict[str, Any]]:
    """Create pods as a dry run, 16 at a time."""
    canary, turns = Canary(client, namespace), asyncio.Semaphore(16)

    async def create(number: int) -> dict[str, Any]:
        async with turns:
            return await canary.pod(name=f"pod-{number}")

    return await asyncio.gather(*map(create, range(count)))


async def test_an_unreachable_webhook_leaves_managed_pods_unchanged_and_other_pods_unaffected(
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    await ensure_namespaces(admin.client, UNMANAGED, ENFORCED)
    async with installed(plane, admin.client, tmp_path, REACHED, ENFORCED) as webhook:
        await until_enforced(admin)
        await webhook.kill()
        before = await failed_open(admin.client)
        assert all(is_unchanged(pod) for pod in await create_many(admin.client, "unmanaged", MANY))
        assert await failed_open(admin.client) == before, "no call was tried"

        assert all(is_unchanged(pod) for pod in await create_many(admin.client, "reached", 20))
        assert await failed_open(admin.client) == before + 20

        with pytest.raises(ApiError, match=rf'500.*failed calling webhook "{VALIDATE_PODS}"'):
            await admin.post("/api/v1/namespaces/reached-enforced/pods", bare_pod("refused"))

        label = ("label", "namespace", "unmanaged", "kaishare.dev/gpu-fraction=2")
        result = await kubectl(plane, *label)
        assert (result.status, result.output) == (0, "namespace/unmanaged labeled\n"), result.errors
        result = await kubectl(plane, "label", "namespace", "unmanaged", "kaishare.dev/gpu-fraction-")
        assert result.status == 0, result.errors

        again = from_cluster(plane, tmp_path)
        async with serving(tmp_path / "again", *again, listen=webhook.admission.port):
            await Canary(admin.client, "reached").until_mutated()


async def until_enforced(admin: Administrator) -> None:
    """Wait until the API server uses the validating configuration, too."""

    async def is_denied() -> bool:
        out = bare_pod("out", labels={"kaishare.dev/inject": "false"})
        try:
            await admin.post("/api/v1/namespaces/reached-enforced/pods", out, dryRun="All")
        except ApiError as error:
            return error.status == 403
        return False

    await until(is_denied, "pods are validated")


async def test_a_foreign_certificate_costs_no_pod(admin: Administrator, tmp_path: Path) -> None:
    await ensure_namespaces(admin.client, REACHED)
    async with serving(tmp_path / "log", *from_files(tmp_path, REACHED)) as webhook:
        stranger = Authority.create(now=datetime.now(UTC)).pair.certificate_pem
        before = await failed_open(admin.client)
        async with configured(admin.client, *our_configurations(webhook.target, stranger)):
            canary = Canary(admin.client, "reached")

            async def is_tried() -> bool:
                assert is_unchanged(await canary.pod())
                return await failed_open(admin.client) > before

            await until(is_tried, "the configuration is taken up")
        assert await webhook.answered() == 0


async def test_a_hanging_webhook_delays_a_pod_by_its_time_limit_only(
    admin: Administrator, tmp_path: Path
) -> None:
    await ensure_namespaces(admin.client, REACHED)
    async with serving(tmp_path / "log", *from_files(tmp_path, REACHED)) as webhook:
        mutating, _ = our_configurations(webhook.target, ca_of(tmp_path))
        mutating["webhooks"][0]["timeoutSeconds"] = 1
        async with configured(admin.client, mutating):
            canary = Canary(admin.client, "reached")
            await canary.until_mutated()
            webhook.process.send_signal(signal.SIGSTOP)
            try:
                began = time.monotonic()
                assert is_unchanged(await canary.pod())
                assert 0.9 < time.monotonic() - began < 8, "the API server's usual limit is 10 s"
            finally:
                webhook.process.send_signal(signal.SIGCONT)
            await canary.until_mutated()
        await canary.until_unchanged()
