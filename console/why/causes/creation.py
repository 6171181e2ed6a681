"""Why a workload has no pod, or how a pod that is gone has ended. Pure."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from console.why.evidence import Absence, PodEvidence, known
from console.why.evidence_objects import EventObject, PodObject
from console.why.explanation import Code, PodFinding, Remedy
from console.why.redaction import Redactor
from service.units import duration

_KAI_WEBHOOK: Final = "kai-scheduler"
_OUR_WEBHOOK: Final = "kaishare"
_WEBHOOKS: Final = (
    (_KAI_WEBHOOK, "KAI's admission", "kai-scheduler"),
    (_OUR_WEBHOOK, "kaishare", "kaishare"),
)
"""A part of a webhook's name, whose it is, and the namespace of its pods."""
_DENIED: Final = re.compile(
    r"""(?:admission webhook "([^"]{1,253})" denied the request)"""
    r"""|(?:ValidatingAdmissionPolicy '([^']{1,253})' with binding '[^']{1,253}' denied request)"""
)
_UNREACHABLE: Final = re.compile(r'failed calling webhook "([^"]{1,253})"')
_RUNTIME_CLASS: Final = re.compile(r'RuntimeClass "([^"]{1,253})" not found')
_PRIORITY_CLASS: Final = re.compile(r"no PriorityClass with name (\S{1,253}) was found")
_QUOTA: Final = re.compile(r"exceeded quota: (\S{1,253}), ")
_STALE_JOB: Final = re.compile(r"([0-9]{1,6}) pods are active, minMember is ([0-9]{1,6})")
_EVICT: Final = "Evict"
_UNREAD: Final = "not all Events could be read"

_LATER: Final = Remedy("A controller tries again by itself, after longer and longer pauses.")


def why_no_pod(evidence: PodEvidence, redactor: Redactor) -> PodFinding:
    """Return why there is no pod: refused at its creation, evicted, deleted, or never asked for."""
    refused = max(evidence.creation_events, key=_moment, default=None)
    removed = max((*evictions(evidence), *_stale(evidence)), key=_moment, default=None)
    is_refused = refused is not None and (removed is None or _moment(refused) >= _moment(removed))
    return (
        _not_wanted(evidence)
        or (refusal(refused.message, evidence, redactor) if refused is not None and is_refused else None)
        or (_removal(removed, redactor) if removed is not None else None)
        or _deleted(evidence)
        or _untold(evidence)
    )


