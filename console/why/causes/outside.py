"""Why KAI does not look at a pod: another scheduler, a gate, no PodGroup. Pure."""

from console.why.causes.group_refused import grouper_warnings
from console.why.causes.requested_gpus import request_of
from console.why.causes.silence import KAI_PODS, SETTLED, silence
from console.why.evidence import PodEvidence
from console.why.evidence_objects import PodObject
from console.why.explanation import Code, PodFinding, Remedy
from console.why.redaction import Redactor
from kai import keys
from service.text import listed


def is_in_kai(evidence: PodEvidence, pod: PodObject) -> bool:
    """Whether KAI's scheduler, or the one that the policy names, schedules the pod."""
    name = pod.spec.scheduler_name
    if name in (keys.SCHEDULER_NAME, evidence.scheduler):
        return True
    return name != keys.DEFAULT_SCHEDULER and bool(pod.pod_group_name)


def outside_kai(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> PodFinding:
    """Return the finding for a pod that another scheduler schedules."""
    scheduler = redactor.clean(pod.spec.scheduler_name)
    condition = pod.status.condition("PodScheduled")
    request = request_of(pod)
    recreate = [
        Remedy(
            f"Set schedulerName: {evidence.scheduler} in a new pod: it cannot be changed on this one.",
            f"kaishare explain --live -n {evidence.namespace}",
        )
    ]
    yet = " yet" if evidence.age is not None and evidence.age < SETTLED else ""
    if pod.spec.scheduler_name != keys.DEFAULT_SCHEDULER and not pod.is_bound and condition is None:
        return PodFinding(
            Code.SCHEDULER_UNKNOWN,
            f"the pod names the scheduler {scheduler}, and no program has looked at the pod{yet}",
            [Remedy("Correct the name, if it is a typing mistake."), *recreate],
        )
    if request.is_share:
        effect = "runs without a GPU" if pod.is_bound else "gets no GPU"
        return PodFinding(
            Code.OTHER_SCHEDULER,
            f"{scheduler} schedules the pod, not KAI: its share of {request.text} is ignored,"
            f" and it {effect}",
            recreate,
        )
    if pod.queue_label or (evidence.decision is not None and request.is_any):
        effect = f", and {request.text} is taken outside of every queue" if request.is_any else ""
        return PodFinding(
            Code.OTHER_SCHEDULER,
            f"{scheduler} schedules the pod, not KAI: its queue does not count{effect}",
            recreate,
        )
    words = f": {redactor.clean(condition.message)}" if condition and condition.status == "False" else ""
    return PodFinding(Code.OUTSIDE_KAI, f"{scheduler} schedules the pod, not KAI{words}")


def gated(pod: PodObject, redactor: Redactor) -> PodFinding | None:
    """Return the finding for a pod with scheduling gates, at which no scheduler looks."""
    gates = [redactor.clean(gate.name) for gate in pod.spec.scheduling_gates or ()]
    if not gates:
        return None
    return PodFinding(
        Code.SCHEDULING_GATE,
        f"the pod has the scheduling gate {listed(gates)}: no scheduler looks at it before"
        " the gate is removed",
        [Remedy("The program that put the gate there removes it; ask its owner.")],
    )


def ungrouped(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> PodFinding | None:
    """Return the finding for a pod without a PodGroup, which KAI's scheduler therefore does not know."""
    if pod.pod_group_name:
        return None
    warnings = grouper_warnings(evidence)
    if warnings:
        return PodFinding(
            Code.POD_GROUP_MISSING,
            f"KAI's pod-grouper cannot group the pod: {redactor.clean(warnings[-1].message)}",
            [Remedy("Administrator: look at the log of KAI's pod-grouper.")],
        )
    return silence(
        Code.POD_GROUP_MISSING,
        evidence.age,
        [Remedy("Administrator: start KAI's pod-grouper again.", KAI_PODS)],
        at_first="KAI's pod-grouper has not grouped the pod yet, {} after its creation",
        later="KAI's pod-grouper has not grouped the pod{}, so that no scheduler looks at it",
    )
