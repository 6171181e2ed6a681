"""Changes of a pod's declaration after its binding: the share that counts, flags, and effects on other pods."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuagent.gpus.gpu_reading import Gpu
from gpuagent.shares.pod_share import PodShare, ShareSource
from gpuagent.shares.share_resolver import ShareResolver
from kai.releases import Version
from tests.support.inventories import inventory
from tests.support.kube_objects import (
    GPU_0,
    GPU_1,
    GROUP_0,
    GROUP_1,
    bind_request,
    fraction,
    node,
    pod,
    reservation,
    uid,
)

MIB = 1 << 20
TWO_RESERVATIONS = (reservation(GROUP_0, GPU_0, 900), reservation(GROUP_1, GPU_1, 901))
DEVICES = tuple(
    Gpu(
        index=index,
        uuid=uuid,
        model="A10",
        total_bytes=23028 * MIB,
        used_bytes=0,
        reserved_bytes=0,
        processes=(),
    )
    for index, uuid in enumerate((GPU_0, GPU_1))
)


def edited(first: dict[str, Any], then: dict[str, Any], *beside: dict[str, Any]) -> PodShare:
    """The claim of a pod after an edit."""
    pod_shares = ShareResolver()
    pod_shares.resolve(inventory(first, *TWO_RESERVATIONS, node(), *beside), DEVICES)
    return pod_shares.resolve(inventory(then, *TWO_RESERVATIONS, node(), *beside), DEVICES)[0]


def half(**annotations: str | None) -> dict[str, Any]:
    """A pod with 0.5, with annotations changed or (None) taken away."""
    document = fraction()
    for key, value in annotations.items():
        name = key.replace("__", ".").replace("_", "-")
        document["metadata"]["annotations"].pop(name, None)
        if value is not None:
            document["metadata"]["annotations"][name] = value
    return document


class TestAgainstTheBindRequest:
    @pytest.mark.parametrize("share", ["0.5", "0.50", ".5", "5e-1", "0.504", "0.4951"])
    def test_the_annotation_counts_as_kai_rounds_it(self, share: str) -> None:
        made = inventory(fraction(share=share), reservation(), node(), bind_request())
        assert not ShareResolver().resolve(made, DEVICES)[0].changed

    def test_roundings_observed_on_clusters(self) -> None:
        for share, portion in (("0.125", "0.12"), ("0.135", "0.14"), ("0.995", "0.99"), ("0.004", "0.00")):
            made = inventory(fraction(share=share), reservation(), node(), bind_request(portion=portion))
            assert not ShareResolver().resolve(made, DEVICES)[0].changed

    @pytest.mark.parametrize(
        ("document", "change"),
        [
            (half(gpu_fraction="0.9"), "the pod declares gpu-fraction 0.9, its BindRequest allocates 0.50"),
            (half(gpu_fraction="0.51"), "the pod declares gpu-fraction 0.51, its BindRequest allocates 0.50"),
            (half(gpu_fraction=None), "the pod declares no share, its BindRequest allocates 0.50"),
            (half(gpu_fraction="abc"), "the pod declares no share, its BindRequest allocates 0.50"),
            (half(gpu_fraction=None, gpu_memory="2000"), "the pod declares gpu-memory 2000, its BindRequest allocates 0.50"),
            (half(gpu_fraction_num_devices="2"), "the pod declares gpu-fraction 0.5 on 2 GPUs, its BindRequest allocates 1 GPU"),
        ],
        ids=["more", "a little more", "gone", "unreadable", "of another kind", "on more devices"],
    )  # fmt: skip
    def test_a_difference_is_named_whether_or_not_the_edit_was_seen(
        self, document: dict[str, Any], change: str
    ) -> None:
        made = inventory(document, reservation(), node(), bind_request())
        unseen = ShareResolver().resolve(made, DEVICES)[0]
        assert unseen.changed == change
        seen = edited(half(), document, bind_request())
        assert seen.changed == change
        assert unseen.shares == seen.shares
        assert unseen.shares[GPU_0].source is ShareSource.BIND_REQUEST
        assert unseen.shares[GPU_0].bytes == 11500 * MIB

    def test_gpu_memory_counts_as_its_portion(self) -> None:
        document = half(gpu_fraction=None, gpu_memory="2000")
        for portion, is_changed in (("0.09", False), ("0.08", True), ("0.10", True)):
            made = inventory(document, reservation(), node(), bind_request(portion=portion))
            assert bool(ShareResolver().resolve(made, DEVICES)[0].changed) is is_changed

    def test_gpu_memory_by_an_old_kai(self) -> None:
        """KAI v0.7 takes 4000 of a T4 for a quarter, later releases for 0.27."""
        document = half(gpu_fraction=None, gpu_memory="4000")
        made = inventory(document, reservation(), node("15360"), bind_request(portion="0.25"))
        assert ShareResolver().resolve(made, DEVICES)[0].changed
        assert not ShareResolver(kai_version=Version.parse("0.7.11")).resolve(made, DEVICES)[0].changed

    def test_without_any_card_gpu_memory_cannot_be_compared(self) -> None:
        document = half(gpu_fraction=None, gpu_memory="2000")
        assert not ShareResolver().resolve(inventory(document, bind_request()), ())[0].changed

    def test_the_change_ends_when_the_difference_is_gone(self) -> None:
        pod_shares = ShareResolver()
        for share, is_changed in (("0.5", False), ("0.9", True), ("0.5", False)):
            made = inventory(fraction(share=share), reservation(), node(), bind_request())
            assert bool(pod_shares.resolve(made, DEVICES)[0].changed) is is_changed

    def test_a_label_that_differs_is_no_change(self) -> None:
        assert not edited(fraction(), fraction(group=GROUP_1), bind_request()).changed

    def test_groups_beyond_those_given_do_not_count(self) -> None:
        more = fraction(group=None, labels={f"runai-gpu-group/{g}": g for g in (GROUP_0, GROUP_1)})
        made = inventory(more, *TWO_RESERVATIONS, node(), bind_request())
        pod_share = ShareResolver().resolve(made, DEVICES)[0]
        assert (pod_share.groups, pod_share.gpu_uuids) == ((GROUP_0,), (GPU_0,))

    def test_the_bind_request_that_comes_later_decides_from_then(self) -> None:
        pod_shares = ShareResolver()
        document = fraction(share="0.9")
        assert (
            pod_shares.resolve(inventory(document, reservation(), node()), DEVICES)[0].shares[GPU_0].bytes
            == 20700 * MIB
        )
        later = pod_shares.resolve(inventory(document, reservation(), node(), bind_request()), DEVICES)[0]
        assert later.shares[GPU_0].bytes == 11500 * MIB
        assert later.changed


class TestAgainstTheFirstDeclaration:
    @pytest.mark.parametrize(
        ("then", "change"),
        [
            (half(gpu_fraction="0.9"), "the pod declares gpu-fraction 0.9; it declared gpu-fraction 0.5 when first seen"),
            (half(gpu_fraction="0.501"), "the pod declares gpu-fraction 0.501; it declared gpu-fraction 0.5 when first seen"),
            (half(gpu_fraction=None), "the pod declares no share; it declared gpu-fraction 0.5 when first seen"),
            (half(gpu_fraction="abc"), "the pod declares no share; it declared gpu-fraction 0.5 when first seen"),
            (half(gpu_fraction_num_devices="2"), "the pod declares gpu-fraction 0.5 on 2 GPUs; it declared gpu-fraction 0.5 when first seen"),
            (fraction(group=GROUP_1), "its GPU group labels have changed since the pod was first seen"),
            (fraction(group=None), "its GPU group labels have changed since the pod was first seen"),
            (fraction(labels={"runai-gpu-group/x": "x"}), ""),
            (half(gpu_fraction="0.50"), ""),
            (half(gpu_fraction_container_name="other"), ""),
        ],
    )  # fmt: skip
    def test_the_first_counts_and_the_difference_is_named(self, then: dict[str, Any], change: str) -> None:
        pod_share = edited(half(), then)
        assert pod_share.changed == change
        assert {gpu: amount.bytes for gpu, amount in pod_share.shares.items()} == {GPU_0: 11500 * MIB}
        assert pod_share.shares[GPU_0].source is ShareSource.ANNOTATION
        assert pod_share.gpu_uuids == (GPU_0,)

    def test_a_share_that_is_added_later_does_not_count(self) -> None:
        """A pod without a share must not be able to declare one later."""
        pod_share = edited(pod(), half())
        assert (pod_share.has_share, pod_share.shares) == (False, {})
        assert pod_share.changed.startswith("the pod declares gpu-fraction 0.5; it declared no share")
        assert [candidate.text for candidate in pod_share.candidates] == ["gpu-fraction 0.5, changed later"]

    def test_both_declarations_are_candidates(self) -> None:
        pod_share = edited(half(), half(gpu_fraction="0.9"))
        assert [candidate.text for candidate in pod_share.candidates] == [
            "gpu-fraction 0.5, as first seen",
            "gpu-fraction 0.9, changed later",
        ]

    def test_the_change_ends_when_the_difference_is_gone(self) -> None:
        pod_shares = ShareResolver()
        for share, is_changed in (("0.5", False), ("0.9", True), ("0.5", False)):
            made = inventory(fraction(share=share), reservation(), node())
            assert bool(pod_shares.resolve(made, DEVICES)[0].changed) is is_changed

    def test_more_groups_than_devices_are_named_from_the_start(self) -> None:
        more = fraction(group=None, labels={f"runai-gpu-group/{g}": g for g in (GROUP_0, GROUP_1)})
        pod_share = ShareResolver().resolve(inventory(more, *TWO_RESERVATIONS, node()), DEVICES)[0]
        assert pod_share.changed == "the pod has 2 GPU groups for a share of 1 GPU"

    def test_the_queue_is_the_first_one(self) -> None:
        assert edited(fraction(), fraction(labels={"kai.scheduler/queue": "team-b"})).queue == "team-a"

    def test_a_new_pod_of_the_same_name_has_its_own_share(self) -> None:
        pod_share = edited(fraction(), fraction(number=2, share="0.9"))
        assert not pod_share.changed
        assert pod_share.shares[GPU_0].bytes == 20700 * MIB

    def test_a_pod_that_went_away_is_forgotten(self) -> None:
        pod_shares = ShareResolver()
        pod_shares.resolve(inventory(fraction(), reservation(), node()), DEVICES)
        pod_shares.resolve(inventory(reservation(), node()), DEVICES)
        pod_share = pod_shares.resolve(inventory(fraction(share="0.9"), reservation(), node()), DEVICES)[0]
        assert not pod_share.changed
        assert pod_share.shares[GPU_0].bytes == 20700 * MIB

    @pytest.mark.parametrize(
        ("key", "change"),
        [
            ("gpu-memory.request", "the pod declares gpu-memory.request"),
            ("gpu-memory.limit", "the memory limits of its containers have changed"),
            ("gpus.devices", "the GPUs of its containers have changed"),
        ],
    )
    def test_changed_requests_of_containers_are_named(self, key: str, change: str) -> None:
        prefix = "nvidia.com/container.main."
        before = {"gpu-memory.request": "4Gi", "gpu-memory.limit": "3Gi", "gpus.devices": GPU_0}
        later = {"gpu-memory.request": "5Gi", "gpu-memory.limit": "1Ti", "gpus.devices": GPU_1}
        labels = {"runai-gpu-group": GROUP_0}
        first = pod(labels=labels, annotations={prefix + name: value for name, value in before.items()})
        edit = {prefix + name: value for name, value in (before | {key: later[key]}).items()}
        then = pod(labels=labels, annotations=edit)
        pod_share = edited(first, then)
        assert pod_share.changed.startswith(change)
        assert pod_share.shares[GPU_0].bytes == 4 << 30
        assert pod_share.limits[GPU_0].bytes == 3 << 30


def test_a_group_that_is_edited_to_an_unreserved_one_lacks_a_reservation() -> None:
    """KAI uses the current label: it may delete the pod, or give the GPU to another pod."""
    assert edited(fraction(), fraction(group="nobodys"), bind_request()).lacks_reservation
    assert not edited(fraction(), fraction(group=GROUP_1), bind_request()).lacks_reservation


_VICTIM = fraction("victim", 2, "0.25", GROUP_1)
_SPOOFS = st.fixed_dictionaries(
    {},
    optional={
        "gpu-fraction": st.sampled_from(["0.25", "0.99", "a\nb", "", "NaN"]),
        "gpu-memory": st.sampled_from(["20000", "-1", "9" * 30]),
        "gpu-fraction-num-devices": st.sampled_from(["2", "0", "99999999999999999999"]),
        "received-resource-type": st.just("Regular"),
        "kubernetes.io/config.hash": st.just(uid(2)),
        "kubernetes.io/config.mirror": st.just(uid(2)),
        "run.ai/reserve_for_gpu_index": st.sampled_from([GPU_0, GPU_1]),
        "nvidia.com/container.main.gpu-memory.request": st.sampled_from(["80Gi", "x\n"]),
        "nvidia.com/container.main.gpu-memory.limit": st.sampled_from(["80Gi", "-1"]),
        "nvidia.com/container.main.gpus.devices": st.sampled_from([GPU_1, "x\ny"]),
        "vcluster.loft.sh/object-name": st.just("victim"),
        "vcluster.loft.sh/object-namespace": st.just("kai-resource-reservation"),
        "vcluster.loft.sh/object-host-name": st.sampled_from(["victim", "half"]),
        "vcluster.loft.sh/object-host-namespace": st.just("research"),
    },
)
_LABELS = st.fixed_dictionaries(
    {},
    optional={
        "runai-gpu-group": st.sampled_from([GROUP_0, GROUP_1, "x"]),
        f"runai-gpu-group/{GROUP_1}": st.just(GROUP_1),
        "app": st.just("kai-resource-reservation"),
        "vcluster.loft.sh/managed-by": st.just("team"),
        "kai.scheduler/queue": st.just("victims"),
    },
)


@settings(max_examples=200)
@given(
    annotations=_SPOOFS,
    labels=_LABELS,
    later=_SPOOFS,
    has_requests=st.booleans(),
    whole=st.sampled_from([None, "1"]),
)
def test_a_spoof_changes_no_share_of_another_pod(
    annotations: dict[str, str],
    labels: dict[str, str],
    later: dict[str, str],
    has_requests: bool,
    whole: str | None,
) -> None:
    beside = [_VICTIM, *TWO_RESERVATIONS, node()]
    if has_requests:
        beside.append(bind_request("victim", 2, "0.25", groups=(GROUP_1,)))
    alone = ShareResolver().resolve(inventory(*beside), DEVICES)[0]
    pod_shares = ShareResolver()
    for spoof in (annotations, later):
        spoofing = pod("half", 1, annotations=spoof, labels=labels, gpus=whole)
        by_uid = {
            pod_share.pod.uid: pod_share
            for pod_share in pod_shares.resolve(inventory(spoofing, *beside), DEVICES)
        }
        assert by_uid[uid(2)] == alone
        assert all("\n" not in note for note in by_uid[uid(1)].notes)
        assert all(amount.bytes >= 0 for amount in by_uid[uid(1)].shares.values())


@given(st.lists(_SPOOFS, min_size=2, max_size=4))
def test_an_edit_never_changes_what_a_pod_may_hold(says: list[dict[str, str]]) -> None:
    pod_shares = ShareResolver()
    beside = (*TWO_RESERVATIONS, node())
    amounts = []
    for spoof in says:
        document = pod(annotations=spoof, labels={"runai-gpu-group": GROUP_0})
        pod_share = next(
            c for c in pod_shares.resolve(inventory(document, *beside), DEVICES) if c.pod.name == "half"
        )
        amounts.append((pod_share.shares, pod_share.limits, pod_share.gpu_uuids, pod_share.has_share))
    assert all(amount == amounts[0] for amount in amounts)
