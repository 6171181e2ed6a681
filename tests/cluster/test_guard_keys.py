"""The guard on a real API server: the keys of pods by which KAI counts, other objects, and pods of vClusters."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from tests.support.guard import BINDER, ENFORCED, HOST, POD_GROUPER, SYNCER, UNLISTED, synced_pod
from tests.support.guarded_objects import (
    ALICE,
    FIXED,
    FREE,
    GROUP,
    KAI_ONLY,
    KUBELET,
    PLACES,
    RESTORE,
    WHOLE_GPU,
    Item,
    Key,
    admitted,
    assert_admitted,
    assert_refused,
    bare,
    changes,
    edits,
    full,
    managed,
    refused,
    store,
    user_of,
    with_keys,
    workload,
)
from tests.support.kai_definitions import definition
from tests.support.kinds import made
from tests.support.kube_user import ADMINISTRATOR, Asker, account, where

pytestmark = pytest.mark.usefixtures("guarded")


RULES: Final = {
    **dict.fromkeys(KAI_ONLY, "only KAI"),
    **dict.fromkeys(FIXED, "at creation"),
    **dict.fromkeys(FREE, "at any time"),
}
"""Who writes a key of a pod: only KAI, or users, too."""


@PLACES
@pytest.mark.parametrize(("key", "rule"), RULES.items(), ids=[key[1] for key in RULES])
async def test_a_key_is_created_and_written_later_by_its_rule(
    asker: Asker, pods: None, place: str, key: Key, rule: str
) -> None:
    user, in_all_ways = user_of(place), key in (KAI_ONLY[0], FIXED[0], FREE[0])
    creation = asker.create(with_keys(bare(place, "new"), key), user=user, dry_run=True)
    if rule == "only KAI":
        words = "only KAI writes this: remove it from the pod and from the template"
        assert_refused({"create": await creation}, key[1], words)
    else:
        await admitted(creation)
    for item, value in ((bare(place), "x"), (full(place), "y"), (full(place), None)):
        answers = await edits(asker, item, key, value, user, in_all_ways=in_all_ways)
        if rule == "at any time":
            assert_admitted(answers)
        else:
            assert_refused(answers, key[1], RESTORE)
    if rule != "at any time":
        value = "y" if rule == "only KAI" else None
        assert_admitted(await edits(asker, full(place), key, value, BINDER, in_all_ways=in_all_ways))


@PLACES
async def test_a_pod_stays_in_its_pod_group(asker: Asker, place: str) -> None:
    key, user = ("annotations", "pod-group-name"), user_of(place)
    item = bare(place, "grouped")
    created = await asker.create(with_keys(item, key), user=user, dry_run=True)
    assert_refused({"create": created}, "pod-group-name: only KAI writes this")
    await store(asker, item, user)
    assert_refused(await edits(asker, item, key, "pg-1", user), "pod-group-name", RESTORE)
    await admitted(
        asker.merge(where(item), changes(annotations={"pod-group-name": "pg-1"}), user=POD_GROUPER)
    )
    for value in ("pg-2", "", None):
        for writer in (user, POD_GROUPER, BINDER, ADMINISTRATOR):
            answers = await edits(asker, item, key, value, writer, in_all_ways=value == "pg-2")
            words = "restore its owner references" if "kai-scheduler:" in writer else RESTORE
            assert_refused(answers, words)
    assert_admitted(await edits(asker, item, ("labels", "kai.scheduler/subgroup-name"), "x", POD_GROUPER))
    await asker.remove(where(item))


@PLACES
@pytest.mark.parametrize("value", ["kai-resource-reservation", "scaling-pod"])
async def test_the_label_app_has_no_value_of_kais(asker: Asker, pods: None, place: str, value: str) -> None:
    user, key = user_of(place), ("labels", "app")
    created = await asker.create(with_keys(bare(place, "new"), key, value=value), user=user, dry_run=True)
    assert_refused({"create": created}, "label app marks pods of KAI: use another value")
    for item in (bare(place), full(place)):
        assert_refused(await edits(asker, item, key, value, user, in_all_ways=False), "label app")
    assert_admitted(await edits(asker, full(place), key, value, BINDER, in_all_ways=False))


BINDING: Final[Item] = {"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "gpu-node-0"}}  # fmt: skip


@PLACES
async def test_a_binding_writes_no_key_of_kais(asker: Asker, place: str) -> None:
    item = bare(place, "bound")
    await store(asker, item, user_of(place))
    path = where(item) + "/binding"
    for key in (*KAI_ONLY[:4], *FIXED, ("annotations", "pod-group-name"), ("labels", "app")):
        binding = with_keys({**BINDING, "metadata": {"name": "bound"}}, key, value="scaling-pod")
        if place == HOST:  # the selector of the bindings for vClusters sees the Binding's own labels
            binding["metadata"].setdefault("labels", {})["vcluster.loft.sh/managed-by"] = "team-a"
        await refused(asker.send("POST", path, binding, user=ALICE), "kaishare-guard: ")
    await admitted(asker.send("POST", path, {**BINDING, "metadata": {"name": "bound"}}, user=BINDER))
    await asker.remove(where(item))


async def test_another_account_of_that_name_is_not_kai(asker: Asker, pods: None) -> None:
    names = (account(HOST, "binder"), account("kai-scheduler-2", "binder"), "kai-scheduler", ADMINISTRATOR)
    for user in names:
        request = asker.merge(where(bare(HOST)), changes(GROUP), user=user, dry_run=True)
        await refused(request, "runai-gpu-group")


@PLACES
@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("gpu-fraction", {"0.5": 1, ".5": 1, "0.3333333333333333": 1, "0x1p-1": 0, "5e-1": 0, "+0.5": 0, "1_0": 0, "": 0}),
        ("gpu-memory", {"8000": 1, "1": 1, "18446744073709551615": 0, "8Gi": 0, "0x10": 0, " 1": 0}),
        ("gpu-fraction-num-devices", {"2": 1, "16": 1, "18446744073709551615": 0, "2.0": 0, "1e1": 0}),
    ],
    ids=["gpu-fraction", "gpu-memory", "gpu-fraction-num-devices"],
)  # fmt: skip
async def test_the_numbers_of_a_share_are_plain(
    asker: Asker, place: str, key: str, values: Mapping[str, int]
) -> None:
    for value, is_plain in values.items():
        pod = bare(place, "share")
        pod["metadata"]["annotations"][key] = value
        answer = await asker.create(pod, user=user_of(place), dry_run=True)
        assert answer.status == (201 if is_plain else 403), (value, answer)
        assert is_plain or f"{key}: KAI's programs read this value differently" in answer.message


INIT_GPU: Final = {"name": "first", "image": "example.invalid/image", **WHOLE_GPU}
CLAIMED: Final = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}
CPU: Final = {"resources": {"requests": {"cpu": "1m"}}}


GPU_POD: Final[dict[str, tuple[Item, Item, bool]]] = {
    "init": ({}, {"initContainers": [INIT_GPU]}, False),
    "sidecar": ({}, {"initContainers": [{**INIT_GPU, "restartPolicy": "Always"}]}, False),
    "claim": ({}, CLAIMED, False),
    "init and cpu": (CPU, {"initContainers": [INIT_GPU]}, True),
    "claim and cpu": (CPU, CLAIMED, True),
    "none": ({}, {}, True),
    "init of cpu": ({}, {"initContainers": [{**INIT_GPU, **CPU}]}, True),
    "another scheduler": ({}, {"initContainers": [INIT_GPU], "schedulerName": "mine"}, True),
}
"""A pod's regular container, other fields of its spec, and whether KAI counts its GPU."""


