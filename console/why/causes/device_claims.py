"""Causes of a pod without a node whose devices are ResourceClaims: no claim, class, device or room. Pure.

The scheduler's words name none of them ("cannot allocate all claims", kube-scheduler 1.36). The selectors of
a class are CEL and are not evaluated: a device counts if a selector does not name another driver, so that the
free memory is an upper bound.
"""

import re
from collections import defaultdict
from typing import Final

from console.cluster.facts import is_read, items
from console.why.acts import finding
from console.why.evidence import PodEvidence
from console.why.explanation import PodFinding
from kai import keys
from kube.device_kinds import DeviceAsk, ResourceClaim, memory_in, newest
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
    condition, queue = pod.status.condition("PodScheduled"), pod.queue_label
    words = condition.message if condition is not None else ""
    if match := _OF_QUEUE.search(words):
        label = f"{keys.QUEUE_LABEL}: {queue}" if queue else keys.QUEUE_LABEL
        what = f"KAI wants the label {label} on the ResourceClaim {match[1]}, as on the pod"
        acts = ["label-claim", "use-template"]
        return finding(evidence, "resource-claim-queue", what, *acts, claim=match[1], queue=queue)
    claims = {(each.metadata.namespace, each.metadata.name): each for each in items(evidence.device_claims)}
    for reference in pod.spec.resource_claims if is_read(evidence.device_claims) else ():
        name = pod.claim_of(reference)
        claim = claims.get((pod.metadata.namespace, name or ""))
        if name is not None and claim is None and evidence.device_claims.is_known:
            template = reference.resource_claim_template_name
            what = f"the pod names the ResourceClaim {name}, which does not exist"
            if template:
                what = f"no ResourceClaim has been made from the template {template} for the pod"
            source = "ResourceClaimTemplate" if template else "ResourceClaim"
            acts = ["create-device-claim", "read-events"]
            return finding(evidence, "resource-claim-missing", what, *acts, source=source)
        if claim is not None and claim.results is None and (found := _unallocated(evidence, words, claim)):
            return found
    return None


def _unallocated(evidence: PodEvidence, words: str, claim: ResourceClaim) -> PodFinding | None:
    classes = {each.metadata.name for each in items(evidence.device_classes)}
    name, told = claim.metadata.name, _NO_CLASS.findall(words)  # to callers who may not read the classes
    for alternatives in claim.asks:
        if not alternatives or any(ask.admin_access for ask in alternatives):
            continue
        of_classes, is_known = (
            [ask.device_class_name for ask in alternatives],
            evidence.device_classes.is_known,
        )
        missing = [each for each in of_classes if each in told or (is_known and each not in classes)]
        if len(missing) == len(alternatives):
            what = f"the ResourceClaim {name} names the DeviceClass {missing[0]}, which does not exist"
            return finding(evidence, "device-class-missing", what, "correct-class", "install-dra-driver")
        if len(alternatives) == 1 and (found := _of_one(evidence, name, alternatives[0])):
            return found
    if not any(text in words for text in _NOT_ALLOCATED):
        return None
    asked = "; ".join(_in_words(ask) for each in claim.asks for ask in each[:1])
    what = f"the ResourceClaim {name} asks for {asked}, and the scheduler finds no device for it:"
    acts = ["wait-for-claims", "shrink-claim"]
    return finding(evidence, "resource-claim-does-not-fit", f"{what} {one_line(words)}", *acts)


def _of_one(evidence: PodEvidence, name: str, ask: DeviceAsk) -> PodFinding | None:
    """Return why a request cannot be met; None if it may, or if the devices are not known."""
    if not evidence.slices.is_known:
        return None
    of_class = (
        each for each in items(evidence.device_classes) if each.metadata.name == ask.device_class_name
    )
    matches = (_DRIVER.search(text) for each in of_class for text in each.expressions)
    driver = next((match[1] for match in matches if match), "")
    slices = [each.spec for each in newest(items(evidence.slices)) if driver in ("", each.spec.driver)]
    what = f"the ResourceClaim {name} asks for {_in_words(ask)}, and"
    if not any(spec.devices for spec in slices):
        of_driver = f"the driver {driver} publishes no" if driver else "no driver publishes a"
        return finding(evidence, "devices-not-published", f"{what} {of_driver} device", "start-dra-driver")
    used = _used(evidence)
    rooms = [  # what is free of each device that has a memory, its size, and its names
        (max(total - used[spec.driver, spec.pool.name, device.name], 0), total, device.name, spec.node_name)
        for spec in slices
        for device in spec.devices or ()
        if (total := device.memory(spec.driver)) is not None
    ]
    is_free = any(free >= (total if ask.memory is None else ask.memory) for free, total, _, _ in rooms)
    if not evidence.are_device_claims_of_all or not rooms or is_free:
        return None
    free, total, device_name, node = max(rooms)
    lacks = "all of it" if ask.memory is None else "that much"
    what += f" no device has {lacks} free: at most {size(free)} of {size(total)} are free, on {device_name}"
    what += f" of node {node}" if node else ""
    needed = total if ask.memory is None else ask.memory
    details: dict[str, float | str] = {"requestedBytes": needed, "largestFreeBytes": free}
    acts = ["wait-for-claims", *(["shrink-claim"] if ask.memory is not None else [])]
    return finding(evidence, "resource-claim-does-not-fit", what, *acts, details=details)


def _used(evidence: PodEvidence) -> defaultdict[tuple[str, str, str], int]:
    """Return what claims use of each device; all of one that only one claim may have.

    The scheduler counts no adminAccess.
    """
    used: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for result in (each for claim in items(evidence.device_claims) for each in claim.results or ()):
        if not result.admin_access:
            consumed = memory_in(result.consumed_capacity, result.driver)
            place = result.driver, result.pool, result.device
            used[place] += (1 << 62) if result.consumed_capacity is None else consumed or 0
    return used


def _in_words(ask: DeviceAsk) -> str:
    devices = f"{ask.count} devices" if (ask.count or 1) > 1 else "a device"
    devices += f" of class {ask.device_class_name}"
    return devices if ask.memory is None else f"{size(ask.memory)} of memory of {devices}"
