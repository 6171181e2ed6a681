"""What the guard on deny lets through: users, operators, controllers, and KAI itself as it was recorded."""

import copy
import json
from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest
import pytest_asyncio

from kai.key_classes import is_written_by_kai_only
from service.documents import DocumentError, flatten_lists
from service.yaml_documents import load_file
from tests.support.administrator import admissible
from tests.support.control_plane import ControlPlane
from tests.support.guard import BINDER, ENFORCED, GUARD, guard_on, host
from tests.support.guarded_objects import (
    ALICE,
    RESTORE,
    STRATEGIC,
    Item,
    assert_refused,
    bare,
    every_owner,
    every_pod,
    full,
    store,
    stored,
    workload,
)
from tests.support.kube_user import Asker, account, where
from tests.support.pods import folder_from
from tests.support.waiting import until


@pytest.fixture(scope="module")
def guarded(plane: ControlPlane) -> Iterator[ControlPlane]:
    with guard_on(plane, GUARD / "deny"):
        yield plane


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def nothing_left(guarded: ControlPlane) -> AsyncIterator[None]:
    """Remove what controllers made of the tests' workloads; no garbage collector runs here."""
    yield
    async with Asker(guarded) as asking:
        for collection in ("apps/v1/{}/replicasets", "apps/v1/{}/statefulsets", "batch/v1/{}/jobs"):
            await asking.remove("/apis/" + collection.format(f"namespaces/{ENFORCED}"))
        await asking.remove(f"/api/v1/namespaces/{ENFORCED}/pods")


@pytest.fixture
async def asker(guarded: ControlPlane) -> AsyncIterator[Asker]:
    async with Asker(guarded) as asking:
        yield asking


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pods(guarded: ControlPlane) -> AsyncIterator[None]:
    async with stored(guarded, every_pod()):
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def owners(guarded: ControlPlane) -> AsyncIterator[None]:
    async with stored(guarded, every_owner()):
        yield


# An ordinary user's day.


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
    foreign = {
        "metadata": {"labels": {"team": "a", "gpu-type": "h100"}, "annotations": {"nvidia.com/note": "x"}}
    }
    count = 0
    for number, item in enumerate(corpus()):
        item["metadata"] = {**item["metadata"], "namespace": ENFORCED, "name": f"corpus-{number}"}
        item["metadata"].pop("generateName", None)
        answer = await asker.create(item, user=ALICE)
        assert "kaishare-guard" not in answer.message
        if answer.status != 201:  # a manifest of an older Kubernetes, or a part of one
            continue
        count += 1
        requests = [asker.merge(where(item), foreign, user=ALICE)]
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


async def test_a_deployment_is_rolled_out_scaled_to_zero_and_given_another_priority(
    asker: Asker, controllers: None
) -> None:
    """The Deployment controller copies annotations of the Deployment to its ReplicaSets."""
    item = workload("Deployment", "rolled")
    item["metadata"]["labels"]["priorityClassName"] = "train"
    item["metadata"]["annotations"] = {"kai.scheduler/segment-size": "2", "mine": "a"}
    item["spec"]["template"]["metadata"]["labels"]["kai.scheduler/queue"] = "team-a"
    assert (await asker.create(item, user=ALICE)).status == 201
    sets = f"/apis/apps/v1/namespaces/{ENFORCED}/replicasets"

    async def replica_sets(count: int) -> list[Item]:
        async def listed() -> list[Item]:
            answer = await asker.send("GET", sets, labelSelector="app=rolled")
            items: list[Item] = answer.body["items"]
            return items if len(items) == count and all("segment-size" in str(each) for each in items) else []

        made: list[Item] = await until(listed, f"{count} ReplicaSets")
        return made

    try:
        await replica_sets(1)
        restart = {"spec": {"template": {"metadata": {"annotations": {"example.com/restarted": "now"}}}}}
        assert (await asker.merge(where(item), restart, user=ALICE)).status == 200
        await replica_sets(2)
        other = {"metadata": {"labels": {"priorityClassName": "inference"}, "annotations": {"mine": "b"}}}
        segment = {"metadata": {"annotations": {"kai.scheduler/segment-size": "4"}}}
        assert (await asker.merge(where(item), other, user=ALICE)).status == 403
        assert (
            await asker.merge(where(item) + "/scale", {"spec": {"replicas": 0}}, user=ALICE)
        ).status == 200
        assert (await asker.merge(where(item), other, user=ALICE)).status == 200
        assert (await asker.merge(where(item), segment, user=ALICE)).status == 200
        assert (
            await asker.merge(where(item) + "/scale", {"spec": {"replicas": 1}}, user=ALICE)
        ).status == 200

        async def is_copied() -> bool:
            return any(
                each["metadata"]["annotations"].get("kai.scheduler/segment-size") == "4"
                and each["spec"]["replicas"] == 1
                for each in await replica_sets(2)
            )

        await until(is_copied, "the ReplicaSet has the new annotation and a pod again")
    finally:
        await asker.remove(where(item))
        for each in (await asker.send("GET", sets, labelSelector="app=rolled")).body["items"]:
            await asker.remove(f"{sets}/{each['metadata']['name']}")
        path = f"/api/v1/namespaces/{ENFORCED}/pods"
        await asker.send("DELETE", path, labelSelector="app=rolled", gracePeriodSeconds="0")


