"""What ResourceClaims give a pod: which memory of which GPU, and what the agent does with it."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gpuagent.actions.eviction_rules import EvictionRefusal, EvictionRules
from gpuagent.ledger.slack import DEFAULT_SLACK
from gpuagent.pods.inventory import ClaimedGpu, Inventory, PodClaims
from gpuagent.pods.node_pods import MOST_CLAIMS, decoder, read_pod
from gpuagent.pods.resource_claims import ClaimPins, NodeDevices, slice_devices
from gpuagent.server.exposition import Metrics
from gpuagent.shares.pod_share import ShareSource
from gpuagent.shares.share_resolver import SavedPod, ShareResolver
from gpuagent.verdicts.messages import flag_message
from kube.device_kinds import ResourceClaim, ResourceSlice
from tests.support.inventories import built
from tests.support.kube_objects import GPU_0, GPU_1, bind_request, fraction, node, pod, reservation, uid
from tests.support.resource_claims import GIB, allocated, claiming, gpu_slice, result
from tests.support.sample_pipeline import Pipeline
from tests.support.samples import gpu

MIG = "MIG-45bc850b-5558-5f00-99bb-69dba0369fb9"
read_claim = decoder("ResourceClaim", ResourceClaim)
read_slice = decoder("ResourceSlice", ResourceSlice)
Json = dict[str, Any]


def as_bytes(document: Json) -> bytes:
    return json.dumps(document).encode()


class World:
    """The pins and devices of a node, with what each object says to them."""

    def __init__(self, *slices: Json) -> None:
        self.pins, self.devices = ClaimPins(), NodeDevices()
        self.publish(*(slices or (gpu_slice(),)))

    def publish(self, *slices: Json) -> None:
        self.devices.update(slice_devices(read_slice(as_bytes(each))) for each in slices)

    def claims_of(self, document: Json, *claims: Json) -> PodClaims:
        made = read_pod(as_bytes(document))
        for each in claims:
            self.pins.add(read_claim(as_bytes(each)), [made])
        return self.pins.of(made, self.devices)

    def inventory(self, pods: list[Json], claims: list[Json], *others: Json) -> Inventory:
        inventory = built(*pods, *others).inventory
        for claim in claims:
            self.pins.add(read_claim(as_bytes(claim)), inventory.pods.values())
        given = {
            each.uid: self.pins.of(each, self.devices) for each in inventory.pods.values() if each.claims
        }
        return replace(inventory, claims=given)


POD = claiming("train", 1, "c")


def of_c(*results: Json, **more: Any) -> Json:
    return allocated("c", *results, to=(uid(1),), **more)


def gives(amount: int | None, gpu: str = GPU_0, claim: str = "c") -> ClaimedGpu:
    return ClaimedGpu(claim_uid=f"uid-of-{claim}", claim=claim, gpu_uuid=gpu, bytes=amount)


NIC = {"driver": "nic.example.com", "pool": "nics"}
GIVEN: dict[str, tuple[Json, list[ClaimedGpu], bool]] = {
    "memory": (of_c(result()), [gives(20 * GIB)], True),
    "qualified memory": (of_c(result(memory=None, consumedCapacity={"gpu.nvidia.com/memory": "1Gi"})), [gives(GIB)], True),
    "two requests on one GPU": (of_c(result(), result()), [gives(40 * GIB)], True),
    "two GPUs": (of_c(result(), result("gpu-1", "1Gi")), [gives(20 * GIB), gives(GIB, GPU_1)], True),
    "a whole GPU": (of_c(result(memory=None)), [gives(None)], True),
    "a whole GPU beside a part": (of_c(result(), result(memory=None)), [gives(None)], True),
    "a slot without memory": (of_c(result(memory=None, consumedCapacity={"memory": "0", "shares": "1"})), [], False),
    "a slot beside memory": (of_c(result(), result(memory=None, consumedCapacity={"shares": "1"})), [], False),
    "access of an administrator": (of_c(result(memory="80Gi", adminAccess=True)), [], False),
    "more than any GPU has": (of_c(result(memory="9999999Ti")), [], False),
    "no quantity": (of_c(result(memory="much")), [], False),
    "no such device": (of_c(result("gpu-7")), [], False),
    "a network card": (of_c(result("eth-0", None, **NIC)), [], True),
    "a network card beside a GPU": (of_c(result("eth-0", None, **NIC), result()), [gives(20 * GIB)], True),
    "no device": (of_c(), [], True),
    "more devices than the API allows": (of_c(*[result()] * 257), [], False),
    "for another pod": (allocated("c", result(), to=(uid(2),)), [], False),
    "for the PodGroup of another pod": (allocated("c", result(), group="g"), [], False),
    "not allocated": ({**of_c(), "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": uid(1)}]}}, [], False),
    "without a status": ({**of_c(), "status": None}, [], False),
}  # fmt: skip


@pytest.mark.parametrize(("claim", "gpus", "is_sized"), GIVEN.values(), ids=GIVEN)
def test_what_a_claim_gives(claim: Json, gpus: list[ClaimedGpu], is_sized: bool) -> None:
    assert World().claims_of(POD, claim) == PodClaims(gpus=tuple(gpus), is_sized=is_sized)


def in_spec(*claims: Json, **status: Any) -> Json:
    document = pod("train", 1, **status)
    document["spec"]["resourceClaims"] = list(claims)
    return document


TEMPLATE = {"name": "gpu", "resourceClaimTemplateName": "one"}
EXTENDED = {
    "resourceClaimName": "x",
    "requestMappings": [{"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "r"}],
}
NAMED: dict[str, tuple[Json, tuple[str, ...], bool]] = {
    "in the spec": (in_spec({"name": "gpu", "resourceClaimName": "c"}), ("c",), False),
    "of a template": (in_spec(TEMPLATE, resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "c-x"}]), ("c-x",), False),
    "of a template, not made yet": (in_spec(TEMPLATE), (), True),
    "of a template, not needed": (in_spec(TEMPLATE, resourceClaimStatuses=[{"name": "gpu"}]), (), False),
    "of an extended resource": (in_spec(extendedResourceClaimStatus=EXTENDED), ("x",), False),
    "too many": (in_spec(*({"name": f"c{n}", "resourceClaimName": f"c{n}"} for n in range(33))), tuple(f"c{n}" for n in range(MOST_CLAIMS)), True),
    "no name": (in_spec({"name": "gpu", "resourceClaimName": "../../../v1/nodes"}), (), True),
    "none": (pod("train", 1), (), False),
}  # fmt: skip


@pytest.mark.parametrize(("document", "names", "has_more"), NAMED.values(), ids=NAMED)
def test_the_names_of_a_pods_claims(document: Json, names: tuple[str, ...], has_more: bool) -> None:
    made = read_pod(as_bytes(document))
    assert (made.claims, made.has_unnamed_claims) == (names, has_more)


def test_a_gpu_that_a_claim_gives_as_an_extended_resource_is_not_the_device_plugins() -> None:
    made = read_pod(as_bytes(pod("train", 1, gpus=1, extendedResourceClaimStatus=EXTENDED)))
    assert (made.whole_gpus, made.holds_whole_gpus, made.claims) == (1, False, ("x",))


def test_a_claim_of_the_pods_group_is_the_pods() -> None:
    grouped = {**POD, "spec": POD["spec"] | {"schedulingGroup": {"podGroupName": "g"}}}
    claim = allocated("c", result(), group="g")
    assert World().claims_of(grouped, claim).gpus == (gives(20 * GIB),)


def test_a_claim_made_anew_under_its_name_decides_nothing() -> None:
    """The role `edit` can remove the finalizer of a claim in use, delete it, and create another one."""
    world = World()
    assert world.claims_of(POD, of_c(result())).gpus == (gives(20 * GIB),)
    anew = of_c(result("gpu-1", "79Gi"), uid="another")
    assert world.claims_of(POD, anew).gpus == (gives(20 * GIB),)
    assert world.claims_of(claiming("next", 2, "c"), allocated("c", result("gpu-1"), to=(uid(2),), uid="another")).gpus[0].claim_uid == "another"  # fmt: skip
    world.pins.keep({})
    assert not world.claims_of(POD).is_sized


def test_the_newest_complete_generation_of_a_pool_counts_and_a_pin_survives_the_gap() -> None:
    world = World(gpu_slice(GPU_0, name="a"))
    assert world.claims_of(POD, of_c(result())).is_sized
    second = claiming("second", 2, "d")
    of_second = allocated("d", result(), to=(uid(2),))
    half = gpu_slice(GPU_1, name="b", generation=2, count=2)
    world.publish(half)
    assert world.claims_of(POD).gpus == (gives(20 * GIB),), "known before"
    assert world.claims_of(second, of_second) == PodClaims(), "not resolved yet"
    world.publish(gpu_slice(GPU_0, name="a"), half, gpu_slice("GPU-x", name="c", generation=2, count=2))
    renumbered = world.claims_of(second)
    assert renumbered.gpus[0].gpu_uuid in (GPU_1, "GPU-x")
    assert world.claims_of(POD).gpus == (gives(20 * GIB),)


def test_devices_of_a_claim_may_be_parts_of_a_gpu_or_of_another_driver_with_gpus() -> None:
    world = World(gpu_slice(MIG))
    assert world.claims_of(POD, of_c(result())) == PodClaims()
    other = gpu_slice(GPU_0, name="other", driver="gpu.example.com")
    other["spec"]["devices"].append({"name": "usb-0", "attributes": {"port": {"int": 1}}})
    claim = of_c(result(driver="gpu.example.com"), result("usb-0", None, driver="gpu.example.com"))
    assert World(other).claims_of(POD, claim) == PodClaims(gpus=(gives(20 * GIB),), is_sized=False)


def test_a_claim_counts_over_a_restart_though_it_was_made_anew_meanwhile() -> None:
    gpus = [gpu(uuid=GPU_0), gpu(uuid=GPU_1)]
    before = ShareResolver()
    before.resolve(World().inventory([POD], [of_c(result())], *NODES), gpus)
    saved = msgspec.json.decode(msgspec.json.encode(before.saved()), type=list[SavedPod])
    unallocated = World().inventory([POD], [], *NODES)
    for inventory, promised in (
        (unallocated, {GPU_0: 20 * GIB}),
        (World().inventory([POD], [of_c(result("gpu-1", "1Gi"))], *NODES), {GPU_1: GIB}),
        (replace(unallocated, claims={}), {}),  # the agent does not read claims any more
    ):
        after = ShareResolver()
        after.restore(saved)
        for _ in range(2):
            (share,) = after.resolve(inventory, gpus)
            assert {uuid: amount.bytes for uuid, amount in share.shares.items()} == promised
    (excused,) = ShareResolver().resolve(unallocated, gpus)
    assert (excused.shares, excused.has_unsized_gpus) == ({}, True)


NODES = (node(**{"nvidia.com/gpu.memory": "24576"}),)


def test_use_above_the_claim_is_flagged_and_use_of_another_gpu_too() -> None:
    world, seen = World(), Pipeline()
    pods = [claiming("over", 1, "a"), claiming("within", 2, "b"), claiming("elsewhere", 3, "c")]
    claims = [allocated(name, result(memory="6Gi"), to=(uid(n),)) for n, name in enumerate("abc", 1)]
    inventory = world.inventory(pods, claims, *NODES)
    used = {uid(1): {GPU_0: 8 * GIB}, uid(2): {GPU_0: 5 * GIB}, uid(3): {GPU_1: GIB}}
    seen.process(inventory, used, times=4)
    assert seen.flagged == {(uid(1), GPU_0, "over-share"), (uid(3), GPU_1, "unassigned-gpu")}
    assert seen.promised(GPU_0) == 18 * GIB
    share = seen.pod_share(uid(1))
    assert share.source is ShareSource.RESOURCE_CLAIM
    over = next(each for each in seen.api_shares["pods"] if each["name"] == "over")
    assert over["shares"] == {GPU_0: {"bytes": 6 * GIB, "source": "resource-claim"}}
    assert (over["candidates"][0]["text"], over["hasUnsizedGpus"]) == ("claim a", False)
    seen.process(inventory, used | {uid(1): {GPU_0: 6 * GIB}}, times=2)
    assert (uid(1), GPU_0, "over-share") not in seen.flagged


def test_without_the_claim_its_pod_is_excused() -> None:
    seen = Pipeline()
    unread = replace(built(claiming("train", 1, "c"), *NODES).inventory, claims={})
    seen.process(unread, {uid(1): {GPU_0: 20 * GIB, GPU_1: GIB}}, times=4)
    assert seen.flagged == set()
    others = World().inventory([claiming("train", 1, "c")], [of_c(result("eth-0", None, **NIC))], *NODES)
    seen.process(others, {uid(1): {GPU_0: 20 * GIB}}, times=4)
    assert seen.flagged == {(uid(1), GPU_0, "no-share")}


def test_a_whole_gpu_of_a_claim_is_never_over_and_is_promised() -> None:
    seen = Pipeline()
    inventory = World().inventory([POD], [of_c(result(memory=None))], *NODES)
    seen.process(inventory, {uid(1): {GPU_0: 24 * GIB}}, times=4)
    assert (seen.flagged, seen.promised(GPU_0)) == (set(), 24 * GIB)


def shared() -> tuple[Pipeline, Inventory]:
    pods = [claiming("a", 1, "c"), claiming("b", 2, "c"), claiming("own", 3, "d")]
    claims = [
        allocated("c", result(memory="6Gi"), to=(uid(1), uid(2))),
        allocated("d", result(memory="6Gi"), to=(uid(3),)),
    ]
    return Pipeline(), World().inventory(pods, claims, *NODES)


def test_pods_with_one_claim_are_compared_with_it_together() -> None:
    seen, inventory = shared()
    seen.process(inventory, {uid(1): {GPU_0: 3 * GIB}, uid(2): {GPU_0: 3 * GIB}}, times=4)
    assert seen.flagged == set()
    assert seen.promised(GPU_0) == 12 * GIB, "the shared claim once"
    text = b"".join(Metrics(node="n", is_simulated=False).sample_parts(seen.judged[-1])).decode()
    series = [line for line in text.splitlines() if line.startswith("kaishare_pod_gpu_memory_share_bytes{")]
    assert sorted(line.partition('pod="')[2].partition('"')[0] for line in series) == ["a", "own"]
    assert [int(line.rpartition(" ")[2]) for line in series] == [6 * GIB, 6 * GIB]
    seen.process(inventory, {uid(1): {GPU_0: 5 * GIB}, uid(2): {GPU_0: 4 * GIB}}, times=4)
    assert seen.flagged == {(uid(1), GPU_0, "over-share"), (uid(2), GPU_0, "over-share")}
    (verdict,) = [each for key, each in seen.judged[-1].verdicts.by_key.items() if key.uid == uid(1)]
    assert "uses 9.0 GiB on GPU 0" in flag_message(verdict, seen.now, None)
    assert "together with the other pods of its resource claim" in flag_message(verdict, seen.now, None)
    rules = EvictionRules(excluded_namespaces=frozenset(), reservation_namespace="r", slack=DEFAULT_SLACK)
    assert rules.refusal(verdict, seen.judged[-1]) is EvictionRefusal.SHARED_CLAIM


def test_memory_of_a_shared_claim_is_at_risk_once() -> None:
    own, common = claiming("own", 3, "d"), claiming("a", 1, "c")
    of_own = allocated("d", result(memory="6Gi"), to=(uid(3),))
    alone = World().inventory(
        [common, own], [allocated("c", result(memory="6Gi"), to=(uid(1),)), of_own], *NODES
    )
    _, together = shared()
    at_risk = []
    for inventory in (alone, together):
        seen = Pipeline()
        seen.process(inventory, {uid(1): {GPU_0: 1 * GIB}, uid(3): {GPU_0: 20 * GIB}})
        at_risk += [each.at_risk_bytes for each in seen.judged[-1].snapshot.gpus if each.gpu.uuid == GPU_0]
    assert at_risk[0] == at_risk[1]
    assert at_risk[0]


def test_a_claim_beside_a_share_of_kai_adds_its_memory_and_gives_no_immunity() -> None:
    claimed = fraction("half", 1, share="0.5")
    claimed["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "c"}]
    request = bind_request("half", 1)
    for device, uuid, flagged in (("gpu-0", GPU_0, 15 * GIB), ("gpu-1", GPU_1, 3 * GIB)):
        seen = Pipeline()
        made = World().inventory([claimed], [of_c(result(device, "2Gi"))], *NODES, reservation(), request)
        seen.process(made, {uid(1): {uuid: flagged - 2 * GIB}}, times=4)
        assert seen.flagged == set()
        seen.process(made, {uid(1): {uuid: flagged}}, times=4)
        assert seen.flagged == {(uid(1), uuid, "over-share")}


def test_a_changed_share_of_kai_is_flagged_on_its_gpu_alone() -> None:
    world, seen = World(), Pipeline()
    for share in ("0.5", "0.7"):
        document = fraction("half", 1, share=share)
        document["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "c"}]
        claims = [of_c(result("gpu-1", "2Gi"))]
        seen.process(
            world.inventory([document], claims, *NODES, reservation(), bind_request("half", 1)), {}, times=2
        )
    assert seen.flagged == {(uid(1), GPU_0, "share-changed")}
    assert seen.pod_share(uid(1)).gpu_uuids == (GPU_0, GPU_1)


def test_a_claimed_gpu_is_not_inferred_to_be_a_whole_gpu_of_another_pod() -> None:
    whole = pod("whole", 2, gpus=1)
    inventory = World().inventory([POD, whole], [of_c(result())], *NODES)
    seen = Pipeline()
    seen.process(inventory, {uid(2): {GPU_1: GIB}})
    assert seen.pod_share(uid(2)).gpu_uuids == (GPU_1,)
    seen = Pipeline()
    seen.process(inventory, {uid(2): {GPU_0: GIB}})
    assert GPU_0 not in seen.pod_share(uid(2)).gpu_uuids


def test_a_group_label_or_another_text_of_a_tenant_changes_nothing() -> None:
    labelled = claiming("train", 1, "c", labels={"runai-gpu-group": "g"}, annotations={"gpu-fraction": "0.9"})
    inventory = replace(
        World().inventory([labelled], [of_c(result(memory="6Gi"))], *NODES), unplaced_uids=frozenset({uid(1)})
    )
    seen = Pipeline()
    seen.process(inventory, {uid(1): {GPU_0: 8 * GIB}}, times=4)
    assert seen.flagged == {(uid(1), GPU_0, "over-share")}
    assert seen.pod_share(uid(1)).source is ShareSource.RESOURCE_CLAIM
