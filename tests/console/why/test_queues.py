"""Causes in the pod's queue: KAI's words about a full queue, and how to name another queue."""

from typing import Any

import pytest

from console.why.core import find_cause
from console.why.evidence import PodEvidence, PolicyDecision
from console.why.explanation import Code
from kai import keys
from kai.releases import Version
from kube.kinds import PodOwner
from tests.support.why_evidence import (
    FORBIDDEN,
    GONE,
    kai_says,
    make_evidence,
    make_node,
    make_owner,
    make_pod,
    make_pod_group,
    make_queue,
)

_EDIT = "kubectl edit queues.scheduling.run.ai"


def _limit(queue: str = "vision", *, requested: str = "0.5", unit: str = "GPUs", what: str = "GPUs") -> str:
    return (
        f"{queue} quota has reached the allowable limit of {what}. Limit is 1 {unit}, currently 1 {unit} allocated"
        f" and workload requested {requested} {unit}"
    )


def _quota(queue: str = "vision", *, requested: str = "0.5 GPUs", unit: str = "GPUs") -> str:
    return (
        f"Non-preemptible workload is over quota. Workload requested {requested}, but {queue} quota is 1 {unit},"
        f" while 1 {unit} are already allocated for non-preemptible pods. Use a preemptible workload to go over"
        " quota."
    )


def _of_nodes(*lines: str) -> str:
    text = " \n".join(lines)
    return (
        "PodSchedulingErrors: Resources were not found for pod team/train-0 due to: no nodes with enough resources"
        f" were found: {text}. \n"
    )


def _on_node(reason: str, details: str) -> str:
    return f"1 node does not have enough capacity. Reason: {reason}, Details: {details}"


def _memory(*lines: str) -> PodEvidence:
    """Return the evidence of a pod whose share KAI compares with its queue node by node."""
    words = _of_nodes("2 node(s) didn't have enough resources: GPUs.", *lines)
    pod = make_pod(fraction=None, annotations={keys.GPU_MEMORY: "12000"}, unschedulable=words)
    return make_evidence(pod, nodes=[make_node()], shared_gpu_pods=[])


def _of_group(words: str, of_group: str, details: Any) -> PodEvidence:
    """Return the evidence of a pod whose PodGroup says the same about a queue, with details."""
    group = make_pod_group(message=_OVER + _limit(of_group), reason="OverLimit", details=details)
    return kai_says(_OVER + _limit(words), pod_group=group)


_OVER, _FIRM = "OverLimit: ", "NonPreemptibleOverQuota: "
# KAI's text has the display name of the queue, if it has one, and the PodGroup its name.
_NAMED = {"vision": make_queue(display_name="Batch eval"), "research": make_queue("research", parent="")}
_ALL = {"vision": make_queue(), "research": make_queue("research", parent="", display_name="Research")}
_TWICE = _NAMED | {"research": make_queue("research", parent="", display_name="Batch eval")}
_CROSSED = {"vision": make_queue(display_name="research"), "research": make_queue("research", parent="", display_name="Everything")}  # fmt: skip
_ABOVE = "the queue research, above the pod's queue vision"
_OR_ABOVE = "the queue Batch eval, which is the pod's queue vision or above it, may use 1 GPU"
_NOT_THERE = "QueueDoesNotExist: Queue 'vision' does not exist."
_PARENTLESS = {"vision": make_queue(parent="")}
_EMPTY_LABEL = [make_owner(metadata={"name": "web", "labels": {keys.QUEUE_LABEL: ""}})]
_VISION, _RESEARCH = f"{_EDIT} vision", f"{_EDIT} research"
_LIMIT, _QUOTA, _MISSING = "queue-over-limit", "queue-over-quota", "queue-missing"


