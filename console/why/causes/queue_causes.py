"""Causes in the pod's queue or a parent of it: missing, unusable, or used up. Pure.

KAI does not always tell: v0.9.8 says nothing about a queue that does not exist, and no release says that a
queue has children. KAI says "does not exist" of a queue whose parent is missing, too.
"""

import re
from dataclasses import dataclass
from math import inf
from typing import Final

from console.why.causes.requested_gpus import gpus, number
from console.why.causes.scheduler_verdict import SchedulerVerdict, between, number_after
from console.why.evidence import Absence, PodEvidence, known
from console.why.evidence_objects import PodGroupObject
from console.why.explanation import Code, PodFinding, Remedy
from console.why.redaction import Redactor
from kai import keys
from kai.queue import Queue
from service.names import is_dns_subdomain
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


_SMALLEST: Final = 0.005
_FULL: Final = ("OverLimit", "NonPreemptibleOverQuota")
_OF_NODE: Final = re.compile(r"Reason: (OverLimit|NonPreemptibleOverQuota), Details: ")
_RESOURCES: Final = {"GPU": "gpu", "CPU": "cpu", "memory": "memory"}
_NOT_PREEMPTIBLE: Final = "non-preemptible"
_PREEMPTIBLE_PRIORITIES: Final = ("train", "build-preemptible")
"""Those of KAI's own priority classes that are preemptible."""


def full_queue(evidence: PodEvidence, verdict: SchedulerVerdict, redactor: Redactor) -> PodFinding | None:
    """Return the finding for a queue, or a parent of it, whose limit or quota is used up."""
    words = _words_of(verdict)
    if words is None:
        return None
    if words.reason == "OverLimit":
        return _over_limit(evidence, words, redactor)
    return _over_quota(evidence, words, redactor)


@dataclass(frozen=True, slots=True)
class _Words:
    """KAI's words about a full queue."""

    reason: str
    text: str
    queue: str
    """Name of the queue; empty if KAI gives its display name only."""
    never: str
    """How a request is told that exceeds the whole limit or quota."""

    def name(self, evidence: PodEvidence, display_name: str) -> str:
        """Return the name of the queue; empty if it is not known.

        Args:
            evidence: what is known.
            display_name: the queue's name in the text, which is its name if it has no display name.
        """
        if self.queue:
            return self.queue
        names = [
            name
            for name, queue in evidence.queues.items()
            if display_name == (queue.display_name if isinstance(queue, Queue) else name)
        ]
        return names[0] if len(names) == 1 else ""


def _words_of(verdict: SchedulerVerdict) -> _Words | None:
    """Return what KAI says of a full queue: of the whole workload, or node by node.

    The share of a gpu-memory pod depends on the node, so that KAI compares it with the queue there
    (v0.9.8 to v0.17.0, `predicates.go`). The node with the smallest share counts.
    """
    if verdict.reason in _FULL:
        text = verdict.text.removeprefix(f"{verdict.reason}:").strip()
        return _Words(verdict.reason, text, verdict.queue, ": it can never start there")
    matches = filter(None, map(_OF_NODE.search, verdict.text.split("\n")))
    of_nodes = [(match[1], match.string[match.end() :]) for match in matches]
    if not of_nodes:
        return None
    reason, text = min(of_nodes, key=lambda each: _requested(each[1]))
    return _Words(reason, text, "", ": it can never start there on GPUs of this size")


def _requested(text: str) -> float:
    requested = number_after(text.lower(), "workload requested ")
    return inf if requested is None else requested


def _over_limit(evidence: PodEvidence, words: _Words, redactor: Redactor) -> PodFinding:
    text = words.text
    limit = number_after(text, "Limit is ")
    used = number_after(text, ", currently ")
    requested = number_after(text, "workload requested ")
    resource = _resource(between(text, "allowable limit of ", ". Limit is "))
    if limit is None or used is None or requested is None or not resource:
        return PodFinding(
            Code.QUEUE_OVER_LIMIT,
            f"a limit of the queue is reached: {redactor.clean(text)}",
            [Remedy("Wait until other pods of the queue end, or ask for a higher limit.")],
        )
    display_name = text.partition(" quota has reached")[0]
    name = words.name(evidence, display_name)
    queue = _whose(evidence, name, display_name, redactor)
    unit = redactor.clean(_unit(between(text, "Limit is ", ", currently ")))
    amount = _amount(resource, unit, limit)
    details: dict[str, float | str] = {"limit": limit, "used": used, "requested": requested}
    raised = _edit_queue(evidence, f"raise spec.resources.{resource}.limit of the queue", name, redactor)
    if requested > limit + _SMALLEST:
        return PodFinding(
            Code.QUEUE_OVER_LIMIT,
            f"{queue} may use {amount}, and the pod requests {number(requested)}{words.never}",
            [Remedy("Request less, or name another queue."), raised],
            details,
        )
    return PodFinding(
        Code.QUEUE_OVER_LIMIT,
        f"{queue} may use {amount} and uses {number(used)}; the pod requests {number(requested)}",
        [Remedy("Wait until other pods of the queue end, or request less."), raised],
        details,
    )


