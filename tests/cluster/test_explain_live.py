"""What runs in a cluster with real controllers and the real webhook, as administrators and tenants see it."""

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from console.explain.explainer import ExplainedPod, Explainer
from console.explain.live_workloads import LiveWorkloads, live_workloads
from console.explain.text import is_rank
from kube.answers import ApiError
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import bare_pod, ensure_namespaces, installed, managed_namespace
from tests.support.control_plane import ControlPlane, controller_manager
from tests.support.control_plane_fixtures import needed_assets
from tests.support.helm_release import until_kind_is_deleted
from tests.support.kai_definitions import define, definition
from tests.support.operator_jobs import py_torch_job
from tests.support.pods import container
from tests.support.waiting import until
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy

TEAM, OTHER, PLAIN = "live-team", "live-other", "live-plain"
HALF = managed_namespace(TEAM, gpu_fraction="0.5")
MORE_CONTROLLERS = ("cronjob-controller", "clusterrole-aggregation-controller")
JOBS = definition("kubeflow.org/v1", "PyTorchJob")
JOBS_PATH = f"/apis/kubeflow.org/v1/namespaces/{TEAM}/pytorchjobs"
JOBS_DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pytorchjobs.kubeflow.org"
TEMPLATE: dict[str, Any] = {"spec": {"containers": [container(limits={"nvidia.com/gpu": "1"})]}}
ONCE = {"spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}


def selected(name: str, **spec: Any) -> dict[str, Any]:
    """Return the spec of a workload with a selector of its own; a Deployment adopts ReplicaSets that match."""
    template = {**TEMPLATE, "metadata": {"labels": {"app": name}}}
    return {"selector": {"matchLabels": {"app": name}}, "template": template, **spec}


WORKLOADS = [
    ("apps", "deployments", "Deployment", "web", selected("web", replicas=2)),
    ("apps", "deployments", "Deployment", "off", selected("off", replicas=0)),
    ("apps", "statefulsets", "StatefulSet", "set", selected("set")),
    ("apps", "replicasets", "ReplicaSet", "alone", selected("alone")),
    ("batch", "jobs", "Job", "once", {"template": ONCE}),
    ("batch", "cronjobs", "CronJob", "night", {"schedule": "0 * * * *", "jobTemplate": {"spec": {"template": ONCE}}}),
]  # fmt: skip
TYPES = [
    ("apps", "deployments"),
    ("apps", "replicasets"),
    ("apps", "statefulsets"),
    ("batch", "cronjobs"),
    ("batch", "jobs"),
]
IN_TEAM = [
    "CronJob night, spec.jobTemplate.spec.template: whole-gpu-converted, 1",
    "Deployment off, spec.template: whole-gpu-converted, 0",
    "Deployment web, spec.template: whole-gpu-converted, 2",
    "Job once, spec.template: whole-gpu-converted, 1",
    "Pod bound: own-share, 1",
    "Pod converted: own-share, 1",
    "Pod pinned: node-name-set, 1",
    "ReplicaSet alone, spec.template: whole-gpu-converted, 1",
    "StatefulSet set, spec.template: whole-gpu-converted, 1",
    "Workflow flow, by its newest pod step: own-share, 1",
]
PY_TORCH = [
    "PyTorchJob job, spec.pytorchReplicaSpecs.Master.template: distributed, 1",
    "PyTorchJob job, spec.pytorchReplicaSpecs.Worker.template: distributed, 2",
]


@pytest.fixture(scope="module")
def more_controllers(plane: ControlPlane, controllers: None) -> Iterator[None]:
    assets = needed_assets()
    with controller_manager(assets, plane, MORE_CONTROLLERS):
        yield


@pytest.fixture
async def team(
    plane: ControlPlane, admin: Administrator, more_controllers: None, tmp_path: Path
) -> AsyncIterator[None]:
    """Workloads and pods that were created under the webhook, and a namespace without a policy."""
    plain = {"kind": "Namespace", "metadata": {"name": PLAIN}}
    await ensure_namespaces(admin.client, HALF, managed_namespace(OTHER, gpu_fraction="0.5"), plain)
    await define(admin, JOBS)
    try:
        async with installed(plane, admin.client, tmp_path, HALF):
            await create_all(admin)
        yield
    finally:
        for group, resource in TYPES:
            await delete_all(admin, f"/apis/{group}/v1/namespaces/{TEAM}/{resource}")
        await delete_all(admin, JOBS_PATH)
        for namespace in (TEAM, OTHER, PLAIN):
            await delete_all(admin, f"/api/v1/namespaces/{namespace}/pods")
        await admin.delete(JOBS_DEFINITION)
        await until_kind_is_deleted(admin.client, JOBS_DEFINITION)


async def create_all(admin: Administrator) -> None:
    """Create the workloads and pods; wait for the pods of the workloads."""
    for group, resource, kind, name, spec in WORKLOADS:
        await admin.post(
            f"/apis/{group}/v1/namespaces/{TEAM}/{resource}",
            {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": name}, "spec": spec},
        )
    # The controller starts the Job of a schedule that it missed.
    missed = {"status": {"lastScheduleTime": "2026-01-01T00:00:00Z"}}
    await admin.merge(f"/apis/batch/v1/namespaces/{TEAM}/cronjobs/night/status", missed)
    pods = f"/api/v1/namespaces/{TEAM}/pods"
    pinned = bare_pod("pinned")
    pinned["spec"]["nodeName"] = "live-node"
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "flow", "uid": "flow"}
    step = bare_pod("step", ownerReferences=[{**owner, "controller": True}])
    for pod in (bare_pod("converted"), bare_pod("bound"), bare_pod("ended"), pinned, step):
        await admin.post(pods, pod)
    await admin.bind(TEAM, "bound", "live-node")
    await admin.set_status(f"{pods}/ended", {"phase": "Succeeded"})
    await admin.post(f"/api/v1/namespaces/{OTHER}/pods", bare_pod("other"))
    await admin.post(f"/api/v1/namespaces/{PLAIN}/pods", bare_pod("plain"))
    job = py_torch_job(TEMPLATE, {"Master": 1, "Worker": 2})
    made = await admin.post(JOBS_PATH, without_namespace(job.manifest))
    for _, pod in job.pods:
        pod["metadata"]["ownerReferences"][0]["uid"] = made["metadata"]["uid"]
        await admin.post(pods, without_namespace(pod))

    async def created() -> bool:
        listed = (await admin.read(pods))["items"]
        return len(listed) == 5 + 3 + 6

    await until(created, "every workload has its pods")


def without_namespace(item: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in item["metadata"].items() if key != "namespace"}
    return {**item, "metadata": metadata}


async def answers(admin: Administrator, path: str) -> bool:
    with contextlib.suppress(ApiError):
        await admin.read(path)
        return True
    return False


async def delete_all(admin: Administrator, path: str) -> None:
    params = {"propagationPolicy": "Background", "gracePeriodSeconds": "0"}
    await admin.client.request("DELETE", path, params=params)


def explainer() -> Explainer:
    policies = {}
    for name in (TEAM, OTHER):
        policy = NamespacePolicy.from_labels(name, HALF["metadata"]["labels"])
        assert policy is not None
        policies[name] = policy
    return Explainer("default", policies, DecisionSettings())


def lines(result: LiveWorkloads) -> list[str]:
    """Return title, reason and number of pods of each item."""
    return [
        f"{item.pod.title}: {item.mutation.decision.reason.code}, {item.running and item.running.pods}"
        for item in result.items
        if isinstance(item, ExplainedPod)
    ]


async def test_workloads_and_pods_of_one_and_of_all_namespaces(team: None, admin: Administrator) -> None:
    result = await live_workloads(admin.client, explainer(), namespaces=[TEAM])
    assert lines(result) == sorted([*IN_TEAM, *PY_TORCH])
    assert result.notes == ["left out: 1 pod that has ended"]
    ranks = [item for item in result.items if isinstance(item, ExplainedPod) and is_rank(item)]
    assert [item.running and item.running.pods for item in ranks] == [1, 2]
    by_name = {item.pod.name: item for item in result.items if isinstance(item, ExplainedPod)}
    for name in ("converted", "bound", "step"):
        earlier = by_name[name].earlier
        assert earlier is not None, name
        assert (earlier.reason, earlier.is_current) == ("whole-gpu-converted", True), name
    web = by_name["web"].running
    assert web is not None
    assert str(web) == "1 GPU"  # two pods, which the webhook gave half a GPU each

    result = await live_workloads(admin.client, explainer(), namespaces=None)
    assert lines(result) == ["Pod other: own-share, 1", *sorted([*IN_TEAM, *PY_TORCH])]
    assert any(note.startswith("left out: the objects of ") for note in result.notes)
    plain = await live_workloads(admin.client, explainer(), namespaces=[PLAIN])
    assert lines(plain) == ["Pod plain: not-managed, 1"]

    # `as_new` tells a binding from a node of the creator by field management, which has no part in a binding.
    owners = {}
    for name in ("bound", "pinned"):
        pod = await admin.read(f"/api/v1/namespaces/{TEAM}/pods/{name}")
        assert pod["spec"]["nodeName"] == "live-node"
        entries = [entry for entry in pod["metadata"]["managedFields"] if "subresource" not in entry]
        owners[name] = json.dumps(entries).count('"f:nodeName"')
    assert owners == {"bound": 0, "pinned": 1}
