"""The story of a pod: which steps, in which order, and with which words."""

from datetime import timedelta
from typing import Any

import pytest

from console.cluster.facts import Fact, Why
from console.why.evidence import AgentFigures, PodEvidence, PolicyDecision
from console.why.story import tell_story
from gpuagent.api_types import ApiAmount, ApiHolding, ApiPod
from kube.kinds import Event
from tests.support.why_evidence import (
    FORBIDDEN,
    GONE,
    GROUP,
    NAME,
    NAMESPACE,
    NOW,
    make_bind_request,
    make_event,
    make_evidence,
    make_pod,
    make_pod_group,
)

NO_ROOM = "no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs."
OWNED = {
    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "train", "controller": True}]
}


def lines(evidence: PodEvidence) -> list[tuple[str, str, int]]:
    return [(step.what, step.text, step.times) for step in tell_story(evidence)]


def _of_group(reason: str, message: str, name: str = GROUP, **fields: Any) -> Event:
    return make_event(reason, message, kind="PodGroup", name=name, **fields)


def _of_set(message: str, **fields: Any) -> Event:
    return make_event("FailedCreate", message, kind="ReplicaSet", **fields)


def test_a_waiting_pod() -> None:
    no_room = f"PodSchedulingErrors: Resources were not found for pod {NAMESPACE}/{NAME} due to: {NO_ROOM}."
    evidence = make_evidence(
        make_pod(unschedulable=NO_ROOM, metadata=OWNED),
        pod_group=make_pod_group(minMember=4),
        decision=PolicyDecision(reason="whole-gpu-converted", now_reason="whole-gpu-converted", now="0.5"),
        pod_events=[
            make_event("PodGrouperWarning", f'Pod "{NAME}" not found', age=85),
            make_event("Scheduled", "Successfully assigned pod to node", age=75),
            make_event("Bound", "Pod bound successfully to node node-1", age=74),
            make_event("Unschedulable", NO_ROOM, age=70, count=25),
        ],
        group_events=[
            _of_group("Unschedulable", no_room, age=71, count=24),
            _of_group("NotReady", "Waiting for 1 pods.", age=78),
        ],
    )
    converted = "by kaishare in namespace team: 0.5 of a GPU (whole-gpu-converted)"
    assert lines(evidence) == [
        ("created", f"pod {NAME} by ReplicaSet train, requests 0.5 of a GPU", 1),
        ("decided", converted, 1),
        ("grouped", "by KAI in the queue vision, priority train, with at least 4 pods at once", 1),
        ("waiting", "Waiting for 1 pods", 1),
        ("waiting", "KAI chose a node", 1),
        ("waiting", NO_ROOM.rstrip("."), 25),
    ]
    steps = tell_story(evidence)
    assert [step.at for step in steps[:2]] == [NOW - timedelta(seconds=90)] * 2
    assert steps[3].last is None
    assert (steps[5].at, steps[5].last) == (NOW - timedelta(seconds=71), NOW - timedelta(seconds=70))


@pytest.mark.parametrize(
    ("decision", "text"),
    [
        (None, None),
        (PolicyDecision(), None),
        (PolicyDecision(reason="", now_reason="share-injected", now="gpu-fraction 0.5"), "kaishare added nothing to the pod; a new pod would get now: gpu-fraction 0.5"),
        (PolicyDecision(reason="distributed", now_reason="distributed", now="a whole GPU"), "by kaishare in namespace team: 0.5 of a GPU (distributed)"),
        (PolicyDecision(reason="of-a-newer-release\n", now_reason="", now=""), "by kaishare in namespace team: 0.5 of a GPU (of-a-newer-release)"),
    ],
)  # fmt: skip
def test_what_was_decided(decision: PolicyDecision | None, text: str | None) -> None:
    decided = [step.text for step in tell_story(make_evidence(decision=decision)) if step.what == "decided"]
    assert decided == ([] if text is None else [text])


def test_a_group_that_may_not_be_read_has_its_place_without_a_time() -> None:
    steps = tell_story(make_evidence(make_pod(unschedulable=NO_ROOM), pod_group=FORBIDDEN))
    assert [(step.what, bool(step.at)) for step in steps] == [
        ("created", True),
        ("grouped", False),
        ("waiting", False),
    ]
    assert steps[1].text == "by KAI, by its labels in the queue vision"


def test_events_about_binding_prove_nothing() -> None:
    bound = [make_event("Bound", "Pod bound successfully to node node-1")]
    pod = make_pod(conditions=[{"type": "PodBound", "status": "True"}])
    waits = lines(make_evidence(pod, pod_events=bound, bind_request=make_bind_request()))
    assert waits[2:] == [("waiting", "KAI chose the node node-1", 1)]
    chosen = [make_event("Scheduled", "assigned pod to node node-1 at node-pool default", count=2)]
    waits = lines(make_evidence(pod_events=chosen, bind_request=FORBIDDEN))
    assert waits[2:] == [("waiting", "KAI chose a node", 2)]
    evidence = make_evidence(make_pod(node="node-1"), pod_events=bound, bind_request=make_bind_request())
    assert lines(evidence)[2:] == [("bound", "to node node-1", 1)]


