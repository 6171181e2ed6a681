"""Every key that KAI reads, written by a user on a real API server with the guard on deny."""

import copy
import itertools
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

import pytest
import pytest_asyncio

from kai.key_classes import PREFIXES, TABLE, is_written_by_kai_only
from service.documents import DocumentError, flatten_lists, load_file
from tests.support.administrator import admissible
from tests.support.control_plane import ControlPlane
from tests.support.guard import BINDER, ENFORCED, GUARD, HOST, SYNCER, guard_on, host, synced_pod
from tests.support.kube_user import APPLY, Answer, Asker, account, where
from tests.support.pods import folder_from
from tests.support.webhook_process import until

ALICE = "alice"
KUBELET = "system:node:gpu-node-0"
JSON_PATCH, STRATEGIC = "application/json-patch+json", "application/strategic-merge-patch+json"
Item = dict[str, Any]
Key = tuple[str, str]
"""`labels` or `annotations`, and the key."""

KAI_ONLY: Final[tuple[Key, ...]] = (
    ("labels", "kai.scheduler/subgroup-name"),
    ("annotations", "pod-group-name"),
    ("labels", "runai-gpu-group"),
    ("labels", "runai-gpu-group/a1b2"),
    ("annotations", "received-resource-type"),
    ("annotations", "kai.scheduler/skip-podgrouper"),
    ("annotations", "kai.scheduler/numa-placement-observed"),
    ("annotations", "kai.scheduler/numa-placement-predicted"),
    ("annotations", "run.ai/reserve_for_gpu_index"),
    ("labels", "shared-gpu-pod-name"),
    ("labels", "shared-gpu-pod-namespace"),
    ("labels", "kai.scheduler/accounting"),
    # Not in the table: keys of a newer release of KAI, below each prefix.
    ("labels", "kai.scheduler/unknown"),
    ("annotations", "kai.scheduler/unknown"),
    ("annotations", "runai/unknown"),
    ("labels", "run.ai/unknown"),
    ("annotations", "gpu-fraction-unknown"),
    ("annotations", "gpu-memory-unknown"),
    ("labels", "shared-gpu-pod-unknown"),
    ("labels", "pod-group-name-unknown"),
)
KAI_ONLY_OF_NOBODY: Final[tuple[Key, ...]] = (
    ("annotations", "nvidia.com/mig-1g.5gb"),
    ("annotations", "kai.scheduler/last-start-timestamp"),
    ("annotations", "kai.scheduler/stale-podgroup-timestamp"),
    ("annotations", "kai.scheduler/last-eviction-timestamp"),
    ("annotations", "kai.scheduler/top-owner-metadata"),
)
"""Keys that no component of KAI writes on pods: users may remove them."""
FIXED: Final[tuple[Key, ...]] = (
    ("annotations", "gpu-fraction"),
    ("annotations", "gpu-memory"),
    ("annotations", "gpu-fraction-num-devices"),
    ("annotations", "gpu-fraction-container-name"),
    ("annotations", "nvidia.com/container.main.gpu-memory.request"),
    ("labels", "kai.scheduler/node-pool"),
    ("labels", "kai.scheduler/preemptibility"),
    ("labels", "priorityClassName"),
    ("labels", "spark-app-name"),
    ("labels", "serving.knative.dev/revision"),
    ("labels", "grove.io/podgang"),
    ("labels", "leaderworkerset.sigs.k8s.io/group-index"),
    ("labels", "leaderworkerset.sigs.k8s.io/worker-index"),
    ("annotations", "leaderworkerset.sigs.k8s.io/size"),
    ("labels", "jobset.sigs.k8s.io/replicatedjob-name"),
    ("labels", "jobset.sigs.k8s.io/job-index"),
    ("labels", "training.kubeflow.org/replica-type"),
    ("labels", "training.kubeflow.org/replica-index"),
    ("labels", "ray.io/group"),
    ("annotations", "kai.scheduler/segment-size"),
)
FREE: Final[tuple[Key, ...]] = (
    ("labels", "kai.scheduler/task-priority"),
    ("labels", "training.kubeflow.org/job-role"),
    ("labels", "training.kubeflow.org/job-name"),
    ("labels", "ray.io/node-type"),
    ("annotations", "kai.scheduler/topology"),
    ("annotations", "kai.scheduler/topology-required-placement"),
    ("annotations", "kai.scheduler/topology-preferred-placement"),
    ("annotations", "kai.scheduler/segment-topology-required-placement"),
    ("annotations", "kai.scheduler/segment-topology-preferred-placement"),
    ("annotations", "kai.scheduler/batch-min-member"),
    ("annotations", "kai.scheduler/preemption-delay"),
    ("annotations", "kai.scheduler/staleness-grace-period"),
    ("annotations", "mps"),
    ("annotations", "autoscaling.knative.dev/min-scale"),
    ("annotations", "grove.io/topology-name"),
    ("labels", "user"),
    ("annotations", "user"),
    # Of others, and often changed on running pods.
    ("annotations", "nvidia.com/gpu-driver-upgrade-requested"),
    ("labels", "gpu-type"),
    ("labels", "ray.io/serve"),
    ("labels", "spark-exec-inactive"),
    ("labels", "kueue.x-k8s.io/queue-name"),
    ("labels", "app"),
    ("labels", "project"),
)
BY_VALUE: Final = frozenset({"app", "project", "runai/shared-gpu-configmap", "spark-app-selector"})
ELSEWHERE: Final = frozenset({"kai.scheduler/queue", "resource.kubernetes.io/extended-resource-claim"})
"""Keys of the table whose own tests are below, or in test_guard.py."""
ALL: Final = (*KAI_ONLY, *KAI_ONLY_OF_NOBODY, *FIXED, *FREE)


