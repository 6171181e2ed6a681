"""A share needs KAI: what a pod says of itself counts only if KAI placed the pod."""

from dataclasses import replace
from typing import Any

import pytest

from gpuagent.shares.pod_share import ShareSource, Standing
from gpuagent.verdicts.messages import message
from tests.support.inventories import built
from tests.support.kube_objects import (
    GPU_0,
    GPU_1,
    GROUP_0,
    bind_request,
    fraction,
    node,
    pod,
    reservation,
    uid,
)
from tests.support.sample_pipeline import Pipeline

GIB = 1 << 30
POD = uid(1)
CONTAINER = "nvidia.com/container.main."
NODE = (node(), reservation())
ASKING: dict[str, dict[str, str]] = {
    "a fraction": {"gpu-fraction": "0.01"},
    "memory": {"gpu-memory": "20000"},
    "memory of a container": {f"{CONTAINER}gpu-memory.request": "20Gi"},
    "memory of a container, on a GPU": {
        f"{CONTAINER}gpu-memory.request": "20Gi",
        f"{CONTAINER}gpu-memory.limit": "22Gi",
        f"{CONTAINER}gpus.devices": GPU_1,
    },
}
asking = pytest.mark.parametrize("annotations", ASKING.values(), ids=ASKING)


@asking
def test_an_annotation_without_an_allocation_is_no_share(annotations: dict[str, str]) -> None:
    seen = Pipeline()
    seen.see(*NODE, pod(annotations=annotations), used_bytes={POD: {GPU_1: GIB}}, times=3)
    assert seen.flagged == {(POD, GPU_1, "no-share")}
    assert (seen.promised(GPU_0), seen.promised(GPU_1)) == (0, 0)
    pod_share = seen.pod_share(POD)
    assert (pod_share.has_share, pod_share.gpu_uuids, pod_share.shares, pod_share.limits) == (
        False,
        (),
        {},
        {},
    )
    (candidate,) = pod_share.candidates
    assert candidate.standing is Standing.IGNORED
    assert "ignored by KAI" in candidate.text


@asking
def test_while_the_bind_request_is_unknown_no_flag_is_raised(annotations: dict[str, str]) -> None:
    """The BindRequest was not requested yet, or the request failed."""
    seen = Pipeline()
    made = built(*NODE, pod(annotations=annotations)).inventory
    unknown = replace(made, bind_requests_unknown=frozenset({("research", "half")}))
    seen.process(unknown, {POD: {GPU_1: GIB}}, times=4)
    assert seen.flagged == set()
    assert not [
        key for key in seen.judged[-1].verdicts.by_key if key.reason in ("no-share", "unassigned-gpu")
    ]
    assert (seen.promised(GPU_0), seen.promised(GPU_1)) == (0, 0), "nor is anything promised"
    seen.process(made, {POD: {GPU_1: GIB}}, times=3)
    assert seen.flagged == {(POD, GPU_1, "no-share")}


def test_a_flag_stands_while_the_bind_request_is_unknown_again() -> None:
    """A right comes and goes, and the BindRequest is requested again. That there was none stays known."""
    seen, used_bytes = Pipeline(), {POD: {GPU_1: GIB}}
    made = built(*NODE, fraction(group=None)).inventory
    unknown = replace(made, bind_requests_unknown=frozenset({("research", "half")}))
    seen.process(made, used_bytes, times=3)
    assert seen.flagged == {(POD, GPU_1, "no-share")}
    seen.process(unknown, used_bytes, times=3)
    assert seen.flagged == {(POD, GPU_1, "no-share")}
    seen.process(made, used_bytes)
    assert seen.flagged == {(POD, GPU_1, "no-share")}
    assert len(seen.log_lines("pod flagged")) == 1
    assert seen.log_lines("flag cleared") == seen.log_lines("flag dropped") == []


