"""A placement is a fact once known: what takes nothing away, what moves a pod, and what accuses no pod."""

from dataclasses import replace
from typing import Any

import pytest

from gpuagent.actions.eviction_rules import EvictionRefusal
from gpuagent.gpus.gpu_reading import Gpu
from gpuagent.pods.inventory import NodePod
from gpuagent.serve_options import parse_sharing_mode
from gpuagent.shares.pod_share import Amount, LimitSource, ShareSource
from gpuagent.shares.records import NO_RECORDS, PodRecords
from gpuagent.shares.share_resolver import ShareResolver
from kai.installation import SharingMode
from tests.support.evaluations import RULES
from tests.support.inventories import inventory
from tests.support.kube_objects import (
    GPU_0,
    GPU_1,
    GROUP_0,
    GROUP_1,
    bind_request,
    fraction,
    node,
    of_tenant,
    pod,
    reservation,
    uid,
)
from tests.support.sample_pipeline import Pipeline
from tests.support.samples import gpu
from tests.support.shares import A10, DEVICES, Objects, observed, share_after, share_of

MIB, GIB = 1 << 20, 1 << 30
POD, WHOLE = uid(1), uid(7)
OVER, UNASSIGNED = (POD, GPU_0, "over-share"), (POD, GPU_1, "unassigned-gpu")
TENANT = "vcluster-red"
BOTH = {POD: {GPU_0: 20 * GIB, GPU_1: 18 * GIB}}
"""Above a half of 24 GiB on the pod's own GPU, and on another one."""


HOST_POD, TENANT_POD = fraction(), of_tenant(fraction())
NO_LABEL = fraction(group=None)
HOST = (HOST_POD, bind_request(), reservation())
IN_VCLUSTER = (TENANT_POD, of_tenant(reservation()))
RECORDS_GO = {
    "the owner removes the label, and KAI deletes the reservation pod": (HOST, (NO_LABEL, bind_request())),
    "the BindRequest is gone, too": (HOST, (NO_LABEL,)),
    "the BindRequest is gone": (HOST, (HOST_POD, reservation())),
    "the reservation pod names no GPU": (HOST, (HOST_POD, bind_request(), reservation(gpu="-1"))),
    "the group has two reservation pods with different GPUs": (HOST, (*HOST, reservation(gpu=GPU_1, number=901))),
    "the tenant sets -1": (IN_VCLUSTER, (TENANT_POD, of_tenant(reservation(gpu="-1")))),
    "the tenant deletes the reservation pod": (IN_VCLUSTER, (TENANT_POD,)),
    "the tenant names another GPU": (IN_VCLUSTER, (TENANT_POD, of_tenant(reservation(gpu=GPU_1)))),
    "the tenant deletes it and creates another one": (IN_VCLUSTER, (TENANT_POD,),
        (TENANT_POD, of_tenant(reservation(gpu=GPU_1, number=950)))),
    "the tenant removes the label": (IN_VCLUSTER, (of_tenant(fraction(group=None)),)),
}  # fmt: skip


@pytest.mark.parametrize("history", RECORDS_GO.values(), ids=RECORDS_GO)
def test_records_that_go_take_no_flag_no_share_and_no_promise(history: tuple[Objects, ...]) -> None:
    first, *later = history
    seen = Pipeline()
    seen.see(node(), *first, used_bytes=BOTH, times=4)
    assert {OVER, UNASSIGNED} <= seen.flagged
    for documents in later:
        seen.see(node(), *documents, used_bytes=BOTH, times=6)
        assert {OVER, UNASSIGNED} <= seen.flagged
        assert seen.pod_share(POD).gpu_uuids == (GPU_0,)
        assert (seen.promised(GPU_0), seen.promised(GPU_1)) == (11500 * MIB, 0)
    assert seen.log_lines("flag dropped") == []
    assert {line["reason"] for line in seen.log_lines("flag cleared")} <= {"no-reservation"}
    counted = seen.judged[-1].verdicts.over_seconds[POD, GPU_0]
    assert counted == 5.0 * (3 + 6 * len(later)), "the time over goes on"
    new = Pipeline()
    for documents in history:
        new.see(node(), *documents, used_bytes={POD: {GPU_0: GIB}})
    new.see(node(), *history[-1], used_bytes={POD: {GPU_0: 20 * GIB}}, times=4)
    assert OVER in new.flagged, "nor do they prevent a new flag"


