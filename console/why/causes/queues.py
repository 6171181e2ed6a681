"""Causes in the pod's queue or a parent of it: missing, unusable, or used up. Pure.

KAI does not always tell: v0.9.8 says nothing about a queue that does not exist, and no release says that a
queue has children. KAI says "does not exist" of a queue whose parent is missing, too.
"""

import re
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from console.cluster.rules import QueueTree
from console.why.acts import finding
from console.why.evidence import PodEvidence, SchedulerVerdict, between, gpus, number, number_after
from console.why.explanation import Code, PodFinding
from kai import keys
from service.text import first_few, one_line

_SMALLEST: Final = 0.005
_FULL: Final = ("OverLimit", "NonPreemptibleOverQuota")
_OF_NODE: Final = re.compile(r"Reason: (OverLimit|NonPreemptibleOverQuota), Details: ")
_RESOURCES: Final = {"GPU": "gpu", "CPU": "cpu", "memory": "memory"}
_NOT_PREEMPTIBLE: Final = "non-preemptible"
_PREEMPTIBLE_PRIORITIES: Final = ("train", "build-preemptible")
"""Those of KAI's own priority classes that are preemptible."""
_INSTEAD: Final = {
    Code.QUEUE_MISSING: ("an existing queue without child queues", ("create-queue",)),
    Code.QUEUE_NOT_LEAF: ("one of its child queues", ()),
    Code.QUEUE_WITHOUT_PARENT: ("a queue with a parent", ("mend-queue",)),
}
"""The queue to be named instead, and what else can be done."""
_Acts = tuple[tuple[str, ...], dict[str, Any]]
"""Names of acts, and the texts for their braces."""


def unusable_queue(evidence: PodEvidence, verdict: SchedulerVerdict | None) -> PodFinding | None:
    """Return the finding for a queue that KAI cannot use."""
    name = evidence.queue_name
    if not name:
        return _empty(evidence, verdict)
    is_told = verdict is not None and verdict.reason == "QueueDoesNotExist"
    is_unexplained = verdict is not None and verdict.is_unexplained
    # The name may be the owner's where the PodGroup cannot be read: then KAI's words must fit.
    counts = evidence.pod_group.known is not None or verdict is None or is_told or is_unexplained
    read = [fact.known for fact in evidence.queues.values() if fact.known is not None]
    missing = [each for each, fact in evidence.queues.items() if fact.is_missing]
    tree = QueueTree(read, missing=missing if counts or missing != [name] else ())
    fault = tree.fault(name, (evidence.kai_version,) if evidence.kai_version else ())
    if fault is not None and (fault.code != Code.QUEUE_WITHOUT_PARENT or is_unexplained):
        which, act = _INSTEAD[Code(fault.code)]
        acts, values = _relabel(evidence, which)
        values |= {"remedy": fault.remedy, "command": fault.command}
        return finding(evidence, Code(fault.code), fault.sentence, *acts, *act, **values)
    if not is_told or (evidence.queues and all(fact.is_known for fact in evidence.queues.values())):
        return None
    which, act = _INSTEAD[Code.QUEUE_MISSING]
    acts, values = _relabel(evidence, which)
    what = f"KAI does not find the queue {name}, or a parent of it"
    return finding(evidence, Code.QUEUE_MISSING, what, *acts, *act, **values)


def _empty(evidence: PodEvidence, verdict: SchedulerVerdict | None) -> PodFinding | None:
    """Return the finding for a queue label without a value, which KAI takes as the name of the queue."""
    pod = evidence.pod.known
    places = {f"{owner.kind} {owner.metadata.name}": owner.metadata.labels for owner in evidence.owners}
    if pod is not None:
        places["the pod"] = pod.metadata.labels
    empty = [place for place, labels in places.items() if labels.get(keys.QUEUE_LABEL) == ""]
    is_told = verdict is not None and verdict.reason == "QueueDoesNotExist"
    if evidence.pod_group.known is None and not (is_told and empty):
        return None
    where = f": the label {keys.QUEUE_LABEL} of {first_few(empty)} has no value" if empty else ""
    sentence = f"the pod's queue is empty{where}"
    return finding(
        evidence, Code.QUEUE_MISSING, sentence, "set-or-remove-queue", place=place_of_label(evidence)
    )


