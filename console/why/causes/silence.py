"""Why one of KAI's programs has done nothing about a pod, and the time that they take. Pure."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from console.why.evidence import Absence, PodEvidence, known
from console.why.evidence_objects import EventObject, PodObject
from console.why.explanation import Code, PodFinding, Remedy
from console.why.redaction import Redactor
from kai import keys
from service.units import duration

SETTLED: Final = timedelta(seconds=20)
"""Time after which a program of KAI that has done nothing for a pod is probably down.

Pod-grouper, scheduler and binder were done within 3 s each (v0.9.8, v0.13.4, v0.17.0).
"""


KAI_PODS: Final = "kubectl get pods --namespace kai-scheduler"
"""Shows whether KAI's programs run."""


def waited(age: timedelta | None) -> str:
    """Return how long something has lasted, such as ` for 3 min`; empty if unknown."""
    return f" for {duration(age.total_seconds())}" if age else ""


def silence(
    code: Code, age: timedelta | None, remedies: Sequence[Remedy], *, at_first: str, later: str
) -> PodFinding:
    """Return the finding for a program of KAI that has done nothing; before `SETTLED` it is too early to act.

    Args:
        code: of the finding.
        age: time for which the program could have acted; None if unknown.
        remedies: what to do after `SETTLED`.
        at_first: sentence before `SETTLED`, with `{}` for the age.
        later: sentence after it, with `{}` for ` for ` and the age.
    """
    if age is not None and age < SETTLED:
        sentence = at_first.format(duration(age.total_seconds()))
        return PodFinding(code, sentence, [Remedy("Wait some seconds.")])
    return PodFinding(code, later.format(waited(age)), remedies)


_MOST_REPEATED: Final = 25
_WAITING: Final = re.compile(
    r"Waiting for ([0-9]{1,6}) pods(?: for SubGroup (\S{1,253}))?, currently ([0-9]{1,6})"
    r" exist, ([0-9]{1,6}) are"
    r" gated"
)


def silent(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> PodFinding | None:
    """Return why the scheduler has said nothing about a pod with a PodGroup and without a BindRequest."""
    return (
        _incomplete_gang(evidence, pod, redactor)
        or _node_pool(evidence, pod, redactor)
        or _no_scheduler(evidence)
    )


def _incomplete_gang(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> PodFinding | None:
    events = [
        event
        for event in evidence.group_events
        if event.reason == "NotReady" and event.involved_object.name == pod.pod_group_name
    ]
    if not events or _is_over(evidence, events[-1]):
        return None
    match = _WAITING.search(events[-1].message)
    if match is None:
        what = redactor.clean(events[-1].message)
        return PodFinding(
            Code.GANG_INCOMPLETE, f"the workload's pods are not complete: {what}", _GANG_REMEDIES
        )
    of = f" of its part {redactor.clean(match[2])}" if match[2] else ""
    gated = f", {match[4]} of them with a scheduling gate" if match[4] != "0" else ""
    return PodFinding(
        Code.GANG_INCOMPLETE,
        f"the workload needs {match[1]} pods{of} at the same time, and only {match[3]}"
        f" exist{'s' * (match[3] == '1')}{gated}",
        _GANG_REMEDIES,
        {"needed": int(match[1]), "exist": int(match[3])},
    )


_GANG_REMEDIES: Final = [
    Remedy(
        "Find out why the others do not exist: the workload's Events name a quota or a"
        " webhook that refuses them."
    )
]


def _is_over(evidence: PodEvidence, event: EventObject) -> bool:
    """Whether a gang has been completed since: complete ones have such an Event from their beginning, too.

    KAI repeats it while it is true, up to its client's limit of 25 Events of an object.
    """
    if event.last is None or event.times >= _MOST_REPEATED:
        return False
    return evidence.now - event.last > SETTLED


def _node_pool(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> PodFinding | None:
    group = known(evidence.pod_group)
    labels = {**pod.metadata.labels, **(group.metadata.labels if group else {})}
    pool = labels.get(keys.NODE_POOL_LABEL, "")
    shards = evidence.shards
    if not pool or evidence.pod_group is Absence.FORBIDDEN:
        return None
    if isinstance(shards, Absence):
        if shards is not Absence.UNSERVED:
            return None
    elif any(shard.spec.partition_label_value == pool for shard in shards):
        return None
    return PodFinding(
        Code.NODE_POOL_WITHOUT_SHARD,
        f"the pod names the node pool {redactor.clean(pool)}, for which KAI has no scheduler"
        " (SchedulingShard)",
        [
            Remedy(f"Remove the label {keys.NODE_POOL_LABEL} from the workload, or correct it."),
            Remedy("Administrator: create the SchedulingShard."),
        ],
    )


def _no_scheduler(evidence: PodEvidence) -> PodFinding | None:
    """Return the finding for a PodGroup about which the scheduler has said nothing."""
    group = known(evidence.pod_group)
    if not evidence.are_events_read or any(event.reason == "Scheduled" for event in evidence.pod_events):
        return None
    if group is None or evidence.bind_request not in (Absence.MISSING, Absence.FORBIDDEN):
        return None
    return silence(
        Code.SCHEDULER_SILENT,
        evidence.since(group.metadata.creation_timestamp),
        [
            Remedy(
                "Administrator: KAI's scheduler does not run, or ends at every start; look at its log.",
                KAI_PODS,
            ),
            Remedy(
                "KAI before v0.16.5 ends when a queue without a parent is to give GPUs back: every queue"
                " needs spec.parentQueue or children."
            ),
        ],
        at_first="KAI's scheduler has not looked at the pod yet, {} after it was grouped",
        later="KAI's scheduler has said nothing about the pod{}",
    )
