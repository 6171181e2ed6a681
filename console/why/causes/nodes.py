"""Causes that no node can take the pod: KAI's verdict, ResourceClaims; and what makes room for it. Pure.

The free part of a shared GPU follows from the shares of the pods of its group. Pods with shares of several
GPUs have other labels and are not listed, so that the part is an upper bound.

KAI looks for free resources first, and at taints, selectors and the rest only of nodes that have them
(v0.9.8 to v0.17.0, `session.go`, FittingNode). A node without GPUs therefore lacks GPUs, and a node
with another reason has room. The order of the rules matters: a text of one cause may contain that of another.

The scheduler's words name no cause of a claim ("cannot allocate all claims", kube-scheduler 1.36). The
selectors of a class are CEL and are not evaluated: a device counts if a selector does not name another
driver, so that the free memory is an upper bound.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from console.cluster.facts import is_read, items
from console.why.acts import finding
from console.why.evidence import (
    SMALLEST,
    PodEvidence,
    gpus,
    is_reservation,
    number,
    place_of,
    request_of,
    who_holds,
)
from console.why.explanation import Code, PodFinding
from kai import keys
from kai.share_bytes import Card
from kube.device_kinds import DeviceAsk, ResourceClaim, memory_in, newest
from kube.kinds import Node, Pod
from service.names import LONGEST_SUBDOMAIN
from service.text import LONGEST_VALUE, counted, first_few, one_line
from service.units import size

_TOPOLOGY: Final = re.compile(
    r"Requested topology (\S{1,253}) does not exist"
    r"|matching topology tree haven't been found for job \S{1,400} workload topology name: (\S{1,253})"
)
_TOPOLOGY_TOO_SMALL: Final = ("no domains found", "can allocate only")
_GANG: Final = re.compile(
    r"Resources were found for ([0-9]{1,6}) pods (?:from all sub-groups )?while"
    r" (?:sub-group (\S{1,253}) requires ([0-9]{1,6}) pods|([0-9]{1,6}) are required)"
)
_NUMBER: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,6})?")
_HEAD: Final = "no nodes with enough resources were found: "
_LINE: Final = re.compile(r"([0-9]{1,6}) (.{1,400})")
_GPU_MEMORY: Final = "resources: GPU memory"
_GPUS: Final = "resources: GPU"
_NO_LABEL: Final = "gpu memory count"
_NOT_OFFERED: Final = re.compile(r"No node in the \S{0,253} ?node-pool has (\S{1,253}) resources")
_NO_SHARES: Final = ("only whole gpu jobs can run", "not yet supported on DRA-only nodes")
"""Of nodes whose GPUs KAI gives out whole only: MIG strategy `single`, or GPUs offered by DRA alone."""
_MIG_ONLY: Final = "non MIG jobs cant run"
"""Of nodes with the MIG strategy `mixed`, which take neither shares nor whole GPUs."""
_MILLI: Final = 1000
_IN_UNITS: Final = ("GPU", "CPU", "memory", "pods")
"""KAI counts all other resources but MIG devices in thousandths (v0.9.8 to v0.17.0, `DetailedString`)."""
_OF_ALL_NODES: Final[tuple[tuple[str, Code, str, str], ...]] = (
    ("affinity/selector", "node-selector-matches-none",
     "no node matches the pod's nodeSelector or node affinity", "correct-affinity"),
    ("untolerated taint", "taint-not-tolerated",
     "every node has a taint that the pod does not tolerate", "tolerate"),
    ("is unschedulable", "nodes-cordoned", "every node is cordoned (spec.unschedulable)", "uncordon"),
)  # fmt: skip
"""A reason, the cause that it means if all nodes have it, and what to do."""


def unschedulable(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return the cause in KAI's words; None for words that are not known."""
    if evidence.verdict is None:
        return None
    text, own = evidence.verdict.all_text, evidence.verdict.text
    if match := _TOPOLOGY.search(text):
        what = f"the workload names the topology {(match[1] or match[2]).rstrip('.')}, which does not exist"
        return finding(evidence, "topology-missing", what, "correct-topology", "create-topology")
    if any(words in text for words in _TOPOLOGY_TOO_SMALL):
        what = f"no part of the topology has room for the workload: {one_line(own)}"
        return finding(evidence, "topology-does-not-fit", what, "prefer-topology")
    if "VolumeBinding" in text or "PersistentVolumeClaim" in text:
        names, says = pod.claim_names, text.partition("VolumeBinding: ")[2].partition("\n")[0] or own
        what = f"the pod mounts the PersistentVolumeClaim {first_few(names) or 'of a volume'}, which is not"
        act, what = "read-claim" if names else "change-requirements", f"{what} usable: {one_line(says)}"
        return finding(evidence, "claim-not-bound", what, act, claims=" ".join(names[:3]))
    return _never_fits(evidence, text) or _gang(evidence, pod, text) or _of_nodes(evidence, pod, own)


