"""Causes in the pod's queue that does not exist or cannot be used. Pure.

KAI does not always tell: v0.9.8 says nothing about a queue that does not exist, and no release says that a
queue has children. KAI says "does not exist" of a queue whose parent is missing, too.
"""

from typing import Final

from console.why.answer import PodFinding, Remedy
from console.why.causes.scheduler_verdict import SchedulerVerdict
from console.why.codes import Code
from console.why.evidence import Absence, PodEvidence, known
from console.why.objects import PodGroupObject
from console.why.telling.words import Redactor
from kai import keys
from kai.queue import Queue
from service.text import first_few

_UNEXPLAINED: Final = ("Unable to schedule pod", "Unable to schedule podgroup")
"""All that KAI says of a queue with children and, in v0.9.8, of a queue without a parent."""

LIST_QUEUES: Final = "kubectl get queues.scheduling.run.ai"


def unusable_queue(
    evidence: PodEvidence, verdict: SchedulerVerdict | None, redactor: Redactor
) -> PodFinding | None:
    """Return the finding for a queue that KAI cannot use."""
    if not evidence.queue_name:
        return _empty(evidence, verdict)
    name = evidence.queue_name
    queue = evidence.queues.get(name, Absence.NOT_READ)
    if isinstance(queue, Queue):
        return _unusable(evidence, queue, verdict, redactor)
    if queue is Absence.MISSING and _counts(evidence, verdict):
        return _missing(evidence, f"the queue {redactor.clean(name)} does not exist")
    if verdict is not None and verdict.reason == "QueueDoesNotExist":
        return _missing(evidence, f"KAI does not find the queue {redactor.clean(name)}, or a parent of it")
    return None


def _empty(evidence: PodEvidence, verdict: SchedulerVerdict | None) -> PodFinding | None:
    """Return the finding for a queue label without a value, which KAI takes as the name of the queue."""
    pod = known(evidence.pod)
    places = {f"{owner.kind} {owner.metadata.name}": owner.metadata.labels for owner in evidence.owners}
    if pod is not None:
        places["the pod"] = pod.metadata.labels
    empty = [place for place, labels in places.items() if labels.get(keys.QUEUE_LABEL) == ""]
    is_told = verdict is not None and verdict.reason == "QueueDoesNotExist"
    if not isinstance(evidence.pod_group, PodGroupObject) and not (is_told and empty):
        return None
    where = f": the label {keys.QUEUE_LABEL} of {first_few(empty)} has no value" if empty else ""
    return PodFinding(
        Code.QUEUE_MISSING,
        f"the pod's queue is empty{where}",
        [Remedy(f"Set the label {keys.QUEUE_LABEL} to a queue, or remove it: {place_of_label(evidence)}.")],
    )


def _counts(evidence: PodEvidence, verdict: SchedulerVerdict | None) -> bool:
    """Whether the name of the queue is KAI's: it may be the owner's where the PodGroup cannot be read."""
    if isinstance(evidence.pod_group, PodGroupObject) or verdict is None:
        return True
    return verdict.reason == "QueueDoesNotExist" or _is_unexplained(verdict)


def _unusable(
    evidence: PodEvidence, queue: Queue, verdict: SchedulerVerdict | None, redactor: Redactor
) -> PodFinding | None:
    name = redactor.clean(queue.name)
    if queue.children:
        children = first_few([redactor.clean(child) for child in sorted(queue.children)])
        return PodFinding(
            Code.QUEUE_NOT_LEAF,
            f"the queue {name} has child queues, and KAI schedules pods in leaf queues only",
            _relabel(evidence, f"one of its child queues ({children})"),
        )
    parent, seen = queue.parent, {queue.name}
    while parent and parent not in seen:
        seen.add(parent)
        above = evidence.queues.get(parent, Absence.NOT_READ)
        if above is Absence.MISSING:
            return _missing(
                evidence, f"the queue {name} has the parent {redactor.clean(parent)}, which does not exist"
            )
        parent = above.parent if isinstance(above, Queue) else ""
    if not queue.parent and verdict is not None and _is_unexplained(verdict):
        return PodFinding(
            Code.QUEUE_WITHOUT_PARENT,
            f"the queue {name} has no parent queue, and KAI before v0.13.0 schedules none of its pods",
            [
                Remedy(
                    "Administrator: set spec.parentQueue of the queue.",
                    f"kubectl edit queues.scheduling.run.ai {queue.name}",
                ),
                *_relabel(evidence, "a queue with a parent"),
            ],
        )
    return None


def _missing(evidence: PodEvidence, sentence: str) -> PodFinding:
    return PodFinding(
        Code.QUEUE_MISSING,
        sentence,
        [
            *_relabel(evidence, "an existing queue without child queues"),
            Remedy("Administrator: create the queue, or correct spec.parentQueue.", LIST_QUEUES),
        ],
    )


def _relabel(evidence: PodEvidence, which: str) -> list[Remedy]:
    """Return how to name another queue: on the namespace if the pod has its queue, else on the workload."""
    label = f"the label {keys.QUEUE_LABEL} to {which}: {place_of_label(evidence)}."
    is_from_workload = _is_from_workload(evidence)
    if evidence.decision is None or is_from_workload:
        return [Remedy(f"Set {label}")]
    condition = "" if is_from_workload is False else "unless the workload names its queue itself, "
    on_namespace = Remedy(
        f"Policy owner: {condition}name {which} on the namespace; pods that exist keep their queue.",
        f"kubectl label namespace {evidence.namespace} --overwrite {keys.QUEUE_LABEL}=QUEUE",
    )
    return [on_namespace, *([Remedy(f"If it does, set {label}")] if condition else [])]


def _is_from_workload(evidence: PodEvidence) -> bool | None:
    """Whether an owner of the pod names the queue; None if that is not known.

    A new queue of the namespace does not change such a pod: kaishare adds the label only if it is missing.
    """
    owners = evidence.owners
    if any(owner.label(keys.QUEUE_LABEL) == evidence.queue_name for owner in owners):
        return True
    are_all_read = bool(owners) and not owners[-1].metadata.owner_references
    return False if are_all_read and owners[0].has_template else None


def place_of_label(evidence: PodEvidence) -> str:
    """Return where a label of the pod is to be changed."""
    owner = evidence.owners[-1] if evidence.owners else None
    if owner is not None and owner.kind:
        return f"on {owner.kind} {owner.metadata.name} and in its pod template"
    pod = known(evidence.pod)
    if pod is not None and pod.metadata.owner_references:
        return "on the workload and in its pod template"
    return "in a new pod, which replaces this one"


def _is_unexplained(verdict: SchedulerVerdict) -> bool:
    return verdict.text.strip() in _UNEXPLAINED


def unexplained(evidence: PodEvidence, verdict: SchedulerVerdict, redactor: Redactor) -> PodFinding | None:
    """Return the finding for KAI's text without a reason, where the queue cannot be read."""
    if not _is_unexplained(verdict):
        return None
    name = redactor.clean(evidence.queue_name) if evidence.queue_name else "the default queue"
    return PodFinding(
        Code.UNDECIDED,
        "KAI cannot schedule the pod and gives no reason",
        [
            Remedy(
                f"Ask an administrator whether the queue {name} has child queues, or no parent: KAI says no"
                " more than this about both.",
                LIST_QUEUES,
            )
        ],
    )