@PLACES
@pytest.mark.parametrize("title", GPU_POD)
async def test_a_gpu_is_seen_in_the_status_of_its_pod_group(asker: Asker, place: str, title: str) -> None:
    container, spec, is_counted = GPU_POD[title]
    pod = synced_pod("x", namespace=place, annotations={"a": "b"}, container=container, **spec)
    if place == ENFORCED:
        pod["metadata"]["labels"].pop("vcluster.loft.sh/managed-by")
    if "resourceClaims" in spec and (await asker.send("GET", "/apis/resource.k8s.io/v1")).status != 200:
        pytest.skip("NOT VERIFIED: the API server drops claims of pods")
    request = asker.create(pod, user=user_of(place), dry_run=True)
    if is_counted or (place == HOST and "schedulerName" in spec):
        answer = await request
        assert "needs a request in a regular container" not in answer.message
        assert answer.status == 201 or place == HOST
    else:
        await refused(request, "needs a request in a regular container: add one, for example of cpu")


# Costs: CEL takes quadratic time over a list.


def many(count: int, key: str = "a{}", value: str = "") -> dict[str, str]:
    return {key.format(number): value for number in range(count)}


TOO_LARGE: Final = {
    "labels": synced_pod(labels=many(20_000)),
    "annotations": synced_pod(annotations=many(20_000)),
    "variables": synced_pod(container={"env": [{"name": "E", "value": "x"}] * 30_000}),
    "limits": synced_pod(container={"resources": {"limits": many(6_000, "a.b/{}", "1")}}),
    "containers": synced_pod(initContainers=[{"name": name, "image": "a"} for name in many(10_000)]),
}