# Writes of other programs.

GATED: Final = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
OPERATORS: Final[dict[str, tuple[str, str, Item]]] = {
    "Kueue admits a Job": (
        account("kueue-system", "kueue-controller-manager"),
        "Job full-idle",
        {
            "metadata": {
                "labels": {"kueue.x-k8s.io/queue-name": "a"},
                "annotations": {"kueue.x-k8s.io/x": "b"},
            },
            "spec": {"suspend": False, "template": {"spec": {"nodeSelector": {"pool": "a"}}}},
        },
    ),
    "Kueue stops a Job": (
        account("kueue-system", "kueue-controller-manager"),
        "Job full-busy",
        {"spec": {"suspend": True}},
    ),
    "Kueue opens a pod's gate": (
        account("kueue-system", "kueue-controller-manager"),
        "Pod gated",
        {
            "metadata": {"labels": {"kueue.x-k8s.io/managed": "true"}},
            "spec": {"schedulingGates": None, "nodeSelector": {"pool": "a"}},
        },
    ),
    "KubeRay switches a pod's service": (
        account("ray-system", "kuberay-operator"),
        "Pod full",
        {"metadata": {"labels": {"ray.io/serve": "false", "ray.io/originated-from-cr-name": "a"}}},
    ),
    "Spark marks an executor": (
        account(ENFORCED, "spark"),
        "Pod full",
        {"metadata": {"labels": {"spark-exec-inactive": "true"}}},
    ),
    "a training operator adopts a pod": (
        account("kubeflow", "training-operator"),
        "Pod full",
        {
            "metadata": {
                "ownerReferences": [
                    {
                        "apiVersion": "kubeflow.org/v1",
                        "kind": "PyTorchJob",
                        "name": "a",
                        "uid": "b",
                        "controller": True,
                    }
                ]
            }
        },
    ),
    "the garbage collector waits for dependents": (
        account("kube-system", "generic-garbage-collector"),
        "Deployment full-busy",
        {"metadata": {"finalizers": ["foregroundDeletion"]}},
    ),
    "Argo CD tracks a workload": (
        account("argocd", "argocd-application-controller"),
        "Deployment full-busy",
        {
            "metadata": {
                "labels": {"app.kubernetes.io/instance": "a"},
                "annotations": {"argocd.argoproj.io/x": "a"},
            }
        },
    ),
    "the Job controller counts pods": (
        account("kube-system", "job-controller"),
        "Job full-busy /status",
        {"metadata": {"annotations": {"mine": "counted"}}, "status": {"ready": 0}},
    ),
    "a network plugin writes a pod's address": (
        account("kube-system", "cni"),
        "Pod full",
        {"metadata": {"annotations": {"cni.example.com/podIP": "10.0.0.1/32"}}},
    ),
    "an autoscaler scales": (
        account("kube-system", "horizontal-pod-autoscaler"),
        "Deployment full-busy /scale",
        {"spec": {"replicas": 5}},
    ),
    "kubectl debug adds a container": (
        ALICE,
        "Pod full /ephemeralcontainers",
        {"spec": {"ephemeralContainers": [{"name": "debug", "image": "example.invalid/image"}]}},
    ),
    "an autoscaler resizes a container": (
        account("kube-system", "vpa-updater"),
        "Pod full /resize",
        {"spec": {"containers": [{"name": "main", "resources": {}}]}},
    ),
}


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
        "PATCH", where(item) + "".join(subresource), patch, user=user, content_type=STRATEGIC, dry_run=True
    )
    if answer.status == 404 and subresource == ["/resize"]:
        pytest.skip("NOT VERIFIED: the API server has no subresource resize")
    assert answer.status == 200, answer.message
    if name == "gated":
        await asker.remove(where(gated))


# Costs.


