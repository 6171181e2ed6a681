"""The packaged chart: upgraded from the chart of 0.1.0, rolled back and switched off while pods are created.

The chart of 0.1.0 is in tests/support/charts, packaged by `helm package`. Before the upgrade two replicas run with the
options and the account of the old chart; a replica of this release stands for the old program. tests/node has a
rollback and a removal of this release.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks.balancer import Balancer
from kube.answers import ApiError
from kube.client import KubeClient
from tests.support.cluster_webhook import (
    Canary,
    Serving,
    ensure_namespaces,
    failed_open,
    managed_namespace,
    start_serving,
)
from tests.support.control_plane import ControlPlane
from tests.support.creations import RATE, Creations, created_throughout
from tests.support.helm_chart import CHART, NAMESPACE, ROOT, find_object, helm, rendered
from tests.support.helm_release import (
    Release,
    deployed_options,
    lead_to_this_machine,
    let_go,
    packaged,
    token_of,
)
from tests.support.waiting import until
from tests.support.webhook_in_a_pod import in_a_pod
from webhook.registration.configurations import CONFIGURATION_NAME

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

OLD_CHART = ROOT / "tests" / "support" / "charts" / "kaishare-0.1.0-e8631c3.tgz"
DEFAULT, ENFORCED = "upgrade-default", "upgrade-enforced"
"""Namespaces whose pods are created throughout; in the second one a pod without an answer is refused."""
LAG_SECONDS = 0.3
"""Time for which the endpoint of a stopped replica remains."""


@dataclass(kw_only=True)
class Replicas:
    """The webhook's processes behind the address of its Service, with the options of the Deployment in the cluster."""

    plane: ControlPlane
    client: KubeClient
    balancer: Balancer
    folder: Path
    running: list[Serving] = field(default_factory=list)
    count: int = 0

    async def add(self) -> None:
        """Start a replica, and send it reviews once it is ready."""
        self.count += 1
        folder = self.folder / f"replica-{self.count}"
        folder.mkdir()
        options = await deployed_options(self.client)
        pod = in_a_pod(self.plane, await token_of(self.client, "kaishare-webhook", NAMESPACE), folder)
        replica = await start_serving(
            folder / "log",
            *options,
            "--drain=500ms",
            program=pod.program,
            environment=pod.environment,
            is_forked=True,
        )
        self.running.append(replica)

        async def is_ready() -> bool:
            return (await replica.get("/readyz"))[0] == 200

        await until(is_ready, "the replica is ready")
        self.balancer.add(replica.admission)

    async def replace(self) -> None:
        """Start a replica, and stop the oldest one, whose endpoint remains for a while."""
        await self.add()
        old = self.running.pop(0)
        old.terminate()
        await asyncio.sleep(LAG_SECONDS)
        self.balancer.remove(old.admission)
        assert await old.ended() == 0, old.log.read_text()


@contextlib.asynccontextmanager
async def installed(
    plane: ControlPlane, chart: Path, folder: Path
) -> AsyncIterator[tuple[Release, Replicas]]:
    """Install a chart whose Service leads to a balancer on this machine."""
    balancer = Balancer()
    address = await balancer.start()
    release = Release(plane=plane, values={"webhook": {"servicePort": address.port}}, chart=chart)
    async with KubeClient(plane.access()) as client:
        replicas = Replicas(plane=plane, client=client, balancer=balancer, folder=folder)
        try:
            await ensure_namespaces(client, managed_namespace(DEFAULT, gpu_fraction="0.5"))
            await asyncio.to_thread(release.install)
            # What a Service's address is in a cluster: the way to the process.
            await lead_to_this_machine(client)
            yield release, replicas
        finally:
            for replica in replicas.running:
                await replica.kill()
            await balancer.stop()
            await asyncio.to_thread(release.uninstall)
            for namespace in (DEFAULT, ENFORCED):
                with contextlib.suppress(ApiError):
                    await client.request("DELETE", f"/api/v1/namespaces/{namespace}")
                await let_go(client, namespace)
            await let_go(client, "kaishare-agent")


async def configurations(client: KubeClient) -> list[dict[str, Any]]:
    """Return the webhooks of both configurations."""
    group = "/apis/admissionregistration.k8s.io/v1"
    return [
        hook
        for kind in ("mutating", "validating")
        for hook in json.loads(await client.get(f"{group}/{kind}webhookconfigurations/{CONFIGURATION_NAME}"))[
            "webhooks"
        ]
    ]


@contextlib.asynccontextmanager
async def serving_and_used(
    plane: ControlPlane, chart: Path, folder: Path
) -> AsyncIterator[tuple[Release, Replicas, Creations]]:
    """Install a chart with two replicas, and create pods in both namespaces until a second after the block."""
    async with installed(plane, chart, folder) as (release, replicas):
        client = replicas.client
        for _ in range(2):
            await replicas.add()
        await Canary(client, DEFAULT).until_mutated()
        # Enforced only now, because its pods are refused before.
        await ensure_namespaces(client, managed_namespace(ENFORCED, gpu_fraction="0.5", mode="enforce"))
        await Canary(client, ENFORCED).until_mutated()
        skipped = await failed_open(client)
        async with created_throughout(client, DEFAULT, ENFORCED) as creations:
            yield release, replicas, creations
        if creations.changed == creations.made:
            assert await failed_open(client) == skipped


async def test_an_upgrade_loses_no_pod_creation(plane: ControlPlane, tmp_path: Path) -> None:
    new_chart = packaged(tmp_path)
    old = serving_and_used(plane, OLD_CHART, tmp_path)
    async with old as (release, replicas, creations):
        where = ("kaishare", str(new_chart), "--namespace", NAMESPACE)
        kept = helm("upgrade", *where, "--dry-run=server", "--reuse-values", kubeconfig=plane.kubeconfig())
        assert kept.returncode != 0, "CHANGELOG.md says that --reuse-values fails"
        await asyncio.to_thread(release.upgrade_to, new_chart)
        for _ in range(2):
            await replicas.replace()
        hooks = await configurations(replicas.client)
    creations.assert_none_is_lost()
    assert all(hook["clientConfig"]["caBundle"] for hook in hooks)
    objects = rendered(release.values)
    expected = [
        hook
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for hook in find_object(objects, kind, CONFIGURATION_NAME)["webhooks"]
    ]
    assert [hook["matchConditions"] for hook in hooks] == [hook["matchConditions"] for hook in expected]


@pytest.mark.nightly  # tests/node rolls back on a real node
async def test_a_rollback_loses_no_pod_creation(plane: ControlPlane, tmp_path: Path) -> None:
    async with serving_and_used(plane, OLD_CHART, tmp_path) as (release, replicas, creations):
        await asyncio.to_thread(release.upgrade, tmp_path, version="0.2.9")
        await replicas.replace()
        await asyncio.to_thread(release.roll_back, 1)
        await replicas.replace()
        assert all(hook["clientConfig"]["caBundle"] for hook in await configurations(replicas.client))
    creations.assert_none_is_lost()


async def test_the_end_of_the_webhook_refuses_no_pod(plane: ControlPlane, tmp_path: Path) -> None:
    async with serving_and_used(plane, CHART, tmp_path) as (release, replicas, creations):
        release.values["webhook"]["enabled"] = False
        await asyncio.to_thread(release.upgrade_or_install)
        for replica in replicas.running:
            await replica.kill()
        await Canary(replicas.client, ENFORCED).until_unchanged()
    assert creations.failed == []
    assert creations.made > creations.changed > RATE / 2
