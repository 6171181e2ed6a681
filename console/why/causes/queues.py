"""Causes in the pod's queue: it does not exist, cannot be used, or is full. Pure.

KAI does not always tell: v0.9.8 says nothing about a queue that does not exist, and no release says that a
queue has children. KAI says "does not exist" of a queue whose parent is missing, too.
"""

from typing import Final

from console.why.answer import PodFinding, Remedy
from console.why.causes.amounts import gpus, number
from console.why.causes.scheduler_verdict import SchedulerVerdict, between, number_after, word_before
from console.why.codes import Code
from console.why.evidence import Absence, PodEvidence, known
from console.why.objects import PodGroupObject
from console.why.telling.words import Redactor
from kai import keys
from kai.queue import Queue
from service.names import is_dns_subdomain
from service.text import first_few

_UNEXPLAINED: Final = ("Unable to schedule pod", "Unable to schedule podgroup")
"""All that KAI says of a queue with children and, in v0.9.8, of a queue without a parent."""

_LIST_QUEUES: Final = "kubectl get queues.scheduling.run.ai"
_SMALLEST: Final = 0.005


def unusable_queue(
    evidence: PodEvidence, verdict: SchedulerVerdict | None, redactor: Redactor
) -> PodFinding | None:
    """Return the finding for a queue that KAI cannot use."""
    name = evidence.queue_name
    queue = evidence.queues.get(name, Absence.NOT_READ)
    if isinstance(queue, Queue):
        return _unusable(evidence, queue, verdict, redactor)
    if queue is Absence.MISSING and _counts(evidence, verdict):
        return _missing(evidence, f"the queue {redactor.clean(name)} does not exist")
    if verdict is not None and verdict.reason == "QueueDoesNotExist":
        return _missing(evidence, f"KAI does not find the queue {redactor.clean(name)}, or a parent of it")
    return None


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
            Remedy("Administrator: create the queue, or correct spec.parentQueue.", _LIST_QUEUES),
        ],
    )


def _relabel(evidence: PodEvidence, which: str) -> list[Remedy]:
    """Return how to name another queue: on the namespace where kaishare manages it, else on the workload."""
    if evidence.decision is not None:
        return [
            Remedy(
                f"Policy owner: name {which} on the namespace; pods that exist keep their queue.",
                f"kubectl label namespace {evidence.namespace} --overwrite {keys.QUEUE_LABEL}=QUEUE",
            )
        ]
    return [Remedy(f"Set the label {keys.QUEUE_LABEL} to {which}: {_place(evidence)}.")]


def _place(evidence: PodEvidence) -> str:
    """Return where a label of the pod is to be changed."""
    owner = evidence.owners[-1] if evidence.owners else None
    if owner is not None and owner.kind:
        return f"on {owner.kind} {owner.metadata.name} and in its pod template"
    pod = known(evidence.pod)
    if pod is not None and pod.metadata.owner_references:
        return "on the workload and in its pod template"
    return "in a new pod, which replaces this one"


def _edit_queue(what: str, name: str, redactor: Redactor) -> Remedy:
    """Return what an administrator can do, with a command if the name of the queue may be shown."""
    command = f"kubectl edit queues.scheduling.run.ai {name}" if redactor.clean(name) == name else ""
    return Remedy(f"Administrator: {what}.", command if is_dns_subdomain(name) else "")


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
                _LIST_QUEUES,
            )
        ],
    )


def full_queue(evidence: PodEvidence, verdict: SchedulerVerdict, redactor: Redactor) -> PodFinding | None:
    """Return the finding for a queue, or a parent of it, whose limit or quota is used up."""
    if verdict.reason == "OverLimit":
        return _over_limit(evidence, verdict, redactor)
    if verdict.reason == "NonPreemptibleOverQuota":
        return _over_quota(evidence, verdict, redactor)
    return None


