"""Causes in the pod's queue or a parent of it: missing, unusable, or used up. Pure.

KAI does not always tell: v0.9.8 says nothing about a queue that does not exist, and no release says that a
queue has children. KAI says "does not exist" of a queue whose parent is missing, too.
"""

import re
from collections.abc import Mapping
from math import inf
from typing import Any, Final

from console.cluster.rules import QueueTree
from console.why.acts import finding
from console.why.causes.unscheduled import node_pool_of
from console.why.evidence import PodEvidence, gpus, number, requested_together, who_holds
from console.why.explanation import Code, PodFinding
from kai import keys
from kube.kinds import Pod
from service.text import first_few, one_line

_SMALLEST: Final = 0.005
_REQUESTED: Final = re.compile(r"orkload requested (?P<requested>[0-9]{1,12}(?:\.[0-9]{1,6})?)")
_OF_NODE: Final = re.compile(r"Reason: (OverLimit|NonPreemptibleOverQuota), Details: ")
_FULL: Final = {
    "OverLimit": re.compile(
        r" quota has reached the allowable limit of (?:GPUs|CPU cores|memory)\. Limit is"
        r" (?P<most>[0-9]{1,12}(?:\.[0-9]{1,6})?) (?P<unit>[A-Za-z]{1,10}), currently"
        r" (?P<used>[0-9]{1,12}(?:\.[0-9]{1,6})?) "
    ),
    "NonPreemptibleOverQuota": re.compile(
        r" quota is (?P<most>[0-9]{1,12}(?:\.[0-9]{1,6})?) (?P<unit>[A-Za-z]{1,10}), while"
        r" (?P<used>[0-9]{1,12}(?:\.[0-9]{1,6})?) "
    ),
}
"""KAI's words after the name of a full queue, by the reason (v0.9.8 to v0.17.0)."""
_NOT_PREEMPTIBLE: Final = "non-preemptible"
_PREEMPTIBLE_PRIORITIES: Final = ("train", "build-preemptible")
"""Those of KAI's own priority classes that are preemptible."""
_INSTEAD: Final[Mapping[Code, tuple[str, tuple[str, ...]]]] = {
    "queue-missing": ("an existing queue without child queues", ("create-queue",)),
    "queue-not-leaf": ("one of its child queues", ()),
    "queue-without-parent": ("a queue with a parent", ("administrator",)),
}
"""The queue to be named instead, and what else can be done."""
_Acts = tuple[tuple[str, ...], dict[str, Any]]  # names of acts, and the texts for their braces


