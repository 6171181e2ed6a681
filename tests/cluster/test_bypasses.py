"""Ways past KAI, tried by a developer with the ClusterRole `edit` on a real API server.

The namespace `team-a` is under enforce with queue-a and the cap 0.5. The webhook serves with its own
configurations (in a nightly run the admission policies decide instead, too), the guard denies, and the cluster's controllers run under their own accounts. KAI itself does not
run: `queue_of` states the pod-grouper's rule, and the tests hold it against what the API server stores.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kai import keys
from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.admission_policies import policies_installed
from tests.support.cluster_webhook import installed, managed_namespace
from tests.support.control_plane import (
    ADMIN_TOKEN,
    CONTROLLERS,
    ControlPlane,
    control_plane,
    controller_manager,
)
from tests.support.control_plane_fixtures import needed_assets
from tests.support.gpu_node import GpuNode
from tests.support.guard import is_refused, put_on, until_all
from tests.support.kube_user import Asker, where
from tests.support.pods import container
from tests.support.waiting import until
from tests.support.yaml_text import given

ALICE = {"user": "alice", "group": "system:authenticated"}
TEAM = "team-a"
NAMESPACES = (
    managed_namespace(TEAM, "queue-a", mode="enforce", gpu_fraction="0.25", max_gpu_fraction="0.5"),
    managed_namespace("team-b", "queue-b", mode="enforce"),
)
NODE = "gpu-node-0"
ALL_CONTROLLERS = (
    *CONTROLLERS,
    "clusterrole-aggregation-controller",  # fills in the rules of the ClusterRole edit
    "daemonset-controller",
    "garbage-collector-controller",
)
PODS = f"/api/v1/namespaces/{TEAM}/pods"
DOCUMENT = Path(__file__).parents[2] / "docs" / "security.md"
_API_VERSIONS = {
    "ConfigMap": "v1",
    "LimitRange": "v1",
    "Pod": "v1",
    "Job": "batch/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "Binding": "v1",
}
Item = dict[str, Any]


POLICIES = pytest.param("policies", marks=[pytest.mark.nightly, pytest.mark.kubernetes(1, 36)])


@pytest.fixture(scope="module", params=["webhook", POLICIES])
def form(request: pytest.FixtureRequest) -> str:
    """What decides about pods."""
    return str(request.param)


@pytest.fixture(scope="module")
def tenancy(form: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Run a separate control plane, because the garbage collector would delete objects of other tests."""
    assets = needed_assets()
    with (
        control_plane(assets, tmp_path_factory.mktemp("tenancy")) as plane,
        controller_manager(assets, plane, ALL_CONTROLLERS),
    ):
        yield plane


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(
    form: str, tenancy: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[None]:
    """The webhook or the policies, the guard, a node and Alice's rights."""
    async with (
        KubeClient(tenancy.access()) as client,
        Asker(tenancy) as asker,
        installed(tenancy, client, tmp_path_factory.mktemp("webhook"), *NAMESPACES)
        if form == "webhook"
        else policies_installed(client, *NAMESPACES),
    ):
        await put_on(asker)
        await until_all(asker, is_refused)
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        await asker.create(node)
        await asker.merge(where(node), {"spec": {"taints": None}})  # of a node that is not ready
        group = "rbac.authorization.k8s.io"
        binding = {
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "alice"}],
        }
        await asker.create(item("RoleBinding", "alice", **binding))

        async def may_write() -> bool:
            answer = await asker.create(item("ConfigMap", "right"), dry_run=True, **ALICE)
            return answer.status == 201

        await until(may_write, "the ClusterRole edit has its rules")
        yield


@pytest.fixture
async def asker(tenancy: ControlPlane, cluster: None) -> AsyncIterator[Asker]:
    async with Asker(tenancy) as asking:
        yield asking