# Label and BindRequest differ after a reservation that timed out and was tried again (observed on three releases).
RETRIED = (fraction(group="retried"), bind_request(groups=(GROUP_0,)))
ANOTHER = fraction("another", 2, "0.25", GROUP_0)
WITHIN = {POD: {GPU_0: 10 * GIB}}
MOVED = (*RETRIED, ANOTHER, reservation(GROUP_0, GPU_1))
BACK = (HOST_POD, bind_request(), ANOTHER, reservation(gpu=GPU_1))
ON_0, ON_BOTH = (GPU_0, "over-share"), {(GPU_0, "over-share"), (GPU_1, "unassigned-gpu")}
# objects, GiB that the pod uses on the two GPUs, and then its flags about memory, and whether it lacks its reservation
FLAGS: dict[str, list[tuple[Objects, tuple[float, float], set[tuple[str, str]], bool]]] = {
    "a standing flag on a foreign GPU ends when the pod leaves the GPU": [
        (HOST, (20, 18), ON_BOTH, False), ((NO_LABEL,), (20, 18), {*ON_BOTH, (GPU_1, "over-share")}, True), ((NO_LABEL,), (1, 0.1), set(), True),
    ],
    "a group that moves to another GPU accuses no pod of its old one": [
        (RETRIED, (10, 0), set(), True), (MOVED, (10, 0), set(), True), (MOVED, (20, 0), {ON_0}, True),
    ],
    "the same, where an earlier reservation pod is known": [
        ((*RETRIED, reservation("retried", GPU_0, 800)), (10, 0), set(), False),
        (MOVED, (10, 0), set(), True), (MOVED, (20, 0), {ON_0}, True),
    ],
    "a group whose GPU was never known, as the agent started later, and that comes back on another one": [
        ((HOST_POD, bind_request()), (10, 0), set(), True), (BACK, (10, 0), set(), False), (BACK, (20, 0), {ON_0}, False),
    ],
}  # fmt: skip


@pytest.mark.parametrize("history", FLAGS.values(), ids=FLAGS)
def test_flags_while_records_change(
    history: list[tuple[Objects, tuple[float, float], set[tuple[str, str]], bool]],
) -> None:
    seen = Pipeline()
    for documents, used, flags, is_missing in history:
        used_bytes = {uuid: int(each * GIB) for uuid, each in zip((GPU_0, GPU_1), used, strict=True) if each}
        seen.see(node(), *documents, used_bytes={POD: used_bytes}, times=8)
        assert {(uuid, reason) for _, uuid, reason in seen.flagged if reason != "no-reservation"} == flags
        assert ("no-reservation" in {reason for _, _, reason in seen.flagged}) is is_missing


def test_a_gpu_that_is_allocated_twice_is_promised_twice() -> None:
    seen, used = Pipeline(), {**WITHIN, WHOLE: {GPU_0: GIB}}
    seen.see(node(), *RETRIED, reservation("retried", GPU_0, 800), used_bytes=WITHIN, times=2)
    whole = pod("whole", 7, gpus="1")
    seen.see(node(), *RETRIED, ANOTHER, reservation(GROUP_0, GPU_1), whole, used_bytes=used, times=3)
    assert seen.promised(GPU_0) == 11500 * MIB + 24 * GIB
    assert {reason for _, _, reason in seen.flagged} == {"no-reservation"}


MOVES = {
    "KAI binds the pod again": (HOST, (HOST_POD, bind_request(groups=(GROUP_1,)), reservation(), reservation(GROUP_1, GPU_1, 901))),
    "the reservation pod of its group comes back": (HOST, (HOST_POD, bind_request()),
        (HOST_POD, bind_request(), reservation(gpu=GPU_1, number=902))),
    "KAI's own reservation pod instead of a tenant's": (IN_VCLUSTER,
        (TENANT_POD, of_tenant(reservation()), reservation(gpu=GPU_1, number=902))),
}  # fmt: skip


@pytest.mark.parametrize("history", MOVES.values(), ids=MOVES)
def test_kais_own_record_moves_a_pod_and_accuses_it_of_nothing(history: tuple[Objects, ...]) -> None:
    seen = Pipeline()
    for documents in history:
        seen.see(node(), *documents, used_bytes=WITHIN, times=4)
    assert seen.pod_share(POD).gpu_uuids == (GPU_1,)
    assert (seen.promised(GPU_0), seen.promised(GPU_1)) == (0, 11500 * MIB)
    assert seen.flagged == set()
    seen.see(node(), *history[-1], used_bytes={POD: {GPU_0: 20 * GIB}}, times=4)
    assert seen.flagged == {OVER}, "its share is the bound on a GPU that was its own"
    for documents in reversed(history):
        seen.see(node(), *documents, used_bytes={POD: {GPU_1: 10 * GIB}}, times=4)
    assert {reason for _, _, reason in seen.flagged} <= {"share-changed"}, "nor when all of it is undone"


