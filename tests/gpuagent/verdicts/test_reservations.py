"""Forged reservation pods: a tenant with such pods is visible, and they flag no pod of another tenant."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.actions.eviction_rules import candidates
from gpuagent.gpus.gpu_reading import LostGpu
from gpuagent.problems import Cause, Problem
from gpuagent.verdicts.reservations import Reservations
from kai.kaishare_keys import OVER_SHARE, VCLUSTER
from tests.support.inventories import built, inventory
from tests.support.kube_objects import (
    GPU_0,
    GPU_1,
    GROUP_0,
    GROUP_1,
    RESERVATIONS,
    bind_request,
    fraction,
    namespace_object,
    node,
    of_tenant,
    pod,
    reservation,
    uid,
)
from tests.support.markers import scaled
from tests.support.sample_pipeline import Pipeline
from tests.support.samples import gpu, sample, snapshot_of
from tests.support.shares import Objects

GIB = 1 << 30
EVIL, OTHER = "vcluster-evil", "vcluster-other"
WHOLE = uid(7)


def tenants(
    namespace: str = EVIL, gpu: str | None = GPU_0, number: int = 950, group: str = "evil", **more: Any
) -> dict[str, Any]:
    """A reservation pod of a KAI inside a vCluster."""
    return of_tenant(reservation(group, gpu, number, **more), namespace)


EVICT = [
    namespace_object("research", {OVER_SHARE: "evict"}),
    *(namespace_object(name, {OVER_SHARE: "evict", VCLUSTER: "true"}) for name in (EVIL, OTHER)),
]


def whole(namespace: str = "research", **more: Any) -> dict[str, Any]:
    return pod("whole", 7, namespace=namespace, gpus="1", **more)


BOTH, UNASSIGNED = {GPU_0: GIB, GPU_1: GIB}, {(WHOLE, GPU_0, "unassigned-gpu")}
ON_WHOLE_GPUS: dict[str, tuple[Objects, str, dict[str, int], set[tuple[str, str, str]]]] = {
    "a GPU of KAI's own reservation pod": ((node(), reservation()), "research", BOTH, UNASSIGNED),
    "of one of the pod's own namespace": ((node(), tenants()), EVIL, BOTH, UNASSIGNED),
    "a small context there": ((node(), reservation()), "research", {GPU_0: GIB >> 2, GPU_1: GIB}, set()),
    "never over its own": ((node(), reservation()), "research", {GPU_1: 23 * GIB}, set()),
    "no group there: another pod with whole GPUs may have it": ((node(),), "research", BOTH, set()),
    "the node's labels are unknown": ((reservation(),), "research", BOTH, set()),
    "time slicing": ((node(**{"nvidia.com/gpu.replicas": "4"}), reservation()), "research", BOTH, set()),
    "a finished reservation pod": ((node(), reservation(phase="Succeeded")), "research", BOTH, set()),
    "one without a GPU": ((node(), reservation(gpus=None)), "research", BOTH, set()),
    "one elsewhere": ((node(), reservation(node="another")), "research", BOTH, set()),
    "a tenant's": ((node(), tenants()), "research", BOTH, set()),
    "another tenant's": ((node(), tenants(OTHER)), "research", BOTH, set()),
}  # fmt: skip


@pytest.mark.parametrize(
    ("documents", "namespace", "used_bytes", "flagged"), ON_WHOLE_GPUS.values(), ids=ON_WHOLE_GPUS
)
def test_a_gpu_of_a_group_is_no_pods_whole_gpu(
    documents: Objects, namespace: str, used_bytes: dict[str, int], flagged: set[tuple[str, str, str]]
) -> None:
    seen = Pipeline()
    seen.see(*documents, whole(namespace), used_bytes={WHOLE: used_bytes}, times=3)
    assert seen.flagged == flagged
    if flagged:
        assert (seen.pod_share(WHOLE).gpu_uuids, seen.problems) == ((GPU_1,), {})
        seen.see(*documents, whole(namespace), used_bytes={WHOLE: {GPU_1: GIB}}, times=2)
        assert seen.flagged == set()


def test_a_gpu_in_use_before_its_reservation_is_not_the_pods_own() -> None:
    seen, used_bytes = Pipeline(), {WHOLE: {GPU_0: GIB}}
    seen.see(node(), whole(), used_bytes=used_bytes)
    assert seen.pod_share(WHOLE).gpu_uuids == (GPU_0,)
    seen.see(node(), reservation(), whole(), used_bytes=used_bytes, times=3)
    assert seen.flagged == UNASSIGNED
    assert GPU_0 not in seen.pod_share(WHOLE).gpu_uuids
    assert seen.promised(GPU_0) == 0


def test_a_gpu_of_another_tenants_reservation_is_a_conflict() -> None:
    seen = Pipeline()
    forged = (tenants(), tenants(gpu=GPU_1, number=951, group="b"))
    seen.see(node(), *forged, whole(), used_bytes={WHOLE: {GPU_0: GIB, GPU_1: GIB >> 2}}, times=3)
    assert seen.problems.keys() == {("reservation-conflict", GPU_0)}, "not for a context on the other"
    detail = seen.problems["reservation-conflict", GPU_0]
    assert EVIL in detail
    assert "research/whole" in detail
    assert seen.flagged == set()
    assert seen.books.status().attribution_ok


VICTIM, HALF = uid(1), 11 * GIB


class TestConflicts:
    """The victim has a share of GPU 0; the attacker names that GPU in its own reservation pod."""

    def seen(self, *attack: dict[str, Any], used_bytes: int = HALF, times: int = 4) -> Pipeline:
        made = Pipeline()
        share = fraction("evil", 2, "0.5", "evil", namespace=EVIL)
        given = (node(), reservation(), fraction(), bind_request(), share)
        made.see(
            *given, *attack, used_bytes={VICTIM: {GPU_0: used_bytes}, uid(2): {GPU_0: HALF}}, times=times
        )
        return made

    def test_a_tenant_that_reserves_anothers_gpu_is_a_problem_and_flags_no_pod(self) -> None:
        seen = self.seen(tenants())
        assert seen.problems.keys() == {("reservation-conflict", GPU_0)}
        detail = seen.problems["reservation-conflict", GPU_0]
        assert RESERVATIONS in detail
        assert EVIL in detail
        assert seen.books.status().attribution_ok
        assert seen.flagged == set()
        assert {key.uid for key in seen.judged[-1].verdicts.by_key} == {VICTIM, uid(2)}, "all are judged"
        (problem,) = seen.api_shares["problems"]
        assert (problem["reason"], problem["gpuUuid"]) == ("reservation-conflict", GPU_0)
        assert seen.api_shares["attributionOk"] is True

    def test_a_conflict_evicts_only_a_pod_above_its_own_share(self) -> None:
        """Every namespace asks for evictions."""
        seen = self.seen(tenants(), *EVICT, used_bytes=HALF)
        assert candidates(seen.judged[-1]) == []
        seen = self.seen(tenants(), *EVICT, used_bytes=20 * GIB)
        assert [verdict.key.uid for verdict in candidates(seen.judged[-1])] == [VICTIM], "for its own doing"
        assert seen.flagged == {(VICTIM, GPU_0, "over-share")}, "the victim's verdicts go on"

    def test_conflicts_of_tenants_and_time_slicing(self) -> None:
        seen = self.seen(tenants(gpu=GPU_1), tenants(OTHER, GPU_1, 951))
        assert seen.problems.keys() == {("reservation-conflict", GPU_1)}
        seen, sliced = Pipeline(), node(**{"nvidia.com/gpu.replicas": "4"})
        seen.see(sliced, reservation(), tenants(), whole(), used_bytes={WHOLE: {GPU_0: GIB}}, times=3)
        assert seen.problems == {}, "time slicing hands a GPU to several"

    @pytest.mark.parametrize(
        "attack",
        [tenants(gpu=GPU_1), tenants(gpus=None), tenants(phase="Failed"), tenants(node="another"), tenants(group=""), tenants(RESERVATIONS)],
        ids=["another GPU", "asks for no GPU", "finished", "elsewhere", "no group", "the same namespace"],
    )  # fmt: skip
    def test_reservation_pods_without_a_conflict(self, attack: dict[str, Any]) -> None:
        assert self.seen(attack).problems == {}


class TestUnresolved:
    @pytest.mark.parametrize("gpu", [None, "", " ", "-1", "GPU-elsewhere", f"{GPU_0},{GPU_1}", "x" * 4000])
    @pytest.mark.parametrize("is_tenants", [True, False])
    def test_a_reservation_pod_without_a_gpu_of_this_node_is_a_problem_after_the_grace(
        self, gpu: str | None, is_tenants: bool
    ) -> None:
        made = tenants(gpu=gpu) if is_tenants else reservation(gpu=gpu)
        seen = Pipeline()
        seen.see(node(), made, used_bytes={}, times=2)
        assert seen.problems == {}, "KAI names it some seconds later"
        seen.see(node(), made, used_bytes={})
        assert seen.problems.keys() == {("reservation-unresolved", "")}
        assert (EVIL if is_tenants else RESERVATIONS) in seen.problems["reservation-unresolved", ""]
        assert seen.books.status().attribution_ok
        seen.see(node(), tenants() if is_tenants else reservation(), used_bytes={})
        assert seen.problems == {}
        assert len(seen.log_lines("problem appeared")) == len(seen.log_lines("problem gone")) == 1

    def test_a_lost_gpu_belongs_to_this_node(self) -> None:
        """While no GPU responds or the driver is absent, no name can be looked up."""
        made = built(node(), reservation(), reservation(GROUP_1, GPU_1, 901), tenants(gpu="")).inventory
        lost = Problem(Cause.NVML, GPU_1, "lost")
        away = Problem(Cause.NVML, "", "away")
        reservations = Reservations(grace=10)
        for gpus, problems, expected in (
            ((gpu(uuid=GPU_0),), (lost,), 1),
            ((gpu(uuid=GPU_0),), (lost, away), 1),
            ((), (away,), 0),
        ):
            for at in (0, 20):
                snapshot = snapshot_of(sample(*gpus, at=at, problems=problems))
                unresolved = reservations.problems(made, snapshot)
            assert [problem.cause for problem in unresolved] == ["reservation-unresolved"] * expected
            assert all(RESERVATIONS not in problem.detail for problem in unresolved)

    def test_a_lost_gpu_of_unknown_uuid_may_be_the_one_that_a_reservation_pod_names(self) -> None:
        """The agent has started after the GPU was lost."""
        seen = Pipeline()
        seen.inventory = built(node(), reservation(GROUP_1, GPU_1, 901)).inventory
        for lost, expected in (((LostGpu(1),), []), ((), [("reservation-unresolved", "")])):
            for _ in range(4):
                taken = sample(gpu(uuid=GPU_0), at=seen.now)
                taken = replace(taken, reading=replace(taken.reading, lost=lost))
                seen.books.process(taken, {})
                seen.now += 5
            assert list(seen.problems) == expected

    def test_thousands_make_one_short_problem(self) -> None:
        many = [tenants(gpu="-1", number=1000 + n) for n in range(2000)]
        others = [tenants(f"vcluster-{n:04}", GPU_0, 3000 + n) for n in range(2000)]
        seen = Pipeline()
        seen.see(node(), reservation(gpu="-1"), *many, used_bytes={}, times=4)
        names = f"{RESERVATIONS}/gpu-reservation-900, {EVIL}/gpu-reservation-1000 and 1999 more there"
        assert names in seen.problems["reservation-unresolved", ""], "counted by namespace"
        assert len(seen.log_lines("problem appeared")) == 1
        seen.see(node(), reservation(), *others, used_bytes={}, times=3)
        (detail,) = seen.problems.values()
        assert detail.startswith(f"reservation pods of 2001 namespaces name this GPU: {RESERVATIONS}/")
        assert len(detail) < 1000
        assert len(seen.log_lines("problem appeared")) == 2


texts = st.sampled_from(
    ["", "-1", "0.5", "1", "NaN", "0x1p-2", GPU_0, GPU_1, f"{GPU_0},{GPU_1}", "9007199254740993", "9Ei", "true"]
) | st.text(max_size=20)  # fmt: skip
groups = st.sampled_from([GROUP_0, GROUP_1, "evil", "", "x" * 63])
label_keys = st.sampled_from(["runai-gpu-group", f"runai-gpu-group/{GROUP_0}", "kai.scheduler/queue", "app"])
annotation_keys = st.sampled_from(
    ["gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", "received-resource-type", "run.ai/reserve_for_gpu_index",
     "kubernetes.io/config.hash", "kubernetes.io/config.mirror", "nvidia.com/container.main.gpu-memory.request",
     "nvidia.com/container.main.gpu-memory.limit", "nvidia.com/container.main.gpus.devices"]
)  # fmt: skip
resources = st.dictionaries(
    st.sampled_from(
        ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb", "nvidia.com/rdma", "cpu"]
    ),
    st.sampled_from(["0", "1", "2", "8"]),
    max_size=3,
)


@st.composite
def hostile(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Objects of one tenant: pods, reservation pods and BindRequests of all namespaces but ours."""
    items: list[dict[str, Any]] = []
    for number in range(100, 100 + draw(st.integers(0, 6))):
        namespace = draw(st.sampled_from([EVIL, OTHER]))
        labels = draw(st.dictionaries(label_keys, groups | texts, max_size=4))
        annotations = draw(st.dictionaries(annotation_keys, texts, max_size=6))
        name = f"p{number}"
        made = pod(
            name, number, namespace=namespace, labels=labels, annotations=annotations,
            phase=draw(st.sampled_from(["Running", "Pending", "Succeeded", "Unknown"])),
            containers=[{"name": "main", "resources": {"limits": draw(resources)}}],
        )  # fmt: skip
        items.append(made)
        if draw(st.booleans()):
            portion = draw(texts)
            items.append(
                bind_request(name, draw(st.sampled_from([number, 1])), portion, groups=(draw(groups),), namespace=namespace)
            )  # fmt: skip
    for number in range(300, 300 + draw(st.integers(0, 6))):
        item = tenants(
            draw(st.sampled_from([EVIL, OTHER])), draw(st.none() | texts), number, draw(groups),
            gpus=draw(st.sampled_from([None, "0", "1", "9"])),
        )  # fmt: skip
        items.append(item)
    return items