@pytest.mark.parametrize("title", TOO_LARGE)
async def test_a_large_pod_is_refused_soon(asker: Asker, title: str) -> None:
    await refused(asker.create(TOO_LARGE[title], user=SYNCER, dry_run=True), ": use fewer")


async def test_the_largest_pod_that_is_admitted_costs_no_error(asker: Asker) -> None:
    """The API server ends an expression that costs too much, and the policy would refuse the request."""
    domains = ("example.org", "example.com", "kai.scheduler")
    labels, notes, own = (many(990, f"{domain}/{'k' * 50}-{{:04}}", "v" * 63) for domain in domains)
    item = bare(ENFORCED, "many")
    item["metadata"]["labels"] |= labels
    item["metadata"]["annotations"] |= notes
    item["spec"]["containers"][0]["env"] = [{"name": f"E{number}", "value": "x"} for number in range(5_000)]
    await admitted(asker.create(item, user=ALICE))
    changed = changes(dict.fromkeys(labels, "w"))
    await admitted(asker.merge(where(item), changed, user=ALICE, dry_run=True))
    replaced = changes({**dict.fromkeys(labels), **own}, {**dict.fromkeys(notes), **own})
    request = asker.merge(where(item), replaced, user=ALICE, dry_run=True)
    await refused(request, "kai.scheduler/kkk", RESTORE)
    await asker.remove(where(item))


async def test_a_pod_with_forbidden_keys_still_lives_and_ends(asker: Asker) -> None:
    item = full(ENFORCED)
    item["metadata"] |= {"name": "old", "finalizers": ["example.com/stay"]}
    assert (await asker.create(item, user=BINDER)).status == 201
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    debug = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "example.invalid/image"}]}}
    for request in (
        asker.merge(where(item) + "/status", running, user=KUBELET),
        asker.merge(where(item), changes({"mine": "a"}), user=ALICE),
        asker.merge(where(item) + "/ephemeralcontainers", debug, user=ALICE),
        asker.send("DELETE", where(item), user=ALICE, gracePeriodSeconds="0"),
        asker.merge(where(item), {"metadata": {"finalizers": None}}, user=ALICE),
    ):
        await admitted(request)
    assert (await asker.send("GET", where(item))).status == 404