def unusable_queue(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a queue that KAI cannot use."""
    name, verdict = evidence.queue_name, evidence.verdict
    if not name:
        return _empty(evidence)
    is_told = verdict is not None and verdict.reason == "QueueDoesNotExist"
    is_unexplained = verdict is not None and verdict.is_unexplained
    # The name may be the owner's where the PodGroup cannot be read: then KAI's words must fit.
    counts = evidence.pod_group.known is not None or verdict is None or is_told or is_unexplained
    read = [fact.known for fact in evidence.queues.values() if fact.known is not None]
    missing = [each for each, fact in evidence.queues.items() if fact.is_missing]
    tree = QueueTree(read, missing=missing if counts or missing != [name] else ())
    fault = tree.fault(name, (evidence.kai_version,) if evidence.kai_version else ())
    if fault is not None and (fault.code != "queue-without-parent" or is_unexplained):
        which, act = _INSTEAD[fault.code]
        acts, values = _relabel(evidence, which)
        values |= {"remedy": fault.remedy, "command": fault.command}
        return finding(evidence, fault.code, fault.sentence, *acts, *act, **values)
    if not is_told:
        return None
    if evidence.queues and all(fact.is_known for fact in evidence.queues.values()):
        return _of_other_pool(evidence)
    which, act = _INSTEAD["queue-missing"]
    acts, values = _relabel(evidence, which)
    what = f"KAI does not find the queue {name}, or a parent of it"
    return finding(evidence, "queue-missing", what, *acts, *act, **values)


def _of_other_pool(evidence: PodEvidence) -> PodFinding | None:
    """Return the finding for a queue of another node pool, whose label keeps it from the pod's scheduler."""
    pool, name = node_pool_of(evidence), evidence.queue_name
    queue = evidence.queues[name].known
    if queue is None or queue.node_pool == pool:
        return None
    what = f"the queue {name} is of {_pool(queue.node_pool)}, and the pod of {_pool(pool)}"
    acts, place = ("name-queue-of-pool", "name-pool-of-queue"), place_of_label(evidence)
    what += ", whose scheduler does not know it"
    return finding(evidence, "queue-of-other-pool", what, *acts, pool=pool or "default", place=place)


def _pool(name: str) -> str:
    return f"the node pool {one_line(name)}" if name else "the default node pool"


def _empty(evidence: PodEvidence) -> PodFinding | None:
    """Return the finding for a queue label without a value, which KAI takes as the name of the queue."""
    pod = evidence.pod.known
    places = {f"{owner.kind} {owner.metadata.name}": owner.metadata.labels for owner in evidence.owners}
    if pod is not None:
        places["the pod"] = pod.metadata.labels
    empty = [place for place, labels in places.items() if labels.get(keys.QUEUE_LABEL) == ""]
    is_told = evidence.verdict is not None and evidence.verdict.reason == "QueueDoesNotExist"
    if evidence.pod_group.known is None and not (is_told and empty):
        return None
    where = f": the label {keys.QUEUE_LABEL} of {first_few(empty)} has no value" if empty else ""
    what = f"the pod's queue is empty{where}"
    return finding(evidence, "queue-missing", what, "set-or-remove-queue", place=place_of_label(evidence))


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
    """Whether an owner of the pod names the queue, so that kaishare does not; None if that is not known."""
    owners = evidence.owners
    if any(owner.label(keys.QUEUE_LABEL) == evidence.queue_name for owner in owners):
        return True
    are_all_read = bool(owners) and not owners[-1].metadata.owner_references
    return False if are_all_read and isinstance(owners[0].spec.template, dict) else None


def place_of_label(evidence: PodEvidence) -> str:
    """Return where a label of the pod is to be changed."""
    owner = evidence.owners[-1] if evidence.owners else None
    if owner is not None and owner.kind:
        return f"on {owner.kind} {owner.metadata.name} and in its pod template"
    pod = evidence.pod.known
    if pod is not None and pod.metadata.owner_references:
        return "on the workload and in its pod template"
    return "in a new pod, which replaces this one"


def unexplained(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for KAI's text without a reason, where the queue cannot be read."""
    if evidence.verdict is None or not evidence.verdict.is_unexplained:
        return None
    queue = evidence.queue_name or "the default queue"
    what = "KAI cannot schedule the pod and gives no reason"
    return finding(evidence, "undecided", what, "ask-about-queue", queue=queue)


def full_queue(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a queue, or a parent of it, whose limit or quota is used up.

    The share of a gpu-memory pod depends on the node, so that KAI compares it with the queue there
    (v0.9.8 to v0.17.0, `predicates.go`). The node with the smallest share counts.
    """
    verdict = evidence.verdict
    if verdict is None:
        return None
    if verdict.reason in _FULL:
        return _full(evidence, verdict.reason, verdict.text, verdict.queue)
    matches = filter(None, map(_OF_NODE.search, verdict.text.split("\n")))
    of_nodes = [(match[1], match.string[match.end() :]) for match in matches]
    if not of_nodes:
        return None
    reason, text = min(of_nodes, key=lambda each: _requested(each[1]))
    return _full(evidence, reason, text, "", " on GPUs of this size")


def _full(evidence: PodEvidence, reason: str, text: str, name: str, where: str = "") -> PodFinding:
    text = text.removeprefix(f"{reason}:").strip()
    match, request = _FULL[reason].search(text), _REQUESTED.search(text)
    is_limit = reason == "OverLimit"
    code: Code = "queue-over-limit" if is_limit else "queue-over-quota"
    change, why = _preemptible(evidence)
    values: dict[str, Any] = {"change": change, "place": place_of_label(evidence)}
    if match is None or request is None:
        of_quota = "the pod is not preemptible, and the queue's quota is used"
        what = "a limit of the queue is reached" if is_limit else of_quota
        act = "wait-in-queue" if is_limit else "preemptible"
        return finding(evidence, code, f"{what}: {one_line(text)}", act, **values)
    most, used, requested = float(match["most"]), float(match["used"]), float(request["requested"])
    display_name = text[: match.start()].rpartition(", but ")[2]
    name = name or _name_of(evidence, display_name)
    queue = _whose(evidence, name, display_name)
    resource, amount = _amount(most, match["unit"])
    is_gang, is_never = (evidence.gang_size or 1) > 1, requested > most + _SMALLEST
    never = f": {'they' if is_gang else 'it'} can never start there{where}" if is_never else ""
    asks = f"{requested_together(evidence, requested, match['unit'])}{never}"
    bound = "limit" if is_limit else "quota"
    details = {bound: most, "used": used, "requested": requested}
    # A command is only for the pod's queue or a parent of it; without a name, it lists the queues.
    raising = "raise-other-queue" if name else "raise-some-queue"
    raising = "raise-queue" if name in evidence.queues else raising
    under = evidence.queues[name].known if name in evidence.queues else None
    holders = who_holds(evidence, {name, *(under.children if under else ())}) if name else ""
    values |= {"resource": f"{resource}.{bound}", "queue": name, "holders": holders}
    if is_limit:
        uses = f", and {asks}" if never else f" and uses {number(used)}; {asks}"
        smaller = "fewer-or-other-queue" if is_gang else "request-less-or-other-queue"
        acts = [smaller if never else "wait-in-queue", raising]
        return finding(evidence, code, f"{queue} may use {amount}{uses}", *acts, details=details, **values)
    named = [owner.label(keys.QUEUE_LABEL) for owner in evidence.owners]
    named += [evidence.pod.known.queue_label] if evidence.pod.known else []
    is_default = keys.DEFAULT_QUEUE in (name, display_name) and not any(named)
    acts = ["preemptible", *([] if never else ["wait-for-guaranteed"])]
    acts += [*(["name-a-queue"] if is_default else []), raising]
    what = (
        f"the pod is not preemptible{f' ({why})' if why else ''}, and such pods may use only the quota of"
        f" {queue.rstrip(',')}: {amount}, of which {number(used)} is used; {asks}"
    )
    return finding(evidence, code, what, *acts, details=details, **values)


def _amount(value: float, unit: str) -> tuple[str, str]:
    if "GPU" in unit:
        return "gpu", gpus(value)
    if "core" in unit:
        return "cpu", f"{number(value)} CPU {unit}"
    return "memory", f"{number(value)} {unit} of memory"


def _requested(text: str) -> float:
    match = _REQUESTED.search(text)
    return float(match["requested"]) if match else inf


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


def _name_of(evidence: PodEvidence, display_name: str) -> str:
    """Return the name of the pod's queue or of a parent with a display name; empty if it is not known."""
    names = {name: fact.known.display_name if fact.known else name for name, fact in evidence.queues.items()}
    matching = [name for name, words in names.items() if words == display_name]
    return matching[0] if len(matching) == 1 else ""


def _whose(evidence: PodEvidence, name: str, display_name: str) -> str:
    """Return a queue in words, and its relation to the pod's queue; the name is empty if it is not known."""
    own = evidence.queue_name
    queue = f"the queue {one_line(name or display_name)}"
    relation = "above the pod's queue {own}" if name else "which is the pod's queue {own} or above it"
    return queue if own in ("", name) else f"{queue}, {relation.format(own=own)},"
