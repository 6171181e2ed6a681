"""Two teams on one GPU, from their manifests to a flag, on a real API server.

KAI and vCluster are played by objects of the form that the recorded ones have: `kube_objects` for KAI, the fixtures
`vcluster-live-v0.36.1` for the syncer.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kai import keys
from tests.support.administrator import Administrator
from tests.support.agent_process import Agent
from tests.support.cluster_webhook import (
    Canary,
    configured,
    installed,
    kubectl,
    managed_namespace,
)
from tests.support.control_plane import ControlPlane
from tests.support.gpu_node import MIB, RIGHTS, GpuNode, until
from tests.support.helm_chart import ROOT
from tests.support.kube_objects import GPU_0, GROUP_0, bind_request, node, reservation
from tests.support.other_webhooks import as_kai, kai_configuration, patching
from tests.support.waiting import until as until_true
from tests.support.webhook_recorder import recording

FOLDER = ROOT / "deploy" / "kind" / "two-teams"
FIRST = managed_namespace("two-teams-canary", gpu_fraction="0.5")
HALF, QUARTER = 11500 * MIB, 5750 * MIB
"""Shares of an A10, as docs/shares.md has them."""


@pytest.fixture
async def host(plane: ControlPlane, admin: Administrator, tmp_path: Path) -> GpuNode:
    """A node with one A10, labelled as GPU feature discovery does."""
    await admin.create(node())
    (tmp_path / "agent").mkdir()
    return GpuNode(folder=tmp_path / "agent", plane=plane, admin=admin)


async def pod_of(admin: Administrator, namespace: str) -> dict[str, Any]:
    async def pods() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (await admin.read(f"/api/v1/namespaces/{namespace}/pods"))["items"]
        return items

    (pod,) = await until_true(pods, f"{namespace} has a pod")
    return dict(pod)


async def place(admin: Administrator, pod: dict[str, Any]) -> str:
    """Bind a pod as KAI's scheduler and binder do, let it run, and return its UID."""
    metadata = pod["metadata"]
    namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
    portion = f"{float(metadata['annotations'][keys.GPU_FRACTION]):.2f}"
    request = bind_request(name, portion=portion, namespace=namespace)
    request["metadata"]["ownerReferences"][0]["uid"] = uid
    await admin.create(request)
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    bound = {keys.RECEIVED_RESOURCE_TYPE: "Fraction"}
    await admin.merge(path, {"metadata": {"labels": {keys.GPU_GROUP: GROUP_0}, "annotations": bound}})
    await admin.bind(namespace, name)
    await admin.set_status(path, {"phase": "Running"})
    return str(uid)


async def until_flagged(running: Agent, uid: str) -> dict[str, dict[str, Any]]:
    """Wait until a pod is flagged; return all pods by UID."""

    async def is_flagged() -> bool:
        pods = {pod["uid"]: pod for pod in (await asyncio.to_thread(running.shares))["pods"]}
        return uid in pods and any(verdict["flagged"] for verdict in pods[uid]["verdicts"])

    await until(is_flagged, running)
    return {pod["uid"]: pod for pod in (await asyncio.to_thread(running.shares))["pods"]}


def share_of(pod: dict[str, Any]) -> tuple[str, int]:
    """Return the source and the bytes of a pod's share on the GPU."""
    candidate = pod["candidates"][0]
    return candidate["source"], next(iter(pod["shares"].values()))["bytes"]


@pytest.mark.slow
async def test_two_teams_share_a_gpu_with_kai_on_the_cluster(
    plane: ControlPlane, admin: Administrator, host: GpuNode, controllers: None, tmp_path: Path
) -> None:
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
    await admin.ensure({**runtime, "metadata": {"name": "nvidia"}})  # KAI's webhook sets it
    try:
        async with (
            installed(plane, admin.client, tmp_path, FIRST),
            recording(tmp_path, patching(as_kai)) as kai,
            configured(admin.client, kai_configuration(kai)),
        ):
            await Canary(admin.client, FIRST["metadata"]["name"]).until_called(kai)
            for file in ("namespaces", "workloads"):
                applied = await kubectl(plane, "apply", "-f", str(FOLDER / f"{file}.yaml"))
                assert applied.status == 0, applied.errors
            train, serve = await pod_of(admin, "team-a"), await pod_of(admin, "team-b")
            for pod, team, share in ((train, "team-a", "0.5"), (serve, "team-b", "0.25")):
                assert pod["spec"]["schedulerName"] == keys.SCHEDULER_NAME
                assert pod["spec"]["runtimeClassName"] == "nvidia"
                assert pod["metadata"]["labels"][keys.QUEUE_LABEL] == team
                assert pod["metadata"]["annotations"][keys.GPU_FRACTION] == share
                assert "nvidia.com/gpu" not in json.dumps(pod["spec"]["containers"])
            await admin.create(reservation())
            train_uid, serve_uid = await place(admin, train), await place(admin, serve)
            host.hold({train_uid: 9000, serve_uid: 8625})
            with host.agent(await admin.token("agent", *RIGHTS)) as running:
                pods = await until_flagged(running, serve_uid)
                assert await until(lambda: host_reasons(host, serve_uid, "team-b"), running) < 20
            assert {pods[uid]["queue"] for uid in (train_uid, serve_uid)} == {"team-a", "team-b"}
            assert share_of(pods[train_uid]) == ("bind-request", HALF)
            assert share_of(pods[serve_uid]) == ("bind-request", QUARTER)
            assert pods[train_uid]["gpuUuids"] == pods[serve_uid]["gpuUuids"] == [GPU_0]
            assert not any(verdict["flagged"] for verdict in pods[train_uid]["verdicts"])
    finally:
        await clean_up(plane, admin)


async def host_reasons(host: GpuNode, uid: str, namespace: str) -> bool:
    """Whether a pod has the Event that its team reads."""
    return "GPUMemoryOverShare" in {event["reason"] for event in await host.events(uid, namespace)}


async def clean_up(plane: ControlPlane, admin: Administrator) -> None:
    """Delete the workloads, and the labels of the namespaces; no garbage collector runs here."""
    await kubectl(
        plane,
        "delete",
        "-f",
        str(FOLDER / "workloads.yaml"),
        "--wait=false",
        "--cascade=orphan",
        "--ignore-not-found",
    )
    for namespace in ("team-a", "team-b"):
        await admin.delete(f"/apis/apps/v1/namespaces/{namespace}/replicasets")
        await admin.delete(f"/api/v1/namespaces/{namespace}/pods")
        labels = (await admin.read(f"/api/v1/namespaces/{namespace}"))["metadata"]["labels"]
        ours = {key: None for key in labels if key.startswith(("kai.scheduler/", "kaishare.dev/"))}
        await admin.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": ours}})