def item(kind: str, name: str, **more: Any) -> Item:
    metadata = {"name": name, "namespace": TEAM, **more.pop("metadata", {})}
    return {"apiVersion": _API_VERSIONS.get(kind, "apps/v1"), "kind": kind, "metadata": metadata, **more}


def pod(
    name: str = "tried", *containers: Item, metadata: Mapping[str, Any] | None = None, **spec: Any
) -> Item:
    spec = {"containers": list(containers) or [container()], **spec}
    return item("Pod", name, metadata=dict(metadata or {}), spec=spec)


def controlled(kind: str, name: str, *containers: Item, metadata: Item | None = None, **spec: Any) -> Item:
    """Return a workload whose pods carry the label app=NAME; `metadata` is that of its pods."""
    metadata = metadata or {}
    template = pod(name, *containers, **spec)
    template["metadata"] = {**metadata, "labels": {"app": name, **metadata.get("labels", {})}}
    own: Item = {"template": {key: template[key] for key in ("metadata", "spec")}}
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
    else:
        own["selector"] = {"matchLabels": {"app": name}}
    return item(kind, name, spec=own | ({"serviceName": "s"} if kind == "StatefulSet" else {}))


def owned(name: str, uid: str, kind: str = "Namespace", version: str = "v1") -> Item:
    return {"ownerReferences": [{"apiVersion": version, "kind": kind, "name": name, "uid": uid}]}


async def queue_of(asker: Asker, kept: Item) -> str:
    """The queue that KAI's pod-grouper takes: the label of the topmost owner first, then the pod's.

    An owner that the pod-grouper may not read ends the chain at the object below (KAI v0.13.4).
    """
    top = kept
    while owners := top["metadata"].get("ownerReferences"):
        version, kind, name = (owners[0][key] for key in ("apiVersion", "kind", "name"))
        if kind == "DaemonSet":
            break
        root = f"/apis/{version}" if "/" in version.strip("/") else "/api/v1"
        place = "" if kind in ("Namespace", "Node") else f"/namespaces/{TEAM}"
        answer = await asker.send("GET", f"{root}{place}/{kind.lower()}s/{name}")
        if answer.status != 200:
            break
        top = answer.body
    labels = [document["metadata"].get("labels", {}) for document in (top, kept)]
    return next((each[keys.QUEUE_LABEL] for each in labels if keys.QUEUE_LABEL in each), "default-queue")


GPU = keys.GPU_RESOURCE
SHARE = {"annotations": {keys.GPU_FRACTION: "0.5"}}
QUEUE_B = {keys.QUEUE_LABEL: "queue-b"}
LARGE = {"annotations": {keys.GPU_FRACTION: "0.95"}}
A_GROUP = {"runai-gpu-group": "x"}
ONE_GPU = {GPU: "1"}