def _over_quota(evidence: PodEvidence, words: _Words, redactor: Redactor) -> PodFinding:
    preemptible, why = _preemptible(evidence, redactor)
    text = words.text
    requested = number_after(text, "Workload requested ")
    quota = number_after(text, " quota is ")
    used = number_after(text, ", while ")
    resource = _resource(between(text, "Workload requested ", ", but "))
    if requested is None or quota is None or used is None or not resource:
        return PodFinding(
            Code.QUEUE_OVER_QUOTA,
            f"the pod is not preemptible, and the queue's quota is used: {redactor.clean(text)}",
            [preemptible],
        )
    display_name = between(text, ", but ", " quota is ")
    name = words.name(evidence, display_name)
    queue = _whose(evidence, name, display_name, redactor).rstrip(",")
    unit = redactor.clean(_unit(between(text, " quota is ", ", while ")))
    because = f" ({why})" if why else ""
    others = [_edit_queue(evidence, f"raise spec.resources.{resource}.quota of the queue", name, redactor)]
    if keys.DEFAULT_QUEUE in (name, display_name) and not _names_queue(evidence):
        others.insert(
            0, Remedy(f"Or name a queue with the label {keys.QUEUE_LABEL}, {place_of_label(evidence)}.")
        )
    never = words.never if requested > quota + _SMALLEST else ""
    if not never:
        others.insert(0, Remedy("Or wait until other pods of the queue end that are not preemptible."))
    return PodFinding(
        Code.QUEUE_OVER_QUOTA,
        f"the pod is not preemptible{because}, and such pods may use only the quota of {queue}:"
        f" {_amount(resource, unit, quota)}, of which {number(used)} is used; the pod requests"
        f" {number(requested)}{never}",
        [preemptible, *others],
        {"quota": quota, "used": used, "requested": requested},
    )


def _preemptible(evidence: PodEvidence, redactor: Redactor) -> tuple[Remedy, str]:
    """Return how to make the pod preemptible, and what makes it not preemptible; that is empty if unknown.

    The label decides before the priority (v0.10.0 and later, `default_grouper.go`).
    """
    group, pod = known(evidence.pod_group), known(evidence.pod)
    priority = group.spec.priority_class_name if group else ""
    labels = [owner.label(keys.PREEMPTIBILITY) for owner in evidence.owners]
    labels += [pod.metadata.labels.get(keys.PREEMPTIBILITY, "")] if pod else []
    place = place_of_label(evidence)
    change = f"Use a preemptible priority with the label {keys.PRIORITY_LABEL}: train"
    why = f"priority {redactor.clean(priority)}" if priority else ""
    if _NOT_PREEMPTIBLE in labels:
        why = f"label {keys.PREEMPTIBILITY}: {_NOT_PREEMPTIBLE}"
        also = "" if priority in _PREEMPTIBLE_PRIORITIES else f" and set {keys.PRIORITY_LABEL}: train"
        change = f"Remove the label {keys.PREEMPTIBILITY}{also}"
    return (
        Remedy(f"{change}, {place}. KAI may then evict the pod when another queue needs its quota."),
        why,
    )


def _names_queue(evidence: PodEvidence) -> bool:
    pod = known(evidence.pod)
    return bool(pod and pod.queue_label) or any(owner.label(keys.QUEUE_LABEL) for owner in evidence.owners)


def _edit_queue(evidence: PodEvidence, what: str, name: str, redactor: Redactor) -> Remedy:
    """Return what an administrator can do, with a command if the queue is the pod's or a parent of it.

    Without its name, the command lists the queues with their display names.
    """
    command = "" if name else LIST_QUEUES
    if name in evidence.queues and redactor.clean(name) == name and is_dns_subdomain(name):
        command = f"kubectl edit queues.scheduling.run.ai {name}"
    return Remedy(f"Administrator: {what}.", command)


def _whose(evidence: PodEvidence, name: str, display_name: str, redactor: Redactor) -> str:
    """Return a queue in words, and its relation to the pod's queue.

    Args:
        evidence: what is known.
        name: name of the queue; empty if it is not known.
        display_name: its name in KAI's text.
        redactor: hides names.
    """
    own = evidence.queue_name
    queue = f"the queue {redactor.clean(name or display_name)}"
    if own in ("", name):
        return queue
    if not name:
        return f"{queue}, which is the pod's queue {redactor.clean(own)} or above it,"
    return f"{queue}, above the pod's queue {redactor.clean(own)},"


def _resource(words: str) -> str:
    """Return the field of `spec.resources` of a queue for KAI's `GPUs`, `CPU cores` or `memory`."""
    return next((field for word, field in _RESOURCES.items() if word in words), "")


def _unit(amount: str) -> str:
    """Return the unit of an amount such as `500 GB`."""
    return " ".join(amount.split()[1:2])


def _amount(resource: str, unit: str, value: float) -> str:
    """Return an amount in words: `2 GPUs`, `10 CPU cores`, `500 GB of memory`."""
    if resource == "gpu":
        return gpus(value)
    return f"{number(value)} CPU {unit}" if resource == "cpu" else f"{number(value)} {unit} of memory"
