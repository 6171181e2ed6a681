"""Changes of a pod's declaration after its binding: the share that counts, flags, and effects on other pods."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.shares.pod_share import Amount, PodShare, ShareSource
from gpuagent.shares.share_resolver import ShareResolver
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
from tests.support.samples import MIB
from tests.support.shares import DEVICES, share_after, share_of

TWO_RESERVATIONS = (reservation(GROUP_0, GPU_0, 900), reservation(GROUP_1, GPU_1, 901))


def edited(first: dict[str, Any], then: dict[str, Any], *beside: dict[str, Any]) -> PodShare:
    """The share of a pod after an edit."""
    others = (*TWO_RESERVATIONS, node(), *beside)
    return share_after((first, *others), (then, *others))


def half(**annotations: str | None) -> dict[str, Any]:
    """A pod with 0.5, with annotations changed or (None) taken away."""
    document = fraction()
    for key, value in annotations.items():
        name = key.replace("__", ".").replace("_", "-")
        document["metadata"]["annotations"].pop(name, None)
        if value is not None:
            document["metadata"]["annotations"][name] = value
    return document


MEMORY = half(gpu_fraction=None, gpu_memory="2000")
BESIDE = (reservation(), node())
BEYOND = fraction(group=None, labels={f"runai-gpu-group/{group}": group for group in (GROUP_0, GROUP_1)})
ROUNDED = {
    **{f"{share} is 0.50": ((fraction(share=share), *BESIDE, bind_request()), False)
       for share in ("0.5", "0.50", ".5", "5e-1", "0.504", "0.4951")},
    **{f"observed: {share} is {portion}": ((fraction(share=share), *BESIDE, bind_request(portion=portion)), False)
       for share, portion in (("0.125", "0.12"), ("0.135", "0.14"), ("0.995", "0.99"), ("0.004", "0.00"))},
    **{f"2000 MiB of an A10 and {portion}": ((MEMORY, *BESIDE, bind_request(portion=portion)), is_changed)
       for portion, is_changed in (("0.09", False), ("0.08", True), ("0.10", True))},
    "another group label: KAI changes it, too": ((fraction(group=GROUP_1), *BESIDE, bind_request()), False),
}  # fmt: skip


@pytest.mark.parametrize(("documents", "is_changed"), ROUNDED.values(), ids=ROUNDED)
def test_an_annotation_is_rounded_as_by_kai(documents: tuple[dict[str, Any], ...], is_changed: bool) -> None:
    assert bool(share_of(*documents).changed) is is_changed


def test_gpu_memory_is_compared_by_kais_release_and_the_card() -> None:
    """KAI v0.7 takes 4000 of a T4 for a quarter, later releases for 0.27."""
    asks = half(gpu_fraction=None, gpu_memory="4000")
    documents = (asks, reservation(), node("15360"), bind_request(portion="0.25"))
    assert share_of(*documents).changed
    assert not share_of(*documents, version="0.7.11").changed
    assert not share_of(MEMORY, bind_request(), devices=()).changed, "without any card it cannot be compared"


ALLOCATES, FIRST_SEEN = "its BindRequest allocates", "it declared gpu-fraction 0.5 when first seen"
LABELS_CHANGED = "its GPU group labels have changed since the pod was first seen"
UNRESERVED = "nobodys"
"""KAI uses the current label: it may delete the pod, or give the GPU to another pod."""
EDITS = {
    "more": (half(gpu_fraction="0.9"), f"the pod declares gpu-fraction 0.9, {ALLOCATES} 0.50", f"the pod declares gpu-fraction 0.9; {FIRST_SEEN}"),
    "a little more": (half(gpu_fraction="0.51"), f"the pod declares gpu-fraction 0.51, {ALLOCATES} 0.50", f"the pod declares gpu-fraction 0.51; {FIRST_SEEN}"),
    "as little as KAI rounds": (half(gpu_fraction="0.501"), "", f"the pod declares gpu-fraction 0.501; {FIRST_SEEN}"),
    "gone": (half(gpu_fraction=None), f"the pod declares no share, {ALLOCATES} 0.50", f"the pod declares no share; {FIRST_SEEN}"),
    "unreadable": (half(gpu_fraction="abc"), f"the pod declares no share, {ALLOCATES} 0.50", f"the pod declares no share; {FIRST_SEEN}"),
    "of another kind": (MEMORY, f"the pod declares gpu-memory 2000, {ALLOCATES} 0.50", f"the pod declares gpu-memory 2000; {FIRST_SEEN}"),
    "on more devices": (half(gpu_fraction_num_devices="2"), f"the pod declares gpu-fraction 0.5 on 2 GPUs, {ALLOCATES} 1 GPU", f"the pod declares gpu-fraction 0.5 on 2 GPUs; {FIRST_SEEN}"),
    "another group": (fraction(group=GROUP_1), "", LABELS_CHANGED),
    "a group that is not reserved": (fraction(group=UNRESERVED), "", LABELS_CHANGED),
    "no group": (fraction(group=None), "", LABELS_CHANGED),
    "a label in the form for several devices": (fraction(labels={"runai-gpu-group/x": "x"}), "", ""),
    "another form": (half(gpu_fraction="0.50"), "", ""),
    "another container": (half(gpu_fraction_container_name="other"), "", ""),
}  # fmt: skip


@pytest.mark.parametrize(("then", "against_record", "against_first"), EDITS.values(), ids=EDITS)
def test_a_difference_is_named_and_what_counted_counts(
    then: dict[str, Any], against_record: str, against_first: str
) -> None:
    for beside, change, source in (
        ((bind_request(),), against_record, ShareSource.BIND_REQUEST),
        ((), against_first, ShareSource.ANNOTATION),
    ):
        pod_share = edited(half(), then, *beside)
        assert pod_share.changed == change
        assert pod_share.lacks_reservation is (
            then["metadata"]["labels"].get("runai-gpu-group") == UNRESERVED
        )
        assert pod_share.shares == {GPU_0: Amount(11500 * MIB, source)}
        assert not edited(then, half(), bind_request()).changed, "the difference is gone"
    assert share_of(then, *BESIDE, bind_request()).changed == against_record, "seen as an edit or not"


def test_groups_beyond_those_given_do_not_count() -> None:
    pod_share = share_of(BEYOND, *TWO_RESERVATIONS, node(), bind_request())
    assert (pod_share.groups, pod_share.gpu_uuids) == ((GROUP_0,), (GPU_0,))
    pod_share = share_of(BEYOND, *TWO_RESERVATIONS, node())
    assert pod_share.changed == "the pod has 2 GPU groups for a share of 1 GPU", "named from the start"


def test_a_share_that_is_added_later_does_not_count() -> None:
    """A pod without a share must not be able to declare one later."""
    pod_share = edited(pod(), half())
    assert (pod_share.has_share, pod_share.shares) == (False, {})
    assert pod_share.changed.startswith("the pod declares gpu-fraction 0.5; it declared no share")
    assert [candidate.text for candidate in pod_share.candidates] == ["gpu-fraction 0.5, changed later"]


def test_both_declarations_are_candidates_and_the_first_queue_counts() -> None:
    pod_share = edited(half(), fraction(share="0.9", labels={"kai.scheduler/queue": "team-b"}))
    texts = [candidate.text for candidate in pod_share.candidates]
    assert texts == ["gpu-fraction 0.5, as first seen", "gpu-fraction 0.9, changed later"]
    assert pod_share.queue == "team-a"


def test_a_new_pod_of_the_same_name_has_its_own_share_and_a_pod_that_went_away_is_forgotten() -> None:
    resolver = ShareResolver()
    for documents in ((fraction(),), (fraction(number=2, share="0.9"),), (), (fraction(share="0.9"),)):
        made = resolver.resolve(inventory(*documents, *BESIDE), DEVICES)
        for pod_share in made if documents != (fraction(),) else ():
            assert (pod_share.changed, pod_share.shares[GPU_0].bytes) == ("", 20700 * MIB)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("gpu-memory.request", "the pod declares gpu-memory.request"),
        ("gpu-memory.limit", "the memory limits of its containers have changed"),
        ("gpus.devices", "the GPUs of its containers have changed"),
    ],
)
def test_changed_requests_of_containers_are_named(key: str, change: str) -> None:
    prefix = "nvidia.com/container.main."
    before = {"gpu-memory.request": "4Gi", "gpu-memory.limit": "3Gi", "gpus.devices": GPU_0}
    later = {"gpu-memory.request": "5Gi", "gpu-memory.limit": "1Ti", "gpus.devices": GPU_1}
    labels = {"runai-gpu-group": GROUP_0}
    first = pod(labels=labels, annotations={prefix + name: value for name, value in before.items()})
    edit = {prefix + name: value for name, value in (before | {key: later[key]}).items()}
    pod_share = edited(first, pod(labels=labels, annotations=edit))
    assert pod_share.changed.startswith(change)
    assert (pod_share.shares[GPU_0].bytes, pod_share.limits[GPU_0].bytes) == (4 << 30, 3 << 30)


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


@given(st.lists(_SPOOFS, min_size=2, max_size=4))
def test_an_edit_never_changes_what_a_pod_may_hold(says: list[dict[str, str]]) -> None:
    pod_shares = ShareResolver()
    beside = (*TWO_RESERVATIONS, node())
    amounts = []
    for spoof in says:
        document = pod(annotations=spoof, labels={"runai-gpu-group": GROUP_0})
        resolved = pod_shares.resolve(inventory(document, *beside), DEVICES)
        (pod_share,) = [each for each in resolved if each.pod.name == "half"]
        amounts.append((pod_share.shares, pod_share.limits, pod_share.gpu_uuids, pod_share.has_share))
    assert all(amount == amounts[0] for amount in amounts)