async def test_a_large_pod_from_before_the_guard_keeps_its_status_and_kais_keys(asker: Asker) -> None:
    pod = bare(ENFORCED, "large")
    pod["metadata"]["labels"] |= many(2_000)
    await admitted(asker.create(pod, user=BINDER))
    running = {"status": {"phase": "Running"}}
    await admitted(asker.merge(where(pod) + "/status", running, user=KUBELET))
    await admitted(asker.merge(where(pod), changes(annotations={"pod-group-name": "pg"}), user=POD_GROUPER))
    await refused(asker.merge(where(pod), changes({"app": "b"}), user=ALICE), ": use fewer")
    await asker.remove(where(pod))


@pytest.mark.parametrize(
    "name", ["train-abc1234-shared-gpu-0", "train-abc1234-shared-gpu-12-evar", "train-abc1234-shared-gpu-i0"]
)
async def test_kais_config_maps_keep_their_data(asker: Asker, name: str) -> None:
    item = workload("ConfigMap", name)
    data = {"data": {"GPU_PORTION": "0.50", "NVIDIA_VISIBLE_DEVICES": "GPU-1"}}
    binary = {"binaryData": {"CUDA_DEVICE_MEMORY_LIMIT": "OTk5OTltCg=="}}
    for content in (data, binary):
        await refused(asker.create({**item, **content}, user=ALICE, dry_run=True), "use another name")
    assert (await asker.create({**item, **data}, user=BINDER)).status == 201
    for change in ({"data": {"GPU_PORTION": "0.90"}}, {"data": None}, binary):
        request = asker.merge(where(item), change, user=ALICE, dry_run=True)
        await refused(request, "only KAI writes a ConfigMap of this name")
        await admitted(asker.merge(where(item), change, user=BINDER, dry_run=True))
    labelled = {"metadata": {"labels": {"mine": "b"}, "finalizers": ["example.com/stay"]}}
    await admitted(asker.merge(where(item), labelled, user=ALICE, dry_run=True))
    await asker.remove(where(item))


@pytest.mark.parametrize("name", ["shared-gpu", "my-shared-gpu-config", "train-shared-gpu-x"])
async def test_other_config_maps_may_change(asker: Asker, name: str) -> None:
    item = workload("ConfigMap", name)
    assert (await asker.create({**item, "data": {"a": "b"}}, user=ALICE)).status == 201
    assert (await asker.merge(where(item), {"data": {"a": "c"}}, user=ALICE)).status == 200
    await asker.remove(where(item))


@pytest.mark.parametrize("name", ["x-abcdefg-foo", "shared-gpu", "x-abcdefg-shared-gpu-x"])
async def test_a_config_map_of_another_form_than_kais_is_not_named(asker: Asker, name: str) -> None:
    """KAI keeps a name that the pod has, and the guard would not know the ConfigMap as KAI's."""
    item = bare(ENFORCED, "x")
    item["metadata"]["annotations"]["runai/shared-gpu-configmap"] = name
    reference = {"configMapKeyRef": {"name": f"{name}-0", "key": "GPU_PORTION"}}
    item["spec"]["containers"][0]["env"] = [{"name": "GPU_PORTION", "valueFrom": reference}]
    await refused(asker.create(item, user=ALICE, dry_run=True), "runai/shared-gpu-configmap")


CLAIM_KEY: Final = "resource.kubernetes.io/extended-resource-claim"
CLAIMS = pytest.mark.kubernetes(1, 34)  # resource.k8s.io/v1


@CLAIMS
@PLACES
async def test_a_template_of_claims_has_no_key_of_kais(asker: Asker, place: str) -> None:
    path = f"/apis/resource.k8s.io/v1/namespaces/{place}/resourceclaimtemplates"

    def template(annotations: dict[str, str]) -> Item:
        spec = {"metadata": {"annotations": annotations}, "spec": {}}
        return made("ResourceClaimTemplate", "a", place, labels=managed(place), spec=spec)

    request = asker.send("POST", path, template({CLAIM_KEY: "true"}), user=user_of(place), dry_run=True)
    await refused(request, CLAIM_KEY, "remove it")
    await admitted(asker.send("POST", path, template({"mine": "a"}), user=user_of(place), dry_run=True))


