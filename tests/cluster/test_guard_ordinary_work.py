"""What the guard on deny lets through: users, operators, controllers, and KAI itself as it was recorded."""

import json
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from service.documents import DocumentError, flatten_lists, load_file
from tests.support.control_plane import ControlPlane
from tests.support.guard import ENFORCED
from tests.support.guard_pod_groups import STARTED
from tests.support.guard_requests import admitted, changes, refused
from tests.support.guarded_objects import ALICE, STRATEGIC, Item, bare, full, store, stored, workload
from tests.support.kube_user import Asker, account, where
from tests.support.pods import folder_from
from tests.support.yaml_text import given


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def nothing_left(guarded: ControlPlane) -> AsyncIterator[None]:
    """Remove what controllers made of the tests' workloads; no garbage collector runs here."""
    yield
    async with Asker(guarded) as asking:
        for collection in ("apps/v1/{}/replicasets", "apps/v1/{}/statefulsets", "batch/v1/{}/jobs"):
            await asking.remove("/apis/" + collection.format(f"namespaces/{ENFORCED}"))
        await asking.remove(f"/api/v1/namespaces/{ENFORCED}/pods")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def owners(guarded: ControlPlane) -> AsyncIterator[None]:
    deployment, job = (workload(kind, "held") for kind in ("Deployment", "Job"))
    job["spec"]["suspend"] = True
    async with stored(guarded, [deployment, job]):
        yield


def corpus() -> list[Item]:
    """Return the objects of other projects' manifests whose kinds every API server has."""
    folder = folder_from("KAISHARE_CORPUS", "manifests written by others")
    served = ("Deployment", "Job", "StatefulSet", "ConfigMap", "Service", "Pod", "DaemonSet", "CronJob")
    items: list[Item] = []
    for file in sorted(folder.glob("*.yaml")):
        try:
            documents = flatten_lists(load_file(file))
        except DocumentError:
            continue
        items += [
            json.loads(json.dumps(document, default=str).replace("default-queue", "team-a"))
            for document in documents
            if isinstance(document, dict) and document.get("kind") in served
        ]
    return items


async def test_manifests_of_others_are_applied_labelled_scaled_and_deleted(asker: Asker) -> None:
    # KAI copies the words of a workload to its PodGroup, where the guard judges the effect.
    labels = {"gpu-type": "h100", "kai.scheduler/queue": "team-b", "priorityClassName": "inference"}
    notes = {"nvidia.com/note": "x", "gpu-fraction": "0.5", STARTED: "2099-01-01T00:00:00Z"}
    foreign = changes({**labels, "project": "x"}, {**notes, "run.ai/project": "y"})
    count = 0
    for number, item in enumerate(corpus()):
        item["metadata"] = {**item["metadata"], "namespace": ENFORCED, "name": f"corpus-{number}"}
        item["metadata"].pop("generateName", None)
        answer = await asker.create(item, user=ALICE)
        assert "kaishare-guard" not in answer.message
        if answer.status != 201:  # a manifest of an older Kubernetes, or a part of one
            continue
        count += 1
        own = changes({"gpu-type": "h100"}, {"nvidia.com/note": "x"})
        requests = [asker.merge(where(item), own if item["kind"] == "Pod" else foreign, user=ALICE)]
        if item["kind"] in ("Deployment", "StatefulSet"):
            restart = {"spec": {"template": {"metadata": {"annotations": {"example.com/restarted": "now"}}}}}
            requests += [
                asker.merge(where(item) + "/scale", {"spec": {"replicas": 0}}, user=ALICE),
                asker.merge(where(item), restart, user=ALICE),
            ]
        for request in requests:
            answered = await request
            assert answered.status == 200, answered.message
        await asker.remove(where(item))
    assert count > 20


async def test_generated_names_are_judged_as_others(asker: Asker) -> None:
    item = bare(ENFORCED)
    item["metadata"] |= {"generateName": "any-"}
    del item["metadata"]["name"]
    path = f"/api/v1/namespaces/{ENFORCED}/pods"
    for _ in range(20):
        await admitted(asker.send("POST", path, item, user=ALICE, dry_run=True))
    item["metadata"]["annotations"]["received-resource-type"] = "x"
    await refused(asker.send("POST", path, item, user=ALICE, dry_run=True), "received-resource-type")


GATED: Final = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
OPERATORS: Final[dict[str, tuple[str, str, Item]]] = given("""
Kueue admits a Job:
  - kueue-system:kueue-controller-manager
  - Job held
  - metadata: {labels: {kueue.x-k8s.io/queue-name: a}, annotations: {kueue.x-k8s.io/x: b}}
    spec: {suspend: false, template: {spec: {nodeSelector: {pool: a}}}}
Kueue opens a pod's gate:
  - kueue-system:kueue-controller-manager
  - Pod gated
  - metadata: {labels: {kueue.x-k8s.io/managed: "true"}}
    spec: {schedulingGates: null, nodeSelector: {pool: a}}
KubeRay switches a pod's service:
  - ray-system:kuberay-operator
  - Pod full
  - metadata: {labels: {ray.io/serve: "false", ray.io/originated-from-cr-name: a}}
Spark marks an executor: ["$ENFORCED:spark", Pod full, {metadata: {labels: {spark-exec-inactive: "true"}}}]
a training operator adopts a pod:
  - kubeflow:training-operator
  - Pod full
  - metadata:
      ownerReferences: [{apiVersion: kubeflow.org/v1, kind: PyTorchJob, name: a, uid: b, controller: true}]
the garbage collector waits for dependents:
  ["kube-system:generic-garbage-collector", Deployment held, {metadata: {finalizers: [foregroundDeletion]}}]
the Job controller counts pods:
  - kube-system:job-controller
  - Job held /status
  - {metadata: {annotations: {mine: counted}}, status: {ready: 0}}
an autoscaler scales: ["kube-system:horizontal-pod-autoscaler", Deployment held /scale, {spec: {replicas: 5}}]
a developer debugs a pod:
  - $ENFORCED:alice
  - Pod full /ephemeralcontainers
  - spec: {ephemeralContainers: [{name: debug, image: example.invalid/image}]}
an autoscaler resizes a container:
  ["kube-system:vpa-updater", Pod full /resize, {spec: {containers: [{name: main, resources: {}}]}}]
""", ENFORCED=ENFORCED)  # fmt: skip
"""Namespace and name of an account, the object with its subresource, and the patch."""


@pytest.mark.parametrize("writing", OPERATORS)
async def test_other_programs_write_to_objects_with_every_key(
    asker: Asker, pods: None, owners: None, writing: str
) -> None:
    user, target, patch = OPERATORS[writing]
    kind, name, *subresource = target.split()
    gated = bare(ENFORCED, "gated")
    gated["spec"] |= GATED
    item = gated if name == "gated" else full(ENFORCED) if kind == "Pod" else workload(kind, name)
    if name == "gated":
        await store(asker, gated)
    answer = await asker.send(
        "PATCH",
        where(item) + "".join(subresource),
        patch,
        user=account(*user.split(":")),
        content_type=STRATEGIC,
        dry_run=True,
    )
    if answer.status == 404 and subresource == ["/resize"]:
        pytest.skip("NOT VERIFIED: the API server has no subresource resize")
    assert answer.status == 200, answer.message
    if name == "gated":
        await asker.remove(where(gated))
