"""Questions of people in trouble: `why` alone answers with the cause and the first act."""

import json
from typing import Any, Final

import pytest

from console.why.core import explain, find_cause
from console.why.evidence import GpuPod, PodEvidence, gpu_pod, place_of, who_holds
from console.why.explanation import Code
from kai import keys
from kai.releases import Version
from kube.kinds import Pod, PodOwner, decode_pod_with_document
from tests.console.why.test_acts import is_imperative
from tests.support.why_evidence import (
    FORBIDDEN,
    GONE,
    NOW,
    at,
    kai_says,
    make_bind_request,
    make_event,
    make_evidence,
    make_node,
    make_owner,
    make_pod,
    make_pod_group,
    make_reservation,
    of_pod,
)

_HEAD: Final = "no nodes with enough resources were found: "
_FULL: Final = f"{_HEAD}2 node(s) didn't have enough resources: GPUs."
_RUNS: Final[dict[str, Any]] = {"node": "node-1", "phase": "Running"}
_LIMIT: Final = (
    "OverLimit: vision quota has reached the allowable limit of GPUs. Limit is 2 GPUs, currently {used} GPUs"
    " allocated and workload requested {requested} GPUs"
)
_QUOTA: Final = (
    "NonPreemptibleOverQuota: Non-preemptible workload is over quota. Workload requested 4 GPUs, but vision quota"
    " is 2 GPUs, while 0 GPUs are already allocated for non-preemptible pods. Use a preemptible workload to go"
    " over quota."
)
_GANG: Final = (
    "PodSchedulingErrors: Resources were found for 0 pods while 3 are required for gang scheduling. Additional pods"
    " cannot be scheduled due to: "
)
_MAX: Final = (
    "Scheduling conditions were not met for pod team/train-0:\nMaxNodePoolResources: The pod team/train-0 requires"
    " GPU: 0.5, CPU: 0 (cores), memory: 0 (GB), pods: 1, rdma/hca: {amount}. {end}\n"
)
OLD, NEW = Version(0, 17, 0), Version(0, 18, 2)


def missed_pod(**fields: Any) -> Pod:
    """Return a pod with a share that KAI's webhook did not see."""
    pod = json.loads(make_pod(**fields).document)
    del pod["metadata"]["annotations"][keys.SHARED_GPU_CONFIGMAP]
    return _decoded(pod)


def _decoded(document: dict[str, Any]) -> Pod:
    return decode_pod_with_document(json.dumps(document).encode())


def holder(name: str, *, ends: float | None = None, queue: str = "vision", **fields: Any) -> Pod:
    spec = {} if ends is None else {"activeDeadlineSeconds": int(ends)}
    started = {"startTime": at(600)} if fields.get("node") else {}
    labels = {keys.QUEUE_LABEL: queue}
    return make_pod(name=name, whole=1, labels=labels, spec=spec, status=started, **fields)


def _gpu_pods(*pods: Pod) -> list[GpuPod]:
    return [kept for pod in pods if (kept := gpu_pod(pod)) is not None]


_ENDS: Final = (
    "team/b (1 GPU, queue vision, ends by 2026-05-01 12:50 UTC)",
    "team/c (1 GPU, queue speech, ends by 2026-05-01 13:50 UTC)",
    "team/d (1 GPU, queue vision)",
)
_HELD = _gpu_pods(
    holder("a", node="node-1"), holder("b", node="node-1", ends=3600),
    holder("c", node="node-1", ends=7200, queue="speech"), holder("d", node="node-2", age=9000),
    holder("waits", age=200, metadata={"annotations": {keys.POD_GROUP_NAME: "older"}}), make_pod(),
)  # fmt: skip


def _deployment(**status: int) -> PodOwner:
    return make_owner(spec={"replicas": 1}, status=status)


def _scaling(phase: str = "Pending", node: str = "") -> Pod:
    return make_pod(name="team-train-0", namespace="kai-scale-adjust", whole=1, phase=phase, node=node)


def _event(reason: str, message: str, component: str, **fields: Any) -> list[Any]:
    return [make_event(reason, message, component=component, **fields)]


def _rejected(reason: str, message: str = "Pod was rejected: no") -> PodEvidence:
    return of_pod({"phase": "Failed", "node": "n1", "status": {"reason": reason, "message": message}})


def _container(**state: Any) -> list[dict[str, Any]]:
    return [{"name": "main", "state": state}]


