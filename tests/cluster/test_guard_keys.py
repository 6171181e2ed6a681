"""Every key that KAI reads, written by a user on a real API server with the guard on deny."""

import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Final

import pytest
import pytest_asyncio
from _pytest.mark import ParameterSet

from kai.key_classes import PREFIXES, TABLE
from tests.support.control_plane import ControlPlane
from tests.support.guard import BINDER, ENFORCED, GUARD, HOST, guard_on, host
from tests.support.guarded_objects import (
    ALICE,
    ALL,
    FIXED,
    FREE,
    KAI_ONLY,
    KAI_ONLY_OF_NOBODY,
    KUBELET,
    OWNER_FIXED,
    RESTORE,
    Item,
    Key,
    assert_admitted,
    assert_refused,
    bare,
    edits,
    every_owner,
    every_pod,
    full,
    store,
    stored,
    user_of,
    with_keys,
    workload,
)
from tests.support.kube_user import Asker, account, where

BY_VALUE: Final = frozenset({"app", "project", "runai/shared-gpu-configmap", "spark-app-selector"})
ELSEWHERE: Final = frozenset({"kai.scheduler/queue", "resource.kubernetes.io/extended-resource-claim"})
"""Keys of the table whose own tests are below, or in test_guard.py."""
KEPT_ON_OWNERS: Final = frozenset({"kai.scheduler/skip-podgrouper", "kai.scheduler/accounting"})


def some_keys(keys: Sequence[Key]) -> list[ParameterSet]:
    """Return rows of every sixteenth key and of those with a rule of their own; the other rows are nightly."""
    return [
        pytest.param(
            key, id=key[1], marks=[] if number % 16 == 0 or key[1] in KEPT_ON_OWNERS else pytest.mark.nightly
        )
        for number, key in enumerate(keys)
    ]


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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pods(guarded: ControlPlane) -> AsyncIterator[None]:
    async with stored(guarded, every_pod()):
        yield


PLACES = pytest.mark.parametrize("place", [ENFORCED, HOST], ids=["enforce", "vcluster"])


@PLACES
@pytest.mark.parametrize("key", some_keys(KAI_ONLY + KAI_ONLY_OF_NOBODY))
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
@pytest.mark.parametrize("key", some_keys(FIXED))
async def test_a_fixed_key_is_created_and_then_stays(asker: Asker, pods: None, place: str, key: Key) -> None:
    user = user_of(place)
    created = await asker.create(with_keys(bare(place, "new"), key), user=user, dry_run=True)
    assert created.status == 201, created.message
    for item, value in ((bare(place), "x"), (full(place), "y"), (full(place), None)):
        assert_refused(await edits(asker, item, key, value, user), key[1], RESTORE)
    assert_admitted(await edits(asker, full(place), key, None, BINDER))


@PLACES
@pytest.mark.parametrize("key", some_keys(FREE))
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


OF_PODS: Final = tuple(key for key in FIXED if key not in OWNER_FIXED and not key[1].startswith(PREFIXES))
"""Keys of other projects that KAI reads on pods only."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def owners(guarded: ControlPlane) -> AsyncIterator[None]:
    async with stored(guarded, every_owner()):
        yield


OWNER_KINDS = pytest.mark.parametrize("kind", ["Deployment", "Job", "ConfigMap"])


@OWNER_KINDS
@pytest.mark.parametrize("key", some_keys(KAI_ONLY + KAI_ONLY_OF_NOBODY))
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
@pytest.mark.parametrize("key", some_keys(OWNER_FIXED))
async def test_an_owners_fixed_key_changes_only_while_it_has_no_pods(
    asker: Asker, owners: None, kind: str, key: Key
) -> None:
    created = await asker.create(with_keys(workload(kind, "new"), key), user=ALICE, dry_run=True)
    assert created.status == 201, created.message
    for name, value in (("bare", "x"), ("full", "y"), ("full", None)):
        busy = await edits(asker, workload(kind, f"{name}-busy"), key, value, ALICE)
        remedy = "while spec.replicas is 0 or spec.suspend is true"
        assert_refused(busy, key[1], "restore the old value", *([] if kind == "ConfigMap" else [remedy]))
        if kind != "ConfigMap":
            assert_admitted(await edits(asker, workload(kind, f"{name}-idle"), key, value, ALICE))


@OWNER_KINDS
@pytest.mark.parametrize("key", some_keys(FREE + OF_PODS))
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


async def test_a_config_map_may_have_a_generated_name(asker: Asker) -> None:
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "my-shared-gpu-"}}
    path = f"/api/v1/namespaces/{ENFORCED}/configmaps"
    answer = await asker.send("POST", path, item, user=ALICE, dry_run=True)
    assert answer.status == 201, answer.message


async def test_endpoints_may_have_the_labels_of_a_service(asker: Asker) -> None:
    """Their controller copies them; a refusal would leave the Service without endpoints."""
    path = f"/apis/discovery.k8s.io/v1/namespaces/{ENFORCED}/endpointslices"
    labels = {"run.ai/team": "a", "kai.scheduler/queue": "other"}
    item = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "a", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [],
    }
    answer = await asker.send("POST", path, item, user=ALICE, dry_run=True)
    assert answer.status == 201, answer.message


@pytest.mark.parametrize("name", ["x-abcdefg-foo", "shared-gpu", "x-abcdefg-shared-gpu-x"])
async def test_a_config_map_of_another_form_than_kais_is_not_named(asker: Asker, name: str) -> None:
    """KAI keeps a name that the pod has, and the guard would not know the ConfigMap as KAI's."""
    item = bare(ENFORCED, "x")
    item["metadata"]["annotations"]["runai/shared-gpu-configmap"] = name
    reference = {"configMapKeyRef": {"name": f"{name}-0", "key": "GPU_PORTION"}}
    item["spec"]["containers"][0]["env"] = [{"name": "GPU_PORTION", "valueFrom": reference}]
    answer = await asker.create(item, user=ALICE, dry_run=True)
    assert_refused({"create": answer}, "runai/shared-gpu-configmap")


@PLACES
@pytest.mark.parametrize("key", [("annotations", "resource.kubernetes.io/extended-resource-claim")], ids=str)
async def test_a_template_of_claims_has_no_key_of_kais(asker: Asker, place: str, key: Key) -> None:
    if (await asker.send("GET", "/apis/resource.k8s.io/v1")).status != 200:
        pytest.skip("NOT VERIFIED: the API server serves no ResourceClaimTemplates of resource.k8s.io/v1")
    labels = {"vcluster.loft.sh/managed-by": "team-a"} if place == HOST else {}
    item = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "a", "namespace": place, "labels": labels},
        "spec": {"metadata": {key[0]: {key[1]: "true"}}, "spec": {}},
    }
    path = f"/apis/resource.k8s.io/v1/namespaces/{place}/resourceclaimtemplates"
    answer = await asker.send("POST", path, item, user=user_of(place), dry_run=True)
    assert_refused({"create": answer}, key[1], "remove them")
    item["spec"] = {"metadata": {"annotations": {"mine": "a"}}, "spec": {}}
    answer = await asker.send("POST", path, item, user=user_of(place), dry_run=True)
    assert answer.status == 201, answer.message


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
    if place == HOST:
        queue = ("labels", "kai.scheduler/queue")
        assert_refused(await edits(asker, stored, queue, "other", user), queue[1])
    await asker.remove(where(stored))