def test_every_key_of_the_table_is_tried() -> None:
    tried = {key for _, key in ALL + OWNER_FIXED} | BY_VALUE | ELSEWHERE
    for row in TABLE:
        assert any(key.startswith(row.key) if row.is_prefix else key == row.key for key in tried), row.key
    for prefix in PREFIXES:
        assert any(key.startswith(prefix) for _, key in KAI_ONLY + KAI_ONLY_OF_NOBODY), prefix


@pytest.fixture(scope="module")
def guarded(plane: ControlPlane) -> Iterator[ControlPlane]:
    with guard_on(plane, GUARD / "deny"):
        yield plane


@pytest.fixture
async def asker(guarded: ControlPlane) -> AsyncIterator[Asker]:
    async with Asker(guarded) as asking:
        yield asking


def user_of(place: str) -> str:
    """Return the user that writes what a tenant wants."""
    return SYNCER if place == HOST else ALICE


def bare(place: str, name: str = "bare") -> Item:
    """Return a pod without a share or any other key that is tried."""
    mark = {} if place == HOST else {"vcluster.loft.sh/managed-by": None, "vcluster.loft.sh/namespace": None}
    return synced_pod(name, namespace=place, labels=mark, annotations={"example.com/own": "a"})


def with_keys(item: Item, *written: Key, value: str = "x") -> Item:
    """Return a copy of an object with more labels and annotations."""
    made = copy.deepcopy(item)
    for kind, key in written:
        made["metadata"].setdefault(kind, {})[key] = value
    return made


def full(place: str) -> Item:
    """Return a pod with every key that is tried."""
    return with_keys(bare(place, "full"), *ALL)


