"""A share needs KAI: what a pod says of itself counts only if KAI placed the pod."""

from dataclasses import replace
from typing import Any

import pytest

from gpuagent.shares.pod_share import ShareSource, Validity
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
UNKNOWN = frozenset({("research", "half")})
asking = pytest.mark.parametrize("annotations", ASKING.values(), ids=ASKING)


@asking
def test_an_annotation_without_an_allocation_is_no_share(annotations: dict[str, str]) -> None:
    seen = Pipeline()
    seen.see(*NODE, pod(annotations=annotations), used_bytes={POD: {GPU_1: GIB}}, times=3)
    assert seen.flagged == {(POD, GPU_1, "no-share")}
    assert (seen.promised(GPU_0), seen.promised(GPU_1)) == (0, 0)
    pod_share = seen.pod_share(POD)
    assert (pod_share.has_share, pod_share.gpu_uuids) == (False, ())
    assert (pod_share.shares, pod_share.limits) == ({}, {})
    (candidate,) = pod_share.candidates
    assert candidate.validity is Validity.IGNORED
    assert "ignored by KAI" in candidate.text


@asking
def test_while_the_bind_request_is_unknown_no_flag_is_raised(annotations: dict[str, str]) -> None:
    """The BindRequest was not requested yet, or the request failed."""
    seen = Pipeline()
    made = built(*NODE, pod(annotations=annotations)).inventory
    unknown = replace(made, bind_requests_unknown=UNKNOWN)
    seen.process(unknown, {POD: {GPU_1: GIB}}, times=4)
    assert seen.flagged == set()
    reasons = {key.reason for key in seen.judged[-1].verdicts.by_key}
    assert reasons.isdisjoint({"no-share", "unassigned-gpu"})
    assert (seen.promised(GPU_0), seen.promised(GPU_1)) == (0, 0), "nor is anything promised"
    seen.process(made, {POD: {GPU_1: GIB}}, times=3)
    assert seen.flagged == {(POD, GPU_1, "no-share")}


def test_a_flag_stands_while_the_bind_request_is_unknown_again() -> None:
    """A right comes and goes, and the BindRequest is requested again. That there was none stays known."""
    seen, used_bytes = Pipeline(), {POD: {GPU_1: GIB}}
    made = built(*NODE, fraction(group=None)).inventory
    unknown = replace(made, bind_requests_unknown=UNKNOWN)
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
    unknown = replace(made, bind_requests_unknown=UNKNOWN)
    for inventory in (unknown, made):
        seen.process(inventory, {POD: {GPU_0: GIB // 8}}, times=3)
        pod_share = seen.pod_share(POD)
        assert pod_share.gpu_uuids == (GPU_0,), "by the group, and not by gpus.devices"
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


STARTED: dict[str, Any] = {
    "initContainerStatuses": [{"name": "init", "containerID": f"containerd://{'c' * 64}"}]
}
WAITS, INIT_RUNS = fraction(group=None, phase="Pending"), fraction(group=None, phase="Pending", **STARTED)
UNPLACED, LABELLED = (
    pod(annotations={"gpu-fraction": "0.9"}, labels=labels) for labels in ({}, {"runai-gpu-group": GROUP_0})
)
NO_SHARE = {(POD, GPU_0, "no-share")}
Step = tuple[tuple[dict[str, Any], ...], dict[str, int]]
HISTORIES: dict[str, tuple[list[Step], set[tuple[str, str, str]], bool, int]] = {
    "a label that comes later makes no share: KAI writes it before it binds the pod": (
        [((*NODE, UNPLACED), {GPU_1: GIB}), ((*NODE, LABELLED), {GPU_1: GIB})], {(POD, GPU_1, "no-share")}, False, 0),
    "a label that goes takes no share: the pod was placed": (
        [((*NODE, fraction()), {GPU_0: GIB}), ((*NODE, fraction(group=None)), {GPU_0: GIB})], {(POD, GPU_0, "share-changed")},
        True, 11500 << 20),
    "a BindRequest alone is enough": ([((*NODE, fraction(group=None), bind_request()), {GPU_0: GIB})], set(), True, 11500 << 20),
    "also one whose portion cannot be read": ([((*NODE, fraction(group=None), bind_request(portion="a half")), {GPU_0: GIB})],
        set(), True, 0),
    "the BindRequest of another pod": ([((*NODE, fraction(group=None), bind_request(number=2)), {GPU_0: GIB})], NO_SHARE, False, 0),
    "an unreadable BindRequest leaves the share open": (
        [((*NODE, fraction(group=None), bind_request(groups=("g",) * 2000)), {GPU_0: GIB})], set(), True, 0),
    "a pod that does not run yet has the share it asks for, and promises nothing": ([((*NODE, WAITS), {})], set(), True, 0),
    "until an init container of it runs": ([((*NODE, WAITS), {}), ((*NODE, INIT_RUNS), {GPU_0: GIB})], NO_SHARE, False, 0),
    "a pod that does not run lacks no reservation": ([((node(), fraction(phase="Pending")), {})], set(), True, 0),
    "an init container that runs counts": ([((node(), fraction(phase="Pending", **STARTED)), {GPU_0: GIB})],
        {(POD, "", "no-reservation")}, True, 0),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "flagged", "has_share", "promised"), HISTORIES.values(), ids=HISTORIES)
def test_what_kais_records_make_of_a_share(
    steps: list[Step], flagged: set[tuple[str, str, str]], has_share: bool, promised: int
) -> None:
    seen = Pipeline()
    for documents, used_bytes in steps:
        seen.see(*documents, used_bytes={POD: used_bytes}, times=3)
    assert seen.flagged == flagged
    assert (seen.pod_share(POD).has_share, seen.promised(GPU_0)) == (has_share, promised)


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