def test_a_running_pod_with_figures_and_a_flag() -> None:
    message = "uses 12.0 GiB on GPU 0 (GPU-1), above its share of 8.0 GiB, for 95 s"
    evicted = "is evicted by its namespace's over-share policy"
    holding = ApiHolding(gpu_uuid="GPU-1", gpu=0, used_bytes=12 << 30)
    shares = {"GPU-1": ApiAmount(bytes=8 << 30, source="bindrequest")}
    agent = ApiPod(namespace=NAMESPACE, name=NAME, uid="u", shares=shares, gpus=[holding])
    times = {"PodScheduled": "2026-05-01T11:58:40Z", "Ready": "2026-05-01T11:58:45Z"}
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": time} for kind, time in times.items()
    ]
    restarted = [{"name": "main", "ready": True, "restartCount": 2}]
    pod = make_pod(node="node-1", phase="Running", conditions=conditions, containers=restarted)
    events = [
        make_event("GPUMemoryOverShare", message, age=30, count=2, component="kaishare-agent"),
        make_event("GPUShareEvicted", evicted, age=5),
    ]
    steps = lines(make_evidence(pod, figures=AgentFigures(pod=agent, neighbours=2), pod_events=events))
    assert [(what, text) for what, text, _ in steps][2:] == [
        ("bound", "to node node-1"),
        ("running", "12.0 GiB of 8.0 GiB on GPU 0; 2 other pods on the same GPU; 2 restarts"),
        ("flagged", message),
        ("evicted", evicted),
    ]
    failed: Fact[AgentFigures] = Fact(None, Why.FAILED, "no answer within 5 s")
    assert lines(make_evidence(pod, figures=failed))[3][1] == "no figures: no answer within 5 s; 2 restarts"
    silent = lines(make_evidence(make_pod(node="node-1", phase="Running")))
    assert silent[3] == ("running", "all containers have started", 1)


def test_evictions_of_earlier_pods_name_the_evictor() -> None:
    pod = make_pod(name="train-74999dfcb-zqtz5", metadata=OWNED)
    # The last one is a sibling of the present pod.
    ages = {"train-74999dfcb-mt7l7": 200, "train-74999dfcb-66f7j": 190, "train-74999dfcb-bbbbb": 10}
    words = "Pod {}/{} was preempted by workload other/pg-llm-{}.\nsecret uses <GPU: 3>"
    events = [
        _of_group("Evict", words.format(NAMESPACE, name, age), f"pg-{name}-{GROUP[-36:]}", age=age)
        for name, age in ages.items()
    ]
    steps = tell_story(make_evidence(pod, name=pod.name, group_events=events))
    assert [step.what for step in steps[:3]] == ["evicted", "evicted", "created"]
    assert all(
        step.text.endswith(f"by workload other/pg-llm-{age}")
        for step, age in zip(steps, (200, 190), strict=False)
    )


def test_refusals_that_differ_by_the_pods_name_are_one_line() -> None:
    name, quota = "server-746f6bbdc7", "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1"
    words = f'Error creating: pods "{name}-{{}}" is forbidden: {quota}'
    events = [
        _of_set(words.format(end), name=name, age=100 - n)
        for n, end in enumerate(("gkczz", "j66wn", "v662n"))
    ]
    events.append(
        _of_set(f"(combined from similar events): {words.format('tkz9b')}", name=name, age=20, count=7)
    )
    evidence = make_evidence(GONE, kind="Deployment", name="server", creation_events=events)
    assert lines(evidence) == [("refused", f'pods "{name}-tkz9b" is forbidden: {quota}', 10)]
    assert tell_story(evidence)[0].last == NOW - timedelta(seconds=20)


def test_at_most_five_messages_of_a_kind_are_steps() -> None:
    events = [make_event("BindingError", f"Failed to bind pod: error {n}", age=5000 - n) for n in range(5000)]
    waiting = [text for what, text, _ in lines(make_evidence(pod_events=events)) if what == "waiting"]
    assert (waiting[0], waiting[-1]) == ("4995 earlier messages", "Failed to bind pod: error 4999")
    assert len(waiting) == 6


def test_a_later_step_of_another_kind_stands_after_a_repeated_message() -> None:
    events = [
        make_event("BindingError", "Failed to bind pod: it is not ready", age=60, count=23),
        make_event("Scheduled", "Successfully assigned pod to node", age=31),
    ]
    refused = [_of_set("Error creating: quota", age=40)]
    at = [
        step.at for step in tell_story(make_evidence(pod_events=events, creation_events=refused)) if step.at
    ]
    assert at == sorted(at)
    assert len(set(at)) == 5


def test_attempts_that_name_other_gpu_groups_are_one_step() -> None:
    words = (
        "failed to reserve GPUs in gpu group <{0}{0}{0}{0}{0}{0}{0}{0}-1111-4111-8111-111111111111>: failed waiting:"
        " kai-resource-reservation/gpu-reservation-{0}"
    )
    events = [make_event("BindingError", words.format(n), age=80 - 40 * n) for n in range(2)]
    (waiting,) = [step for step in tell_story(make_evidence(pod_events=events)) if step.what == "waiting"]
    assert (waiting.times, waiting.last) == (2, NOW - timedelta(seconds=40))
    assert waiting.text.endswith("gpu-reservation-1")
