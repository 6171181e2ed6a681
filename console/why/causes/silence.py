"""Why KAI's scheduler says nothing about a pod: incomplete gang, unserved node pool, no scheduler. Pure."""

import re
from typing import Final

from console.why.answer import Finding, Remedy
from console.why.causes.outside import SETTLED
from console.why.codes import Code
from console.why.evidence import Absence, Evidence, known
from console.why.objects import Pod
from console.why.words import Redactor
from kai import keys
from service.units import duration

_WAITING: Final = re.compile(
    r"Waiting for ([0-9]{1,6}) pods(?: for SubGroup (\S{1,253}))?, currently ([0-9]{1,6})"
    r" exist, ([0-9]{1,6}) are"
    r" gated"
)


def silent(evidence: Evidence, pod: Pod, redactor: Redactor) -> Finding | None:
    """Return why the scheduler has said nothing about a pod with a PodGroup and without a BindRequest."""
    return (
        _incomplete_gang(evidence, pod, redactor)
        or _node_pool(evidence, pod, redactor)
        or _no_scheduler(evidence)
    )


def _incomplete_gang(evidence: Evidence, pod: Pod, redactor: Redactor) -> Finding | None:
    events = [
        event
        for event in evidence.group_events
        if event.reason == "NotReady" and event.involved_object.name == pod.pod_group_name
    ]
    if not events:
        return None
    match = _WAITING.search(events[-1].message)
    if match is None:
        what = redactor.clean(events[-1].message)
        return Finding(Code.GANG_INCOMPLETE, f"the workload's pods are not complete: {what}", _GANG_REMEDIES)
    of = f" of its part {redactor.clean(match[2])}" if match[2] else ""
    gated = f", {match[4]} of them with a scheduling gate" if match[4] != "0" else ""
    return Finding(
        Code.GANG_INCOMPLETE,
        f"the workload needs {match[1]} pods{of} at the same time, and {match[3]} exist{gated}",
        _GANG_REMEDIES,
        {"needed": int(match[1]), "exist": int(match[3])},
    )


_GANG_REMEDIES: Final = [
    Remedy(
        "Find out why the others do not exist: the workload's Events name a quota or a"
        " webhook that refuses them."
    )
]


def _node_pool(evidence: Evidence, pod: Pod, redactor: Redactor) -> Finding | None:
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
    return Finding(
        Code.NODE_POOL_WITHOUT_SHARD,
        f"the pod names the node pool {redactor.clean(pool)}, for which KAI has no scheduler"
        f" (SchedulingShard)",
        [
            Remedy(f"Remove the label {keys.NODE_POOL_LABEL} from the workload, or correct it."),
            Remedy("Administrator: create the SchedulingShard."),
        ],
    )


def _no_scheduler(evidence: Evidence) -> Finding | None:
    """Return the finding for a PodGroup about which the scheduler has said nothing."""
    group = known(evidence.pod_group)
    if group is None or evidence.bind_request not in (Absence.MISSING, Absence.FORBIDDEN):
        return None
    created = group.metadata.creation_timestamp
    age = None if created is None else max(evidence.now - created, SETTLED * 0)
    if age is not None and age < SETTLED:
        return Finding(
            Code.SCHEDULER_SILENT,
            f"KAI's scheduler has not looked at the pod yet, {duration(age.total_seconds())}"
            f" after it was grouped",
            [Remedy("Wait some seconds.")],
        )
    waited = "" if age is None else f" for {duration(age.total_seconds())}"
    return Finding(
        Code.SCHEDULER_SILENT,
        f"KAI's scheduler has said nothing about the pod{waited}",
        [
            Remedy(
                "Administrator: KAI's scheduler does not run, or ends at every start; look at its log.",
                "kubectl get pods --namespace kai-scheduler",
            ),
            Remedy(
                "KAI before v0.16.5 ends when a queue without a parent is to give GPUs back:"
                " every queue needs"
                " spec.parentQueue or children."
            ),
        ],
    )