_CDI = (
    "failed to create containerd task: failed to inject CDI devices: unresolvable CDI devices"
    " k8s.device-plugin.nvidia.com/gpu=GPU-1: unknown"
)
_NO_HANDLER = 'Failed to create pod sandbox: no runtime for "nvidia" is configured'
_SINGLE, _MIXED = (f"{_HEAD}2 {words}." for words in (
    "only whole gpu jobs can run on a node with MigStrategy='single'",
    "non MIG jobs cant run on a node with MigStrategy='mixed'",
))  # fmt: skip
_DRA = f"{_HEAD}1 fractional/shared GPU pods are not yet supported on DRA-only nodes."
_FAILED_RESERVATION = make_pod(
    name="gpu-reservation-group-1", namespace=keys.RESERVATION_APP, fraction=None, grouped=False, phase="Failed",
    labels={keys.APP_LABEL: keys.RESERVATION_APP, keys.GPU_GROUP: "group-1"}, node="node-1",
    status={"reason": "UnexpectedAdmissionError", "message": "no healthy devices"},
)  # fmt: skip
_NV_FRACTIONS = make_pod(name="other", annotations={"nvidia.com/container.main.gpus.devices": "GPU-1"})
_BOUND_SOON = {"bind_request": make_bind_request(age=100)}