def refused_later(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> Iterator[PodFinding]:
    """Yield the refusal of a further pod of a named workload later than the newest one's creation."""
    refused = max(evidence.creation_events, key=_moment, default=None)
    created = pod.metadata.creation_timestamp
    if refused is None or created is None or _moment(refused) <= created.timestamp() or _not_wanted(evidence):
        return
    finding = refusal(refused.message, evidence, redactor)
    age = evidence.since(refused.last)
    ago = f" {duration(age.total_seconds())} ago" if age else ""
    further = f"a further pod of {evidence.kind} {evidence.name} was refused{ago}"
    yield replace(finding, sentence=f"{further}: {finding.sentence}")


def _moment(event: EventObject) -> float:
    return event.last.timestamp() if event.last is not None else 0.0


def _untold(evidence: PodEvidence) -> PodFinding:
    place = f"in the namespace {evidence.namespace}"
    unread = "" if evidence.are_events_read else _UNREAD
    if evidence.kind == "Pod":
        return PodFinding(
            Code.NO_POD,
            f"there is no pod {evidence.name} {place}, and {unread or 'no Event about it'}",
            [Remedy("Look for its name.", f"kubectl get pods --namespace {evidence.namespace}")],
        )
    return PodFinding(
        Code.NO_POD,
        f"{evidence.kind} {evidence.name} {place} has no pod, and {unread or 'no Event says why'}",
        [Remedy("Look at the workload's own status.", _describe(evidence))],
    )


def refusal(message: str, evidence: PodEvidence, redactor: Redactor) -> PodFinding:
    """Return the finding for the message of an API server that refused a pod."""
    words = redactor.clean(message.removeprefix("(combined from similar events): "))
    for find in (_quota, _unreachable, _denied, _class_missing):
        finding = find(message, evidence, redactor)
        if finding is not None:
            return finding
    return PodFinding(
        Code.REFUSED_AT_CREATION,
        f"the API server refuses the pod: {words}",
        [Remedy("Change what the message names.", _describe(evidence)), _LATER],
    )


def _quota(text: str, evidence: PodEvidence, redactor: Redactor) -> PodFinding | None:
    match = _QUOTA.search(text)
    if match is None:
        return None
    name = redactor.clean(match[1])
    return PodFinding(
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


def _unreachable(text: str, _evidence: PodEvidence, redactor: Redactor) -> PodFinding | None:
    match = _UNREACHABLE.search(text)
    if match is None:
        return None
    name = match[1]
    whose, home = next((known_one for part, *known_one in _WEBHOOKS if part in name), ("a webhook", ""))
    return PodFinding(
        Code.WEBHOOK_UNREACHABLE,
        f"{whose} does not answer ({redactor.clean(name)}), so that the API server refuses the pod",
        [
            Remedy(
                "Administrator: start it again; look at its pods and its certificate.",
                f"kubectl get pods --namespace {home}" if home else "",
            ),
            _LATER,
        ],
    )


def _denied(text: str, evidence: PodEvidence, redactor: Redactor) -> PodFinding | None:
    match = _DENIED.search(text)
    if match is None:
        return None
    words, refuser = redactor.clean(text[match.end() :].lstrip(": ")), match[1] or match[2]
    if _OUR_WEBHOOK in refuser:
        return PodFinding(
            Code.REFUSED_BY_GUARD,
            f"kaishare refuses the pod: {words}",
            [Remedy("The message names what to change in the pod's template.", _explain(evidence)), _LATER],
        )
    if _KAI_WEBHOOK not in refuser:
        return PodFinding(
            Code.REFUSED_AT_CREATION,
            f"{redactor.clean(refuser)} refuses the pod: {words}",
            [Remedy("The message names what to change in the pod's template."), _LATER],
        )
    if "GPU sharing is disabled" in text:
        return PodFinding(
            Code.GPU_SHARING_OFF,
            "KAI refuses the pod, because GPU sharing is switched off in KAI",
            [
                Remedy("Request a whole GPU (nvidia.com/gpu: 1) instead of a share."),
                Remedy(
                    "Administrator: set global.gpuSharing=true of KAI's chart, since KAI"
                    " 0.18 global.gpuSharingMode."
                ),
                _LATER,
            ],
        )
    return PodFinding(
        Code.REFUSED_BY_KAI,
        f"KAI refuses the pod: {words}",
        [Remedy("The message names what to change in the pod's template.", _explain(evidence)), _LATER],
    )


def _class_missing(text: str, _evidence: PodEvidence, redactor: Redactor) -> PodFinding | None:
    match = _RUNTIME_CLASS.search(text)
    if match is not None:
        return PodFinding(
            Code.RUNTIME_CLASS_MISSING,
            f"the pod names the RuntimeClass {redactor.clean(match[1])}, which does not exist",
            [
                Remedy(
                    "Administrator: install the RuntimeClass (the GPU operator has it), or stop KAI from"
                    " setting it (gpuPodRuntimeClassName).",
                    "kubectl get runtimeclass",
                ),
                Remedy("Correct runtimeClassName, if the pod's template names it."),
                _LATER,
            ],
        )
    match = _PRIORITY_CLASS.search(text)
    if match is None:
        return None
    return PodFinding(
        Code.PRIORITY_CLASS_MISSING,
        f"the pod names the PriorityClass {redactor.clean(match[1])}, which does not exist",
        [Remedy("Correct priorityClassName in the pod's template.", "kubectl get priorityclass"), _LATER],
    )


def _removal(event: EventObject, redactor: Redactor) -> PodFinding:
    """Return what KAI did to a pod that is gone, by an Event about its PodGroup, which outlives both."""
    if event.reason == _EVICT:
        return _evicted(event, redactor, "the pod", is_alone=True)
    match = _STALE_JOB.search(event.message)
    left = f"{match[1]} of the {match[2]} that it needs were left" if match else redactor.clean(event.message)
    return PodFinding(
        Code.GANG_STALE,
        f"KAI evicted the workload's pods, because the group had lost a member: {left}",
        [
            Remedy(
                "Find out why the missing pod ended, then start the job again.",
                f"kubectl get events --namespace {event.metadata.namespace or 'NAMESPACE'}"
                " --sort-by=.lastTimestamp",
            )
        ],
    )


def _stale(evidence: PodEvidence) -> list[EventObject]:
    return [event for event in evidence.group_events if event.reason == "StaleJob"]


def evictions(evidence: PodEvidence) -> list[EventObject]:
    """Return the Events about evictions of this pod, or of earlier pods of the workload, oldest first."""
    evicted = [event for event in evidence.group_events if event.reason == _EVICT]
    if evidence.kind != "Pod" or evidence.pod is not Absence.MISSING:
        return evicted
    return [event for event in evicted if f"/{evidence.name} " in event.message]


def evicted_before(evidence: PodEvidence, redactor: Redactor) -> list[PodFinding]:
    """Return a note about an earlier pod of the same workload that KAI evicted."""
    evicted = evictions(evidence)
    if not evicted:
        return []
    return [_evicted(evicted[-1], redactor, "an earlier pod of the workload", is_alone=False)]


def _evicted(event: EventObject, redactor: Redactor, which: str, *, is_alone: bool) -> PodFinding:
    """Return the finding for a pod that KAI evicted.

    The first line of the Event names the evictor. The text is "preempted" for a reclaim as well; only a
    reclaim has figures of both queues (v0.9.8, v0.13.4, v0.17.0).

    Args:
        event: the Event about the pod's PodGroup.
        redactor: hides names.
        which: the pod, in words.
        is_alone: whether the pod may be without a controller, which would create it again.
    """
    first, _, figures = event.message.partition("\n")
    again = (
        [Remedy("A pod without a controller is not created again: create it yourself.")] if is_alone else []
    )
    if "bin packing" in first:
        return PodFinding(
            Code.EVICTED,
            f"KAI evicted {which}, to use fewer GPUs in parts (consolidation)",
            [Remedy("Nothing to do: KAI places the pod that replaces it."), *again],
        )
    if figures.strip():
        return PodFinding(
            Code.EVICTED,
            f"KAI evicted {which}, because another queue was owed the GPUs",
            [
                Remedy("Wait until the queue may use GPUs over its quota again, or ask for a larger quota."),
                *again,
            ],
        )
    is_preempted = "higher priority" in first
    return PodFinding(
        Code.EVICTED,
        f"KAI evicted {which} for a workload of higher priority"
        if is_preempted
        else f"KAI evicted {which}: {redactor.clean(first)}",
        [Remedy("Wait for room, or use a higher priority with the label priorityClassName."), *again],
    )


def _deleted(evidence: PodEvidence) -> PodFinding | None:
    """Return the finding for a pod that existed, by its own Events."""
    if evidence.kind != "Pod" or not evidence.pod_events:
        return None
    return PodFinding(
        Code.POD_DELETED,
        "the pod existed and is gone, and "
        + ("no Event tells of an eviction by KAI" if evidence.are_events_read else _UNREAD),
        [
            Remedy("A person or a controller deleted it: create it again."),
            Remedy(
                "Administrator: KAI's binder deletes a pod without an Event when the reservation pod of its"
                " GPU is deleted. Never delete pods in kai-resource-reservation."
            ),
        ],
    )


def _not_wanted(evidence: PodEvidence) -> PodFinding | None:
    workload = known(evidence.workload)
    if workload is None:
        return None
    if workload.spec.suspend:
        return PodFinding(
            Code.NO_POD,
            f"{evidence.kind} {evidence.name} is suspended",
            [Remedy("Set spec.suspend to false, or wait for the program that admits it, such as Kueue.")],
        )
    if workload.spec.replicas == 0:
        return PodFinding(
            Code.NO_POD, f"{evidence.kind} {evidence.name} has 0 replicas", [Remedy("Scale it up.")]
        )
    return None


def _describe(evidence: PodEvidence) -> str:
    return f"kubectl describe {evidence.kind.lower()} {evidence.name} --namespace {evidence.namespace}"


def _explain(evidence: PodEvidence) -> str:
    return f"kaishare explain --live -n {evidence.namespace}"