async def edits(asker: Asker, item: Item, key: Key, value: str | None, user: str) -> dict[str, Answer]:
    """Write one key of an object in every way, as dry runs; None removes it. Return the answers by way."""
    kind, name = key
    path = where(item)
    change = {"metadata": {kind: {name: value}}}
    pointer = f"/metadata/{kind}/{name.replace('~', '~0').replace('/', '~1')}"
    operation = (
        {"op": "remove", "path": pointer} if value is None else {"op": "add", "path": pointer, "value": value}
    )
    stored = (await asker.send("GET", path)).body
    whole = copy.deepcopy(stored)
    entries = whole["metadata"].setdefault(kind, {})
    entries.pop(name, None)
    if value is not None:
        entries[name] = value
    applied = {**whole, "metadata": {**whole["metadata"], "managedFields": None, "resourceVersion": None}}
    answers = {
        "update": await asker.send("PUT", path, whole, user=user, dry_run=True),
        "merge patch": await asker.merge(path, change, user=user, dry_run=True),
        "JSON patch": await asker.send(
            "PATCH", path, [operation], user=user, content_type=JSON_PATCH, dry_run=True
        ),
        "strategic patch": await asker.send(
            "PATCH", path, change, user=user, content_type=STRATEGIC, dry_run=True
        ),
        "server-side apply": await asker.send(
            "PATCH",
            path,
            applied,
            user=user,
            content_type=APPLY,
            dry_run=True,
            fieldManager="test",
            force="true",
        ),
    }
    if item["kind"] in ("Pod", "Job"):
        answers["status"] = await asker.merge(path + "/status", change, user=user, dry_run=True)
    return answers


async def store(asker: Asker, item: Item, user: str = ALICE) -> None:
    """Create an object by server-side apply; its manager is that of `edits`."""
    answer = await asker.send("PATCH", where(item), item, user=user, content_type=APPLY, fieldManager="test")
    assert answer.status == 201, answer.message


def assert_refused(answers: Mapping[str, Answer], key: str, *words: str) -> None:
    for way, answer in answers.items():
        assert answer.status == 403, (way, answer)
        for word in ("'kaishare-guard-keys'", key, *words):
            assert word in answer.message, (way, answer.message)


def assert_admitted(answers: Mapping[str, Answer]) -> None:
    for way, answer in answers.items():
        assert answer.status == 200, (way, answer.message)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pods(guarded: ControlPlane) -> AsyncIterator[None]:
    """Store the pods that the tests edit, as KAI, which may write everything."""
    made = [make(place) for place in (ENFORCED, HOST) for make in (bare, full)]
    async with Asker(guarded) as asking:
        for item in made:
            await store(asking, item, BINDER)
        yield
        for item in made:
            await asking.remove(where(item))


PLACES = pytest.mark.parametrize("place", [ENFORCED, HOST], ids=["enforce", "vcluster"])
RESTORE = "restore the old value, or delete and recreate the pod"


@PLACES
@pytest.mark.parametrize("key", KAI_ONLY + KAI_ONLY_OF_NOBODY, ids=lambda key: key[1])
async def test_a_key_of_kais_is_neither_created_nor_written_later(
    asker: Asker, pods: None, place: str, key: Key
) -> None:
    user = user_of(place)
    created = await asker.create(with_keys(bare(place, "new"), key), user=user, dry_run=True)
    assert_refused({"create": created}, key[1], "only KAI may write this; remove it from the pod")
    assert_refused(await edits(asker, bare(place), key, "x", user), key[1], RESTORE)
    assert_refused(await edits(asker, full(place), key, "y", user), key[1], RESTORE)
    removed = await edits(asker, full(place), key, None, user)
    if key in KAI_ONLY and key[1] != "kai.scheduler/accounting":
        assert_refused(removed, key[1], RESTORE)
    else:
        assert_admitted(removed)
    assert_admitted(await edits(asker, full(place), key, "y", BINDER))


@PLACES
@pytest.mark.parametrize("key", FIXED, ids=lambda key: key[1])
async def test_a_fixed_key_is_created_and_then_stays(asker: Asker, pods: None, place: str, key: Key) -> None:
    user = user_of(place)
    created = await asker.create(with_keys(bare(place, "new"), key), user=user, dry_run=True)
    assert created.status == 201, created.message
    for item, value in ((bare(place), "x"), (full(place), "y"), (full(place), None)):
        assert_refused(await edits(asker, item, key, value, user), key[1], RESTORE)
    assert_admitted(await edits(asker, full(place), key, None, BINDER))