TWO_GROUPS = fraction(
    group=None, labels={f"runai-gpu-group/{group}": group for group in (GROUP_0, GROUP_1)},
    annotations={"gpu-fraction-num-devices": "2"},
)  # fmt: skip
RESERVE_0, RESERVE_1 = reservation(), reservation(GROUP_1, GPU_1, 901)
AGAIN = bind_request(groups=(GROUP_1,))
STAYS = {"shares": {GPU_0: Amount(11500 * MIB, ShareSource.BIND_REQUEST)}, "gpu_uuids": (GPU_0,)}
NAMES_ANOTHER = {
    "gpu_uuids": (GPU_0,), "lacks_reservation": False, "changed": "the reservation pod of its group names another GPU now"
}  # fmt: skip
LATER: dict[str, tuple[tuple[Objects, ...], dict[str, Any]]] = {
    "groups without a reservation pod": ((HOST, (HOST_POD, AGAIN, RESERVE_0)), STAYS),
    "with one that names no GPU": ((HOST, (HOST_POD, AGAIN, RESERVE_0, reservation(GROUP_1, None, 901))), STAYS),
    "with a tenant's": ((HOST, (HOST_POD, AGAIN, RESERVE_0, of_tenant(reservation(GROUP_1, GPU_1, 901)))), STAYS),
    "another portion": ((HOST, (HOST_POD, bind_request(portion="0.90"), RESERVE_0)),
        {**STAYS, "changed": "KAI's BindRequest allocates 0.90 now; the first one seen counts"}),
    "no share": ((HOST, (HOST_POD, bind_request(portion="0.00", kind="Regular", groups=()), RESERVE_0)), STAYS),
    "an edited label": ((HOST, (fraction(group=GROUP_1), bind_request(), RESERVE_0, RESERVE_1)), STAYS),
    "a tenant's pod that is bound again needs KAI's own reservation pod": (
        ((TENANT_POD, bind_request(namespace=TENANT), of_tenant(reservation())),
         (TENANT_POD, bind_request(portion="0.90", groups=(GROUP_1,), namespace=TENANT),
          of_tenant(reservation(GROUP_1, GPU_1, 901)))),
        STAYS,
    ),
    "a tenant edits its reservation pod": ((IN_VCLUSTER, (TENANT_POD, of_tenant(reservation(gpu=GPU_1)))), NAMES_ANOTHER),
    "a tenant creates a new one": ((IN_VCLUSTER, (TENANT_POD, of_tenant(reservation(gpu=GPU_1, number=950)))), NAMES_ANOTHER),
    "a BindRequest that comes late counts": (
        ((fraction(share="0.9"), RESERVE_0), (fraction(share="0.9"), bind_request(), RESERVE_0)),
        {**STAYS, "changed": "the pod declares gpu-fraction 0.9, its BindRequest allocates 0.50"}),
    "the second of two GPUs becomes known": (((TWO_GROUPS, RESERVE_0), (TWO_GROUPS, RESERVE_0, RESERVE_1)), {"gpu_uuids": (GPU_0, GPU_1)}),
    "the only known one of two goes": (((TWO_GROUPS, RESERVE_0), (TWO_GROUPS,)), {"gpu_uuids": (GPU_0,)}),
    "one of two known ones goes": (((TWO_GROUPS, RESERVE_0, RESERVE_1), (TWO_GROUPS, RESERVE_1)), {"gpu_uuids": (GPU_0, GPU_1)}),
    "a new pod of the name has no pin": ((HOST, (fraction(number=2), bind_request(number=2))), {"gpu_uuids": ()}),
    "a pin is forgotten with its pod": ((HOST, (fraction(number=2), bind_request(number=2)), (HOST_POD,)), {"gpu_uuids": ()}),
    "and by a restart": (((HOST_POD,),), {"gpu_uuids": ()}),
}  # fmt: skip


@pytest.mark.parametrize(("history", "expected"), LATER.values(), ids=LATER)
def test_later_records(history: tuple[Objects, ...], expected: dict[str, Any]) -> None:
    pod_share = share_after(*((node(), *documents) for documents in history))
    assert observed(pod_share, expected) == expected


def test_pins_and_finished_pods_cost_no_memory_after_their_end() -> None:
    resolver = ShareResolver()
    for number in range(50):
        documents = [
            fraction(f"p{number}", number * 10 + each, phase="Succeeded" if each % 2 else "Running")
            for each in range(4)
        ]
        resolver.resolve(inventory(node(), *documents, reservation(number=9000)), DEVICES)
    kept = [(each.finished is None, each.records is NO_RECORDS) for each in resolver._known.values()]
    assert sorted(kept) == [(False, True)] * 2 + [(True, False)] * 2