REFUSED: dict[str, tuple[Item, Item, str]] = given("""
another queue: [{labels: {kai.scheduler/queue: queue-b}}, {}, queue-b]
a share above the cap: [{annotations: {gpu-fraction: "0.95"}}, {}, "0.5"]
a share in another unit: [{annotations: {gpu-memory: "2000"}}, {}, use gpu-fraction]
a share on two devices: [{annotations: {gpu-fraction: "0.5", gpu-fraction-num-devices: "2"}}, {}, "0.5"]
a whole GPU above the cap: [{annotations: {kaishare.dev/whole-gpu: "true"}}, {limits: {$GPU: "1"}}, "0.5"]
two whole GPUs: [{}, {limits: {$GPU: "2"}}, "0.5"]
sidecars above the cap:
  - {}
  - requests: {cpu: 1m}
    initContainers: [{name: a, restartPolicy: Always, limits: {$GPU: "1"}}, {name: b, restartPolicy: Always, limits: {$GPU: "1"}}]
  - "0.5"
a MIG device: [{}, {limits: {nvidia.com/mig-1g.5gb: "1"}}, nvidia.com/mig-1g.5gb]
time slices: [{}, {limits: {nvidia.com/gpu.shared: "8"}}, nvidia.com/gpu.shared]
a vGPU: [{}, {limits: {nvidia.com/vgpu: "1"}}, nvidia.com/vgpu]
another vendor's GPU: [{}, {limits: {amd.com/gpu: "1"}}, amd.com/gpu]
an extended resource of DRA: [{}, {limits: {$DRA/gpu.nvidia.com: "8"}}, $DRA/gpu.nvidia.com]
a claim:
  - {}
  - requests: {cpu: 1m}
    claims: [{name: gpu}]
    resourceClaims: [{name: gpu, resourceClaimTemplateName: gpu}]
  - ResourceClaim
another scheduler: [{}, {schedulerName: mine}, mine]
the opt-out: [{labels: {kaishare.dev/inject: "false"}}, {}, kaishare.dev/inject]
a chosen node: [{}, {nodeName: $NODE}, nodeName]
a pod as of a DaemonSet:
  - annotations: {gpu-fraction: "0.5"}
    ownerReferences: [{apiVersion: apps/v1, kind: DaemonSet, name: a, uid: b}]
  - {}
  - DaemonSet
""", GPU=GPU, NODE=NODE, DRA="deviceclass.resource.kubernetes.io")  # fmt: skip
"""Metadata of a pod, its spec with the resources of its container, and a word of the refusal."""
OF_CONTAINERS = ("limits", "requests", "claims")


@pytest.mark.parametrize(
    "attempt",
    [pytest.param(attempt, marks=pytest.mark.kubernetes(1, 34)) if attempt == "a claim" else attempt for attempt in REFUSED],
)  # fmt: skip
async def test_a_developers_bypass_is_refused(asker: Asker, attempt: str) -> None:
    metadata, fields, word = REFUSED[attempt]
    resources = {key: value for key, value in fields.items() if key in OF_CONTAINERS}
    spec = {key: value for key, value in fields.items() if key not in OF_CONTAINERS}
    if "initContainers" in spec:
        spec["initContainers"] = [container(**each) for each in spec["initContainers"]]
    tried = pod("tried", container(**resources), metadata=metadata, **spec)
    answer = await asker.create(tried, **ALICE)
    if answer.status < 300:
        await asker.remove(where(tried))
    assert answer.status == 403, f"stored: {answer.body}"
    assert word in answer.message
    assert (await asker.send("GET", where(tried))).status == 404


async def test_a_developer_creates_no_limit_range_that_gives_gpus_and_binds_no_pod(asker: Asker) -> None:
    limits = {"limits": [{"type": "Container", "default": ONE_GPU}]}
    binding = item("Binding", "any", target={"apiVersion": "v1", "kind": "Node", "name": NODE})
    for answer, what in (
        (await asker.create(item("LimitRange", "tried", spec=limits), **ALICE), "limitranges"),
        (await asker.send("POST", f"{PODS}/any/binding", binding, **ALICE), "pods/binding"),
    ):
        assert (answer.status, f'cannot create resource "{what}"' in answer.message) == (403, True)


async def test_a_pod_whose_owner_is_namespaced_stays_in_its_queue(asker: Asker) -> None:
    """Spark's driver owns its executors: owners of kind Pod are allowed, and their queue is the namespace's."""
    first = await asker.create(pod("driver", metadata=SHARE), **ALICE)
    uid = first.body["metadata"]["uid"]
    second = await asker.create(pod("executor", metadata={**SHARE, **owned("driver", uid, "Pod")}), **ALICE)
    assert second.status == 201, second.message
    assert await queue_of(asker, second.body) == "queue-a"
    await asker.remove(f"{PODS}/executor")
    await asker.remove(f"{PODS}/driver")


