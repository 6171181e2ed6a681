"""What the guard on deny lets through: users, operators, controllers, and KAI and vCluster as they were recorded."""

import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from service.documents import DocumentError, flatten_lists, load_file
from tests.support.administrator import admissible
from tests.support.control_plane import ControlPlane
from tests.support.guard import (
    BINDER,
    ENFORCED,
    GARBAGE_COLLECTOR,
    HOST,
    POD_GROUPER,
    SCHEDULER,
    SYNCER,
    synced_pod,
)
from tests.support.guard_pod_groups import RELEASES, STARTED, count
from tests.support.guarded_objects import (
    ALICE,
    STRATEGIC,
    Item,
    admitted,
    assert_refused,
    bare,
    changes,
    full,
    refused,
    store,
    stored,
    workload,
)
from tests.support.kube_user import Answer, Asker, account, where
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


def recorded(name: str) -> dict[str, Any]:
    path = folder_from("KAISHARE_FIXTURES", "the objects recorded from live runs") / f"{name}.json"
    document: dict[str, Any] = json.loads(Path(path).read_text())
    return document


def as_sent(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded pod without the fields that the API server and the scheduler wrote."""
    sent = admissible(pod)
    kept = ("name", "namespace", "labels", "annotations")
    sent["metadata"] = {key: value for key, value in pod["metadata"].items() if key in kept}
    sent["spec"].pop("nodeName", None)
    return copy.deepcopy(sent)


async def put(asker: Asker, target: dict[str, Any], user: str) -> Answer:
    """Write a recorded pod's labels and annotations as the syncer does: the whole object, at its version."""
    body = (await admitted(asker.send("GET", where(target)))).body
    for kind in ("labels", "annotations"):
        body["metadata"][kind] = target["metadata"].get(kind, {})
    return await asker.send("PUT", where(target), body, user=user)


LIVE, RUN = "vcluster-live-v0.36.1", "vcluster"


CREATED = (
    *(f"{LIVE}/pod-of-deployment.host", f"{LIVE}/pod-of-job.host", f"{LIVE}/pod-mutated.host.1-created"),
    *(f"{RUN}/{name}.host" for name in ("a_setowner_true", "b_create", "b_longname_create", "d1_create")),
    *(f"{RUN}/{name}.host" for name in ("d2_create_spoofed", "d3_create")),
)


@pytest.mark.parametrize("name", CREATED)
async def test_pods_that_the_syncer_creates_are_admitted(asker: Asker, name: str) -> None:
    await admitted(asker.create(as_sent(recorded(name)), user=SYNCER, dry_run=True))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{LIVE}/pod.host.1-created", f"{LIVE}/pod.host.2-running"),
        (f"{LIVE}/pod-spoofed.host.1-created", f"{LIVE}/pod-spoofed.host.2-settled"),
        (f"{RUN}/a_create.host", f"{RUN}/a_settled.host"),
        (f"{RUN}/c_create.host", f"{RUN}/c_settled.host"),
    ],
)
async def test_updates_of_the_syncer_are_admitted(asker: Asker, before: str, after: str) -> None:
    pod, settled = as_sent(recorded(before)), recorded(after)
    for sent in (pod, settled):
        sent["metadata"]["labels"].setdefault("kai.scheduler/queue", "team-a")  # the spoofed pod had none
    await admitted(asker.create(pod, user=SYNCER))
    answer = await put(asker, settled, SYNCER)
    await asker.remove(where(pod))
    assert answer.status == 200, answer.message
    assert answer.body["metadata"]["labels"] == settled["metadata"]["labels"]


@pytest.mark.parametrize("mark", [{}, {"vcluster.loft.sh/managed-by": "team-a"}])
async def test_a_pods_whole_life_with_kai_passes(asker: Asker, mark: dict[str, str]) -> None:
    moments = [
        recorded(f"kai-live-v0.13.4/pod-fraction.{moment}")
        for moment in ("1-admitted", "2-grouped", "3-reserved", "4-bound")
    ]
    for pod in moments:
        pod["metadata"]["namespace"] = HOST
        pod["metadata"]["labels"] |= mark
    first, *later = moments
    await admitted(asker.create(as_sent(first), user=SYNCER))
    for pod, writer in zip(later, (POD_GROUPER, BINDER, BINDER), strict=True):
        if mark:
            await refused(put(asker, pod, SYNCER), "only KAI changes this")
        await admitted(put(asker, pod, writer))
    await asker.remove(where(first))


