"""The tenant of a vCluster: KAI's objects are on the host, and some of its words come back. Pure.

vCluster v0.36.1 copies the host pod's conditions, the annotation `pod-group-name` and KAI's Events about the
pod to the virtual pod. It copies neither PodGroups, BindRequests and queues nor the Events about them. A pod
that the host refuses has the Event SyncError with the host's message.
"""

from dataclasses import replace
from typing import Final

from console.why.causes.creation import refusal
from console.why.causes.silence import waited
from console.why.evidence import PodEvidence
from console.why.evidence_objects import PodObject
from console.why.explanation import Code, PodFinding, Remedy
from console.why.redaction import Redactor

_HARMLESS: Final = "the object has been modified"
"""vCluster tries again by itself after this error."""
_OF_HOST: Final = (
    "scheduling.run.ai",
    "--namespace kai-",
    "get nodes",
    "describe nodes",
    "webhookconfigurations",
)
"""Parts of commands about objects that are on the host."""


def refused_by_host(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> PodFinding | None:
    """Return the finding for a pod of a vCluster that the host's API server refuses."""
    if pod.pod_group_name:
        return None  # the host has accepted the pod
    events = [
        event.message
        for event in evidence.pod_events
        if event.reason == "SyncError" and _HARMLESS not in event.message
    ]
    return refusal(events[-1], evidence, redactor) if events else None


def not_served(evidence: PodEvidence) -> PodFinding:
    """Return the finding for a pod about which nothing is said, where KAI's kinds are not served."""
    return PodFinding(
        Code.KAI_NOT_SERVED,
        f"KAI has said nothing about the pod{waited(evidence.age)}, and KAI's objects are not on this API"
        " server",
        [
            Remedy("In a vCluster: ask the host's administrators, who see the pod's objects."),
            Remedy(
                "If no pod of the vCluster starts, its Service kube-system/kube-dns may lack an address:"
                " vCluster copies no pod to the host before that.",
                "kubectl get service kube-dns --namespace kube-system",
            ),
            Remedy("Else KAI is not installed here: name another scheduler, or install KAI."),
        ],
    )


def ask_host(pod: PodObject) -> Remedy:
    """Return what the host's administrators can type, who see KAI's objects."""
    return Remedy(
        "KAI's objects are not on this API server. In a vCluster they are on the host: ask"
        " its administrators to type",
        f"kaishare why -n HOST_NAMESPACE {pod.name}-x-{pod.metadata.namespace}-x-VCLUSTER",
    )


def without_host_commands(finding: PodFinding) -> PodFinding:
    """Return a finding without the commands that only work on the host."""
    return replace(
        finding,
        remedies=[
            replace(remedy, command="") if any(part in remedy.command for part in _OF_HOST) else remedy
            for remedy in finding.remedies
        ],
    )