async def created_without_pods(asker: Asker, tried: Item, *words: str) -> None:
    """Alice creates a workload; its controller is refused its pods with one of these words, and none is stored."""
    name = tried["metadata"]["name"]
    answer = await asker.create(tried, **ALICE)
    assert answer.status == 201, answer.message
    path = f"/api/v1/namespaces/{TEAM}/events"

    async def refusal_is_reported() -> bool:
        listing = await asker.send("GET", PODS, labelSelector=f"app={name}")
        assert listing.body["items"] == [], listing.body["items"]
        events = (await asker.send("GET", path)).body["items"]
        return any(
            any(word in event["message"] for word in words)
            and event["involvedObject"]["name"].startswith(name)
            for event in events
        )

    try:
        await until(refusal_is_reported, f"the controller of {name} is refused with one of {words}")
    finally:
        await asker.remove(where(tried))
        await asker.send("DELETE", PODS, labelSelector=f"app={name}", gracePeriodSeconds="0")


DRA = "deviceclass.resource.kubernetes.io/g"
BY_CONTROLLERS: dict[str, tuple[Item, str]] = {
    "ds-queue": (
        controlled("DaemonSet", "ds-queue", metadata={"labels": QUEUE_B, **SHARE}, schedulerName="kai-scheduler"),
        "queue-b",
    ),
    "ds-cap": (controlled("DaemonSet", "ds-cap", metadata=LARGE), "gpu-fraction"),
    "ds-gpus": (controlled("DaemonSet", "ds-gpus", container(limits={GPU: "8"})), GPU),
    "ds-kai": (controlled("DaemonSet", "ds-kai", schedulerName="kai-scheduler"), "kai-scheduler"),
    "ds-group": (controlled("DaemonSet", "ds-group", metadata={"labels": A_GROUP}), "runai-gpu-group"),
    "ds-dra": (controlled("DaemonSet", "ds-dra", container(limits={DRA: "1"})), DRA),
    "rs-queue": (controlled("ReplicaSet", "rs-queue", metadata={"labels": QUEUE_B}), "queue-b"),
    "job-cap": (controlled("Job", "job-cap", metadata=LARGE), "0.5"),
}  # fmt: skip


@pytest.mark.parametrize("attempt", BY_CONTROLLERS)
async def test_a_controllers_pods_with_a_bypass_are_refused(asker: Asker, form: str, attempt: str) -> None:
    tried, word = BY_CONTROLLERS[attempt]
    first = ("gpu-fraction",) if form == "policies" else ()  # a policy tells one of several violations
    await created_without_pods(asker, tried, word, *first)


LATER: dict[str, tuple[str, Item]] = {
    "another queue by ephemeralcontainers": ("/ephemeralcontainers", {"metadata": {"labels": QUEUE_B}}),
    "another queue by resize": ("/resize", {"metadata": {"labels": QUEUE_B}}),
    "an ephemeral container with a GPU": (
        "/ephemeralcontainers",
        {"spec": {"ephemeralContainers": [container(name="debug", limits=ONE_GPU)]}},
    ),
    "a GPU by resize": ("/resize", {"spec": {"containers": [container(limits=ONE_GPU)]}}),
}
"""Requests by subresources; test_guard_keys has the edits of the pod itself."""


@pytest.mark.parametrize("attempt", LATER)
async def test_a_pod_keeps_queue_and_share(asker: Asker, attempt: str) -> None:
    subresource, change = LATER[attempt]
    running = await asker.create(pod("running", metadata=SHARE), **ALICE)
    assert running.status == 201, running.message
    try:
        await asker.merge(f"{PODS}/running{subresource}", change)
        kept = (await asker.send("GET", f"{PODS}/running")).body
        assert await queue_of(asker, kept) == "queue-a"
        assert kept["metadata"]["annotations"][keys.GPU_FRACTION] == "0.5"
        assert GPU not in str(kept["spec"])
    finally:
        await asker.remove(f"{PODS}/running")