_SIDE = {"shared_gpu_pods": [make_reservation()]}
QUESTIONS: Final[dict[str, tuple[PodEvidence, Code, str, str]]] = {
    # a gang
    "my job of four asks for more than its queue may use": (kai_says(_LIMIT.format(used=0, requested=4), {"whole": 1}, pod_group=make_pod_group(minMember=4)),
        "queue-over-limit", "the workload needs 4 pods at the same time, which request 4 in all: they can never start", "Start the workload with fewer or smaller pods"),
    "the same over the quota": (kai_says(_QUOTA, {"whole": 1}, pod_group=make_pod_group(minMember=4)),
        "queue-over-quota", "the workload needs 4 pods at the same time, which request 4", "Use a preemptible"),
    "the same, and I may not read the PodGroup": (kai_says(_LIMIT.format(used=0, requested=4), {"whole": 1}, pod_group=FORBIDDEN),
        "queue-over-limit", "the workload requests 4: it can never start", "Request less, or name"),
    "my three workers find no room at all": (kai_says(_GANG + _FULL, {"fraction": "0.6"}, pod_group=make_pod_group(minMember=3)),
        "gang-does-not-fit", "needs 3 pods at the same time, and KAI finds room for 0: the pod requests 0.6", "Wait until other pods end"),
    # who holds the GPUs, and when it is my turn
    "who holds the GPUs, and when does my pod start": (kai_says(_FULL, nodes=[make_node()], shared_gpu_pods=[], gpu_pods=_HELD),
        "no-gpu-fits", "all GPUs are in use", "Wait until other pods end: " + "; ".join(_ENDS) + "; and 1 more. By age its workload is number 2 of 2 that wait in the queue."),
    "who uses my queue's limit": (kai_says(_LIMIT.format(used=2, requested=0.5), gpu_pods=_HELD),
        "queue-over-limit", "uses 2; the pod requests 0.5", "Wait until other pods of the queue end: team/b (1 GPU, queue vision, ends by 2026-05-01 12:50 UTC); team/d"),
    # KAI's webhook did not see the pod
    "no node for ever: KAI's webhook was down at creation": (make_evidence(missed_pod(), kai_version=OLD), "kai-admission-missed", "without KAI's webhook", "Delete the pod"),
    "the same while the binder tries": (make_evidence(missed_pod(), kai_version=OLD, **_BOUND_SOON), "kai-admission-missed", "", "Delete the pod"),
    "the same, and its reservation pod has not reported": (make_evidence(missed_pod(), kai_version=OLD, **_BOUND_SOON, shared_gpu_pods=[make_reservation(gpu=None)]),
        "kai-admission-missed", "", "Delete the pod"),
    "the same, and only the Event Scheduled is left": (make_evidence(missed_pod(), kai_version=OLD, pod_group=FORBIDDEN, bind_request=FORBIDDEN, pod_events=_event("Scheduled", "to node-1", "kai-scheduler")),
        "kai-admission-missed", "", "Delete the pod"),
    "the same, and KAI's release is not known": (make_evidence(missed_pod(), **_BOUND_SOON, **_SIDE),
        "binder-silent", "has not answered for 100 s", "Delete the pod and create it again, if KAI is older than v0.18"),
    # nodes
    "a share on nodes with MIG, strategy single": (kai_says(_SINGLE), "share-not-supported", "MigStrategy='single'", "Request a whole GPU, which these nodes take: nvidia.com/gpu: 1"),
    "a share on nodes with MIG, strategy mixed": (kai_says(_MIXED), "share-not-supported", "non MIG jobs cant run", "Request a MIG device"),
    "a share where GPUs are offered by DRA only": (kai_says(f"{_DRA} \n1 node(s) didn't have enough resources: GPUs."),
        "share-not-supported", "DRA-only nodes", "Request a whole GPU"),
    "one node is full, the other has no label": (kai_says(f"{_HEAD}1 node(s) didn't have enough resources: GPU memory. \n1 node is not a gpu node or the gpu memory count on the node was not synced yet, task: <team/train-0>, node: <n2>."),
        "no-node-fits", "node: <n2>", "Administrator: install GPU feature discovery"),
    "a resource that no node has": (kai_says(_MAX.format(amount=1000, end="No node in the default node-pool has rdma/hca resources.")),
        "resource-not-offered", "the pod requests 1 rdma/hca, and no node offers rdma/hca", "Correct the resource's name"),
    "huge pages that no node has": (kai_says(_MAX.format(amount=1000, end="No node in the default node-pool has hugepages-2Mi resources.").replace("rdma/hca: 1000", "hugepages-2Mi: 4194304000")),
        "resource-not-offered", "the pod requests 4194304 hugepages-2Mi", "Correct the resource's name"),
    "a MIG device that no node has": (kai_says("The pod a/b requires nvidia.com/mig-1g.10gb: 1. No node in the default node-pool has nvidia.com/mig-1g.10gb resources"),
        "resource-not-offered", "the pod requests 1 nvidia.com/mig-1g.10gb, and no node", "Correct the resource's name"),
    "more of a resource than any node has": (kai_says(_MAX.format(amount=3000, end="Max rdma/hca resources available in a single node in the default node-pool is topped at 2000")),
        "node-too-small", "the pod requests 3 rdma/hca, and no node has more than 2", "Request what one node has"),
    "the queue is of another node pool": (kai_says("QueueDoesNotExist: Queue 'vision' does not exist", {"labels": {keys.NODE_POOL_LABEL: "h100"}}),
        "queue-of-other-pool", "is of the default node pool, and the pod of the node pool h100", "Name a queue of the node pool h100"),
    # a rollout, and autoscalers
    "my rollout stands still": (kai_says(_FULL, owners=[_deployment(replicas=2, updatedReplicas=1)]),
        "rollout-surge", "the rollout of Deployment web adds this pod before it ends the 1 old pod", "Let the rollout end an old pod before"),
    "will the autoscaler add a node": (kai_says(_FULL, scaling_pods=[_scaling()]), "node-requested", "KAI's node-scale-adjuster asks for a node with its pod team-train-0", "Wait some minutes"),
    "the autoscaler adds a node": (kai_says(_FULL, {"whole": 2}, pod_events=_event("TriggeredScaleUp", "pod triggered scale-up: [{gpu 1->2}]", "cluster-autoscaler")),
        "node-requested", "cluster-autoscaler adds a node (pod triggered scale-up: [{gpu 1->2}])", "Wait some minutes"),
    # the kubelet, and the reservation pod
    "refused after a restart of the node": (_rejected("UnexpectedAdmissionError", "Allocate failed due to no healthy devices present"),
        "refused-by-kubelet", "the kubelet of node n1 refused or ended the pod, which has no log: UnexpectedAdmissionError: Allocate failed", "Delete the pod: it never runs again. Its controller makes a new one"),
    "evicted by the kubelet, which does not find the container": (of_pod({"phase": "Failed", "node": "n1", "status": {"reason": "Evicted", "message": "no room"},
        "containers": _container(terminated={"exitCode": 137, "reason": "ContainerStatusUnknown", "message": "not located"})}),
        "refused-by-kubelet", "which has no log: Evicted: no room", "Delete the pod"),
    "evicted by the kubelet after it ran": (of_pod({"phase": "Failed", "node": "n1", "containers": _container(terminated={"exitCode": 137, "reason": "Error"}), "status": {"reason": "Evicted", "message": "The node was low on resource: memory"}}),
        "failed", "Evicted: The node was low on resource: memory", "Delete the pod: it never runs again"),
    "the pod's deadline has passed": (_rejected("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"),
        "failed", "DeadlineExceeded: Pod was active", "Raise activeDeadlineSeconds"),
    "CreateContainerError": (of_pod({"node": "n1", "containers": _container(waiting={"reason": "CreateContainerError", "message": _CDI})}),
        "container-not-started", "main has not started: CreateContainerError: failed to create", "Administrator: correct NVIDIA's"),
    "OutOfmemory": (_rejected("OutOfmemory"), "refused-by-kubelet", "OutOfmemory: Pod was rejected", "Delete the pod"),
    "StartError": (of_pod({"node": "n1", "containers": _container(terminated={"exitCode": 128, "reason": "StartError", "message": _CDI})}),
        "container-not-started", "container main has not started: failed to create containerd task", "Administrator: correct NVIDIA's"),
    "a program that the image does not have": (of_pod({**_RUNS, "containers": [{"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 128, "reason": "StartError", "message": 'exec: "trian": executable file not found in $PATH'}}}]}),
        "container-not-started", 'exec: "trian": executable file not found', "Correct the container's command"),
    "ContainerCreating, and nothing else": (of_pod({"node": "n1", "containers": _container(waiting={"reason": "ContainerCreating"})}, pod_events=_event("FailedCreatePodSandBox", _NO_HANDLER, "kubelet", type_="Warning")),
        "container-not-started", 'no runtime for "nvidia" is configured', "Administrator: correct NVIDIA's"),
    "the reservation pod has failed": (make_evidence(**_BOUND_SOON, shared_gpu_pods=[_FAILED_RESERVATION]),
        "reservation-failed", "the reservation pod gpu-reservation-group-1, which has failed: UnexpectedAdmissionError: no healthy devices", "Administrator: look at the reservation pod"),
    # What proves nothing: a name that the mode NvFractions does not write, an autoscaler's old Event, others' words, a warning that is overcome.
    **{f"no name of a ConfigMap {n}": (make_evidence(missed_pod(), **_BOUND_SOON, **fields), "binder-silent", "", "Administrator: start KAI's binder")
        for n, fields in enumerate(({"kai_version": NEW, **_SIDE}, {"kai_version": OLD, "shared_gpu_pods": [_NV_FRACTIONS, make_reservation()]}))},
    "a utility pod that runs": (kai_says(_FULL, scaling_pods=[_scaling("Running", "node-2")]), "no-gpu-fits", "", "Wait until other pods end"),
    "an autoscaler's old Event": (kai_says(_FULL, pod_events=_event("TriggeredScaleUp", "x", "cluster-autoscaler", age=3600)), "no-gpu-fits", "", "Wait until"),
    "an Event of another program": (kai_says(_FULL, pod_events=_event("TriggeredScaleUp", "x", "kubectl")), "no-gpu-fits", "", "Wait until"),
    **{f"a Deployment without old pods {n}": (kai_says(_FULL, owners=[_deployment(**status)]), "no-gpu-fits", "", "Wait until other pods end")
        for n, status in enumerate(({}, {"replicas": 1, "updatedReplicas": 1}, {"replicas": 2, "updatedReplicas": 2}))},
    "a reservation pod that replaces a failed one": (make_evidence(**_BOUND_SOON, shared_gpu_pods=[_FAILED_RESERVATION, make_reservation(gpu=None)]), "reservation-not-ready", "", "Wait a minute"),
    "a warning of the kubelet that is overcome": (of_pod({"node": "n1"}, pod_events=[*_event("FailedMount", "timed out", "kubelet", type_="Warning", age=60), *_event("Pulling", "image", "kubelet", age=30)]),
        "container-waiting", "has not started its containers for 90 s", "Read the pod's Events"),
}  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
def test_why_answers_with_the_cause_and_the_first_act(question: str) -> None:
    evidence, code, sentence, act = QUESTIONS[question]
    cause = explain(evidence).cause
    assert cause.code == code
    assert sentence in cause.sentence
    assert cause.remedies[0].text.startswith(act)
    assert code == "flagged" or is_imperative(cause.remedies[0].text)  # a flag's act is the agent's
    assert not cause.remedies[0].text.startswith("Or ")
    assert code == "failed" or not any("kubectl logs" in remedy.command for remedy in cause.remedies)


def test_holders_are_told_to_callers_who_may_list_them_only() -> None:
    evidence = kai_says(_FULL, gpu_pods=FORBIDDEN)
    assert (who_holds(evidence), place_of(evidence)) == ("", None)
    assert find_cause(evidence).remedies[0].text == "Wait until other pods end."
    alone = kai_says(_FULL, gpu_pods=_gpu_pods(make_pod()))
    assert (who_holds(alone), place_of(alone)) == ("", (1, 1))


def test_an_end_beyond_every_calendar_is_no_end() -> None:
    (kept,) = _gpu_pods(holder("a", node="node-1", ends=10**18))
    assert kept.ends_at is None
    assert gpu_pod(make_pod(fraction=None)) is None
    (bound,) = _gpu_pods(holder("a", node="node-1", ends=600))
    assert bound.ends_at == NOW


def test_the_namespace_of_kai_is_in_the_commands() -> None:
    cause = find_cause(make_evidence(kai_namespace="runai"))
    assert cause.remedies[0].command == "kubectl get pods --namespace runai"
    for words, code in (("admission", "refused-by-kai"), ("failed calling", "webhook-unreachable")):
        refused = _event(
            "FailedCreate", f'{words} webhook "admission.runai.svc" denied the request: no', "job"
        )
        cause = find_cause(make_evidence(GONE, kind="Job", creation_events=refused, kai_namespace="runai"))
        assert (cause.code, "KAI" in cause.sentence) == (code, True)
