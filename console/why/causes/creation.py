"""Why a workload has no pod, or how a pod that is gone has ended. Pure."""

import re
from typing import Final

from console.why.answer import Finding, Remedy
from console.why.codes import Code
from console.why.evidence import Absence, Evidence, known
from console.why.objects import Event
from console.why.words import Redactor

_KAI_WEBHOOK: Final = "kai-scheduler"
_OUR_WEBHOOK: Final = "kaishare"
_DENIED: Final = re.compile(r'admission webhook "([^"]{1,253})" denied the request')
_UNREACHABLE: Final = re.compile(r'failed calling webhook "([^"]{1,253})"')
_RUNTIME_CLASS: Final = re.compile(r'RuntimeClass "([^"]{1,253})" not found')
_PRIORITY_CLASS: Final = re.compile(r"no PriorityClass with name (\S{1,253}) was found")
_QUOTA: Final = re.compile(r"exceeded quota: (\S{1,253}), ")
_LONGEST: Final = 4096

_LATER: Final = Remedy("A controller tries again by itself, after longer and longer pauses.")


def why_no_pod(evidence: Evidence, redactor: Redactor) -> Finding:
    """Return why there is no pod: refused at its creation, evicted, deleted, or never asked for."""
    newest = max(
        evidence.creation_events, key=lambda event: (event.last is not None, event.last), default=None
    )
    if newest is not None:
        return refusal(newest.message, evidence, redactor)
    return (
        _removal(evidence, redactor)
        or _deleted(evidence)
        or _not_wanted(evidence)
        or Finding(
            Code.NO_POD,
            f"{evidence.kind} {evidence.name} has no pod, and no Event says why",
            [Remedy("Look at the workload's own status.", _describe(evidence))],
        )
    )


def refusal(message: str, evidence: Evidence, redactor: Redactor) -> Finding:
    """Return the finding for the message of an API server that refused a pod."""
    text = message[:_LONGEST]
    words = redactor.clean(text.removeprefix("(combined from similar events): "))
    for find in (_quota, _unreachable, _denied, _class_missing):
        finding = find(text, evidence, redactor)
        if finding is not None:
            return finding
    return Finding(
        Code.REFUSED_AT_CREATION,
        f"the API server refuses the pod: {words}",
        [Remedy("Change what the message names.", _describe(evidence)), _LATER],
    )


def _quota(text: str, evidence: Evidence, redactor: Redactor) -> Finding | None:
    match = _QUOTA.search(text)
    if match is None:
        return None
    name = redactor.clean(match[1])
    return Finding(
        Code.RESOURCE_QUOTA_EXCEEDED,
        f"the namespace's ResourceQuota {name} leaves no room for the pod"
        f" ({redactor.clean(text[match.end() :])})",
        [
            Remedy(
                "Ask for a larger ResourceQuota, or for less. KAI's queue has nothing to do with it.",
                f"kubectl describe resourcequota --namespace {evidence.namespace}",
            ),
            _LATER,
        ],
    )


def _unreachable(text: str, _evidence: Evidence, redactor: Redactor) -> Finding | None:
    match = _UNREACHABLE.search(text)
    if match is None:
        return None
    name = match[1]
    whose = "KAI's admission" if _KAI_WEBHOOK in name else "kaishare" if _OUR_WEBHOOK in name else "a webhook"
    return Finding(
        Code.WEBHOOK_UNREACHABLE,
        f"no pod can be created: {whose} does not answer ({redactor.clean(name)})",
        [
            Remedy("Administrator: start it again, and look at its pods and its certificate."),
            _LATER,
        ],
    )


def _denied(text: str, evidence: Evidence, redactor: Redactor) -> Finding | None:
    match = _DENIED.search(text)
    if match is None:
        return None
    words = redactor.clean(text[match.end() :].lstrip(": "))
    if _OUR_WEBHOOK in match[1]:
        return Finding(
            Code.REFUSED_BY_GUARD,
            f"kaishare refuses the pod, because its namespace has the mode enforce: {words}",
            [Remedy("The message names what to change in the pod's template.", _explain(evidence)), _LATER],
        )
    if _KAI_WEBHOOK not in match[1]:
        return Finding(
            Code.REFUSED_AT_CREATION,
            f"the webhook {redactor.clean(match[1])} refuses the pod: {words}",
            [Remedy("The message names what to change in the pod's template."), _LATER],
        )
    if "GPU sharing is disabled" in text:
        return Finding(
            Code.GPU_SHARING_OFF,
            "KAI refuses the pod, because GPU sharing is switched off in KAI",
            [
                Remedy("Request a whole GPU (nvidia.com/gpu: 1) instead of a share."),
                Remedy("Administrator: set global.gpuSharing=true of KAI's chart."),
                _LATER,
            ],
        )
    return Finding(
        Code.REFUSED_BY_KAI,
        f"KAI refuses the pod: {words}",
        [Remedy("The message names what to change in the pod's template.", _explain(evidence)), _LATER],
    )