async def pods_of(asker: Asker, name: str, count: int = 1) -> list[Item]:
    """Wait until a workload has that many pods; return them."""

    async def whole() -> list[Item]:
        listing = await asker.send("GET", PODS, labelSelector=f"app={name}")
        items: list[Item] = listing.body["items"]
        return items if len(items) == count else []

    pods: list[Item] = await until(whole, f"{name} has {count} pods")
    return pods


@contextlib.asynccontextmanager
async def created(asker: Asker, made: Item) -> AsyncIterator[Item]:
    """Create an object as Alice; the garbage collector deletes it with its dependents at the end."""
    answer = await asker.create(made, **ALICE)
    assert answer.status == 201, answer.message
    try:
        yield answer.body
    finally:
        await asker.remove(where(made))
        name = made["metadata"]["name"]
        await asker.send("DELETE", PODS, labelSelector=f"app={name}", gracePeriodSeconds="0")


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "Job", "StatefulSet"])
async def test_a_controllers_pods_are_placed_in_the_namespaces_queue(asker: Asker, kind: str) -> None:
    name = f"works-{kind.lower()}"
    async with created(asker, controlled(kind, name, container(limits=ONE_GPU))):
        (kept,) = await pods_of(asker, name)
        assert await queue_of(asker, kept) == "queue-a"
        assert kept["spec"]["schedulerName"] == "kai-scheduler"
        assert kept["metadata"]["annotations"][keys.GPU_FRACTION] == "0.25"


# What admission cannot stop: docs/guard.md says so, and the agent flags such pods.

ADMITTED_AND_FLAGGED: dict[str, tuple[Item, str]] = {
    "an environment variable": (
        pod("unseen-env", container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])),
        "NVIDIA_VISIBLE_DEVICES",
    ),
    "a CDI annotation": (pod("unseen-cdi", metadata={"annotations": {"cdi.k8s.io/gpus": "nvidia.com/gpu=all"}}), "cdi.k8s.io"),
    "a host path": (pod("unseen-path", volumes=[{"name": "dev", "hostPath": {"path": "/dev"}}]), "hostPath"),
}  # fmt: skip


async def test_bypasses_that_admission_cannot_stop_are_documented_and_flagged(
    asker: Asker, tenancy: ControlPlane, tmp_path: Path
) -> None:
    uids: dict[str, str] = {}
    for each, word in ADMITTED_AND_FLAGGED.values():
        answer = await asker.create(each, **ALICE)
        assert answer.status == 201, answer.message
        assert await queue_of(asker, answer.body) == "queue-a"
        assert word in DOCUMENT.read_text()
        uids[each["metadata"]["name"]] = answer.body["metadata"]["uid"]
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        binding = item("Binding", each["metadata"]["name"], target=target)
        bound = await asker.send("POST", where(each) + "/binding", binding)
        assert bound.status == 201, bound.message
        await asker.merge(
            where(each) + "/status", {"status": {"phase": "Running"}}, user=f"system:node:{NODE}"
        )
    async with KubeClient(tenancy.access()) as client:
        node = GpuNode(folder=tmp_path, plane=tenancy, admin=Administrator(client))
        node.hold(dict.fromkeys(uids.values(), 2000))
        with node.agent(ADMIN_TOKEN) as running:

            def flagged() -> set[str]:
                return {
                    pod["name"]
                    for pod in running.shares()["pods"]
                    for verdict in pod["verdicts"]
                    if verdict["reason"] == "no-share" and verdict["flagged"]
                }

            await until(lambda: flagged() == uids.keys(), "all of them are flagged")
    for each, _ in ADMITTED_AND_FLAGGED.values():
        await asker.remove(where(each))


async def test_a_developer_chooses_the_priority_within_the_queue(asker: Asker) -> None:
    tried = pod("priority", metadata={"labels": {"priorityClassName": "inference"}})
    answer = await asker.create(tried, dry_run=True, **ALICE)
    assert answer.status == 201, answer.message
    assert await queue_of(asker, answer.body) == "queue-a"
    assert "priorityClassName" in DOCUMENT.read_text()
