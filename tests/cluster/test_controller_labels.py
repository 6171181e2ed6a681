"""The labels that `explain` adds to a workload's pod are those that the workload's controller adds."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.administrator import Administrator
from tests.support.cluster_webhook import kubectl
from tests.support.control_plane import ControlPlane, controller_manager
from tests.support.control_plane_fixtures import needed_assets
from tests.support.kube_objects import pod
from tests.support.waiting import until
from webhook.policy.templates import WORKLOADS, find_pods

NAMESPACE = "controller-labels"
STAND_INS = ("hash", "uid")
"""Parts of the keys of labels whose values exist only in a cluster."""

TEMPLATE = {
    "metadata": {"labels": {"app": "labelled"}},
    "spec": {"containers": [{"name": "main", "image": "example.invalid/image"}], "tolerations": [{"operator": "Exists"}]},
}  # fmt: skip
ONCE = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}
SELECTED = {"selector": {"matchLabels": {"app": "labelled"}}, "template": TEMPLATE}
INDEXED = {"completionMode": "Indexed", "completions": 1, "template": ONCE}
SPECS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deployment": ("Deployment", "apps/v1", SELECTED),
    "replica-set": ("ReplicaSet", "apps/v1", SELECTED),
    "stateful-set": ("StatefulSet", "apps/v1", SELECTED),
    "ordinals": ("StatefulSet", "apps/v1", {**SELECTED, "ordinals": {"start": 3}}),
    "daemon-set": ("DaemonSet", "apps/v1", SELECTED),
    "job": ("Job", "batch/v1", {"template": ONCE}),
    "indexed-job": ("Job", "batch/v1", INDEXED),
    "cron-job": ("CronJob", "batch/v1", {"schedule": "0 * * * *", "jobTemplate": {"spec": {"template": ONCE}}}),
    "replication-controller": ("ReplicationController", "v1", {"template": TEMPLATE}),
}  # fmt: skip


@pytest.fixture
def more_controllers(plane: ControlPlane, controllers: None) -> Iterator[None]:
    assets = needed_assets()
    names = ("daemonset-controller", "cronjob-controller", "replicationcontroller-controller")
    with controller_manager(assets, plane, names):
        yield


@pytest.mark.kubernetes(1, 33)  # a StatefulSet without serviceName
async def test_labels_of_every_kind(
    plane: ControlPlane, admin: Administrator, more_controllers: None
) -> None:
    assert {kind for kind, _, _ in SPECS.values()} == WORKLOADS.keys() - {"Pod", "PodTemplate"}
    await admin.ensure({"kind": "Namespace", "metadata": {"name": NAMESPACE}})
    await admin.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "labels-node"}})
    metadata = {"namespace": NAMESPACE}
    objects = [
        {"apiVersion": version, "kind": kind, "metadata": {**metadata, "name": name}, "spec": spec}
        for name, (kind, version, spec) in SPECS.items()
    ]
    applied = await kubectl(
        plane, "apply", "-f", "-", manifest={"apiVersion": "v1", "kind": "List", "items": objects}
    )
    assert applied.status == 0, applied.errors
    try:
        # The controller starts the Job of a schedule that it missed.
        missed = json.dumps({"status": {"lastScheduleTime": "2026-01-01T00:00:00Z"}})
        patch = f"patch cronjob cron-job -n {NAMESPACE} --subresource=status --type=merge".split()
        assert (await kubectl(plane, *patch, "-p", missed)).status == 0
        for item in objects:
            await compare(admin, item)
    finally:
        kinds = "deployment,replicaset,statefulset,daemonset,cronjob,job,replicationcontroller,pod"
        await kubectl(
            plane, "delete", kinds, "--all", "-n", NAMESPACE, "--wait=false", "--force", "--cascade=orphan"
        )


async def compare(admin: Administrator, item: dict[str, Any]) -> None:
    """Compare the labels of a workload's stored pod with those of the pod that `explain` assumes."""
    name = item["metadata"]["name"]

    async def stored_pods() -> list[dict[str, Any]]:
        pods = (await admin.read(f"/api/v1/namespaces/{NAMESPACE}/pods"))["items"]
        return [pod for pod in pods if pod["metadata"]["name"].startswith(f"{name}-")]

    stored = (await until(stored_pods, f"{name} has a pod"))[0]["metadata"]["labels"]
    (template,) = find_pods(item)
    assumed = template.as_created(NAMESPACE)["metadata"].get("labels", {})
    assert assumed.keys() == stored.keys(), name
    for key, value in assumed.items():
        if any(part in key for part in STAND_INS):
            continue
        if template.kind == "CronJob" and key.endswith("job-name"):
            assert stored[key].rpartition("-")[0] == value.rpartition("-")[0] == name
            assert stored[key].rpartition("-")[2].isdigit()
        else:
            assert stored[key] == value, (name, key)


async def test_a_binding_is_told_from_a_node_of_the_creator_by_field_management(admin: Administrator) -> None:
    """`as_new` of `explain --live` relies on it: a binding has no part in field management."""
    owners = {}
    for name, node in (("bound", None), ("pinned", "live-node")):
        made = pod(name, node=node)
        await admin.create({**made, "status": {}})
        if node is None:
            await admin.bind("research", name, "live-node")
        stored = await admin.read(f"/api/v1/namespaces/research/pods/{name}")
        assert stored["spec"]["nodeName"] == "live-node"
        entries = [entry for entry in stored["metadata"]["managedFields"] if "subresource" not in entry]
        owners[name] = json.dumps(entries).count('"f:nodeName"')
    assert owners == {"bound": 0, "pinned": 1}
