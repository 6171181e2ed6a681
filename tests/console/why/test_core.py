"""The causes that no recording has, and what must hold for every pod."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.why.core import explain
from console.why.evidence import Absence, AgentFigures, PodEvidence
from console.why.evidence_objects import decode_claim, decode_shard, decode_workload
from console.why.explanation import Code, Explanation
from gpuagent.api_types import ApiAmount, ApiHolding, ApiPod, ApiVerdict
from gpuagent.verdicts.flag_reasons import FlagReason
from kai import keys
from tests.support.why_evidence import (
    GROUP,
    NAME,
    at,
    make_bind_request,
    make_event,
    make_evidence,
    make_node,
    make_pod,
    make_pod_group,
    make_queue,
    make_reservation,
)

_NOT_MET = "Scheduling conditions were not met for pod team/train-0:\n"


def _of_words(words: str) -> PodEvidence:
    return make_evidence(make_pod(unschedulable=words))


def _cause(evidence: PodEvidence) -> tuple[Code, str]:
    cause = explain(evidence).cause
    return cause.code, cause.sentence


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (
            (
                f"{_NOT_MET}MaxNodePoolResources: The pod team/train-0 requires GPU: 0.5, CPU: 0 (cores), memory: 512"
                " (GB), pods: 1. Max memory resources available in a single node in the default node-pool is topped at"
                " 64 GB.\n"
            ),
            Code.NODE_TOO_SMALL,
        ),
        ("topology racks, requirement rack: no domains found for the job", Code.TOPOLOGY_DOES_NOT_FIT),
        ("node-group rack-1 can allocate only 2 of 4 required pods", Code.TOPOLOGY_DOES_NOT_FIT),
        (
            (
                "no nodes with enough resources were found: 3 node(s) had untolerated taint(s). \n"
                "2 node(s) didn't have enough resources: GPUs."
            ),
            Code.NO_NODE_FITS,
        ),
        (
            (
                "no nodes with enough resources were found: 3 node(s) had untolerated taint {a: b}. \n"
                "2 node(s) didn't match Pod's node affinity/selector."
            ),
            Code.NO_NODE_FITS,
        ),
        ("no nodes with enough resources were found: 1 node(s) had a cold.", Code.NO_NODE_FITS),
    ],
)
def test_the_words_of_kai_decide(words: str, code: Code) -> None:
    assert _cause(_of_words(words))[0] is code


def test_words_that_no_rule_knows_are_told_with_the_time_since_they_were_said() -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "message": "the moon is in the wrong house",
        "lastTransitionTime": "2026-05-01T11:58:30Z",
    }
    code, sentence = _cause(make_evidence(make_pod(conditions=[condition])))
    assert (code, sentence.startswith("KAI has not placed the pod for 90 s; its last words: ")) == (
        Code.UNDECIDED,
        True,
    )


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({}, Code.SCHEDULER_SILENT, "has said nothing about the pod for 80 s"),
        (
            {"pod_group": make_pod_group(age=3)},
            Code.SCHEDULER_SILENT,
            "has not looked at the pod yet, 3 s after",
        ),
        ({"pod_group": Absence.FORBIDDEN, "bind_request": Absence.FORBIDDEN}, Code.UNDECIDED, "says nothing"),
        (
            {"bind_request": make_bind_request(), "shared_gpu_pods": [make_reservation(gpu="-1")]},
            Code.RESERVATION_NOT_READY,
            "found no GPU",
        ),
        (
            {"bind_request": make_bind_request(), "shared_gpu_pods": [make_reservation(gpu=None)]},
            Code.RESERVATION_NOT_READY,
            "has not reported its GPU yet",
        ),
        ({"bind_request": make_bind_request(age=2)}, Code.BINDER_SILENT, "has not answered yet"),
        ({"bind_request": make_bind_request()}, Code.BINDER_SILENT, "has not answered for 60 s"),
        ({"bind_request": make_bind_request(reason="no luck")}, Code.BINDING_FAILED, "cannot bind the pod"),
        (
            {"queues": {"vision": make_queue(parent="gone"), "gone": Absence.MISSING}},
            Code.QUEUE_MISSING,
            "which does not exist",
        ),
        ({"queues": {"vision": make_queue(children=["a", "b"])}}, Code.QUEUE_NOT_LEAF, "has child queues"),
        (
            {
                "group_events": [
                    make_event(
                        "NotReady",
                        "Job is not ready for scheduling. Waiting for 4 pods, currently 2 exist, 1 are gated",
                        kind="PodGroup",
                        name=GROUP,
                    )
                ]
            },
            Code.GANG_INCOMPLETE,
            "needs 4 pods at the same time, and only 2 exist, 1 of them with a scheduling gate",
        ),
    ],
)
def test_what_kai_does_not_tell_follows_from_its_objects(
    fields: dict[str, Any], code: Code, words: str
) -> None:
    actual, sentence = _cause(make_evidence(**fields))
    assert actual is code
    assert words in sentence


@pytest.mark.parametrize(("age", "code"), [(5, Code.WAITING_FOR_EVICTED), (60, Code.NO_GPU_FITS)])
def test_a_pod_for_which_others_were_evicted_waits_for_their_end(age: float, code: Code) -> None:
    words = "no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs."
    pipelined = make_event("Pipelined", "Pod team/train-0 was pipelined to node node-1", age=age)
    events = [make_event("Unschedulable", words, age=30), pipelined]
    assert _cause(make_evidence(make_pod(unschedulable=words), pod_events=events))[0] is code


def test_a_young_pod_without_a_pod_group_is_not_the_pod_groupers_fault_yet() -> None:
    evidence = make_evidence(make_pod(grouped=False, age=4), pod_group=Absence.MISSING)
    assert _cause(evidence) == (
        Code.POD_GROUP_MISSING,
        "KAI's pod-grouper has not grouped the pod yet, 4 s after its creation",
    )


@pytest.mark.parametrize(
    ("shards", "code"),
    [
        ([b'{"metadata":{"name":"a"},"spec":{"partitionLabelValue":"h100"}}'], Code.SCHEDULER_SILENT),
        ([b'{"metadata":{"name":"a"},"spec":{"partitionLabelValue":"a100"}}'], Code.NODE_POOL_WITHOUT_SHARD),
        (Absence.FORBIDDEN, Code.SCHEDULER_SILENT),
    ],
)
def test_a_node_pool_needs_a_shard(shards: Any, code: Code) -> None:
    known = shards if isinstance(shards, Absence) else [decode_shard(shard) for shard in shards]
    assert _cause(make_evidence(make_pod(labels={keys.NODE_POOL_LABEL: "h100"}), shards=known))[0] is code


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (Absence.MISSING, "data, which does not exist"),
        (
            decode_claim(b'{"metadata":{"name":"data"},"status":{"phase":"Pending"}}'),
            "data, which has no volume",
        ),
        (
            decode_claim(b'{"metadata":{"name":"data"},"status":{"phase":"Bound"}}'),
            "is not usable: node(s) had volume node affinity conflict",
        ),
        (Absence.FORBIDDEN, "data, which is not usable"),
    ],
)
def test_a_claim_without_a_volume_is_named(claim: Any, words: str) -> None:
    text = f"{_NOT_MET}VolumeBinding: node(s) had volume node affinity conflict\n"
    pod = make_pod(unschedulable=text, spec={"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]})
    code, sentence = _cause(make_evidence(pod, claims={"data": claim}))
    assert code is Code.CLAIM_NOT_BOUND
    assert words in sentence


def test_a_queue_below_its_quota_is_owed_gpus() -> None:
    words = "no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs."
    evidence = make_evidence(make_pod(unschedulable=words), queues={"vision": make_queue(quota=2)})
    cause = explain(evidence).cause
    assert cause.code is Code.NO_GPU_FITS
    text = cause.remedies[-1].text
    assert "has a quota of 2 GPUs. If it uses at most 1.5, KAI takes GPUs back" in text


@pytest.mark.parametrize(
    ("used", "requested", "words"),
    [
        (1.4, {"fraction": "0.6"}, "It uses 1.4, so KAI takes GPUs back"),
        (1.41, {"fraction": "0.6"}, ""),
        (1.8, {"fraction": "0.6"}, ""),
        (1.0, {"whole": 1}, "It uses 1, so KAI takes GPUs back"),
        (1.0, {"whole": 2}, ""),
        (None, {"whole": 3}, ""),
        (1.0, {"fraction": "0.6", "annotations": {keys.NUM_DEVICES: "2"}}, ""),
        (
            1.0,
            {"fraction": None, "annotations": {keys.GPU_MEMORY: "4000"}},
            "If the pod fits into the rest of it",
        ),
        (2.0, {"fraction": None, "annotations": {keys.GPU_MEMORY: "4000"}}, ""),
    ],
)
def test_a_queue_is_owed_what_fits_into_its_quota(
    used: float | None, requested: dict[str, Any], words: str
) -> None:
    waits = make_pod(
        unschedulable="no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs.",
        **requested,
    )
    queue = make_queue(quota=2, used=used)
    cause = explain(make_evidence(waits, queues={"vision": queue})).cause
    text = " ".join(remedy.text for remedy in cause.remedies)
    assert cause.code is Code.NO_GPU_FITS
    assert words in text
    assert ("quota" in text) is bool(words)


def test_a_binder_that_may_wait_for_a_reservation_pod_is_not_all_that_is_looked_at() -> None:
    order = make_bind_request()
    commands = [
        [
            remedy.command
            for remedy in explain(make_evidence(bind_request=order, shared_gpu_pods=pods)).cause.remedies
        ]
        for pods in (Absence.PARTIAL, [], [make_reservation("group-2")])
    ]
    reservations = "kubectl get pods --all-namespaces --selector app=kai-resource-reservation"
    binder = "kubectl get pods --namespace kai-scheduler"
    assert commands == [[reservations, binder], [reservations, binder], [binder]]


def test_reservation_pods_in_another_namespace_prove_nothing() -> None:
    runs = make_pod(node="node-1", phase="Running", labels={keys.GPU_GROUP: "group-1"})
    elsewhere = make_pod(
        name="poses",
        labels={keys.APP_LABEL: keys.RESERVATION_APP, keys.GPU_GROUP: "group-1"},
        annotations={keys.RESERVED_GPU: "GPU-1"},
        node="node-1",
        phase="Running",
    )
    code, sentence = _cause(make_evidence(runs, shared_gpu_pods=[runs, elsewhere]))
    assert code is Code.RUNNING
    assert sentence.startswith(
        "nothing wrong is seen; the pod has 0.5 of a GPU; whether its GPU is reserved is"
    )
    with_default = [runs, elsewhere, make_reservation("group-2")]
    assert _cause(make_evidence(runs, shared_gpu_pods=with_default))[0] is Code.NO_RESERVATION
    assert _cause(make_evidence(runs, shared_gpu_pods=[runs, make_reservation()])) == (
        Code.RUNNING,
        "nothing is wrong; the pod has 0.5 of a GPU",
    )


def test_free_parts_are_told_only_where_they_are_too_small() -> None:
    words = "no nodes with enough resources were found: 1 node(s) didn't have enough resources: GPUs."
    holder = make_pod(name="other", fraction="0.3", labels={keys.GPU_GROUP: "group-1"}, node="node-1")
    fields: dict[str, Any] = {"nodes": [make_node()], "shared_gpu_pods": [holder, make_reservation()]}
    fits = explain(make_evidence(make_pod(unschedulable=words), **fields)).cause
    assert not fits.details  # 0.7 is free by these labels, and KAI knows better
    too_large = explain(make_evidence(make_pod(unschedulable=words, fraction="0.8"), **fields)).cause
    assert too_large.details == {"largestFreeGpu": 0.7, "freeGpus": 0.7}
    # Pods with shares of several GPUs are not listed, so the part is an upper bound and no advice.
    assert too_large.sentence.endswith("the largest free part of a shared GPU is at most 0.7")
    assert not any("0.7" in remedy.text for remedy in too_large.remedies)


@pytest.mark.parametrize(
    ("pod", "code", "words"),
    [
        (
            make_pod(metadata={"deletionTimestamp": "2026-05-01T11:59:00Z"}),
            Code.TERMINATING,
            "is being deleted",
        ),
        (make_pod(node="node-1", phase="Succeeded"), Code.SUCCEEDED, "have ended without an error"),
        (
            make_pod(
                node="node-1",
                phase="Failed",
                containers=[
                    {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
                ],
            ),
            Code.FAILED,
            "container main ended with exit code 137 (OOMKilled)",
        ),
        (
            make_pod(
                node="node-1",
                phase="Failed",
                status={"reason": "UnexpectedAdmissionError", "message": "no healthy devices"},
            ),
            Code.FAILED,
            "UnexpectedAdmissionError",
        ),
        (
            make_pod(
                node="node-1",
                phase="Running",
                containers=[
                    {
                        "name": "main",
                        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
                        "lastState": {"terminated": {"exitCode": 1}},
                    }
                ],
            ),
            Code.CONTAINER_WAITING,
            "it ended with exit code 1",
        ),
        (make_pod(node="node-1"), Code.CONTAINER_WAITING, "the kubelet has not started its containers"),
        (
            make_pod(node="node-1", phase=""),
            Code.CONTAINER_WAITING,
            "the kubelet has not started its containers for 90 s",
        ),
        (
            make_pod(node="node-1", phase="Running"),
            Code.RUNNING,
            "nothing is wrong; the pod has 0.5 of a GPU",
        ),
        (
            make_pod(
                scheduler="default-scheduler", fraction=None, grouped=False, phase="Running", node="node-1"
            ),
            Code.OTHER_SCHEDULER,
            "its queue does not count",
        ),
    ],
)
def test_the_state_of_a_pod_is_told(pod: Any, code: Code, words: str) -> None:
    answer = explain(make_evidence(pod))
    assert answer.cause.code is code
    assert words in answer.cause.sentence
    assert answer.is_fine is (code in (Code.RUNNING, Code.SUCCEEDED))


def test_a_pod_that_has_nothing_to_do_with_kai_is_fine() -> None:
    pod = make_pod(
        scheduler="default-scheduler",
        fraction=None,
        grouped=False,
        phase="Running",
        node="node-1",
        metadata={"labels": {}},
    )
    answer = explain(make_evidence(pod))
    assert (answer.cause.code, answer.is_fine) == (Code.OUTSIDE_KAI, True)


def _figures(**verdict: Any) -> AgentFigures:
    pod = ApiPod(
        namespace="team",
        name=NAME,
        uid="u",
        shares={"GPU-1": ApiAmount(bytes=8 << 30, source="bind-request")},
        gpus=[ApiHolding(gpu_uuid="GPU-1", gpu=0, used_bytes=10 << 30)],
        verdicts=[ApiVerdict(reason="over-share", gpu_uuid="GPU-1", **verdict)],
    )
    return AgentFigures(pod=pod, gpus=(), neighbours=1)


def test_a_flag_is_told_with_figures_and_the_hint_of_the_event() -> None:
    running = make_pod(node="node-1", phase="Running")
    event = make_event(
        "GPUMemoryOverShare",
        "uses too much, for 60 s; vLLM: set the option. Raise the pod's share.",
        component="kaishare-agent",
    )
    figures = _figures(flagged=True, lasted_seconds=60.0, used_bytes=10 << 30, allowed_bytes=8 << 30)
    cause = explain(make_evidence(running, figures=figures, pod_events=[event])).cause
    assert cause.code is Code.FLAGGED
    assert "it uses 10.0 GiB, and may use 8.0 GiB, for 60 s" in cause.sentence
    assert [remedy.text for remedy in cause.remedies] == ["vLLM: set the option", "Raise the pod's share."]
    assert cause.details["reason"] == "over-share"


def test_without_the_agent_the_newest_event_tells_of_a_flag() -> None:
    running = make_pod(node="node-1", phase="Running")
    over = make_event("GPUMemoryOverShare", "uses too much", age=60)
    within = make_event("GPUMemoryWithinShare", "within its share again", age=30)
    assert _cause(make_evidence(running, pod_events=[over]))[0] is Code.FLAGGED
    assert _cause(make_evidence(running, pod_events=[over, within]))[0] is Code.RUNNING


def test_each_gpu_has_its_own_end_of_a_flag() -> None:
    running = make_pod(node="node-1", phase="Running")
    over = [
        make_event(
            "GPUMemoryOverShare",
            f"uses 12.0 GiB on GPU {gpu} (GPU-{gpu}), above its share of 10.0 GiB, for 5 min; set {gpu}",
            age=300 - gpu,
        )
        for gpu in (0, 1)
    ]
    ends = [
        make_event(
            "GPUMemoryWithinShare",
            f"uses 9.0 GiB on GPU {gpu} (GPU-{gpu}), within its share of 10.0 GiB again",
            age=60 - gpu,
        )
        for gpu in (1, 0)
    ]
    cause = explain(make_evidence(running, pod_events=[*over, ends[0]])).cause
    assert (cause.code, cause.remedies[0].text) == (Code.FLAGGED, "set 0")
    assert cause.sentence == "the pod is flagged (over-share): it uses more memory than its share"
    assert len(explain(make_evidence(running, pod_events=over)).findings) == 1
    assert _cause(make_evidence(running, pod_events=[*over, *ends]))[0] is Code.RUNNING


@pytest.mark.parametrize("reason", [reason for reason in FlagReason if reason is not FlagReason.OVER_SHARE])
def test_a_flag_whose_end_has_no_event_is_told_in_the_past(reason: FlagReason) -> None:
    event = make_event(reason.event_reason, "is flagged; do this", age=3300, component="kaishare-agent")
    running = make_pod(node="node-1", phase="Running", age=7200)
    cause = explain(make_evidence(running, pod_events=[event])).cause
    assert cause.code is Code.FLAGGED
    assert cause.sentence.startswith(
        f"the pod was flagged ({reason.value}) at 2026-05-01 11:05 UTC, because it"
    )
    assert cause.sentence.endswith("whether it still is cannot be seen without its node's agent")
    assert cause.remedies[0].text == "do this"


def test_flags_are_unknown_without_events_and_agent() -> None:
    running = make_pod(node="node-1", phase="Running")
    failed = AgentFigures(pod=None, gpus=(), neighbours=0, failure="time-out")
    for figures in (None, failed):
        answer = explain(make_evidence(running, are_events_read=False, figures=figures))
        assert (answer.cause.code, answer.is_fine) == (Code.RUNNING, True)
        assert answer.cause.sentence == (
            "nothing wrong is seen; the pod has 0.5 of a GPU; its flags are not known, since neither all of its"
            " Events nor its node's agent could be read"
        )
    seen = make_evidence(running, are_events_read=False, figures=_figures(flagged=False))
    assert _cause(seen)[1].startswith("nothing is wrong")


def test_the_agent_is_believed_before_an_older_event() -> None:
    running = make_pod(node="node-1", phase="Running")
    figures = _figures(flagged=False)
    evidence = make_evidence(
        running, figures=figures, pod_events=[make_event("GPUMemoryOverShare", "too much")]
    )
    code, sentence = _cause(evidence)
    assert code is Code.RUNNING
    assert "uses 10.0 GiB of 8.0 GiB on GPU 0" in sentence


class TestInAVCluster:
    """The tenant's API server has pods, Events and conditions, and none of KAI's kinds."""

    @staticmethod
    def _evidence(pod: Any = None, **fields: Any) -> PodEvidence:
        unserved: dict[str, Any] = {
            "pod_group": Absence.UNSERVED,
            "bind_request": Absence.UNSERVED,
            "queues": {"vision": Absence.UNSERVED},
        }
        return make_evidence(pod, **(unserved | fields))

    def test_words_that_come_back_from_the_host_decide(self) -> None:
        words = "OverLimit: vision quota has reached the allowable limit of GPUs. Limit is 1 GPUs, currently 1 GPUs"
        words += " allocated and workload requested 0.5 GPUs."
        answer = explain(self._evidence(make_pod(unschedulable=words)))
        assert answer.cause.code is Code.QUEUE_OVER_LIMIT
        commands = [remedy.command for remedy in answer.cause.remedies if remedy.command]
        assert commands == ["kaishare why -n HOST_NAMESPACE train-0-x-team-x-VCLUSTER"]

    def test_a_pod_of_which_nothing_comes_back_blames_no_component(self) -> None:
        assert _cause(self._evidence(make_pod(grouped=False)))[0] is Code.KAI_NOT_SERVED

    def test_a_refusal_of_the_host_is_told(self) -> None:
        message = (
            'Error syncing to host cluster: admission webhook "admission.kai-scheduler.svc" denied the request:'
            " attempting to create a pod team/x with gpu sharing request, while GPU sharing is disabled"
        )
        event = make_event("SyncError", message, component="pod-syncer")
        assert _cause(self._evidence(make_pod(grouped=False), pod_events=[event]))[0] is Code.GPU_SHARING_OFF

    def test_a_conflict_of_the_syncer_is_no_refusal(self) -> None:
        event = make_event("SyncError", "Error syncing: the object has been modified", component="pod-syncer")
        evidence = self._evidence(make_pod(grouped=False), pod_events=[event])
        assert _cause(evidence)[0] is Code.KAI_NOT_SERVED


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (
            'admission webhook "pods.validate.kaishare.dev" denied the request: above the cap',
            Code.REFUSED_BY_GUARD,
        ),
        ('admission webhook "validate.nginx.io" denied the request: no', Code.REFUSED_AT_CREATION),
        ('admission webhook "pod.kai-scheduler.svc" denied the request: bad value', Code.REFUSED_BY_KAI),
        (
            "ValidatingAdmissionPolicy 'kaishare-guard-keys' with binding 'kaishare-guard-keys' denied request: a key",
            Code.REFUSED_BY_GUARD,
        ),
        ('failed calling webhook "pods.mutate.kaishare.dev": timeout', Code.WEBHOOK_UNREACHABLE),
        ('pods "a" is forbidden: no PriorityClass with name urgent was found', Code.PRIORITY_CLASS_MISSING),
        ("spec.containers: Required value", Code.REFUSED_AT_CREATION),
    ],
)
def test_a_refused_creation_is_told(message: str, code: Code) -> None:
    event = make_event("FailedCreate", f"Error creating: {message}", kind="ReplicaSet", name="server-1")
    evidence = make_evidence(Absence.MISSING, kind="Deployment", name="server", creation_events=[event])
    assert _cause(evidence)[0] is code


@pytest.mark.parametrize(
    ("spec", "words"),
    [('{"replicas":0}', "has 0 replicas"), ('{"suspend":true}', "is suspended"), ("{}", "no Event")],
)
def test_a_workload_without_pods_is_told(spec: str, words: str) -> None:
    workload = decode_workload(f'{{"kind":"Job","metadata":{{"name":"a"}},"spec":{spec}}}'.encode())
    code, sentence = _cause(make_evidence(Absence.MISSING, kind="Job", name="a", workload=workload))
    assert (code, words in sentence) == (Code.NO_POD, True)


_texts = st.text(max_size=200) | st.sampled_from(
    [
        "OverLimit: ",
        "VolumeBinding",
        "2 node(s) ",
        "Waiting for ",
        'denied the request "',
        "Requested topology ",
    ]
)
_messages = st.lists(_texts, max_size=6).map("".join)


def _check(answer: Explanation) -> None:
    assert answer.findings
    for finding in answer.findings:
        for text in (finding.sentence, *(remedy.text for remedy in finding.remedies)):
            assert "\n" not in text


@given(
    message=_messages, reason=st.sampled_from(["BindingError", "NotReady", "Evict", "StaleJob", "SyncError"])
)
def test_any_text_leads_to_an_answer_in_lines(message: str, reason: str) -> None:
    events = [make_event(reason, message)]
    groups = [make_event(reason, message, kind="PodGroup", name=GROUP)]
    for pod in (make_pod(unschedulable=message), make_pod(grouped=False), Absence.MISSING):
        _check(explain(make_evidence(pod, pod_events=events, group_events=groups, creation_events=events)))


@pytest.mark.parametrize(
    "unit", ["Limit is 1 GPUs, currently ", "a quota has reached the allowable limit of ", '"', "1 node "]
)
def test_a_long_text_costs_linear_time(unit: str) -> None:
    text = unit * 100_000
    for pod in (make_pod(unschedulable=text), make_pod(unschedulable=f"OverLimit: {text}"), Absence.MISSING):
        _check(explain(make_evidence(pod, creation_events=[make_event("FailedCreate", text)])))


_NO_GPUS = "2 node(s) didn't have enough resources: GPUs."
_HEAD = "no nodes with enough resources were found: "


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (f"4 node(s) had untolerated taint(s). \n{_NO_GPUS}", Code.NO_NODE_FITS),
        (
            "3 node(s) had untolerated taint(s). \n5 non MIG jobs cant run on a node with MigStrategy='mixed'.",
            Code.NO_NODE_FITS,
        ),
        (f"9 node(s) didn't have enough resources: CPU cores. \n{_NO_GPUS}", Code.NO_NODE_FITS),
        (_NO_GPUS, Code.NO_GPU_FITS),
        ("2 node(s) didn't have enough resources: GPU memory.", Code.GPU_MEMORY_TOO_BIG),
        (f"2 node(s) didn't have enough resources: GPU memory. \n{_NO_GPUS}", Code.GPU_MEMORY_TOO_BIG),
        (
            "2 node(s) didn't have enough resources: GPU memory. \n3 node(s) didn't have enough resources: GPUs.",
            Code.NO_GPU_FITS,
        ),
    ],
)
def test_a_reason_is_the_cause_only_if_all_nodes_have_it(lines: str, code: Code) -> None:
    """KAI checks resources first: a node without GPUs lacks them, and a tainted node has room."""
    pod = make_pod(unschedulable=_HEAD + lines, fraction=None, annotations={keys.GPU_MEMORY: "50000"})
    assert _cause(make_evidence(pod))[0] is code


def test_gpu_memory_that_a_card_has_is_not_too_big() -> None:
    words = f"{_HEAD}2 node(s) didn't have enough resources: GPU memory."
    pod = make_pod(unschedulable=words, fraction=None, annotations={keys.GPU_MEMORY: "1000"})
    assert _cause(make_evidence(pod, nodes=[make_node()]))[0] is Code.NO_GPU_FITS


def test_a_gang_without_room_for_one_pod_has_the_reason_of_the_nodes() -> None:
    words = (
        "PodSchedulingErrors: Resources were found for 0 pods while 4 are required for gang scheduling. Additional"
        f" pods cannot be scheduled due to: {_HEAD}2 node(s) had untolerated taint(s)."
    )
    assert _cause(_of_words(words))[0] is Code.TAINT_NOT_TOLERATED


def test_a_queue_by_the_label_alone_does_not_contradict_kai() -> None:
    pod = make_pod(unschedulable=_HEAD + _NO_GPUS)
    evidence = make_evidence(pod, pod_group=Absence.FORBIDDEN, queues={"vision": Absence.MISSING})
    assert _cause(evidence)[0] is Code.NO_GPU_FITS


@pytest.mark.parametrize("words", ["", _HEAD + _NO_GPUS])
def test_a_chosen_node_is_newer_than_kais_old_words(words: str) -> None:
    events = [make_event("Unschedulable", words, age=60), make_event("Scheduled", "to node-1", age=30)]
    fields: dict[str, Any] = {"pod_group": Absence.FORBIDDEN, "bind_request": Absence.FORBIDDEN}
    code, sentence = _cause(make_evidence(make_pod(unschedulable=words), pod_events=events, **fields))
    assert code is Code.UNDECIDED
    assert sentence.startswith("KAI chose a node")


def test_a_gang_that_was_incomplete_once_is_not_incomplete_for_ever() -> None:
    message = "Job is not ready for scheduling. Waiting for 4 pods, currently 2 exist, 0 are gated"
    event = make_event("NotReady", message, kind="PodGroup", name=GROUP, age=70)
    assert _cause(make_evidence(group_events=[event]))[0] is Code.SCHEDULER_SILENT


def test_an_error_of_an_earlier_attempt_does_not_explain_the_present_one() -> None:
    old = make_event("BindingError", "no luck", age=3000, component="binder")
    assert (
        _cause(make_evidence(bind_request=make_bind_request(age=2), pod_events=[old]))[0]
        is Code.BINDER_SILENT
    )
    recent = make_event("BindingError", "no luck", age=20, component="binder")
    assert (
        _cause(make_evidence(bind_request=make_bind_request(age=2), pod_events=[recent]))[0]
        is Code.BINDING_FAILED
    )


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({"state": {"terminated": {"exitCode": 1}}}, "has ended with exit code 1"),
        (
            {"restartCount": 90, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
            "has been restarted 90 times; it ended with exit code 137 (OOMKilled)",
        ),
    ],
)
def test_a_running_pod_with_a_container_that_does_not_run_is_not_fine(
    status: dict[str, Any], words: str
) -> None:
    pod = make_pod(node="node-1", phase="Running", containers=[{"name": "main", **status}])
    answer = explain(make_evidence(pod))
    assert (answer.cause.code, answer.is_fine) == (Code.CONTAINER_WAITING, False)
    assert words in answer.cause.sentence


@pytest.mark.parametrize(
    ("kind", "state", "code"),
    [
        ("init", {"terminated": {"exitCode": 0}}, Code.RUNNING),
        ("main", {"terminated": {"exitCode": 0}}, Code.RUNNING),
        ("main", {"running": {"startedAt": at(800_000)}}, Code.RUNNING),
        ("main", {"running": {"startedAt": at(400_000)}}, Code.CONTAINER_WAITING),
        ("main", {"running": {}}, Code.CONTAINER_WAITING),
        ("init", {"terminated": {"exitCode": 1}}, Code.CONTAINER_WAITING),
    ],
)
def test_failures_that_are_over_are_no_problem_for_ever(kind: str, state: Any, code: Code) -> None:
    failed = {"restartCount": 3, "lastState": {"terminated": {"exitCode": 1}}, "state": state}
    statuses = {
        "initContainerStatuses": [{"name": "wait-for-database", **(failed if kind == "init" else {})}],
        "containerStatuses": [{"name": "main", **(failed if kind == "main" else {})}],
    }
    pod = make_pod(node="node-1", phase="Running", age=864_000, status=statuses)
    assert _cause(make_evidence(pod))[0] is code


_NOT_READY = {
    "type": "Ready",
    "status": "False",
    "reason": "ContainersNotReady",
    "lastTransitionTime": at(600),
}


@pytest.mark.parametrize(
    ("ready", "state", "words"),
    [
        (False, {"running": {}}, "container main is not ready for 10 min"),
        (True, {"running": {}}, "the pod is not ready for 10 min, and its containers are"),
    ],
)
def test_a_pod_that_is_not_ready_is_not_fine(ready: bool, state: Any, words: str) -> None:
    container = {"name": "main", "ready": ready, "state": state}
    pod = make_pod(node="node-1", phase="Running", age=900, conditions=[_NOT_READY], containers=[container])
    answer = explain(make_evidence(pod))
    assert (answer.cause.code, answer.cause.sentence) == (Code.CONTAINER_WAITING, words)
    assert not answer.is_fine


def test_a_container_that_is_done_is_not_waited_for() -> None:
    done = {"name": "main", "ready": False, "state": {"terminated": {"exitCode": 0}}}
    runs = {"name": "proxy", "ready": True, "state": {"running": {}}}
    pod = make_pod(node="node-1", phase="Running", conditions=[_NOT_READY], containers=[done, runs])
    assert explain(make_evidence(pod)).is_fine


@pytest.mark.parametrize(("reason", "words"), [("NodeLost", "(NodeLost)"), ("", "(phase Unknown)")])
def test_a_pod_in_the_phase_unknown_is_not_fine(reason: str, words: str) -> None:
    pod = make_pod(node="node-1", phase="Unknown", status={"reason": reason})
    answer = explain(make_evidence(pod))
    assert (answer.state, answer.is_fine) == ("Unknown", False)
    assert answer.cause.sentence == f"the kubelet of the pod's node does not answer {words}"


def _initialising(*statuses: dict[str, Any]) -> Any:
    """Return a bound pod with the sidecar `proxy` and the init container `download`."""
    containers = [{"name": "proxy", "restartPolicy": "Always"}, {"name": "download"}]
    spec = {"initContainers": containers, "containers": [{"name": "main"}]}
    waiting = [{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}]
    return make_pod(
        node="node-1",
        age=2400,
        spec=spec,
        containers=waiting,
        status={"initContainerStatuses": list(statuses)},
    )


def test_an_init_container_that_runs_is_named_with_its_log() -> None:
    runs = {"state": {"running": {"startedAt": at(2390)}}, "started": True}
    cause = explain(
        make_evidence(_initialising({"name": "proxy", **runs}, {"name": "download", **runs}))
    ).cause
    assert cause.code is Code.CONTAINER_WAITING
    assert cause.sentence.startswith("the init container download runs for 40 min, and the pod's containers")
    assert [each.command for each in cause.remedies] == [
        f"kubectl logs {NAME} --namespace team --container download"
    ]
    waits = {"name": "download", "state": {"waiting": {"reason": "PodInitializing"}}}
    cause = explain(make_evidence(_initialising({"name": "proxy", **runs}, waits))).cause
    assert "has not started its containers for 40 min" in cause.sentence
    unready = {"name": "proxy", **runs, "started": False}
    assert "container proxy runs for" in explain(make_evidence(_initialising(unready, waits))).cause.sentence


@pytest.mark.parametrize(
    ("refused", "evicted", "code"), [(50, 5, Code.EVICTED), (5, 50, Code.REFUSED_AT_CREATION)]
)
def test_the_newer_of_a_refusal_and_an_eviction_is_the_cause(
    refused: float, evicted: float, code: Code
) -> None:
    fields: dict[str, Any] = {
        "creation_events": [make_event("FailedCreate", "no", kind="Job", name="a", age=refused)],
        "group_events": [make_event("Evict", "by higher priority", kind="PodGroup", name="a", age=evicted)],
    }
    assert _cause(make_evidence(Absence.MISSING, kind="Job", name="a", **fields))[0] is code


@pytest.mark.parametrize(
    ("refused", "replicas", "code"),
    [(5, 3, Code.RESOURCE_QUOTA_EXCEEDED), (95, 3, Code.RUNNING), (5, 0, Code.RUNNING)],
)
def test_a_running_pod_does_not_hide_that_a_further_one_is_refused(
    refused: float, replicas: int, code: Code
) -> None:
    words = 'pods "web-x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1'
    evidence = make_evidence(
        make_pod(whole=1, node="node-1", phase="Running"),
        kind="Deployment",
        name="web",
        workload=decode_workload(
            json.dumps(
                {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": replicas}}
            ).encode()
        ),
        creation_events=[
            make_event("FailedCreate", words, kind="ReplicaSet", name="web-7f6b5d", age=refused)
        ],
        are_events_read=True,
    )
    answer = explain(evidence)
    assert (answer.cause.code, answer.is_fine) == (code, code is Code.RUNNING)
    if code is not Code.RUNNING:
        assert answer.cause.sentence.startswith("a further pod of Deployment web was refused 5 s ago: ")


def test_a_workload_without_replicas_is_not_refused_any_more() -> None:
    workload = decode_workload(b'{"kind":"ReplicaSet","metadata":{"name":"a"},"spec":{"replicas":0}}')
    refused = [make_event("FailedCreate", "no", kind="ReplicaSet", name="a")]
    evidence = make_evidence(
        Absence.MISSING, kind="ReplicaSet", name="a", workload=workload, creation_events=refused
    )
    assert _cause(evidence)[0] is Code.NO_POD


def test_a_consolidation_needs_nothing() -> None:
    event = make_event(
        "Evict", f"Pod team/{NAME} was rescheduled due to bin packing", kind="PodGroup", name=GROUP
    )
    cause = explain(make_evidence(Absence.MISSING, group_events=[event])).cause
    assert (cause.code, cause.remedies[0].text[:13]) == (Code.EVICTED, "Nothing to do")


@pytest.mark.parametrize("amount", ["1e400", "-1e400"])
def test_an_amount_beyond_all_numbers_is_no_amount(amount: str) -> None:
    spec = {"containers": [{"name": "main", "resources": {"limits": {keys.GPU_RESOURCE: amount}}}]}
    assert explain(make_evidence(make_pod(fraction=None, spec=spec))).cause.code is Code.SCHEDULER_SILENT