@PLACES
@pytest.mark.parametrize("key", FREE, ids=lambda key: key[1])
async def test_a_free_key_may_change_at_any_time(asker: Asker, pods: None, place: str, key: Key) -> None:
    user = user_of(place)
    created = await asker.create(with_keys(bare(place, "new"), key), user=user, dry_run=True)
    assert created.status == 201, created.message
    for item, value in ((bare(place), "x"), (full(place), "y"), (full(place), None)):
        assert_admitted(await edits(asker, item, key, value, user))


# Values.


@PLACES
@pytest.mark.parametrize("value", ["kai-resource-reservation", "scaling-pod"])
async def test_the_label_app_has_no_value_of_kais(asker: Asker, pods: None, place: str, value: str) -> None:
    user, key = user_of(place), ("labels", "app")
    created = await asker.create(with_keys(bare(place, "new"), key, value=value), user=user, dry_run=True)
    words = (f'label app "{value}"', "use another value")
    assert_refused({"create": created}, "app", *words)
    for item in (bare(place), full(place)):
        assert_refused(await edits(asker, item, key, value, user), "app", *words)
    assert_admitted(await edits(asker, full(place), key, value, BINDER))


async def test_a_value_of_kais_from_before_the_guard_may_be_replaced_or_removed(
    asker: Asker, pods: None
) -> None:
    item, key = with_keys(bare(ENFORCED, "before"), ("labels", "app"), value="scaling-pod"), ("labels", "app")
    await store(asker, item, BINDER)
    assert_admitted(await edits(asker, item, key, "mine", ALICE))
    assert_admitted(await edits(asker, item, key, None, ALICE))
    assert_refused(await edits(asker, item, key, "kai-resource-reservation", ALICE), "app")
    await asker.remove(where(item))


async def test_a_pod_without_a_queue_has_no_project(asker: Asker) -> None:
    """KAI takes the label as the queue's name then."""
    item = with_keys(bare(ENFORCED, "new"), ("labels", "project"))
    assert (await asker.create(item, user=ALICE, dry_run=True)).status == 201
    del item["metadata"]["labels"]["kai.scheduler/queue"]
    refused = await asker.create(item, user=ALICE, dry_run=True)
    assert_refused({"create": refused}, 'label project "x"', "set that label")


@pytest.mark.parametrize(
    ("labels", "is_admitted"),
    [
        ({"spark-app-name": "etl", "spark-app-selector": "spark-0a1b2c"}, True),
        ({"spark-app-name": "etl", "spark-app-selector": "pg-train-7f"}, False),
        ({"spark-app-selector": "pg-train-7f"}, True),
    ],
    ids=["as Spark writes it", "the name of a PodGroup", "KAI reads both labels or none"],
)
async def test_sparks_label_names_no_pod_group(
    asker: Asker, labels: dict[str, str], is_admitted: bool
) -> None:
    item = bare(ENFORCED, "new")
    item["metadata"]["labels"] |= labels
    answer = await asker.create(item, user=ALICE, dry_run=True)
    if is_admitted:
        assert answer.status == 201, answer.message
    else:
        assert_refused({"create": answer}, 'label spark-app-selector "pg-train-7f"', "begin with spark-")


async def test_sparks_label_stays(asker: Asker) -> None:
    selector = ("labels", "spark-app-selector")
    stored = with_keys(bare(ENFORCED, "spark"), selector, value="spark-0a1b2c")
    await store(asker, stored)
    for value in ("spark-another", None):
        assert_refused(await edits(asker, stored, selector, value, ALICE), "spark-app-selector", RESTORE)
    await asker.remove(where(stored))


