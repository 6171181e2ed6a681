"""Warnings at the apply of a workload on a real API server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kube.client import KubeClient
from tests.support.cluster_webhook import (
    Canary,
    ca_of,
    configured,
    ensure_namespaces,
    from_cluster,
    managed_namespace,
    serving,
)
from tests.support.control_plane import ControlPlane
from tests.support.kinds import made
from tests.support.kube_user import Asker
from tests.support.pods import gpu_container
from tests.support.registration import mutating_configuration, validating_configuration

TEAM = "warned-team"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{TEAM}/deployments"
CONVERTED = f"kaishare: container main: one whole GPU became gpu-fraction 0.5 by namespace {TEAM}"


def deployment(name: str = "web", **container: Any) -> dict[str, Any]:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [gpu_container(**container)]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return {**made("Deployment", name, TEAM, spec=spec), "apiVersion": "apps/v1"}


async def label_mode(asker: Asker, mode: str | None) -> None:
    labels = {"kaishare.dev/mode": mode}
    await asker.merge(f"/api/v1/namespaces/{TEAM}", {"metadata": {"labels": labels}})


@pytest.fixture
async def asker(own_plane: ControlPlane) -> AsyncIterator[Asker]:
    async with KubeClient(own_plane.access()) as client, Asker(own_plane) as asker:
        await ensure_namespaces(client, managed_namespace(TEAM, gpu_fraction="0.5"))
        yield asker
        await label_mode(asker, None)
        for item in (await asker.send("GET", DEPLOYMENTS)).body["items"]:
            await asker.remove(f"{DEPLOYMENTS}/{item['metadata']['name']}")


async def test_the_author_of_a_deployment_is_told_at_its_apply(
    own_plane: ControlPlane, asker: Asker, tmp_path: Path
) -> None:
    async with (
        KubeClient(own_plane.access()) as client,
        serving(tmp_path / "log", *from_cluster(own_plane, tmp_path)) as webhook,
        configured(
            client,
            *(
                build(webhook.target, ca_bundle=ca_of(tmp_path))
                for build in (mutating_configuration, validating_configuration)
            ),
        ),
    ):
        await Canary(client, TEAM).until_mutated()
        answer = await asker.create(deployment())
        assert (answer.status, answer.warnings) == (201, [CONVERTED])
        path = f"{DEPLOYMENTS}/web"
        assert (await asker.merge(path, {"spec": {"replicas": 1}})).warnings == []
        assert (await asker.merge(path, {"metadata": {"annotations": {"a": "b"}}})).warnings == []
        changed = deployment(command=["vllm", "serve", "m"])
        answer = await asker.merge(path, {"spec": {"template": changed["spec"]["template"]}})
        assert answer.warnings[0] == CONVERTED
        assert "set --gpu-memory-utilization to" in answer.warnings[1]
        job = {**made("Job", "one", TEAM), "apiVersion": "batch/v1"}
        job["spec"] = {"template": {"spec": {"containers": [gpu_container()], "restartPolicy": "Never"}}}
        assert (await asker.create(job, dry_run=True)).warnings == [CONVERTED]
        owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "c", "uid": "u", "controller": True}
        job["metadata"]["ownerReferences"] = [owner]
        assert (await asker.create(job, dry_run=True)).warnings == []
        await label_mode(asker, "observe")
        await asyncio.sleep(1)  # the API server reads namespaces from a cache
        assert (await asker.create(deployment("other"), dry_run=True)).warnings == []