def _never_fits(evidence: PodEvidence, text: str) -> PodFinding | None:
    if match := _NOT_OFFERED.search(text):
        if match[1] == "GPU":
            return _no_gpu_nodes(evidence)
        resource, (amount, _) = one_line(match[1], LONGEST_SUBDOMAIN), _amount_of(match[1], text)
        requested = resource if amount is None else f"{number(amount)} {resource}"
        what, acts = f"the pod requests {requested}, and no node offers {resource}", ["correct-resource"]
        return finding(evidence, "resource-not-offered", what, *acts, "install-plugin", resource=resource)
    before, phrase, _ = text.partition(" resources available in a single node")
    resource = one_line(before.rpartition("Max ")[2], LONGEST_VALUE)
    most = one_line(text.partition(" is topped at ")[2].partition("\n")[0]).rstrip(". ")
    if not phrase or not resource or not most:
        return None
    amount, per_unit = _amount_of(resource, text)
    units = {"CPU": "CPU cores", "memory": "GB of memory"}
    words = f"{number(amount or 0)} {units.get(resource, resource)}"
    requested = f"more {resource}" if amount is None else gpus(amount) if resource == "GPU" else words
    most = number(float(most) / per_unit) if per_unit > 1 and _NUMBER.fullmatch(most) else most
    what = f"the pod requests {requested}, and no node has more than {most}"
    return finding(evidence, "node-too-small", what, "fit-node")


def _amount_of(resource: str, text: str) -> tuple[float | None, int]:
    """Return the amount that the pod requests, if KAI tells it, and how many of KAI's units are one."""
    match = _NUMBER.match(text.lower().partition(f"{resource.lower()}: ")[2])
    per_unit = 1 if resource in _IN_UNITS or resource.startswith(keys.MIG_PREFIX) else _MILLI
    return None if match is None else float(match[0]) / per_unit, per_unit


def _gang(evidence: PodEvidence, pod: Pod, text: str) -> PodFinding | None:
    """Return the finding for a gang; the nodes' reasons are the cause where not even one pod has room."""
    match = _GANG.search(text)
    if match is None:
        return None
    room, needed, whose = match[1], match[3] or match[4], f" of its part {match[2]}" if match[2] else ""
    what = f"the workload needs {needed} pods{whose} at the same time, and KAI finds room for {room}"
    of_one = _of_nodes(evidence, pod, text[match.end() :]) if room == "0" else None
    if of_one is not None and of_one.code != "no-gpu-fits":
        return of_one
    what += f": {of_one.sentence}" if of_one is not None else ""
    values: dict[str, Any] = {"details": {"needed": int(needed), "found": int(room)}}
    return finding(evidence, "gang-does-not-fit", what, "shrink-gang", holders=who_holds(evidence), **values)


def _of_nodes(evidence: PodEvidence, pod: Pod, text: str) -> PodFinding | None:
    matches = filter(None, (_LINE.match(line.strip()) for line in text.partition(_HEAD)[2].split("\n")))
    reasons = [(int(match[1]), match[2].rstrip(". ")) for match in matches]  # numbers of nodes, and why
    request, nodes = request_of(pod), items(evidence.nodes)
    if not reasons:
        # KAI says no more than this of gpu-memory that fits on no GPU, and where no node offers GPUs.
        if not (request.is_any and text.rstrip(". \n").endswith("due to: Unable to schedule pod")):
            return None
        has_none = evidence.nodes.is_known and nodes and not any(node.gpus for node in nodes)
        return _no_gpu_nodes(evidence) if has_none else _no_gpu_fits(evidence, pod)
    if all(_NO_LABEL in text for _, text in reasons):
        missing = f"no node has the label {keys.NODE_GPU_MEMORY}"
        what = f"{missing}, so that KAI cannot convert {request.text} into a share"
        return finding(evidence, "gpu-memory-label-missing", what, "use-fraction", "install-gfd")
    if all(_GPUS in text for _, text in reasons):
        memory = request.share.memory_mib if request.share is not None else None
        cards = [card.units for node in nodes if (card := _card_of(node)) is not None]
        if memory is None or not _is_too_big(memory, reasons, cards):
            return _no_gpu_fits(evidence, pod)
        most = f" ({max(cards)} MiB)" if cards else ""
        what = f"the pod requests {request.text}, more than any GPU has{most}"
        return finding(evidence, "gpu-memory-too-big", what, "request-card")
    for pattern, code, what, act in _OF_ALL_NODES:
        if all(pattern in text for _, text in reasons):
            selector = [f"{key}={value}" for key, value in (pod.spec.node_selector or {}).items()]
            taints = list(dict.fromkeys(str(taint) for node in nodes for taint in node.taints))
            words = {"correct-affinity": selector, "tolerate": taints}.get(act)
            return finding(evidence, code, f"{what} ({first_few(words, 3)})" if words else what, act)
    return _mixed(evidence, pod, [f"{count} {text}" for count, text in reasons])