# A pod from before the guard.


async def test_a_pod_with_forbidden_keys_still_lives_and_ends(asker: Asker) -> None:
    item = full(ENFORCED)
    item["metadata"] |= {"name": "old", "finalizers": ["example.com/stay"]}
    assert (await asker.create(item, user=BINDER)).status == 201
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    assert (await asker.merge(where(item) + "/status", running, user=KUBELET)).status == 200
    assert (await asker.merge(where(item), {"metadata": {"labels": {"mine": "a"}}}, user=ALICE)).status == 200
    debug = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "example.invalid/image"}]}}
    assert (await asker.merge(where(item) + "/ephemeralcontainers", debug, user=ALICE)).status == 200
    assert (await asker.send("DELETE", where(item), user=ALICE, gracePeriodSeconds="0")).status == 200
    assert (await asker.merge(where(item), {"metadata": {"finalizers": None}}, user=ALICE)).status == 200
    assert (await asker.send("GET", where(item))).status == 404


async def test_the_reservation_pods_account_writes_its_gpu_in_its_namespace_only(asker: Asker) -> None:
    """The guard's bindings leave KAI's namespaces out; this holds for a binding that does not."""
    reservation = account("kai-resource-reservation", "kai-resource-reservation")
    gpu = ("annotations", "run.ai/reserve_for_gpu_index")
    await asker.apply(host("kai-resource-reservation", "team-a"))
    item = bare(HOST, "reservation")
    item["metadata"]["namespace"] = "kai-resource-reservation"
    await store(asker, item, BINDER)
    assert_admitted(await edits(asker, item, gpu, "GPU-1", reservation))
    assert_refused(await edits(asker, item, gpu, "GPU-1", ALICE), gpu[1])
    assert_refused(
        await edits(asker, item, ("annotations", "pod-group-name"), "x", reservation), "pod-group-name"
    )
    assert_refused(await edits(asker, bare(ENFORCED), gpu, "GPU-1", reservation), gpu[1])
    await asker.remove(where(item))


# Owners.


def workload(kind: str, name: str, *, idle: bool = False) -> Item:
    """Return a Deployment or Job, with or without pods, or an object without a spec."""
    metadata = {"name": name, "namespace": ENFORCED, "labels": {"mine": "a"}, "annotations": {"mine": "a"}}
    if kind == "ConfigMap":
        return {"apiVersion": "v1", "kind": kind, "metadata": metadata}
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "example.invalid/image"}]},
    }
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
        return {
            "apiVersion": "batch/v1",
            "kind": kind,
            "metadata": metadata,
            "spec": {"suspend": idle, "template": template},
        }
    spec = {"replicas": 0 if idle else 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}