def _class_missing(text: str, _evidence: Evidence, redactor: Redactor) -> Finding | None:
    match = _RUNTIME_CLASS.search(text)
    if match is not None:
        return Finding(
            Code.RUNTIME_CLASS_MISSING,
            f"the pod names the RuntimeClass {redactor.clean(match[1])}, which does not exist",
            [
                Remedy(
                    "Administrator: install the RuntimeClass (the GPU operator has it), or"
                    " stop KAI from setting"
                    " it.",
                    "kubectl get runtimeclass",
                ),
                Remedy("Correct runtimeClassName, if the pod's template names it."),
                _LATER,
            ],
        )
    match = _PRIORITY_CLASS.search(text)
    if match is None:
        return None
    return Finding(
        Code.PRIORITY_CLASS_MISSING,
        f"the pod names the PriorityClass {redactor.clean(match[1])}, which does not exist",
        [Remedy("Correct priorityClassName in the pod's template.", "kubectl get priorityclass"), _LATER],
    )


def _removal(evidence: Evidence, redactor: Redactor) -> Finding | None:
    """Return what KAI did to a pod that is gone, by the Events about its PodGroup, which outlive both."""
    evicted = evictions(evidence)
    if evicted:
        return _evicted(evicted[-1], redactor, "the pod")
    stale = [event for event in evidence.group_events if event.reason == "StaleJob"]
    if not stale:
        return None
    return Finding(
        Code.GANG_STALE,
        f"KAI evicted the pods of a group that had lost a member: {redactor.clean(stale[-1].message)}",
        [
            Remedy(
                "Find out why the missing pod ended, then start the job again.",
                f"kubectl get events --namespace {evidence.namespace} --sort-by=.lastTimestamp",
            )
        ],
    )


def evictions(evidence: Evidence) -> list[Event]:
    """Return the Events about evictions of this pod, or of earlier pods of the workload, oldest first."""
    evicted = [event for event in evidence.group_events if event.reason == "Evict"]
    if evidence.kind != "Pod" or evidence.pod is not Absence.MISSING:
        return evicted
    return [event for event in evicted if f"/{evidence.name} " in event.message[:_LONGEST]]


def evicted_before(evidence: Evidence, redactor: Redactor) -> list[Finding]:
    """Return a note about an earlier pod of the same workload that KAI evicted."""
    evicted = evictions(evidence)
    if not evicted:
        return []
    return [_evicted(evicted[-1], redactor, "an earlier pod of the workload")]


def _evicted(event: Event, redactor: Redactor, which: str) -> Finding:
    """Return the finding for a pod that KAI evicted.

    The first line of the Event names the evictor. The text is "preempted" for a reclaim as well; only a
    reclaim has figures of both queues (v0.9.8, v0.13.4, v0.17.0).
    """
    first, _, figures = event.message[:_LONGEST].partition("\n")
    is_reclaim = bool(figures.strip())
    if is_reclaim:
        sentence = f"KAI evicted {which}, because another queue was owed the GPUs"
        remedies = [
            Remedy("Wait until the queue may use GPUs over its quota again, or ask for a larger quota."),
            Remedy("A pod without a controller is not created again: create it yourself."),
        ]
    else:
        sentence = f"KAI evicted {which} for a workload of higher priority"
        if "higher priority" not in first:
            sentence = f"KAI evicted {which}: {redactor.clean(first)}"
        remedies = [
            Remedy("Wait for room, or use a higher priority with the label priorityClassName."),
            Remedy("A pod without a controller is not created again: create it yourself."),
        ]
    return Finding(Code.EVICTED, sentence, remedies)


def _deleted(evidence: Evidence) -> Finding | None:
    """Return the finding for a pod that existed, by its own Events."""
    if evidence.kind != "Pod" or not evidence.pod_events:
        return None
    return Finding(
        Code.POD_DELETED,
        "the pod existed and is gone, and no Event tells of an eviction by KAI",
        [
            Remedy("A person or a controller deleted it: create it again."),
            Remedy(
                "Administrator: KAI's binder deletes a pod without an Event when the"
                " reservation pod of its GPU"
                " is deleted. Never delete pods in kai-resource-reservation."
            ),
        ],
    )


def _not_wanted(evidence: Evidence) -> Finding | None:
    workload = known(evidence.workload)
    if workload is None:
        return None
    if workload.spec.suspend:
        return Finding(
            Code.NO_POD,
            f"{evidence.kind} {evidence.name} is suspended",
            [Remedy("Set spec.suspend to false, or wait for the program that admits it, such as Kueue.")],
        )
    if workload.spec.replicas == 0:
        return Finding(
            Code.NO_POD, f"{evidence.kind} {evidence.name} has 0 replicas", [Remedy("Scale it up.")]
        )
    return None


def _describe(evidence: Evidence) -> str:
    return f"kubectl describe {evidence.kind.lower()} {evidence.name} --namespace {evidence.namespace}"


def _explain(evidence: Evidence) -> str:
    return f"kaishare explain --live -n {evidence.namespace}"