def _mixed(evidence: PodEvidence, pod: Pod, reasons: Sequence[str]) -> PodFinding:
    """Return the finding for nodes with different reasons: those that do not lack resources have room."""
    acts = [act for part, _, _, act in _OF_ALL_NODES if any(part in text for text in reasons)]
    acts += ["install-gfd"] if any(_NO_LABEL in text for text in reasons) else []
    whole = [text for text in reasons if any(each in text for each in _NO_SHARES)]
    barred = [*whole, *(text for text in reasons if _MIG_ONLY in text)]
    acts += ["request-whole-gpu" if whole else "request-mig"] if barred else []
    is_share = request_of(pod).share is not None
    if is_share and barred and all(text in barred or _GPUS in text for text in reasons):
        what = f"no node with room takes a share: {first_few(barred, 4)}"
        return finding(evidence, "share-not-supported", what, *acts)
    if any(_GPUS in text for text in reasons):
        acts.append("wait-for-gpu-nodes" if acts else "wait-for-pods")
    what, acts = f"no node can take the pod: {first_few(reasons, 4)}", acts or ["change-requirements"]
    return finding(evidence, "no-node-fits", what, *acts, holders=who_holds(evidence))


def _no_gpu_nodes(evidence: PodEvidence) -> PodFinding:
    what = "no node offers GPUs (nvidia.com/gpu)"
    return finding(evidence, "no-gpu-nodes", what, "start-device-plugin", "scale-from-zero")


def _is_too_big(memory_mib: int, reasons: Sequence[tuple[int, str]], cards: Sequence[int]) -> bool:
    """Whether gpu-memory exceeds every GPU, by the nodes' labels, else by KAI's words about all nodes.

    A node without GPUs counts with 100 MiB, so that these words alone may be about such nodes.
    """
    small = sum(count for count, text in reasons if _GPU_MEMORY in text)
    if small and cards:
        return all(card < memory_mib for card in cards)
    others = sum(count for count, text in reasons if _GPU_MEMORY not in text)
    return small > 0 and others in (0, small)  # v0.17.0 adds "GPUs" for the same nodes


def _no_gpu_fits(evidence: PodEvidence, pod: Pod) -> PodFinding:
    request, free, place = request_of(pod), _free_parts(evidence), place_of(evidence)
    details: dict[str, float | str] = {"place": place[0], "waiting": place[1]} if place else {}
    what, acts = f"the pod requests {request.text if request.is_any else 'GPUs'}", ["wait-for-pods"]
    if request.share is None:
        what += f", and no node has {'as many' if request.whole > 1 else 'that much'} free"
    elif free == ():
        what += ", and all GPUs are in use"
    else:
        what += ", and no GPU has that much free in one piece"
        acts.append("request-smaller")
    portion = request.portion(None)
    if free and (portion is None or max(free) < portion - SMALLEST):
        largest, together = max(free), sum(free)
        details |= {"largestFreeGpu": round(largest, 2), "freeGpus": round(together, 2)}
        what += f": the largest free part of a shared GPU is at most {number(largest)}"
        what += f" ({number(together)} in {len(free)} parts)" if len(free) > 1 else ""
    return finding(evidence, "no-gpu-fits", what, *acts, details=details, holders=who_holds(evidence))