OWNER_FIXED: Final[tuple[Key, ...]] = (
    ("labels", "kai.scheduler/node-pool"),
    ("labels", "kai.scheduler/preemptibility"),
    ("labels", "priorityClassName"),
    ("labels", "ray.io/priority-class-name"),
    ("annotations", "kai.scheduler/segment-size"),
    ("annotations", "gpu-fraction"),
)
OF_PODS: Final = tuple(key for key in FIXED if key not in OWNER_FIXED and not key[1].startswith(PREFIXES))
"""Keys of other projects that KAI reads on pods only."""
KEPT_ON_OWNERS: Final = frozenset(
    {
        "kai.scheduler/skip-podgrouper",
        "kai.scheduler/accounting",
        *(key for _, key in KAI_ONLY if "unknown" in key),
    }
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def owners(guarded: ControlPlane) -> AsyncIterator[None]:
    """Store owners with all keys and with none."""
    kinds = [("Deployment", False), ("Deployment", True), ("Job", False), ("Job", True), ("ConfigMap", False)]
    made = []
    for kind, idle in kinds:
        state = "idle" if idle else "busy"
        made.append(workload(kind, f"bare-{state}", idle=idle))
        item = with_keys(workload(kind, f"full-{state}", idle=idle), *ALL, *OWNER_FIXED)
        made.append(item)
    async with Asker(guarded) as asking:
        for item in made:
            await store(asking, item, BINDER)
        yield
        for item in made:
            await asking.remove(where(item))


OWNER_KINDS = pytest.mark.parametrize("kind", ["Deployment", "Job", "ConfigMap"])


@OWNER_KINDS
@pytest.mark.parametrize("key", KAI_ONLY + KAI_ONLY_OF_NOBODY, ids=lambda key: key[1])
async def test_an_owner_has_no_key_of_kais(asker: Asker, owners: None, kind: str, key: Key) -> None:
    created = await asker.create(with_keys(workload(kind, "new"), key), user=ALICE, dry_run=True)
    assert_refused({"create": created}, key[1], "only KAI may write this; remove it from the object")
    for state, value in itertools.product(
        ("busy",) if kind == "ConfigMap" else ("busy", "idle"), ("x", None)
    ):
        idle = state == "idle"
        item = workload(kind, f"{'bare' if value else 'full'}-{state}", idle=idle)
        answers = await edits(asker, item, key, value, ALICE)
        if value is None and key[1] not in KEPT_ON_OWNERS:
            assert_admitted(answers)
        else:
            assert_refused(answers, key[1], "restore the old value")
        assert_admitted(await edits(asker, item, key, value, BINDER))


@OWNER_KINDS
@pytest.mark.parametrize("key", OWNER_FIXED, ids=lambda key: key[1])
async def test_an_owners_fixed_key_changes_only_while_it_has_no_pods(
    asker: Asker, owners: None, kind: str, key: Key
) -> None:
    created = await asker.create(with_keys(workload(kind, "new"), key), user=ALICE, dry_run=True)
    assert created.status == 201, created.message
    for name, value in (("bare", "x"), ("full", "y"), ("full", None)):
        busy = await edits(asker, workload(kind, f"{name}-busy"), key, value, ALICE)
        assert_refused(busy, key[1], "while spec.replicas is 0 or spec.suspend is true")
        if kind != "ConfigMap":
            assert_admitted(await edits(asker, workload(kind, f"{name}-idle"), key, value, ALICE))


@OWNER_KINDS
@pytest.mark.parametrize("key", FREE + OF_PODS, ids=lambda key: key[1])
async def test_other_keys_of_an_owner_may_change(asker: Asker, owners: None, kind: str, key: Key) -> None:
    created = await asker.create(with_keys(workload(kind, "new"), key), user=ALICE, dry_run=True)
    assert created.status == 201, created.message
    for name, value in (("bare", "x"), ("full", "y"), ("full", None)):
        assert_admitted(await edits(asker, workload(kind, f"{name}-busy"), key, value, ALICE))


async def test_scaling_to_zero_in_the_same_request_does_not_unlock_the_keys(
    asker: Asker, owners: None
) -> None:
    """The pods still run at that time."""
    item = workload("Deployment", "bare-busy")
    change = {
        "metadata": {"labels": {"kai.scheduler/preemptibility": "non-preemptible"}},
        "spec": {"replicas": 0},
    }
    answer = await asker.merge(where(item), change, user=ALICE, dry_run=True)
    assert_refused({"merge": answer}, "kai.scheduler/preemptibility")
    back = {**change, "spec": {"replicas": 3}}
    idle = workload("Deployment", "bare-idle", idle=True)
    assert (await asker.merge(where(idle), back, user=ALICE, dry_run=True)).status == 200


# ConfigMaps and claims.


@pytest.mark.parametrize(
    "name", ["train-abc1234-shared-gpu-0", "train-abc1234-shared-gpu-12-evar", "train-abc1234-shared-gpu-i0"]
)
async def test_kais_config_maps_keep_their_data(asker: Asker, name: str) -> None:
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": ENFORCED}}
    data = {"data": {"GPU_PORTION": "0.50", "NVIDIA_VISIBLE_DEVICES": "GPU-1"}}
    assert_refused(
        {"create": await asker.create({**item, **data}, user=ALICE, dry_run=True)}, "use another name"
    )
    binary = {"binaryData": {"CUDA_DEVICE_MEMORY_LIMIT": "OTk5OTltCg=="}}
    assert_refused(
        {"create": await asker.create({**item, **binary}, user=ALICE, dry_run=True)}, "use another name"
    )
    assert (await asker.create({**item, **data}, user=BINDER)).status == 201
    for change in ({"data": {"GPU_PORTION": "0.90"}}, {"data": None}, binary):
        answer = await asker.merge(where(item), change, user=ALICE, dry_run=True)
        assert_refused({"merge": answer}, "its GPU and its share")
        assert (await asker.merge(where(item), change, user=BINDER, dry_run=True)).status == 200
    labelled = {"metadata": {"labels": {"mine": "a"}, "finalizers": ["example.com/stay"]}}
    assert (await asker.merge(where(item), labelled, user=ALICE, dry_run=True)).status == 200
    await asker.remove(where(item))


@pytest.mark.parametrize("name", ["shared-gpu", "my-shared-gpu-config", "train-shared-gpu-x"])
async def test_other_config_maps_may_change(asker: Asker, name: str) -> None:
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": ENFORCED}}
    assert (await asker.create({**item, "data": {"a": "b"}}, user=ALICE)).status == 201
    assert (await asker.merge(where(item), {"data": {"a": "c"}}, user=ALICE)).status == 200
    await asker.remove(where(item))


CLAIM_KEY = "resource.kubernetes.io/extended-resource-claim"
SCHEDULER, MANAGER = "system:kube-scheduler", "system:kube-controller-manager"
CLAIM_CONTROLLER = account("kube-system", "resource-claim-controller")


def claim(namespace: str, annotations: Mapping[str, str]) -> Item:
    labels = {"vcluster.loft.sh/managed-by": "team-a"} if namespace == HOST else {}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": "gpu",
            "namespace": namespace,
            "labels": labels,
            "annotations": dict(annotations),
        },
        "spec": {},
    }