KUBE_SCHEDULER, MANAGER = "system:kube-scheduler", "system:kube-controller-manager"
CLAIM_CONTROLLER = account("kube-system", "resource-claim-controller")


def claim(namespace: str, annotations: Mapping[str, str]) -> Item:
    return made(
        "ResourceClaim", "gpu", namespace, labels=managed(namespace), annotations=dict(annotations), spec={}
    )


@CLAIMS
@PLACES
async def test_a_claims_annotation_is_written_by_schedulers_only(asker: Asker, place: str) -> None:
    user = user_of(place)
    mine = {CLAIM_KEY: "true"}
    generated = {**mine, "resource.kubernetes.io/pod-claim-name": "gpu"}
    assert_refused({"create": await asker.create(claim(place, mine), user=user, dry_run=True)}, CLAIM_KEY)
    # The controller creates a claim as a user's template says.
    for controller in (MANAGER, CLAIM_CONTROLLER):
        await refused(asker.create(claim(place, generated), user=controller, dry_run=True), CLAIM_KEY)
    for writer in (KUBE_SCHEDULER, MANAGER, CLAIM_CONTROLLER, BINDER):
        await admitted(asker.create(claim(place, mine), user=writer, dry_run=True))
    stored = claim(place, {"mine": "a"})
    await store(asker, stored, user)
    key = ("annotations", CLAIM_KEY)
    assert_refused(await edits(asker, stored, key, "true", user), CLAIM_KEY)
    for writer in (KUBE_SCHEDULER, MANAGER, BINDER):
        assert_admitted(await edits(asker, stored, key, "true", writer))
    assert_admitted(await edits(asker, stored, ("annotations", "mine"), "b", user))
    await asker.remove(where(stored))


async def test_a_monitor_has_no_label_of_kais_prometheus(asker: Asker) -> None:
    kind = definition("monitoring.coreos.com/v1", "ServiceMonitor")
    await asker.apply(kind)
    path = f"/apis/monitoring.coreos.com/v1/namespaces/{ENFORCED}/servicemonitors"
    item = {"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": {"name": "a"}}
    labelled = with_keys(item, ("labels", "kai.scheduler/accounting"))

    async def created(body: Item, user: str) -> int:
        while (answer := await asker.send("POST", path, body, user=user, dry_run=True)).status == 404:
            pass  # the new kind is served after a moment
        return answer.status

    assert await created(item, ALICE) == 201
    assert await created(labelled, BINDER) == 201
    await refused(
        asker.send("POST", path, labelled, user=ALICE, dry_run=True), "kai.scheduler/accounting: remove it"
    )
    await asker.remove(where(kind))


def past_kai(**spec: Any) -> Item:
    return synced_pod(annotations={"a": "b"}, **{"schedulerName": "default-scheduler", **spec})


USE_KAI: Final = "the pod requests a GPU: set spec.schedulerName to kai-scheduler"
REMOVE: Final = "spec.nodeName bypasses KAI's scheduler: remove it"
CONFIG_MAP: Final = "only KAI writes the annotation runai/shared-gpu-configmap"


def gpu(resource: str, amount: str = "1") -> Item:
    return {"resources": {"limits": {resource: amount}}}


def with_config_map(name: str, *, reads: str, managed: str = "") -> Item:
    reference = {"configMapKeyRef": {"name": reads, "key": "GPU_PORTION"}}
    annotations = {"runai/shared-gpu-configmap": name}
    if managed:
        annotations["vcluster.loft.sh/managed-annotations"] = managed
    env = [{"name": "GPU_PORTION", "valueFrom": reference}]
    return synced_pod(annotations=annotations, container={"env": env})


KAIS: Final = "half-abcdefg-shared-gpu"


