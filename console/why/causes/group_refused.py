"""What the guard says of a pod: it refuses the PodGroup that KAI's pod-grouper writes for it. Pure.

The refusal is in an Event about the pod, which vCluster copies to its tenant. Anyone who may create Events in
the namespace can write such an Event. The guard's words are therefore quoted, and what to do comes from here.
"""

import re
from typing import Final

from console.why.evidence import PodEvidence
from console.why.evidence_objects import EventObject, PodObject
from console.why.explanation import Code, PodFinding, Remedy
from kai import keys
from service.text import one_line

HARMLESS: Final = ("not found", "already exists", "the object has been modified")
"""Parts of the texts of PodGrouperWarning that healthy pods have, too (all three releases)."""

_WARNING: Final = "PodGrouperWarning"
_GROUPER: Final = "pod-grouper"
"""The component of these Events (v0.9.8 to v0.17.0)."""
_REFUSAL: Final = re.compile(
    r"ValidatingAdmissionPolicy 'kaishare-guard-[a-z]{1,20}' with binding '[^']{1,253}' denied request:"
    r" kaishare-guard: "
)
_LONGEST_WORDS: Final = 600
"""The guard's longest sentence has about 560 characters; an Event's message has at most 1024."""

_ASK: Final = Remedy("Undo what these words name. Ask an administrator where they are not clear.")
_REMEDIES: Final = (
    (
        'queue "',
        Remedy(
            f"Set the label {keys.QUEUE_LABEL} in the pod's template to a queue of its namespace, and remove"
            " it from the objects that own the pod."
        ),
    ),
    (
        "priority and preemptibility stay",
        Remedy(
            f"Restore the labels {keys.PRIORITY_LABEL} and {keys.PREEMPTIBILITY} of the workload. Other"
            " values count once none of its pods is left."
        ),
    ),
    (
        "a pod stays in its PodGroup",
        Remedy("Restore the pod's owner references. A new pod can have other ones."),
    ),
    (
        "the name of the PodGroup",
        Remedy("Remove the label spark-app-selector from the pod's template: its values begin with spark-."),
    ),
    (
        "only KAI's scheduler writes",
        Remedy("Remove these annotations from the object that owns the pod."),
    ),
)
"""What to do, by the beginning of the guard's sentence."""


def group_refused(evidence: PodEvidence, pod: PodObject) -> PodFinding | None:
    """Return the finding for a pod without a PodGroup, because the guard refuses that one."""
    words = "" if pod.pod_group_name else _words(evidence, pod)
    if not words:
        return None
    return PodFinding(Code.GROUP_REFUSED, f"the guard refuses the pod's PodGroup: {words}", [_remedy(words)])


def group_unchanged(evidence: PodEvidence, pod: PodObject) -> PodFinding | None:
    """Return a note about a pod with a PodGroup whose change the guard refuses."""
    words = _words(evidence, pod) if pod.pod_group_name else ""
    if not words:
        return None
    return PodFinding(
        Code.GROUP_UNCHANGED, f"the guard keeps the pod's PodGroup as it is: {words}", [_remedy(words)]
    )


def grouper_warnings(evidence: PodEvidence) -> list[EventObject]:
    """Return the warnings of KAI's pod-grouper that healthy pods do not have, oldest first."""
    return [
        event
        for event in evidence.pod_events
        if event.reason == _WARNING
        and (_REFUSAL.search(event.message) or not any(text in event.message for text in HARMLESS))
    ]


def _words(evidence: PodEvidence, pod: PodObject) -> str:
    """Return the guard's sentence in the newest warning of KAI's pod-grouper about this pod; or nothing."""
    own = {"", pod.metadata.uid}
    events = [
        event
        for event in grouper_warnings(evidence)
        if event.component == _GROUPER and event.involved_object.uid in own
    ]
    match = _REFUSAL.search(events[-1].message) if events else None
    return one_line(events[-1].message[match.end() :], _LONGEST_WORDS) if match else ""


def _remedy(words: str) -> Remedy:
    return next((remedy for beginning, remedy in _REMEDIES if words.startswith(beginning)), _ASK)