def _relabel(evidence: PodEvidence, which: str) -> _Acts:
    """Return how to name another queue: on the namespace if the pod has its queue, else on the workload."""
    values: dict[str, Any] = {"which": which, "place": place_of_label(evidence)}
    is_from_workload = _is_from_workload(evidence)
    if evidence.decision.known is None or is_from_workload:
        return ("set-queue",), values
    if is_from_workload is False:
        return ("set-queue-of-namespace",), values
    return ("set-queue-of-namespace", "set-queue-of-workload"), values


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
    pod = evidence.pod.known
    if pod is not None and pod.metadata.owner_references:
        return "on the workload and in its pod template"
    return "in a new pod, which replaces this one"


def unexplained(evidence: PodEvidence, verdict: SchedulerVerdict) -> PodFinding | None:
    """Return the finding for KAI's text without a reason, where the queue cannot be read."""
    if not verdict.is_unexplained:
        return None
    queue = evidence.queue_name or "the default queue"
    what = "KAI cannot schedule the pod and gives no reason"
    return finding(evidence, Code.UNDECIDED, what, "ask-about-queue", queue=queue)


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
            for name, fact in evidence.queues.items()
            if display_name == (fact.known.display_name if fact.known else name)
        ]
        return names[0] if len(names) == 1 else ""


def full_queue(evidence: PodEvidence, verdict: SchedulerVerdict) -> PodFinding | None:
    """Return the finding for a queue, or a parent of it, whose limit or quota is used up.

    The share of a gpu-memory pod depends on the node, so that KAI compares it with the queue there
    (v0.9.8 to v0.17.0, `predicates.go`). The node with the smallest share counts.
    """
    if verdict.reason in _FULL:
        text = verdict.text.removeprefix(f"{verdict.reason}:").strip()
        words = _Words(verdict.reason, text, verdict.queue, ": it can never start there")
    else:
        matches = filter(None, map(_OF_NODE.search, verdict.text.split("\n")))
        of_nodes = [(match[1], match.string[match.end() :]) for match in matches]
        if not of_nodes:
            return None
        reason, text = min(of_nodes, key=lambda each: _requested(each[1]))
        words = _Words(reason, text, "", ": it can never start there on GPUs of this size")
    return _over_limit(evidence, words) if words.reason == "OverLimit" else _over_quota(evidence, words)


def _requested(text: str) -> float:
    requested = number_after(text.lower(), "workload requested ")
    return inf if requested is None else requested


def _over_limit(evidence: PodEvidence, words: _Words) -> PodFinding:
    text, code = words.text, Code.QUEUE_OVER_LIMIT
    limit = number_after(text, "Limit is ")
    used = number_after(text, ", currently ")
    requested = number_after(text, "workload requested ")
    resource = _resource(between(text, "allowable limit of ", ". Limit is "))
    if limit is None or used is None or requested is None or not resource:
        what = f"a limit of the queue is reached: {one_line(text)}"
        return finding(evidence, code, what, "wait-or-ask-limit")
    display_name = text.partition(" quota has reached")[0]
    name = words.name(evidence, display_name)
    queue = _whose(evidence, name, display_name)
    amount = _amount(resource, _unit(between(text, "Limit is ", ", currently ")), limit)
    if requested > limit + _SMALLEST:
        what = f"{queue} may use {amount}, and the pod requests {number(requested)}{words.never}"
        act = "request-less-or-other-queue"
    else:
        what = f"{queue} may use {amount} and uses {number(used)}; the pod requests {number(requested)}"
        act = "wait-in-queue"
    details = {"limit": limit, "used": used, "requested": requested}
    acts, values = _raise(evidence, f"{resource}.limit", name)
    return finding(evidence, code, what, act, *acts, details=details, **values)