async def test_a_tenants_edits_of_a_running_pod_are_refused(asker: Asker) -> None:
    pod = as_sent(recorded(f"{RUN}/a_settled.host"))
    await admitted(asker.create(pod, user=SYNCER))
    edits = recorded(f"{RUN}/e_after_edits.host")
    await refused(put(asker, edits, SYNCER), "only KAI changes this on an existing pod")
    await admitted(put(asker, recorded(f"{RUN}/f_after_host_change.host"), BINDER))
    await asker.remove(where(pod))


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("vsched-pod-default-scheduler.host", "set spec.schedulerName"),
        ("vsched-pod-kai-scheduler.host", "spec.nodeName bypasses"),
    ],
)
async def test_a_vcluster_with_a_scheduler_of_its_own_cannot_be_guarded(
    asker: Asker, name: str, word: str
) -> None:
    pod = recorded(f"{LIVE}/{name}")
    sent = as_sent(pod)
    sent["metadata"]["namespace"] = HOST
    sent["metadata"]["labels"]["kai.scheduler/queue"] = "team-a"
    sent["spec"]["nodeName"] = pod["spec"]["nodeName"]
    await refused(asker.create(sent, user=SYNCER, dry_run=True), word)


KAIS: Final = {"pod-group-name", "received-resource-type", "kai.scheduler/subgroup-name"}


def recordings(*beginnings: str) -> list[Item]:
    """Return recorded objects of three releases of KAI as they can be stored in the enforced namespace."""
    folder = folder_from("KAISHARE_FIXTURES", "the objects recorded from live runs")
    items: list[Item] = []
    for file in sorted(
        file for release in RELEASES for file in (folder / f"kai-live-v{release}").glob("*.json")
    ):
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
            for key in entries.keys() & KAIS or [key for key in entries if key.startswith("runai-gpu-group")]:
                del entries[key]
        answer = await asker.create(own, user=ALICE)
        assert answer.status == 201, (item["metadata"]["name"], answer.message)
        metadata = {"metadata": {kind: item["metadata"].get(kind, {}) for kind in ("labels", "annotations")}}
        if own["metadata"]["labels"] != item["metadata"]["labels"]:
            written += 1
            tried = await asker.merge(where(item), metadata, user=ALICE)
            assert_refused({"merge": tried}, "only KAI changes this")
        for writer in (account("kai-scheduler", "binder"), account("kai-scheduler", "pod-grouper")):
            answer = await asker.merge(where(item), metadata, user=writer)
            assert answer.status == 200, answer.message
        finalizer = {"metadata": {"finalizers": ["example.com/stay"]}}
        assert (await asker.merge(where(item), finalizer, user=ALICE)).status == 200
        assert (await asker.merge(where(item), {"metadata": {"finalizers": None}}, user=ALICE)).status == 200
        await asker.remove(where(item))
    assert written > 5
    assert len(recorded) > 15


async def test_recorded_pod_groups_are_created_counted_started_and_deleted(asker: Asker) -> None:
    folder = folder_from("KAISHARE_FIXTURES", "the objects recorded from live runs")
    files = [
        file for release in RELEASES for file in (folder / f"kai-live-v{release}").glob("podgroup-*.json")
    ]
    for file in files:
        item = json.loads(file.read_text())
        kept = ("name", "labels", "annotations", "ownerReferences")
        item["metadata"] = {key: item["metadata"][key] for key in kept if key in item["metadata"]}
        item["metadata"]["namespace"] = ENFORCED
        started = item["metadata"]["annotations"].pop(STARTED, None)
        if item["spec"]["queue"] != "team-a":
            await refused(asker.create(item, user=POD_GROUPER), "is not a queue of namespace")
        item["spec"]["queue"] = "team-a"
        await admitted(asker.create(item, user=POD_GROUPER))
        await count(asker, where(item), item["status"]["resourcesStatus"])
        if started:
            change = changes(annotations={STARTED: started})
            await refused(asker.merge(where(item), change, user=POD_GROUPER), "only KAI's scheduler")
            await admitted(asker.merge(where(item), change, user=SCHEDULER))
        await refused(asker.send("DELETE", where(item), user=GARBAGE_COLLECTOR), "delete them first")
        await count(asker, where(item), {})
        await admitted(asker.send("DELETE", where(item), user=GARBAGE_COLLECTOR))
    assert len(files) > 10


LONG_KEY = f"kai.scheduler/{'k' * 63}"


@pytest.mark.parametrize(
    "pod",
    [
        synced_pod("n" * 63, labels={LONG_KEY: "v" * 63}),
        synced_pod("n" * 63, annotations={f"nvidia.com/mig-{'k' * 59}": "\N{GRINNING FACE}" * 2_000}),
        synced_pod("n" * 63, annotations={"gpu-fraction": "\N{GRINNING FACE}" * 2_000}),
        synced_pod("n" * 63, schedulerName="\N{GRINNING FACE}" * 2_000),
        synced_pod("n" * 63, labels={"app": "scaling-pod"}),
    ],
    ids=["key", "value", "share", "scheduler", "app"],
)
async def test_the_message_of_a_refusal_fits_into_an_event(asker: Asker, pod: dict[str, Any]) -> None:
    """vCluster's syncer writes it with these words before it, and the API server takes a note of 1 KiB."""
    answer = await asker.create(pod, user=SYNCER, dry_run=True)
    assert "kaishare-guard: " in answer.message
    assert len(f"Error syncing to host cluster: create object: {answer.message}".encode()) <= 1024