@settings(max_examples=scaled(20), deadline=None)
@given(
    attack=hostile(), later=hostile(), used_bytes=st.lists(st.integers(0, 24 * GIB), min_size=8, max_size=8)
)
def test_no_tenants_objects_get_a_pod_of_another_namespace_flagged(
    attack: list[dict[str, Any]], later: list[dict[str, Any]], used_bytes: list[int]
) -> None:
    """The honest ones hold what they may: a share with KAI's word, one without, whole GPUs, none at all."""
    shares = (reservation(), fraction(), bind_request(), fraction("word", 3, "0.25"))
    ours = [*EVICT, node(), *shares, whole(), pod("idle", 4)]
    honest = {uid(1): {GPU_0: 10 * GIB}, uid(3): {GPU_0: 4 * GIB}, WHOLE: {GPU_1: 20 * GIB}, uid(4): {}}
    seen = Pipeline()
    for items in (attack, later, attack):
        uids = [each["metadata"]["uid"] for each in items if each["kind"] == "Pod"]
        evil = {each: {GPU_0: used_bytes[n % 8], GPU_1: used_bytes[-n % 8]} for n, each in enumerate(uids)}
        made = built(*ours, *items).inventory
        alone = inventory(*ours)
        seen.process(made, {**honest, **evil}, times=4)
        assert {uid_ for uid_, _, _ in seen.flagged}.isdisjoint(honest)
        assert {verdict.key.uid for verdict in candidates(seen.judged[-1])}.isdisjoint(honest)
        assert {cause for cause, _ in seen.problems} <= {
            "reservation-conflict", "reservation-unresolved", "negative-unattributed",
        }  # fmt: skip
        assert {uuid for _, uuid in seen.problems} <= {"", GPU_0, GPU_1}
        api_shares = seen.api_shares
        for index, (uuid, device) in enumerate(zip((GPU_0, GPU_1), api_shares["gpus"], strict=True)):
            assert device["index"] == index
            amounts = [p["shares"][uuid]["bytes"] for p in api_shares["pods"] if uuid in p["shares"]]
            assert all(0 <= amount <= 1 << 53 for amount in amounts)
            assert device["promisedBytes"] == sum(amounts)
            used = [
                each["usedBytes"] for p in api_shares["pods"] for each in p["gpus"] if each["gpuUuid"] == uuid
            ]
            assert device["usedBytes"] == sum(used) + device["hostBytes"] + device["unattributedBytes"]
        assert made.pods.keys() >= alone.pods.keys()
        for each in honest:
            assert made.pods[each] == alone.pods[each]
