"""Causes in the pod's queue: KAI's words about a full queue, and how to name another queue."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from console.why.core import explain, find_cause
from console.why.evidence import PodEvidence, PolicyDecision
from console.why.explanation import Code, PodFinding
from kai import keys
from kai.releases import Version
from kube.kinds import PodOwner
from tests.support.why_evidence import (
    FORBIDDEN,
    GONE,
    decode_owner,
    make_evidence,
    make_node,
    make_pod,
    make_pod_group,
    make_queue,
)

_EDIT = "kubectl edit queues.scheduling.run.ai"
_LIST = "kubectl get queues.scheduling.run.ai"


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


def _cause(words: str, **fields: Any) -> PodFinding:
    return find_cause(make_evidence(make_pod(unschedulable=words), **fields))


def _commands(cause: PodFinding) -> list[str]:
    return [remedy.command for remedy in cause.remedies if remedy.command]


# --- KAI compares the share of a gpu-memory pod with its queue node by node ---


@pytest.mark.parametrize(
    ("reason", "details", "code"),
    [
        ("OverLimit", _limit(), Code.QUEUE_OVER_LIMIT),
        ("NonPreemptibleOverQuota", _quota(), Code.QUEUE_OVER_QUOTA),
    ],
)
def test_a_queue_that_is_full_for_gpu_memory_is_the_cause(reason: str, details: str, code: Code) -> None:
    pod = make_pod(
        fraction=None,
        annotations={keys.GPU_MEMORY: "12000"},
        unschedulable=_of_nodes("2 node(s) didn't have enough resources: GPUs.", _on_node(reason, details)),
    )
    cause = find_cause(make_evidence(pod, nodes=[make_node()], shared_gpu_pods=[]))
    assert cause.code is code
    assert "the queue vision" in cause.sentence
    assert "the pod requests 0.5" in cause.sentence
    assert _commands(cause) == [f"{_EDIT} vision"]


def test_the_node_with_the_smallest_share_counts() -> None:
    lines = [_on_node("OverLimit", _limit(requested=each)) for each in ("1.5", "0.25", "0.75")]
    assert _cause(_of_nodes(*lines)).details["requested"] == 0.25
    assert _cause(_of_nodes(lines[0])).sentence.endswith("it can never start there on GPUs of this size")


# --- KAI's text has the display name of the queue, if it has one, and the PodGroup its name ---

_OVER = "OverLimit: "
_NAMED = {"vision": make_queue(display_name="Batch eval"), "research": make_queue("research", parent="")}
_ALL = {"vision": make_queue(), "research": make_queue("research", parent="", display_name="Research")}
_TWICE = _NAMED | {"research": make_queue("research", parent="", display_name="Batch eval")}
_CROSSED = {
    "vision": make_queue(display_name="research"),
    "research": make_queue("research", parent="", display_name="Everything"),
}
_ABOVE = "the queue research, above the pod's queue vision"
_OR_ABOVE = "the queue Batch eval, which is the pod's queue vision or above it"


@pytest.mark.parametrize(
    ("words", "queues", "queue", "commands"),
    [
        (_OVER + _limit("Batch eval"), _NAMED, "the queue vision may use 1 GPU", [f"{_EDIT} vision"]),
        (
            _OVER + _limit("Batch eval", requested="3"),
            _NAMED,
            "and the pod requests 3: it can never start there",
            [f"{_EDIT} vision"],
        ),
        (
            "NonPreemptibleOverQuota: " + _quota("Batch eval"),
            _NAMED,
            "the quota of the queue vision: 1 GPU",
            [f"{_EDIT} vision"],
        ),
        (_OVER + _limit("Research"), _ALL, f"{_ABOVE}, may use 1 GPU", [f"{_EDIT} research"]),
        (
            "NonPreemptibleOverQuota: " + _quota("Research"),
            _ALL,
            f"the quota of {_ABOVE}: 1 GPU",
            [f"{_EDIT} research"],
        ),
        # No queue is edited whose name is not known.
        (_OVER + _limit("Batch eval"), _ALL, f"{_OR_ABOVE}, may use 1 GPU", [_LIST]),
        (_OVER + _limit("Batch eval"), {"vision": FORBIDDEN}, f"{_OR_ABOVE}, may use 1 GPU", [_LIST]),
        (_OVER + _limit("Batch eval"), _TWICE, f"{_OR_ABOVE}, may use 1 GPU", [_LIST]),
        # The display name of one queue may be the name of another.
        (_OVER + _limit("research"), _CROSSED, "the queue vision may use 1 GPU", [f"{_EDIT} vision"]),
    ],
)
def test_a_queue_is_found_by_its_display_name(
    words: str, queues: Mapping[str, Any], queue: str, commands: list[str]
) -> None:
    cause = _cause(words, queues=queues)
    assert queue in cause.sentence
    assert _commands(cause) == commands


@pytest.mark.parametrize(
    ("words", "of_group", "details", "commands"),
    [
        ("Batch eval", "Batch eval", {"queueDetails": {"name": "research"}}, [f"{_EDIT} research"]),
        # A queue that the pod does not use is not edited.
        ("Batch eval", "Batch eval", {"queueDetails": {"name": "finance"}}, []),
        # The PodGroup counts only for the same words.
        ("vision", "research", {"queueDetails": {"name": "research"}}, [f"{_EDIT} vision"]),
        *(
            ("vision", "vision", details, [f"{_EDIT} vision"])
            for details in (None, 1, "text", [], {}, {"queueDetails": None}, {"queueDetails": {"name": 1}})
        ),
    ],
)
def test_the_pod_group_names_the_queue(words: str, of_group: str, details: Any, commands: list[str]) -> None:
    group = make_pod_group(message=_OVER + _limit(of_group), reason="OverLimit", details=details)
    cause = _cause(_OVER + _limit(words), pod_group=group)
    assert _commands(cause) == commands


@pytest.mark.parametrize(
    ("words", "amount", "resource"),
    [
        (_limit(what="CPU cores", unit="cores"), "may use 1 CPU cores and uses 1", "cpu.limit"),
        (_limit(what="memory", unit="GB"), "may use 1 GB of memory and uses 1", "memory.limit"),
        (_quota(requested="4 CPU cores", unit="cores"), "1 CPU cores, of which 1 is used", "cpu.quota"),
        (_quota(requested="200 GB memory", unit="GB"), "1 GB of memory, of which 1 is used", "memory.quota"),
    ],
)
def test_the_resource_that_is_used_up_is_named(words: str, amount: str, resource: str) -> None:
    reason = "OverLimit" if "limit" in resource else "NonPreemptibleOverQuota"
    cause = _cause(f"{reason}: {words}")
    assert amount in cause.sentence
    assert any(f"raise spec.resources.{resource} of the queue" in each.text for each in cause.remedies)


# --- queues that KAI cannot use ---


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (None, "KAI before v0.13.0 schedules none of its pods, and KAI before v0.16.5 crashes"),
        (Version(0, 13, 4), "before v0.16.5 KAI's scheduler crashes"),
        (Version(0, 17, 0), ""),
    ],
)
def test_a_queue_without_a_parent_is_told_by_the_installed_release(
    version: Version | None, sentence: str
) -> None:
    queues = {"vision": make_queue(parent="")}
    cause = _cause("Unable to schedule pod", queues=queues, kai_version=version)
    assert cause.code is (Code.QUEUE_WITHOUT_PARENT if sentence else Code.UNDECIDED)
    assert sentence in cause.sentence


def test_a_queue_by_the_label_alone_does_not_contradict_kai() -> None:
    words = _of_nodes("2 node(s) didn't have enough resources: GPUs")
    fields: dict[str, Any] = {"pod_group": FORBIDDEN, "queues": {"vision": GONE}}
    assert _cause(words, **fields).code is Code.NO_GPU_FITS
    assert _cause("QueueDoesNotExist: Queue 'vision' does not exist.", **fields).code is Code.QUEUE_MISSING


@pytest.mark.parametrize(
    "queues", [{}, {"vision": FORBIDDEN}, {"vision": make_queue(), "research": FORBIDDEN}]
)
def test_kais_word_that_a_queue_is_missing_counts_where_it_cannot_be_read(queues: dict[str, Any]) -> None:
    words = "QueueDoesNotExist: Queue 'vision' does not exist."
    assert _cause(words, queues=queues).code is Code.QUEUE_MISSING
    assert _cause(words).code is Code.UNDECIDED, "an old word: both queues exist now"


def test_an_empty_queue_label_of_an_owner_is_named() -> None:
    """A Helm chart with `queue: ""`, and no guard: KAI says that the queue '' does not exist."""
    owners = [_owner(metadata={"name": "web", "labels": {keys.QUEUE_LABEL: ""}})]
    cause = _cause("Queue '' does not exist", pod_group=make_pod_group(queue=""), owners=owners)
    assert cause.code is Code.QUEUE_MISSING
    assert cause.sentence == (
        "the pod's queue is empty: the label kai.scheduler/queue of Deployment web has no value"
    )


# --- what to change ---

_JOB_SET = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "web", "uid": "u"}


def _owner(kind: str = "Deployment", name: str = "web", **fields: Any) -> PodOwner:
    return decode_owner(json.dumps({"kind": kind, "metadata": {"name": name}} | fields).encode())


def _template(**labels: str) -> dict[str, Any]:
    return {"template": {"metadata": {"labels": labels}}}


_OF_WORKLOAD = (
    "Set the label kai.scheduler/queue to an existing queue without child queues: on Deployment web and in"
)
_OF_NAMESPACE = "Policy owner: name an existing queue without child queues on the namespace"
_OF_EITHER = "If the workload names its queue itself, set the label kai.scheduler/queue to an existing queue"
_CREATE = "Administrator: create the queue"


@pytest.mark.parametrize(
    ("owners", "acts"),
    [
        ([_owner(metadata={"name": "web", "labels": {keys.QUEUE_LABEL: "visoin"}})], [_OF_WORKLOAD, _CREATE]),
        ([_owner(spec=_template(**{keys.QUEUE_LABEL: "visoin"}))], [_OF_WORKLOAD, _CREATE]),
        ([_owner(spec=_template(app="web"))], [_OF_NAMESPACE, _CREATE]),
        *(
            (owners, [_OF_NAMESPACE, _OF_EITHER, _CREATE])
            for owners in (
                [],
                [_owner("RayCluster", "ray")],
                [_owner(spec={"template": "text"})],
                [
                    _owner(
                        "Job",
                        metadata={"name": "web", "ownerReferences": [_JOB_SET]},
                        spec=_template(app="web"),
                    )
                ],
            )
        ),
    ],
)
def test_the_label_of_the_namespace_is_changed_only_where_the_pod_has_its_queue_from_there(
    owners: Sequence[PodOwner], acts: list[str]
) -> None:
    cause = find_cause(
        make_evidence(
            make_pod(labels={keys.QUEUE_LABEL: "visoin"}),
            pod_group=make_pod_group(queue="visoin"),
            queues={"visoin": GONE},
            owners=owners,
            decision=PolicyDecision(),
        )
    )
    assert cause.code is Code.QUEUE_MISSING
    assert [each.text[: len(act)] for each, act in zip(cause.remedies, acts, strict=True)] == acts


_FIRM = {keys.PREEMPTIBILITY: "non-preemptible"}
_ON_OWNER = [_owner(metadata={"name": "web", "labels": _FIRM})]
_LABELLED = f"(label {keys.PREEMPTIBILITY}: non-preemptible)"


@pytest.mark.parametrize(
    ("priority", "owners", "labels", "act", "why"),
    [
        ("train", [], _FIRM, f"Remove the label {keys.PREEMPTIBILITY}, in a new pod, which", _LABELLED),
        ("train", _ON_OWNER, {}, f"Remove the label {keys.PREEMPTIBILITY}, on Deployment web and", _LABELLED),
        (
            "inference",
            [],
            _FIRM,
            f"Remove the label {keys.PREEMPTIBILITY} and set priorityClassName: train",
            "",
        ),
        ("inference", [], {}, "Use a preemptible priority", "(priority inference)"),
        ("inference", [], {keys.PREEMPTIBILITY: "preemptible"}, "Use a preemptible", "(priority inference)"),
    ],
)
def test_the_label_of_preemptibility_decides_before_the_priority(
    priority: str, owners: list[PodOwner], labels: dict[str, str], act: str, why: str
) -> None:
    pod = make_pod(unschedulable=f"NonPreemptibleOverQuota: {_quota()}", labels=labels)
    evidence: PodEvidence = make_evidence(
        pod, pod_group=make_pod_group(priorityClassName=priority), owners=owners
    )
    cause = explain(evidence).cause
    assert cause.remedies[0].text.startswith(act)
    assert f"not preemptible {why}" in cause.sentence