def _over_quota(evidence: PodEvidence, words: _Words) -> PodFinding:
    change, why = _preemptible(evidence)
    values: dict[str, Any] = {"change": change, "place": place_of_label(evidence)}
    text, code = words.text, Code.QUEUE_OVER_QUOTA
    requested = number_after(text, "Workload requested ")
    quota = number_after(text, " quota is ")
    used = number_after(text, ", while ")
    resource = _resource(between(text, "Workload requested ", ", but "))
    if requested is None or quota is None or used is None or not resource:
        what = f"the pod is not preemptible, and the queue's quota is used: {one_line(text)}"
        return finding(evidence, code, what, "preemptible", **values)
    display_name = between(text, ", but ", " quota is ")
    name = words.name(evidence, display_name)
    acts, more = _raise(evidence, f"{resource}.quota", name)
    if keys.DEFAULT_QUEUE in (name, display_name) and not _names_queue(evidence):
        acts = ("name-a-queue", *acts)
    never = words.never if requested > quota + _SMALLEST else ""
    acts = acts if never else ("wait-for-guaranteed", *acts)
    amount = _amount(resource, _unit(between(text, " quota is ", ", while ")), quota)
    what = (
        f"the pod is not preemptible{f' ({why})' if why else ''}, and such pods may use only the quota of"
        f" {_whose(evidence, name, display_name).rstrip(',')}: {amount}, of which {number(used)} is used;"
        f" the pod requests {number(requested)}{never}"
    )
    details = {"quota": quota, "used": used, "requested": requested}
    return finding(evidence, code, what, "preemptible", *acts, details=details, **values | more)


def _preemptible(evidence: PodEvidence) -> tuple[str, str]:
    """Return how to make the pod preemptible, and what makes it not preemptible; that is empty if unknown.

    The label decides before the priority (v0.10.0 and later, `default_grouper.go`).
    """
    group, pod = evidence.pod_group.known, evidence.pod.known
    priority = group.spec.priority_class_name if group else ""
    labels = [owner.label(keys.PREEMPTIBILITY) for owner in evidence.owners]
    labels += [pod.metadata.labels.get(keys.PREEMPTIBILITY, "")] if pod else []
    if _NOT_PREEMPTIBLE in labels:
        also = "" if priority in _PREEMPTIBLE_PRIORITIES else f" and set {keys.PRIORITY_LABEL}: train"
        why = f"label {keys.PREEMPTIBILITY}: {_NOT_PREEMPTIBLE}"
        return f"Remove the label {keys.PREEMPTIBILITY}{also}", why
    change = f"Use a preemptible priority with the label {keys.PRIORITY_LABEL}: train"
    return change, f"priority {priority}" if priority else ""


def _names_queue(evidence: PodEvidence) -> bool:
    pod = evidence.pod.known
    return bool(pod and pod.queue_label) or any(owner.label(keys.QUEUE_LABEL) for owner in evidence.owners)


def _raise(evidence: PodEvidence, resource: str, name: str) -> _Acts:
    """Return what an administrator can do, with a command if the queue is the pod's or a parent of it.

    Without its name, the command lists the queues with their display names.
    """
    act = "raise-queue" if name in evidence.queues else "raise-other-queue" if name else "raise-some-queue"
    return (act,), {"resource": resource, "queue": name}


def _whose(evidence: PodEvidence, name: str, display_name: str) -> str:
    """Return a queue in words, and its relation to the pod's queue.

    Args:
        evidence: what is known.
        name: name of the queue; empty if it is not known.
        display_name: its name in KAI's text.
    """
    own = evidence.queue_name
    queue = f"the queue {one_line(name or display_name)}"
    if own in ("", name):
        return queue
    if not name:
        return f"{queue}, which is the pod's queue {own} or above it,"
    return f"{queue}, above the pod's queue {own},"


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
