"""`why` of a pod whose devices are ResourceClaims: what is missing, by what the caller may read."""

import json
from typing import Any

import pytest

from console.cluster.facts import Fact
from console.why.core import explain, find_cause
from console.why.evidence import PodEvidence, request_of
from console.why.explanation import Code
from kube.kinds import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.support.kinds import made
from tests.support.kube_objects import GPU_0
from tests.support.resource_claims import DRIVER, GIB, gpu_slice, result
from tests.support.why_evidence import FORBIDDEN, NAMESPACE, make_evidence, make_pod

WORDS = "0/1 nodes are available: 1 cannot allocate all claims."
OF_QUEUE = "pod team/p cannot be scheduled: DRA claim mine is a shared GPU claim but {}"
CEL = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
CLASS = made("DeviceClass", DRIVER, spec={"selectors": [{"cel": {"expression": CEL}}]})
Json = dict[str, Any]


def asking(memory: str | None = "20Gi", name: str = "mine", device_class: str = DRIVER, **more: Any) -> Json:
    capacity = {} if memory is None else {"capacity": {"requests": {"memory": memory}}}
    request = {"name": "gpu", "exactly": {"deviceClassName": device_class, **capacity, **more}}
    return made("ResourceClaim", name, NAMESPACE, spec={"devices": {"requests": [request]}})


def holding(name: str, *results: Json) -> Json:
    return made(
        "ResourceClaim", name, "rivals", status={"allocation": {"devices": {"results": list(results)}}}
    )


def listing(kind: Any, objects: list[Json]) -> Fact[Any]:
    return Fact(tuple(kind.decode(json.dumps(each)) for each in objects))


def evidence(
    *claims: Json, slices: list[Json] | None = None, classes: list[Json] | None = None, **fields: Any
) -> PodEvidence:
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}], **fields.pop("spec", {})}
    scheduler, words = fields.pop("scheduler", "default-scheduler"), fields.pop("words", WORDS)
    pod = make_pod(fraction=None, scheduler=scheduler, grouped=False, unschedulable=words, spec=spec)
    return make_evidence(
        pod,
        **{"device_claims": listing(RESOURCE_CLAIMS, list(claims)), "are_device_claims_of_all": True,
            "device_classes": listing(DEVICE_CLASSES, [CLASS] if classes is None else classes),
            "slices": listing(RESOURCE_SLICES, [gpu_slice(GPU_0)] if slices is None else slices), **fields},
    )  # fmt: skip


FULL = [holding(f"h{number}", result()) for number in range(4)]
TEMPLATE = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "part"}]}
CAUSES: dict[str, tuple[PodEvidence, Code, str]] = {
    "full": (evidence(asking(), *FULL), "resource-claim-does-not-fit", "the ResourceClaim mine asks for 20.0 GiB of memory of a device of class gpu.nvidia.com, and no device has that much free: at most 0 B of 80.0 GiB are free, on gpu-0 of node gpu-node-0"),
    "too little": (evidence(asking("30Gi"), *FULL[:3]), "resource-claim-does-not-fit", "at most 20.0 GiB of 80.0 GiB are free"),
    "whole": (evidence(asking(None), *FULL[:1]), "resource-claim-does-not-fit", "no device has all of it free: at most 60.0 GiB"),
    "taken as a whole": (evidence(asking(), holding("h", result(memory=None))), "resource-claim-does-not-fit", "at most 0 B"),
    "an administrator's access takes nothing": (evidence(asking("80Gi"), holding("h", result(memory="80Gi", adminAccess=True))), "resource-claim-does-not-fit", f"finds no device for it: {WORDS}"),
    "what is free is not visible": (evidence(asking(), slices=None, are_device_claims_of_all=False), "resource-claim-does-not-fit", f"asks for 20.0 GiB of memory of a device of class gpu.nvidia.com, and the scheduler finds no device for it: {WORDS}"),
    "no slices are visible": (evidence(asking(), device_classes=FORBIDDEN), "resource-claim-does-not-fit", WORDS),
    "no class": (evidence(asking(device_class="gpu.example.com"), *FULL), "device-class-missing", "names the DeviceClass gpu.example.com, which does not exist"),
    "no class, and the classes are not visible": (evidence(asking(), device_classes=FORBIDDEN, slices=[], words=f"0/1 nodes are available: request gpu: device class {DRIVER} does not exist."), "device-class-missing", "names the DeviceClass gpu.nvidia.com, which"),
    "no slice": (evidence(asking(), slices=[]), "devices-not-published", "asks for 20.0 GiB of memory of a device of class gpu.nvidia.com, and the driver gpu.nvidia.com publishes no device"),
    "only another driver": (evidence(asking(), slices=[gpu_slice(driver="nic.example.com")]), "devices-not-published", "the driver gpu.nvidia.com publishes no device"),
    "a slice without devices": (evidence(asking(), slices=[gpu_slice(devices=[])]), "devices-not-published", "publishes no device"),
    "no claim": (evidence(), "resource-claim-missing", "the pod names the ResourceClaim mine, which does not exist"),
    "no claim of a template": (evidence(spec=TEMPLATE), "resource-claim-missing", "no ResourceClaim has been made from the template part for the pod"),
    "an older generation does not count": (evidence(asking(), *FULL, slices=[gpu_slice(GPU_0, "GPU-1"), gpu_slice(GPU_0, name="s", generation=2)]), "resource-claim-does-not-fit", "at most 0 B"),
    "without KAI's label, and the claims are not visible": (evidence(device_claims=FORBIDDEN, scheduler="kai-scheduler", words=OF_QUEUE.format("does not have a queue label (kai.scheduler/queue)")), "resource-claim-queue", "KAI wants the label kai.scheduler/queue: "),
    "of another queue": (evidence(asking(), scheduler="kai-scheduler", words=OF_QUEUE.format("with wrong queue label (expected queue: a, claim queue label: b)").replace("but ", "")), "resource-claim-queue", "on the ResourceClaim mine, as on the pod"),
    "of KAI's scheduler": (evidence(asking(), *FULL, scheduler="kai-scheduler"), "resource-claim-does-not-fit", "at most 0 B"),
}  # fmt: skip


@pytest.mark.parametrize(("known", "code", "words"), CAUSES.values(), ids=CAUSES)
def test_what_is_missing(known: PodEvidence, code: Code, words: str) -> None:
    cause = explain(known).cause
    assert cause.code == code
    assert words in cause.sentence
    assert cause.remedies
    assert "no GPU" not in cause.sentence


@pytest.mark.parametrize(
    "known",
    [
        evidence(device_claims=FORBIDDEN),
        evidence(asking() | {"status": {"allocation": {"devices": {}}}}),
        evidence(asking(), spec={"schedulingGates": [{"name": "example.com/gate"}]}),
    ],
    ids=["not visible", "allocated", "gated"],
)
def test_claims_are_no_cause(known: PodEvidence) -> None:
    claims = ("resource-claim-does-not-fit", "resource-claim-missing", "devices-not-published")
    assert find_cause(known).code not in claims


def test_a_pod_with_a_claim_requests_its_devices() -> None:
    pod = evidence(asking()).pod.known
    assert pod is not None
    assert request_of(pod).text == "the devices of ResourceClaim gpu"
    assert not request_of(pod).is_any, "KAI's queues count none of them"
    details = find_cause(evidence(asking(), *FULL)).details
    assert details == {"requestedBytes": 20 * GIB, "largestFreeBytes": 0}