SYNCED: Final[dict[str, tuple[Item, str]]] = {
    "whole GPU": (past_kai(container=WHOLE_GPU), USE_KAI),
    "MIG": (past_kai(initContainers=[{**INIT_GPU, **gpu("nvidia.com/mig-1g.5gb")}]), USE_KAI),
    "another vendor": (past_kai(container=gpu("amd.com/gpu"), schedulerName="\N{GRINNING FACE}" * 2_000), USE_KAI),
    "DRA": (past_kai(container=gpu("deviceclass.resource.kubernetes.io/any")), USE_KAI),
    "share": (synced_pod(schedulerName="mine"), USE_KAI),
    "node": (synced_pod(nodeName="gpu-node-0"), REMOVE),
    "node and GPU": (past_kai(container=WHOLE_GPU, schedulerName="kai-scheduler", nodeName="gpu-node-0"), REMOVE),
    "ConfigMap of another": (with_config_map("other-abcdefg-shared-gpu", reads=f"{KAIS}-0"), CONFIG_MAP),
    "ConfigMap of the tenant": (
        with_config_map(KAIS, reads=f"{KAIS}-0", managed="gpu-fraction\nrunai/shared-gpu-configmap"),
        CONFIG_MAP,
    ),
    "long list": (with_config_map(KAIS, reads="x", managed="\n" * 200_000), CONFIG_MAP),
    "ordinary": (synced_pod(), ""),
    "ConfigMap of KAI": (with_config_map(KAIS, reads=f"{KAIS}-0"), ""),
    "no GPU": (past_kai(container=gpu("nvidia.com/gpu", "0"), nodeName="gpu-node-0"), ""),
    "network device": (past_kai(container=gpu("nvidia.com/mlnxnics")), ""),
    "plain pod with project": (past_kai(namespace=UNLISTED, labels={"kai.scheduler/queue": None, "project": "website"}), ""),
    "of no vCluster": (synced_pod(labels={"vcluster.loft.sh/managed-by": None, **GROUP}, nodeName="gpu-node-0"), ""),
}  # fmt: skip


@pytest.mark.parametrize("title", SYNCED)
async def test_a_vclusters_pod_gets_a_gpu_from_kai_only(asker: Asker, title: str) -> None:
    pod, words = SYNCED[title]
    request = asker.create(pod, user=SYNCER, dry_run=True)
    await (refused(request, "kaishare-guard: " + words) if words else admitted(request))


async def test_the_syncer_writes_everything_else(asker: Asker) -> None:
    pod = synced_pod("running")
    path = where(pod)
    behind = (await admitted(asker.create(pod, user=SYNCER))).body
    await admitted(asker.merge(path, changes(GROUP, {"pod-group-name": "pg-1"}), user=BINDER))
    words = changes({"app": "b", "project": "x"}, {"vcluster.loft.sh/labels": 'app="b"', "any": "y"})
    for user, subresource, change in [
        (SYNCER, "", words),
        (SYNCER, "", changes({"app": None}, {"any": None})),
        (SYNCER, "", {"spec": {"activeDeadlineSeconds": 600}}),
        (SYNCER, "/status", {"status": {"message": "as in the tenant's"}}),
        (KUBELET, "/status", {"status": {"phase": "Running"}}),
    ]:
        await admitted(asker.merge(path + subresource, change, user=user))
    unmanaged = changes({"vcluster.loft.sh/managed-by": None, "runai-gpu-group": None})
    await refused(asker.merge(path, unmanaged, user=SYNCER), RESTORE)
    behind["metadata"]["labels"]["app"] = "b"
    assert (await asker.send("PUT", path, behind, user=SYNCER)).status == 409, "a conflict and no denial"
    await asker.remove(path)


async def test_elsewhere_only_a_vclusters_pods_are_guarded(asker: Asker) -> None:
    pod = bare("not-enforced", "plain")
    await admitted(asker.create(pod, user=ALICE))
    await admitted(asker.merge(where(pod), changes({"kai.scheduler/queue": "b", **GROUP}), user=ALICE))
    await asker.remove(where(pod))