def _free_parts(evidence: PodEvidence) -> tuple[float, ...] | None:
    if not (evidence.shared_gpu_pods.is_known and evidence.nodes.is_known):
        return None
    cards = {node.metadata.name: _card_of(node) for node in items(evidence.nodes)}
    used: defaultdict[str, float] = defaultdict(float)
    unreadable: set[str] = set()
    pods = [pod for pod in items(evidence.shared_gpu_pods) if pod.status.phase not in keys.FINISHED_PHASES]
    reserved = {group for pod in pods if is_reservation(pod) for group in pod.gpu_groups}
    for pod in pods:
        portion = request_of(pod).portion(cards.get(pod.spec.node_name))
        for group in () if is_reservation(pod) else pod.gpu_groups:
            used[group] += portion or 0
            unreadable |= {group} if portion is None else set()
    parts = [1 - used[group] for group in reserved & used.keys() - unreadable]
    free = tuple(part for part in parts if part > SMALLEST)
    is_complete = reserved == used.keys() and not unreadable
    return free if free or is_complete else None


def _card_of(node: Node) -> Card | None:
    try:
        return Card.from_label(node.metadata.labels.get(keys.NODE_GPU_MEMORY, ""))
    except ValueError:
        return None


_WITHOUT_ROOM: Final = ("no-gpu-fits", "gang-does-not-fit", "no-gpu-nodes", "no-node-fits")
_FULL_CODES: Final = ("no-gpu-fits", "queue-over-limit", "queue-over-quota")
_ADDS: Final = ("TriggeredScaleUp", "Nominated")
"""Reasons of the Events about a pod for which cluster-autoscaler, or Karpenter, adds a node."""
_AUTOSCALERS: Final = ("cluster-autoscaler", "karpenter")
_LONGEST: Final = timedelta(minutes=15)
"""Time after which cluster-autoscaler gives up a node that has not joined (`--max-node-provision-time`)."""


def more_room(evidence: PodEvidence, cause: PodFinding) -> PodFinding:
    """Return the cause with what makes room, if anything does: the rollout's old pods, or a new node.

    KAI's node-scale-adjuster creates pods with whole GPUs in the place of pods with a share, one for several
    of them, and deletes each when it is not needed any more (v0.13.4, v0.17.0, `scaling_pod.go`).
    """
    old = next((owner for owner in evidence.owners if owner.old_pods), None)
    # A pod that alone is over the limit or quota of its queue never starts.
    most, requested = cause.details.get("limit", cause.details.get("quota")), cause.details.get("requested")
    is_never = isinstance(most, float) and isinstance(requested, float) and requested > most
    if cause.code in _FULL_CODES and old is not None and not is_never:
        name, count = old.metadata.name, counted(old.old_pods, "old pod")
        what = f"the rollout of Deployment {name} adds this pod before it ends the {count}, and both have no"
        what, acts = f"{what} room: {cause.sentence}", ["roll-in-place", "delete-old-pod"]
        found = finding(evidence, "rollout-surge", what, *acts, deployment=name)
        return replace(found, details=cause.details)
    told = [
        each for each in evidence.about_pod(*_ADDS, "NotTriggerScaleUp") if each.component in _AUTOSCALERS
    ]
    is_new = told and evidence.now.timestamp() - told[-1].moment < _LONGEST.total_seconds()
    pods = [pod for pod in items(evidence.scaling_pods) if not pod.is_bound and pod.status.phase == "Pending"]
    if is_new and told[-1].reason in _ADDS:
        who = f"{told[-1].component} adds a node ({one_line(told[-1].message)})"
    elif pods:
        who = f"KAI's node-scale-adjuster asks for a node with its pod {pods[0].name}"
    else:
        return cause
    what = f"the pod waits for a new node, since {who}; now {cause.sentence}"
    is_full = cause.code in _WITHOUT_ROOM
    return finding(evidence, "node-requested", what, "wait-for-node", "read-autoscaler") if is_full else cause


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
    name, is_known = claim.metadata.name, evidence.device_classes.is_known
    told = _NO_CLASS.findall(words)  # to callers who may not read the classes
    for alternatives in claim.asks:
        if not alternatives or any(ask.admin_access for ask in alternatives):
            continue
        of_classes = [ask.device_class_name for ask in alternatives]
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
    expressions = {each.metadata.name: each.expressions for each in items(evidence.device_classes)}
    matches = map(_DRIVER.search, expressions.get(ask.device_class_name, ()))
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