async def test_a_thousand_labels_and_annotations_cost_no_error(asker: Asker) -> None:
    """The API server ends an expression that costs too much, and the policy would refuse the request."""
    many = {f"example.com/{'k' * 50}-{number:04}": "v" * 60 for number in range(999)}
    own = {f"kai.scheduler/{'k' * 50}-{number:04}": "v" * 60 for number in range(999)}
    item = bare(ENFORCED, "many")
    item["metadata"]["labels"] = {"kai.scheduler/queue": "team-a", **many}
    item["metadata"]["annotations"] = {"mine": "a", **many}
    assert (await asker.create(item, user=ALICE)).status == 201
    changed = dict.fromkeys(many, "w")
    answer = await asker.merge(
        where(item), {"metadata": {"labels": changed, "annotations": changed}}, user=ALICE, dry_run=True
    )
    assert answer.status == 200, answer.message
    replaced = {**dict.fromkeys(many), **own}
    answer = await asker.merge(
        where(item), {"metadata": {"labels": replaced, "annotations": replaced}}, user=ALICE, dry_run=True
    )
    assert_refused({"merge": answer}, "label kai.scheduler/kkk", RESTORE)
    for kind in ("Deployment", "ConfigMap"):
        large = workload(kind, "large")
        large["metadata"] |= {"labels": many, "annotations": many}
        created = await asker.create(large, user=ALICE, dry_run=True)
        assert created.status == 201, created.message
    await asker.remove(where(item))


# What was recorded of running KAI.

RELEASES: Final = ("kai-live-v0.9.8", "kai-live-v0.13.4", "kai-live-v0.17.0")


def recordings(*beginnings: str) -> list[Item]:
    """Return recorded objects of three releases of KAI as they can be stored in the enforced namespace."""
    folder = folder_from("KAISHARE_FIXTURES", "the objects recorded from live runs")
    items: list[Item] = []
    for file in sorted(file for release in RELEASES for file in (folder / release).glob("*.json")):
        if not file.name.startswith(beginnings):
            continue
        item = json.loads(file.read_text())
        kept = ("labels", "annotations")
        item["metadata"] = {
            "name": f"recorded-{len(items)}-{item['metadata']['name']}",
            "namespace": ENFORCED,
            **{name: value for name, value in item["metadata"].items() if name in kept},
        }
        item["metadata"].setdefault("labels", {})["kai.scheduler/queue"] = "team-a"
        items.append(admissible(item) if item["kind"] == "Pod" else item)
    return items


async def test_kai_writes_recorded_pods_and_their_users_only_what_was_theirs(asker: Asker) -> None:
    recorded = recordings("pod-")
    written = 0
    for item in recorded:
        item["spec"].pop("nodeName", None)
        own = copy.deepcopy(item)
        for kind in ("labels", "annotations"):
            entries = own["metadata"].setdefault(kind, {})
            for key in [key for key in entries if is_written_by_kai_only(key)]:
                del entries[key]
        answer = await asker.create(own, user=ALICE)
        assert answer.status == 201, (item["metadata"]["name"], answer.message)
        metadata = {"metadata": {kind: item["metadata"].get(kind, {}) for kind in ("labels", "annotations")}}
        if own["metadata"]["labels"] != item["metadata"]["labels"]:
            written += 1
            tried = await asker.merge(where(item), metadata, user=ALICE)
            assert_refused({"merge": tried}, "only KAI may change this")
        for writer in (account("kai-scheduler", "binder"), account("kai-scheduler", "pod-grouper")):
            answer = await asker.merge(where(item), metadata, user=writer)
            assert answer.status == 200, answer.message
        finalizer = {"metadata": {"finalizers": ["example.com/stay"]}}
        assert (await asker.merge(where(item), finalizer, user=ALICE)).status == 200
        assert (await asker.merge(where(item), {"metadata": {"finalizers": None}}, user=ALICE)).status == 200
        await asker.remove(where(item))
    assert written > 5
    assert len(recorded) > 15


async def test_kai_writes_recorded_config_maps_and_users_do_not(asker: Asker) -> None:
    recorded = recordings("configmap-")
    for item in recorded:
        item["metadata"]["name"] = item["metadata"]["name"].split("-", 2)[2]  # the end of the name matters
        item.setdefault("data", {"NVIDIA_VISIBLE_DEVICES": "all"})  # KAI creates the one of `envFrom` empty
        assert_refused({"create": await asker.create(item, user=ALICE, dry_run=True)}, "use another name")
        answer = await asker.create(item, user=BINDER, dry_run=True)
        assert answer.status == 201, answer.message
    assert len(recorded) >= 5


async def test_kais_reservation_pods_are_not_guarded(asker: Asker) -> None:
    space = "kai-resource-reservation"
    await asker.apply(host(space, None))
    folder = folder_from("KAISHARE_FIXTURES", "the objects recorded from live runs")
    for release in RELEASES:
        for file in (folder / release).glob("reservation-pod*.json"):
            item = admissible(json.loads(file.read_text()))
            kept = ("name", "namespace", "labels", "annotations")
            item["metadata"] = {key: item["metadata"][key] for key in kept if key in item["metadata"]}
            assert item["metadata"]["labels"]["app"] == "kai-resource-reservation"
            answer = await asker.create(item, user=BINDER, dry_run=True)
            assert answer.status == 201, answer.message