@pytest.mark.parametrize(
    ("evidence", "code", "sentence", "commands"),
    [
        (_memory(_on_node("OverLimit", _limit())), _LIMIT, "the queue vision may use 1 GPU and uses 1; the pod requests 0.5", [_VISION]),
        (_memory(_on_node("NonPreemptibleOverQuota", _quota())), _QUOTA, "the pod requests 0.5", [_VISION]),
        # The node with the smallest share counts.
        (_memory(*(_on_node("OverLimit", _limit(requested=each)) for each in ("1.5", "0.25", "0.75"))), _LIMIT, "the pod requests 0.25", [_VISION]),
        (_memory(_on_node("OverLimit", _limit(requested="1.5"))), _LIMIT, "it can never start there on GPUs of this size", [_VISION]),
        (kai_says(_OVER + _limit("Batch eval"), queues=_NAMED), _LIMIT, "the queue vision may use 1 GPU", [_VISION]),
        (kai_says(_OVER + _limit("Batch eval", requested="3"), queues=_NAMED), _LIMIT, "and the workload requests 3: it can never start there", [_VISION]),
        (kai_says(_FIRM + _quota("Batch eval"), queues=_NAMED), _QUOTA, "the quota of the queue vision: 1 GPU", [_VISION]),
        (kai_says(_OVER + _limit("Research"), queues=_ALL), _LIMIT, f"{_ABOVE}, may use 1 GPU", [_RESEARCH]),
        (kai_says(_FIRM + _quota("Research"), queues=_ALL), _QUOTA, f"the quota of {_ABOVE}: 1 GPU", [_RESEARCH]),
        # No queue is edited whose name is not known.
        *((kai_says(_OVER + _limit("Batch eval"), queues=queues), _LIMIT, _OR_ABOVE, [f"{_EDIT} QUEUE"]) for queues in (_ALL, {"vision": FORBIDDEN}, _TWICE)),
        # The display name of one queue may be the name of another.
        (kai_says(_OVER + _limit("research"), queues=_CROSSED), _LIMIT, "the queue vision may use 1 GPU", [_VISION]),
        (_of_group("Batch eval", "Batch eval", {"queueDetails": {"name": "research"}}), _LIMIT, "", [_RESEARCH]),
        # A queue that the pod does not use is not edited.
        (_of_group("Batch eval", "Batch eval", {"queueDetails": {"name": "finance"}}), _LIMIT, "", [f"{_EDIT} QUEUE"]),
        # The PodGroup counts only for the same words.
        (_of_group("vision", "research", {"queueDetails": {"name": "research"}}), _LIMIT, "", [_VISION]),
        *((_of_group("vision", "vision", details), _LIMIT, "", [_VISION]) for details in (None, 1, "text", [], {}, {"queueDetails": None}, {"queueDetails": {"name": 1}})),
        # queues that KAI cannot use
        (kai_says("Unable to schedule pod", queues=_PARENTLESS), "queue-without-parent", "KAI before v0.13.0 schedules none of its pods, and KAI before v0.16.5 crashes", ...),
        (kai_says("Unable to schedule pod", queues=_PARENTLESS, kai_version=Version(0, 13, 4)), "queue-without-parent", "before v0.16.5 KAI's scheduler crashes", ...),
        (kai_says("Unable to schedule pod", queues=_PARENTLESS, kai_version=Version(0, 17, 0)), "undecided", "", ...),
        # A queue by the label alone does not contradict KAI.
        (kai_says(_of_nodes("2 node(s) didn't have enough resources: GPUs"), pod_group=FORBIDDEN, queues={"vision": GONE}), "no-gpu-fits", "", ...),
        (kai_says(_NOT_THERE, pod_group=FORBIDDEN, queues={"vision": GONE}), _MISSING, "", ...),
        # KAI's word that a queue is missing counts where the queue cannot be read; it is old if both queues exist now.
        *((kai_says(_NOT_THERE, queues=queues), _MISSING, "", ...) for queues in ({}, {"vision": FORBIDDEN}, {"vision": make_queue(), "research": FORBIDDEN})),
        (kai_says(_NOT_THERE), "undecided", "", ...),
        # A Helm chart with `queue: ""`, and no guard: KAI says that the queue '' does not exist.
        (kai_says("Queue '' does not exist", pod_group=make_pod_group(queue=""), owners=_EMPTY_LABEL), _MISSING, "the pod's queue is empty: a label kai.scheduler/queue has no value", ...),
    ],
)  # fmt: skip
def test_the_cause_in_a_queue(evidence: PodEvidence, code: Code, sentence: str, commands: Any) -> None:
    cause = find_cause(evidence)
    assert cause.code == code
    assert sentence in cause.sentence
    assert commands is ... or [remedy.command for remedy in cause.remedies if remedy.command] == commands


