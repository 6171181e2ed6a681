"""The webhook in the hands of a real API server: what pods become, and what is left alone."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from kube.client import KubeClient
from tests.cluster.administrator import Administrator
from tests.cluster.control_plane import ControlPlane
from tests.cluster.webhooks import (
    Canary,
    Serving,
    bare_pod,
    configured,
    from_files,
    managed_namespace,
    our_configurations,
    serving,
)
from tests.webhook.live import until

NAMESPACES = [
    managed_namespace(name, gpu_fraction="0.5", priority="train")
    for name in ("managed", "managed-deployment", "managed-job")
]
PODS = "/api/v1/namespaces/{}/pods"
TEMPLATE = {
    "metadata": {"labels": {"app": "a"}},
    "spec": {"containers": bare_pod("")["spec"]["containers"], "restartPolicy": "Never"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ours(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Serving]:
    """Our webhook, called by the API server for pods of `NAMESPACES`."""
    folder = tmp_path_factory.mktemp("webhook")
    async with KubeClient(plane.access()) as client:
        for namespace in NAMESPACES:
            await Administrator(client).ensure(namespace)
        async with serving(folder / "log", *from_files(folder, *NAMESPACES)) as webhook:
            ca = (folder / "tls" / "ca.crt").read_bytes()
            async with configured(client, *our_configurations(webhook.target, ca)):
                canary = Canary(client, "managed")
                await canary.until_mutated()
                yield webhook
            await canary.until_unchanged()


def has_share(pod: dict[str, Any], fraction: str = "0.5") -> bool:
    """Whether a pod as it is kept belongs to KAI, with half a GPU for its container `main` and no other."""
    metadata, spec = pod["metadata"], pod["spec"]
    assert spec["schedulerName"] == "kai-scheduler"
    assert metadata["labels"]["kai.scheduler/queue"] == "queue-a"
    assert metadata["labels"]["priorityClassName"] == "train"
    assert metadata["annotations"]["gpu-fraction"] == fraction
    assert metadata["annotations"]["gpu-fraction-container-name"] == "main"
    assert "nvidia.com/gpu" not in str(spec)
    return True


async def test_a_bare_pod(admin: Administrator, ours: Serving) -> None:
    kept = await admin.create({**bare_pod("bare", namespace="managed"), "status": {}})
    assert has_share(kept)


@pytest.mark.parametrize(
    ("kind", "group", "spec"),
    [
        ("Deployment", "apps", {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}}),
        ("Job", "batch", {"parallelism": 2, "completions": 2}),
    ],
)
async def test_pods_of_a_controller(
    admin: Administrator, controllers: None, ours: Serving, kind: str, group: str, spec: dict[str, Any]
) -> None:
    template = TEMPLATE
    if kind == "Deployment":
        template = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Always"}}
    namespace, plural = f"managed-{kind.lower()}", f"{kind.lower()}s"
    owner = {"kind": kind, "apiVersion": f"{group}/v1", "metadata": {"name": "owner"}}
    path = f"/apis/{group}/v1/namespaces/{namespace}"
    await admin.post(f"{path}/{plural}", {**owner, "spec": {**spec, "template": template}})

    async def pods() -> list[dict[str, Any]]:
        found = (await admin.read(PODS.format(namespace)))["items"]
        return found if len(found) == 2 else []

    try:
        for pod in await until(pods, "the controller has made its pods"):
            assert pod["metadata"]["generateName"].startswith("owner-")
            assert has_share(pod)
    finally:  # no garbage collector runs here
        await admin.delete(f"{path}/{plural}/owner")
        if kind == "Deployment":
            await admin.delete(f"{path}/replicasets")
        await admin.delete(PODS.format(namespace))
