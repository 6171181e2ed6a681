"""The examples in a cluster: each stored pod equals the output of `explain`."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from service.documents import load_file
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import Said, Serving, installed, kubectl, managed_namespace
from tests.support.control_plane import ControlPlane
from tests.support.operator_jobs import py_torch_job
from tests.support.waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMESPACES, WORKLOADS = str(EXAMPLES / "namespaces.yaml"), str(EXAMPLES / "workloads")
DISTRIBUTED = EXAMPLES / "workloads" / "train-llm.yaml"
"""A workload of a kind that this cluster lacks."""
FIRST = managed_namespace("examples", gpu_fraction="0.5", priority="train")


def explained() -> list[dict[str, Any]]:
    """Return the output of `explain` for the workloads."""
    command = ["-m", "console", "explain", "--policies", NAMESPACES, "-f", WORKLOADS, "-o", "json"]
    done = subprocess.run([sys.executable, *command], capture_output=True, check=True, timeout=30)
    explanations: list[dict[str, Any]] = json.loads(done.stdout)
    return explanations


def pod_of_the_operator() -> dict[str, Any]:
    """Return the first pod of the distributed job as its operator creates it."""
    (job,) = load_file(DISTRIBUTED)
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    _, pod = py_torch_job(template, {"Worker": 4}).pods[0]
    pod["metadata"] |= {"name": "train-llm-worker-0", "namespace": job["metadata"]["namespace"]}
    return pod


def applied(result: Said) -> None:
    assert result.status == 0, result.errors


async def test_pods_are_stored_as_explain_prints_them(
    plane: ControlPlane, admin: Administrator, controllers: None, tmp_path: Path
) -> None:
    expected = await asyncio.to_thread(explained)
    assert len(expected) == 10
    async with installed(plane, admin.client, tmp_path, FIRST) as webhook:
        try:
            applied(await kubectl(plane, "apply", "-f", NAMESPACES))
            for file in sorted(EXAMPLES.glob("workloads/*.yaml")):
                if file != DISTRIBUTED:
                    applied(await kubectl(plane, "apply", "-f", str(file)))
            await kubectl(plane, "create", "-f", "-", manifest=pod_of_the_operator())
            for each in expected:
                await compare(admin, each)
            assert_decisions_are_the_same(webhook, expected)
        finally:
            await clean_up(plane, admin, {each["namespace"] for each in expected})


async def compare(admin: Administrator, each: dict[str, Any]) -> None:
    """Look up the pod of one workload, and compare the output of `explain` with the stored pod."""

    async def pods() -> list[dict[str, Any]]:
        items = (await admin.read(f"/api/v1/namespaces/{each['namespace']}/pods"))["items"]
        return [pod for pod in items if pod["metadata"]["name"].startswith(each["name"])]

    (kept,) = await until(pods, f"{each['name']} has a pod")
    explained_pod = each["pod"]
    for labels in ("labels", "annotations"):
        assert explained_pod["metadata"].get(labels, {}).items() <= kept["metadata"].get(labels, {}).items()
    ours = {"gpu-fraction", "gpu-memory", "gpu-fraction-container-name", "kai.scheduler/queue"}
    for labels in ("labels", "annotations"):
        assert (
            kept["metadata"].get(labels, {}).keys() & ours <= explained_pod["metadata"].get(labels, {}).keys()
        )
    assert kept["spec"]["schedulerName"] == explained_pod["spec"].get("schedulerName", "default-scheduler")
    for container, want in zip(kept["spec"]["containers"], explained_pod["spec"]["containers"], strict=True):
        resources = want.get("resources", {})
        limits, requests = resources.get("limits", {}), resources.get("requests", {})
        assert container["resources"].get("limits", {}) == limits
        assert container["resources"].get("requests", {}) == {**limits, **requests}
    for toleration in explained_pod["spec"].get("tolerations", ()):
        assert toleration in kept["spec"]["tolerations"]


def assert_decisions_are_the_same(webhook: Serving, expected: list[dict[str, Any]]) -> None:
    """Assert that actions and reasons in the log equal those of `explain`."""
    logged = {
        (line["namespace"], line["action"], line["reason"])
        for line in webhook.logged("decision")
        if line["webhook"] == "mutate" and line["namespace"] != "examples"
    }
    managed = [each for each in expected if each["namespace"] != "research"]
    assert logged == {(each["namespace"], each["action"], each["reason"]) for each in managed}


async def clean_up(plane: ControlPlane, admin: Administrator, namespaces: set[str]) -> None:
    """Delete the created objects; no garbage collector runs here."""
    await kubectl(plane, "delete", "-f", WORKLOADS, "--wait=false", "--cascade=orphan")
    for namespace in sorted(namespaces):
        await admin.delete(f"/apis/apps/v1/namespaces/{namespace}/replicasets")
        await admin.delete(f"/api/v1/namespaces/{namespace}/pods")
        labels = json.loads(await admin.client.get(f"/api/v1/namespaces/{namespace}"))["metadata"]["labels"]
        ours = {key: None for key in labels if key.startswith(("kai.scheduler/", "kaishare.dev/"))}
        await admin.merge(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": ours}})