def test_a_finished_pod_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    resolved: list[str] = []
    original = PodRecords.updated

    def counted(records: PodRecords, pod_: NodePod, *rest: Any) -> PodRecords:
        resolved.append(pod_.uid)
        return original(records, pod_, *rest)

    monkeypatch.setattr(PodRecords, "updated", counted)
    finished = (fraction(f"p{number}", number, phase="Succeeded") for number in range(10, 40))
    made = inventory(node(), *HOST, *finished)
    resolver = ShareResolver()
    for _ in range(5):
        shares = resolver.resolve(replace(made), DEVICES)
        assert [each.pod.uid for each in shares] == list(made.pods)
    assert len(resolved) == 30 + 5


CLAIM = {**HOST_POD, "spec": HOST_POD["spec"] | {"resourceClaims": [{"name": "gpu"}]}}
SUM = pod(
    annotations={f"nvidia.com/container.{name}.gpu-memory.request": "6Gi" for name in "ab"},
    labels={"runai-gpu-group": GROUP_0},
)
UNKNOWN_GPU = {
    "annotation": ((HOST_POD,), (10, 14), {GPU_1}),
    "BindRequest": ((HOST_POD, bind_request()), (10, 14), {GPU_1}),
    "reservation pod without a GPU": ((HOST_POD, reservation(gpu="-1")), (10, 14), {GPU_1}),
    "no group": ((NO_LABEL, bind_request(groups=())), (10, 14), {GPU_1}),
    "within on both": ((HOST_POD,), (10, 10), set()),
    "a claim beside the share": ((CLAIM,), (14, 0), set()),
    "a whole GPU beside the share": ((fraction(gpus="1"),), (14, 0), set()),
    "the sum of the containers is the bound": ((SUM,), (13, 0), {GPU_0}),
    "within the sum of the containers": ((SUM,), (12, 0), set()),
}  # fmt: skip


@pytest.mark.parametrize(("documents", "used", "over"), UNKNOWN_GPU.values(), ids=UNKNOWN_GPU)
def test_where_the_gpu_is_unknown_the_share_is_the_bound_on_each(
    documents: Objects, used: tuple[int, int], over: set[str]
) -> None:
    seen, on = Pipeline(), dict(zip((GPU_0, GPU_1), used, strict=True))
    used_bytes = {POD: {uuid: amount * GIB for uuid, amount in on.items() if amount}}
    seen.see(node(), *documents, used_bytes=used_bytes, times=4)
    assert (seen.promised(GPU_0), seen.promised(GPU_1)) == (0, 0), "nothing is promised on a GPU"
    flagged = {each for each in seen.flagged if each[2] != "no-reservation"}
    assert flagged == {(POD, uuid, "over-share") for uuid in over}


def test_where_one_of_two_gpus_is_known_the_share_is_the_bound_on_the_other() -> None:
    seen = Pipeline()
    seen.see(node(), TWO_GROUPS, reservation(), used_bytes={POD: {GPU_0: 10 * GIB, GPU_1: 14 * GIB}}, times=4)
    assert (POD, GPU_1, "over-share") in seen.flagged


PREFIX = "nvidia.com/container.main.gpu-memory."


def limited(limit: str, request: str = "11500Mi", **more: str) -> dict[str, Any]:
    annotations = {PREFIX + "request": request, PREFIX + "limit": limit, **more}
    return pod(annotations=annotations, labels={"runai-gpu-group": GROUP_0})