def _over_limit(evidence: PodEvidence, verdict: SchedulerVerdict, redactor: Redactor) -> PodFinding:
    text = verdict.text
    limit = number_after(text, "Limit is ")
    used = number_after(text, ", currently ")
    requested = number_after(text, "workload requested ")
    if limit is None or used is None or requested is None:
        return PodFinding(
            Code.QUEUE_OVER_LIMIT,
            f"a limit of the queue is reached: {redactor.clean(text)}",
            [Remedy("Wait until other pods of the queue end, or ask for a higher limit.")],
        )
    name = word_before(text, " quota has reached")
    queue = _whose(evidence, name, redactor)
    unit = between(text, "allowable limit of ", ". Limit is ")
    amount, used_text, requested_text = _amounts(redactor.clean(unit), limit, used, requested)
    details: dict[str, float | str] = {"limit": limit, "used": used, "requested": requested}
    raised = _edit_queue("raise spec.resources.gpu.limit of the queue", name, redactor)
    if requested > limit + _SMALLEST:
        return PodFinding(
            Code.QUEUE_OVER_LIMIT,
            f"{queue} may use {amount}, and the pod requests {requested_text}: it can never start there",
            [Remedy("Request less, or name another queue."), raised],
            details,
        )
    return PodFinding(
        Code.QUEUE_OVER_LIMIT,
        f"{queue} may use {amount} and uses {used_text}; the pod requests {requested_text}",
        [Remedy("Wait until other pods of the queue end, or request less."), raised],
        details,
    )


def _over_quota(evidence: PodEvidence, verdict: SchedulerVerdict, redactor: Redactor) -> PodFinding:
    preemptible = Remedy(
        f"Use a preemptible priority with the label {keys.PRIORITY_LABEL}: train, {_place(evidence)}. KAI may"
        " then evict the pod when another queue needs its quota."
    )
    text = verdict.text
    requested = number_after(text, "Workload requested ")
    quota = number_after(text, " quota is ")
    used = number_after(text, ", while ")
    if requested is None or quota is None or used is None:
        return PodFinding(
            Code.QUEUE_OVER_QUOTA,
            f"the pod is not preemptible, and the queue's quota is used: {redactor.clean(text)}",
            [preemptible],
        )
    name = between(text, ", but ", " quota is ")
    queue = _whose(evidence, name, redactor)
    unit = between(text, "Workload requested ", ", but ").partition(" ")[2]
    amount, used_text, requested_text = _amounts(redactor.clean(unit), quota, used, requested)
    group = known(evidence.pod_group)
    priority = group.spec.priority_class_name if group else ""
    because = f" (priority {redactor.clean(priority)})" if priority else ""
    others = [_edit_queue("raise spec.resources.gpu.quota of the queue", name, redactor)]
    if name == keys.DEFAULT_QUEUE and not _names_queue(evidence):
        others.insert(0, Remedy(f"Or name a queue with the label {keys.QUEUE_LABEL}, {_place(evidence)}."))
    never = ": it can never start there" if requested > quota + _SMALLEST else ""
    if not never:
        others.insert(0, Remedy("Or wait until other pods of the queue end that are not preemptible."))
    return PodFinding(
        Code.QUEUE_OVER_QUOTA,
        f"the pod is not preemptible{because}, and such pods may use only the quota of {queue}: {amount}, of"
        f" which {used_text} is used; the pod requests {requested_text}{never}",
        [preemptible, *others],
        {"quota": quota, "used": used, "requested": requested},
    )


def _names_queue(evidence: PodEvidence) -> bool:
    pod = known(evidence.pod)
    labels = [owner.metadata.labels for owner in evidence.owners]
    return bool(pod and pod.queue_label) or any(keys.QUEUE_LABEL in each for each in labels)


def _whose(evidence: PodEvidence, name: str, redactor: Redactor) -> str:
    if evidence.queue_name in ("", name):
        return f"the queue {redactor.clean(name)}"
    return f"the queue {redactor.clean(name)}, above the pod's queue {redactor.clean(evidence.queue_name)},"


def _amounts(unit: str, bound: float, used: float, requested: float) -> tuple[str, str, str]:
    """Return the three amounts in words; KAI's units are `GPUs`, `CPU cores` and `GB memory`."""
    if unit.strip() == "GPUs":
        return gpus(bound), number(used), number(requested)
    unit = " ".join(unit.split()[:3])
    return f"{number(bound)} {unit}", number(used), number(requested)
