"""The agent's DaemonSet on a real API server, scheduler and controller manager: its priority."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.control_plane import ControlPlane, component, control_plane, controller_manager
from tests.support.control_plane_fixtures import needed_assets
from tests.support.helm_chart import find_object, rendered
from tests.support.kinds import made
from tests.support.waiting import until

NAMESPACE = "kaishare-agent"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
QUOTAS = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
DEFAULT = "/api/v1/namespaces/default"
HIGHEST = 1_000_000_000
"""The highest value that is not reserved for the system."""
DAEMON_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
LIMITED = """
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: ResourceQuota
    configuration:
      apiVersion: apiserver.config.k8s.io/v1
      kind: ResourceQuotaConfiguration
      limitedResources:
        - resource: pods
          matchScopes:
            - {scopeName: PriorityClass, operator: In, values: [system-node-critical, system-cluster-critical]}
"""
"""Critical pods need a quota that names their class, as on GKE."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    assets, folder = needed_assets(), tmp_path_factory.mktemp("priorities")
    if not (assets / "kube-scheduler").is_file():
        pytest.skip(f"NOT VERIFIED: KUBEBUILDER_ASSETS={assets} holds no kube-scheduler")
    configuration = folder / "admission.yaml"
    configuration.write_text(LIMITED)
    with (
        control_plane(assets, folder, f"--admission-control-config-file={configuration}") as plane,
        controller_manager(assets, plane, ["daemonset-controller", "resourcequota-controller"]),
        component(assets, plane, "kube-scheduler"),
    ):
        yield plane


@pytest.fixture
async def owner(cluster: ControlPlane) -> AsyncIterator[Administrator]:
    """An administrator of a cluster with one GPU node of 8 CPUs, and with KAI's class `inference`."""
    async with KubeClient(cluster.access()) as client:
        administrator = Administrator(client)
        node = {"name": "gpu-0", "labels": {"nvidia.com/gpu.present": "true"}}
        await administrator.ensure({"kind": "Node", "metadata": node})
        await administrator.ensure(made("RuntimeClass", "nvidia", handler="nvidia"))
        await administrator.ensure(made("PriorityClass", "of-a-tenant", value=HIGHEST))
        capacity = {"cpu": "8", "memory": "64Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        ready |= dict.fromkeys(("lastHeartbeatTime", "lastTransitionTime"), "2026-11-28T00:00:00Z")
        status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
        await administrator.merge("/api/v1/nodes/gpu-0/status", {"status": status})
        # Without the node controller, the taint of a new node stays.
        await administrator.merge("/api/v1/nodes/gpu-0", {"spec": {"taints": []}})
        yield administrator
        for path in (f"{DAEMON_SETS}/kaishare-agent", f"{QUOTAS}/kaishare-agent"):
            await administrator.delete(path)
        for path in (PODS, f"{DEFAULT}/pods"):
            for pod in await pods(administrator, path):
                await administrator.delete(f"{path}/{pod['metadata']['name']}")


async def pods(owner: Administrator, path: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await owner.read(path))["items"]
    return items


async def install(owner: Administrator) -> None:
    """Create the objects of the chart on which it depends whether the agent's pods run."""
    objects = rendered()
    await owner.ensure(find_object(objects, "Namespace", NAMESPACE))
    await owner.post(QUOTAS, find_object(objects, "ResourceQuota", "kaishare-agent"))
    await owner.post(DAEMON_SETS, find_object(objects, "DaemonSet", "kaishare-agent"))


async def bound(owner: Administrator) -> list[str]:
    """Return the UIDs of the agent's pods that have a node and are not about to end."""
    return [
        pod["metadata"]["uid"]
        for pod in await pods(owner, PODS)
        if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
    ]


async def ask_for_the_whole_node(owner: Administrator) -> None:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "8"}}}
    spec = {"priorityClassName": "of-a-tenant", "containers": [container]}
    await owner.post(f"{DEFAULT}/pods", {"kind": "Pod", "metadata": {"name": "greedy"}, "spec": spec})


async def condition_of_greedy(owner: Administrator) -> str:
    greedy = await owner.read(f"{DEFAULT}/pods/greedy")
    conditions = greedy["status"].get("conditions", [])
    return next((each.get("message", "") for each in conditions if each["type"] == "PodScheduled"), "")


async def test_no_pod_of_a_tenant_preempts_the_agent(owner: Administrator) -> None:
    await install(owner)
    await until(lambda: bound(owner))
    before = await bound(owner)
    await ask_for_the_whole_node(owner)

    async def is_refused() -> bool:
        return "No preemption victims found" in await condition_of_greedy(owner)

    await until(is_refused)
    assert await bound(owner) == before