class TestLimits:
    """A limit in the pod's annotations only lowers, unless KAI enforces it."""

    def pipeline(
        self, *histories: dict[str, Any], mode: SharingMode | None = None, used: int = 20 * GIB
    ) -> Pipeline:
        seen = Pipeline(gpu_sharing_mode=mode)
        for document in histories:
            documents = (document, bind_request(), reservation())
            seen.see(node(), *documents, used_bytes={POD: {GPU_0: used}}, times=4)
        return seen

    @pytest.mark.parametrize("mode", [None, *SharingMode])
    @pytest.mark.parametrize("limit", ["11500Mi", "8Gi"])
    def test_a_limit_at_or_below_the_share_replaces_it(self, mode: SharingMode | None, limit: str) -> None:
        seen = self.pipeline(limited(limit), mode=mode, used=12 * GIB)
        assert seen.flagged == {(POD, GPU_0, "limit-bypassed")}

    @pytest.mark.parametrize(
        ("mode", "refusal"),
        [
            (None, EvictionRefusal.MODE_UNKNOWN),
            *((mode, None) for mode in SharingMode if mode is not SharingMode.NV_FRACTIONS),
        ],
    )
    @pytest.mark.parametrize("limit", ["11501Mi", "80Gi", "7Pi"])
    def test_above_the_share_the_pod_is_flagged_and_evicted_only_if_the_mode_is_known(
        self, mode: SharingMode | None, refusal: EvictionRefusal | None, limit: str
    ) -> None:
        seen = self.pipeline(limited(limit), mode=mode)
        assert seen.flagged == {OVER}
        assert seen.judged[-1].verdicts.over_seconds == {(POD, GPU_0): 15.0}
        (verdict,) = [each for each in seen.judged[-1].verdicts.by_key.values() if each.is_flagged]
        assert replace(RULES, gpu_sharing_mode=mode).refusal(verdict, seen.judged[-1]) is refusal
        assert seen.pod_share(POD).on(GPU_0).ignored_limit is not None

    @pytest.mark.parametrize(("used", "is_flagged"), [(15, False), (18, True)])
    def test_with_nv_fractions_the_limit_counts(self, used: int, is_flagged: bool) -> None:
        seen = self.pipeline(limited("16Gi"), mode=SharingMode.NV_FRACTIONS, used=used * GIB)
        assert seen.flagged == ({(POD, GPU_0, "limit-bypassed")} if is_flagged else set())

    def test_with_nv_fractions_the_gpu_bounds_the_limit(self) -> None:
        seen = self.pipeline(limited("80Gi"), mode=SharingMode.NV_FRACTIONS)
        assert seen.pod_share(POD).limits == {GPU_0: Amount(24 * GIB, LimitSource.ANNOTATION)}

    def test_with_nv_fractions_a_limit_on_a_gpu_of_unknown_size_does_not_count(self) -> None:
        unknown = tuple(replace(each, total_bytes=None) for each in DEVICES)
        documents = limited("80Gi", request="4Gi"), reservation()
        pod_share = share_of(*documents, mode=SharingMode.NV_FRACTIONS, devices=unknown)
        assert (pod_share.limits, pod_share.shares[GPU_0].bytes) == ({}, 4 * GIB)

    def test_a_limit_that_is_edited_in_later_hides_nothing(self) -> None:
        """KAI up to v0.17: placed by gpu-fraction, then edited."""
        seen = self.pipeline(fraction(), limited("80Gi", **{PREFIX + "request": "11500Mi"}))
        assert OVER in seen.flagged
        assert seen.log_lines("flag dropped") == []
        restarted = self.pipeline(limited("80Gi"))
        assert restarted.flagged == {OVER}, "after a restart of the agent, too"

    def test_limits_do_not_add_up_to_more_than_the_gpu(self) -> None:
        others = [
            pod(f"p{n}", n, annotations={PREFIX + "request": "2Gi", PREFIX + "limit": "80Gi"}, labels={"runai-gpu-group": GROUP_0})
            for n in (2, 3)
        ]  # fmt: skip
        for mode, most in ((None, 0), (SharingMode.NV_FRACTIONS, A10)):
            made = inventory(node(), *others, reservation())
            shares = ShareResolver(gpu_sharing_mode=mode).resolve(made, DEVICES)
            assert [sum(each.bytes for each in share.limits.values()) for share in shares] == [most, most]
            assert {share.sharing_mode for share in shares} == {mode}

    def test_the_names_of_the_modes_are_kais(self) -> None:
        assert parse_sharing_mode("NvFractions") is SharingMode.NV_FRACTIONS
        with pytest.raises(
            ValueError, match=r"nvfractions.*allowed: NonMemoryEnforced, HamiCore, NvFractions, Disabled"
        ):
            parse_sharing_mode("nvfractions")


@pytest.mark.parametrize(("version", "amount"), [(None, 4096 * MIB), ("v0.7.11", 4096 * 10**6)])
def test_an_amount_of_memory_needs_no_card(version: str | None, amount: int) -> None:
    """GB10: the driver reports no total, and the node has no label."""
    devices: tuple[Gpu, ...] = (gpu(uuid=GPU_0, total_bytes=None),)
    document = pod(annotations={"gpu-memory": "4096"}, labels={"runai-gpu-group": GROUP_0})
    pod_share = share_of(document, reservation(), version=version, devices=devices)
    assert pod_share.shares == {GPU_0: Amount(amount, ShareSource.ANNOTATION)}
    halves = share_of(fraction(number=2), reservation(), version=version, devices=devices)
    assert halves.shares == {}, "a fraction of an unknown amount is unknown"
