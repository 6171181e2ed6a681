"""Causes of a pod without a node whose devices are ResourceClaims: no claim, class, device or room. Pure.

The scheduler's words name none of them ("cannot allocate all claims", kube-scheduler 1.36). The selectors of
a class are CEL and are not evaluated: a device counts if a selector does not name another driver, so that the
free memory is an upper bound.
"""

import re
from collections import defaultdict
from typing import Final, NamedTuple

from console.cluster.facts import is_read, items
from console.why.acts import finding
from console.why.evidence import PodEvidence
from console.why.explanation import PodFinding
from kai import keys
from kube.device_kinds import DeviceAsk, DeviceClass, ResourceClaim, memory_in, newest
from kube.kinds import Pod
from service.text import one_line
from service.units import size

_DRIVER: Final = re.compile(r"device\.driver\s*==\s*['\"]([^'\"]{1,253})['\"]")
_NO_CLASS: Final = re.compile(r"device class (\S{1,253}) does not exist")
_NOT_ALLOCATED: Final = ("cannot allocate all claims", "resourceclaim", "device class", "DeviceClass")
"""Words of the scheduler about claims (Kubernetes 1.36, plugins/dynamicresources)."""
_OF_QUEUE: Final = re.compile(r"DRA claim (\S{1,253}) is a shared GPU claim .{0,80}queue label")
"""Words of KAI v0.13 and later about a claim that no template made (dynamicresources.go)."""


def waits_for_devices(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return the finding for a pod with claims of which one is not allocated, or not of KAI's queue."""
    if not pod.spec.resource_claims or pod.spec.scheduling_gates:
        return None
    words = _words(pod)
    if match := _OF_QUEUE.search(words):
        claim, queue = match[1], pod.queue_label
        label = f"{keys.QUEUE_LABEL}: {queue}" if queue else keys.QUEUE_LABEL
        what = f"KAI wants the label {label} on the ResourceClaim {claim}, as on the pod"
        acts = ["label-claim", "use-template"]
        return finding(evidence, "resource-claim-queue", what, *acts, claim=claim, queue=queue)
    if not is_read(evidence.device_claims):
        return None
    claims = {(each.metadata.namespace, each.metadata.name): each for each in items(evidence.device_claims)}
    for reference in pod.spec.resource_claims:
        name = pod.claim_of(reference)
        if name is None:
            continue
        claim = claims.get((pod.metadata.namespace, name))
        if claim is None and evidence.device_claims.is_known:
            template = reference.resource_claim_template_name
            what = f"the pod names the ResourceClaim {name}, which does not exist"
            if template:
                what = f"no ResourceClaim has been made from the template {template} for the pod"
            acts = ["read-template" if template else "create-device-claim", "read-events"]
            return finding(evidence, "resource-claim-missing", what, *acts, template=template or name)
        if claim is not None and claim.results is None:
            found = _unallocated(evidence, pod, claim)
            if found is not None:
                return found
    return None


def _unallocated(evidence: PodEvidence, pod: Pod, claim: ResourceClaim) -> PodFinding | None:
    classes = {each.metadata.name: each for each in items(evidence.device_classes)}
    name, words = claim.metadata.name, _words(pod)
    told = _NO_CLASS.findall(words)  # to callers who may not read the classes
    for alternatives in claim.asks:
        if not alternatives or any(ask.admin_access for ask in alternatives):
            continue
        of_classes = [ask.device_class_name for ask in alternatives]
        is_known = evidence.device_classes.is_known
        missing = [each for each in of_classes if each in told or (is_known and each not in classes)]
        if len(missing) == len(alternatives):
            what = f"the ResourceClaim {name} names the DeviceClass {missing[0]}, which does not exist"
            return finding(evidence, "device-class-missing", what, "correct-class", "install-dra-driver")
        if len(alternatives) == 1:
            ask = alternatives[0]
            found = _of_one(evidence, name, ask, classes.get(ask.device_class_name))
            if found is not None:
                return found
    if not any(text in words for text in _NOT_ALLOCATED):
        return None
    asked = "; ".join(_in_words(ask) for each in claim.asks for ask in each[:1])
    what = f"the ResourceClaim {name} asks for {asked}, and the scheduler finds no device for it:"
    what += f" {one_line(words)}"
    return finding(evidence, "resource-claim-does-not-fit", what, "wait-for-claims", "shrink-claim")


def _words(pod: Pod) -> str:
    condition = pod.status.condition("PodScheduled")
    return condition.message if condition is not None else ""


class _Room(NamedTuple):
    """What is free of one device."""

    free: int
    total: int
    device: str
    node: str


def _of_one(
    evidence: PodEvidence, name: str, ask: DeviceAsk, device_class: DeviceClass | None
) -> PodFinding | None:
    """Return why a request cannot be met; None if it may, or if the devices are not known."""
    if not evidence.slices.is_known:
        return None
    matches = (_DRIVER.search(text) for text in (device_class.expressions if device_class else ()))
    driver = next((match[1] for match in matches if match), "")
    slices = [each for each in newest(items(evidence.slices)) if driver in ("", each.spec.driver)]
    of_driver = f"the driver {driver} publishes no" if driver else "no driver publishes a"
    if not any(each.spec.devices for each in slices):
        what = f"the ResourceClaim {name} asks for {_in_words(ask)}, and {of_driver} device"
        return finding(evidence, "devices-not-published", what, "start-dra-driver")
    rooms = _rooms(evidence, driver)
    if not evidence.are_device_claims_of_all or not rooms:
        return None
    if any(room.free >= (room.total if ask.memory is None else ask.memory) for room in rooms):
        return None
    best = max(rooms)
    needed = best.total if ask.memory is None else ask.memory
    most = f"at most {size(best.free)} of {size(best.total)} are free, on {best.device}"
    most += f" of node {best.node}" if best.node else ""
    lacks = "all of it" if ask.memory is None else "that much"
    what = f"the ResourceClaim {name} asks for {_in_words(ask)}, and no device has {lacks} free: {most}"
    details: dict[str, float | str] = {"requestedBytes": needed, "largestFreeBytes": best.free}
    acts = ["wait-for-claims", *(["shrink-claim"] if ask.memory is not None else [])]
    return finding(evidence, "resource-claim-does-not-fit", what, *acts, details=details)


def _rooms(evidence: PodEvidence, driver: str) -> list[_Room]:
    """Return what is free of each device with a memory; a device that only one claim may have is all or none.

    The scheduler counts no adminAccess.
    """
    used: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for claim in items(evidence.device_claims):
        for result in claim.results or ():
            if not result.admin_access:
                consumed = memory_in(result.consumed_capacity, result.driver)
                place = result.driver, result.pool, result.device
                used[place] += (1 << 62) if result.consumed_capacity is None else consumed or 0
    rooms = []
    for each in newest(items(evidence.slices)):
        spec = each.spec
        for device in spec.devices or () if driver in ("", spec.driver) else ():
            total = device.memory(spec.driver)
            if total is not None:
                free = max(total - used[spec.driver, spec.pool.name, device.name], 0)
                rooms.append(_Room(free, total, device.name, spec.node_name))
    return rooms


def _in_words(ask: DeviceAsk) -> str:
    devices = f"{ask.count} devices" if (ask.count or 1) > 1 else "a device"
    devices += f" of class {ask.device_class_name}"
    return devices if ask.memory is None else f"{size(ask.memory)} of memory of {devices}"