@PLACES
async def test_a_claims_annotation_is_written_by_schedulers_only(asker: Asker, place: str) -> None:
    if (await asker.send("GET", "/apis/resource.k8s.io/v1")).status != 200:
        pytest.skip("NOT VERIFIED: the API server serves no ResourceClaims of resource.k8s.io/v1")
    user = user_of(place)
    mine = {CLAIM_KEY: "true"}
    generated = {**mine, "resource.kubernetes.io/pod-claim-name": "gpu"}
    assert_refused({"create": await asker.create(claim(place, mine), user=user, dry_run=True)}, CLAIM_KEY)
    # The controller creates a claim as a user's template says.
    for controller in (MANAGER, CLAIM_CONTROLLER):
        answer = await asker.create(claim(place, generated), user=controller, dry_run=True)
        assert_refused({"create": answer}, CLAIM_KEY)
    for writer in (SCHEDULER, MANAGER, CLAIM_CONTROLLER, BINDER):
        answer = await asker.create(claim(place, mine), user=writer, dry_run=True)
        assert answer.status == 201, (writer, answer.message)
    stored = claim(place, {"mine": "a"})
    await store(asker, stored, user)
    key = ("annotations", CLAIM_KEY)
    assert_refused(await edits(asker, stored, key, "true", user), CLAIM_KEY)
    for writer in (SCHEDULER, MANAGER, BINDER):
        assert_admitted(await edits(asker, stored, key, "true", writer))
    assert_admitted(await edits(asker, stored, ("annotations", "mine"), "b", user))
    await asker.remove(where(stored))


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
        {"status": {"active": 1, "startTime": "2026-01-01T00:00:00Z"}},
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