@asking
def test_a_group_label_alone_decides_while_the_bind_request_is_unknown(annotations: dict[str, str]) -> None:
    seen = Pipeline()
    made = built(*NODE, pod(annotations=annotations, labels={"runai-gpu-group": GROUP_0})).inventory
    unknown = replace(made, bind_requests_unknown=frozenset({("research", "half")}))
    for inventory in (unknown, made):
        seen.process(inventory, {POD: {GPU_0: GIB // 8}}, times=3)
        pod_share = seen.pod_share(POD)
        assert pod_share.gpu_uuids == (GPU_0,), (
            "by the group; gpus.devices places no share that is not recorded"
        )
        assert pod_share.shares[GPU_0].source is ShareSource.ANNOTATION
        assert not pod_share.lacks_reservation


@asking
def test_an_invented_group_label_is_flagged_as_no_reservation(annotations: dict[str, str]) -> None:
    """The share is known without a GPU, too: the pod may use as much on one GPU and no more."""
    seen = Pipeline()
    invented = pod(annotations=annotations, labels={"runai-gpu-group": "mine"})
    seen.see(*NODE, invented, used_bytes={POD: {GPU_1: GIB}}, times=3)
    over = {(POD, GPU_1, "over-share")} if "gpu-fraction" in annotations else set()
    assert seen.flagged == {(POD, "", "no-reservation")} | over
    assert (seen.promised(GPU_0), seen.promised(GPU_1)) == (0, 0)


def test_a_group_label_that_comes_later_makes_no_share() -> None:
    """KAI writes it before it binds the pod."""
    seen, used_bytes = Pipeline(), {POD: {GPU_1: GIB}}
    seen.see(*NODE, pod(annotations={"gpu-fraction": "0.9"}), used_bytes=used_bytes)
    edited = pod(annotations={"gpu-fraction": "0.9"}, labels={"runai-gpu-group": GROUP_0})
    seen.see(*NODE, edited, used_bytes=used_bytes, times=3)
    assert seen.flagged == {(POD, GPU_1, "no-share")}
    assert seen.promised(GPU_0) == 0


def test_a_group_label_that_goes_takes_no_share() -> None:
    """Of KAI's own accord, or by an edit: the pod was placed."""
    seen, used_bytes = Pipeline(), {POD: {GPU_0: GIB}}
    seen.see(*NODE, fraction(), used_bytes=used_bytes)
    seen.see(*NODE, fraction(group=None), used_bytes=used_bytes, times=3)
    assert seen.pod_share(POD).shares[GPU_0].bytes == 11500 << 20
    assert {reason for _, _, reason in seen.flagged} == {"share-changed"}


@pytest.mark.parametrize("portion", ["0.50", "a half"])
def test_a_bind_request_alone_is_enough(portion: str) -> None:
    seen = Pipeline()
    seen.see(
        *NODE, fraction(group=None), bind_request(portion=portion), used_bytes={POD: {GPU_0: GIB}}, times=3
    )
    assert seen.pod_share(POD).has_share
    assert seen.flagged == set()


def test_the_event_names_the_reason_why_the_annotation_does_not_count() -> None:
    """Of a pod that KAI placed without a share it says nothing of the kind."""
    for others, is_annotation_ignored in (
        ((), True),
        ((bind_request(portion="0.00", groups=(), kind="Regular"),), False),
    ):
        seen = Pipeline()
        seen.see(*NODE, fraction(group=None), *others, used_bytes={POD: {GPU_0: GIB}}, times=3)
        (transition,) = [each for each in seen.judged[-1].changes if each.verdict.key.reason == "no-share"]
        assert ("KAI did not place the pod" in message(transition, None)) is is_annotation_ignored


def test_the_bind_request_of_another_pod_is_ignored() -> None:
    seen = Pipeline()
    seen.see(*NODE, fraction(group=None), bind_request(number=2), used_bytes={POD: {GPU_0: GIB}}, times=3)
    assert seen.flagged == {(POD, GPU_0, "no-share")}


def test_an_unreadable_bind_request_leaves_the_share_open() -> None:
    broken = bind_request(groups=("g",) * 2000)
    seen = Pipeline()
    seen.see(*NODE, fraction(group=None), broken, used_bytes={POD: {GPU_0: GIB}}, times=3)
    assert seen.flagged == set()
    assert seen.promised(GPU_0) == 0


STARTED: dict[str, Any] = {
    "initContainerStatuses": [{"name": "init", "containerID": f"containerd://{'c' * 64}"}]
}


def test_a_pod_that_does_not_run_yet_has_the_share_it_asks_for_and_promises_nothing() -> None:
    seen = Pipeline()
    seen.see(*NODE, fraction(group=None, phase="Pending"), used_bytes={}, times=2)
    assert seen.pod_share(POD).is_unresolved
    assert (seen.promised(GPU_0), seen.promised(GPU_1)) == (0, 0)
    seen.see(
        *NODE, fraction(group=None, phase="Pending", **STARTED), used_bytes={POD: {GPU_1: GIB}}, times=3
    )  # fmt: skip
    assert seen.flagged == {(POD, GPU_1, "no-share")}, "an init container of it runs"


def test_an_init_container_that_runs_counts_for_no_reservation() -> None:
    seen = Pipeline()
    seen.see(node(), fraction(phase="Pending"), used_bytes={}, times=3)
    assert seen.flagged == set()
    seen.see(node(), fraction(phase="Pending", **STARTED), used_bytes={POD: {GPU_0: GIB}}, times=3)
    assert seen.flagged == {(POD, "", "no-reservation")}


CLAIM = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]}


def sized(*names: str, amount: str | int = "1", where: str = "containers", **spec: Any) -> dict[str, Any]:
    """A pod without a share whose one container asks for these resources."""
    made = pod()
    resources = {"limits": dict.fromkeys(names, amount)} if names else {}
    made["spec"] |= {where: [{"name": "x", "resources": resources}], **spec}
    return made


UNSIZED = {
    "a claim": sized(**CLAIM),
    "time slices": sized("nvidia.com/gpu.shared"),
    "MIG": sized("cpu", "nvidia.com/mig-1g.5gb"),
    "vGPU": sized("nvidia.com/vgpu-a10-6q"),
    "renamed": sized("nvidia.com/a10-slice"),
    "DRA as an extended resource": sized("deviceclass.resource.kubernetes.io/gpu.nvidia.com"),
    "of an init container": sized("nvidia.com/gpu.shared", where="initContainers"),
}
SIZED = {
    "nothing": sized(),
    "a network device": sized("nvidia.com/hostdev", "nvidia.com/rdma_shared_device_a", "nvidia.com/sriov_vf"),
    "none of it": sized("nvidia.com/gpu.shared", amount="0"),
    "none of it, as a number": sized("nvidia.com/mig-1g.5gb", amount=0),
    "no claim": sized(resourceClaims=[]),
    "something else": sized("example.com/foo", "hugepages-2Mi"),
}


@pytest.mark.parametrize("document", UNSIZED.values(), ids=UNSIZED)
def test_a_gpu_of_unknown_size_flags_no_pod(document: dict[str, Any]) -> None:
    seen = Pipeline()
    seen.see(*NODE, document, used_bytes={POD: {GPU_0: GIB, GPU_1: GIB}}, times=4)
    assert seen.judged[-1].verdicts.by_key == {}
    assert [entry["hasUnsizedGpus"] for entry in seen.api_shares["pods"]] == [True]
    beside = fraction()
    beside["spec"] |= {key: value for key, value in document["spec"].items() if key != "nodeName"}
    seen = Pipeline()
    seen.see(*NODE, beside, bind_request(), used_bytes={POD: {GPU_0: GIB, GPU_1: GIB}}, times=4)
    assert seen.flagged == set(), "nor beside a share"


@pytest.mark.parametrize("document", SIZED.values(), ids=SIZED)
def test_requests_for_other_resources_prevent_no_flag(document: dict[str, Any]) -> None:
    seen = Pipeline()
    seen.see(*NODE, document, used_bytes={POD: {GPU_0: GIB}}, times=3)
    assert seen.flagged == {(POD, GPU_0, "no-share")}


def test_an_annotation_beside_a_whole_gpu_prevents_no_flag() -> None:
    seen, whole = Pipeline(), pod(gpus="1", annotations={"gpu-fraction": "0.5"})
    seen.see(*NODE, whole, used_bytes={POD: {GPU_0: GIB, GPU_1: GIB}}, times=3)
    assert seen.flagged == {(POD, GPU_0, "unassigned-gpu")}
    seen = Pipeline()
    seen.see(*NODE, whole, pod("other", 2, gpus="1"), used_bytes={POD: {GPU_0: GIB}}, times=3)
    assert seen.pod_share(POD).gpu_uuids == ()
    assert seen.flagged == {(POD, GPU_0, "unassigned-gpu")}, "nor while its own GPU is unknown"