@pytest.mark.parametrize(
    ("words", "amount", "resource"),
    [
        (_OVER + _limit(what="CPU cores", unit="cores"), "may use 1 CPU cores and uses 1", "cpu.limit"),
        (_OVER + _limit(what="memory", unit="GB"), "may use 1 GB of memory and uses 1", "memory.limit"),
        (_FIRM + _quota(requested="4 CPU cores", unit="cores"), "1 CPU cores, of which 1 is used", "cpu.quota"),
        (_FIRM + _quota(requested="200 GB memory", unit="GB"), "1 GB of memory, of which 1 is used", "memory.quota"),
    ],
)  # fmt: skip
def test_the_resource_that_is_used_up_is_named(words: str, amount: str, resource: str) -> None:
    cause = find_cause(kai_says(words))
    assert amount in cause.sentence
    assert any(f"raise spec.resources.{resource} of the queue" in each.text for each in cause.remedies)


_JOB_SET = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "web", "uid": "u"}
_OF_JOB_SET = {"name": "web", "ownerReferences": [_JOB_SET]}


def _template(**labels: str) -> dict[str, Any]:
    return {"template": {"metadata": {"labels": labels}}}


_MISSPELT = {keys.QUEUE_LABEL: "visoin"}
_OF_WORKLOAD = (
    "Set the label kai.scheduler/queue to an existing queue without child queues: on Deployment web and in"
)
_OF_NAMESPACE = "Policy owner: name an existing queue without child queues on the namespace"
_OF_EITHER = "If the workload names its queue itself, set the label kai.scheduler/queue to an existing queue"


@pytest.mark.parametrize(
    ("owner", "acts"),
    [
        (make_owner(metadata={"name": "web", "labels": _MISSPELT}), [_OF_WORKLOAD]),
        (make_owner(spec=_template(**_MISSPELT)), [_OF_WORKLOAD]),
        (make_owner(spec=_template(app="web")), [_OF_NAMESPACE, _OF_EITHER]), (None, [_OF_NAMESPACE, _OF_EITHER]),
        (make_owner("RayCluster", "ray"), [_OF_NAMESPACE, _OF_EITHER]),
        (make_owner(spec={"template": "text"}), [_OF_NAMESPACE, _OF_EITHER]),
        (make_owner("Job", metadata=_OF_JOB_SET, spec=_template(app="web")), [_OF_NAMESPACE, _OF_EITHER]),
    ],
)  # fmt: skip
def test_the_namespaces_label_is_changed_only_if_it_decides(owner: PodOwner | None, acts: list[str]) -> None:
    fields: dict[str, Any] = {"pod_group": make_pod_group(queue="visoin"), "queues": {"visoin": GONE}}
    pod, owners = make_pod(labels=_MISSPELT), [owner] if owner else []
    cause = find_cause(make_evidence(pod, owners=owners, decision=PolicyDecision(), **fields))
    assert cause.code == _MISSING
    begins = [*acts, "Administrator: create the queue"]
    assert [each.text[: len(act)] for each, act in zip(cause.remedies, begins, strict=True)] == begins


_LABEL = {keys.PREEMPTIBILITY: "non-preemptible"}
_ON_OWNER = [make_owner(metadata={"name": "web", "labels": _LABEL})]
_LABELLED = f"(label {keys.PREEMPTIBILITY}: non-preemptible)"
_REMOVE = f"Remove the label {keys.PREEMPTIBILITY}"


@pytest.mark.parametrize(
    ("priority", "owners", "labels", "act", "why"),
    [
        ("train", [], _LABEL, f"{_REMOVE}, in a new pod, which", _LABELLED),
        ("train", _ON_OWNER, {}, f"{_REMOVE}, on Deployment web and", _LABELLED),
        ("inference", [], _LABEL, f"{_REMOVE} and set priorityClassName: train", ""),
        ("inference", [], {}, "Use a preemptible priority", "(priority inference)"),
        ("inference", [], {keys.PREEMPTIBILITY: "preemptible"}, "Use a preemptible", "(priority inference)"),
    ],
)
def test_the_label_of_preemptibility_decides_before_the_priority(
    priority: str, owners: list[PodOwner], labels: dict[str, str], act: str, why: str
) -> None:
    pod = make_pod(unschedulable=_FIRM + _quota(), labels=labels)
    cause = find_cause(
        make_evidence(pod, pod_group=make_pod_group(priorityClassName=priority), owners=owners)
    )
    assert cause.remedies[0].text.startswith(act)
    assert f"not preemptible {why}" in cause.sentence
