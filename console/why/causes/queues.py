"""Causes in the pod's queue or a parent of it: missing, unusable, or used up. Pure.

KAI does not always tell: v0.9.8 says nothing about a queue that does not exist, and no release says that a
queue has children. KAI says "does not exist" of a queue whose parent is missing, too.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from console.cluster.rules import QueueTree
from console.why.acts import finding
from console.why.causes.unscheduled import node_pool_of
from console.why.evidence import SMALLEST, PodEvidence, gpus, number, requested_together, who_holds
from console.why.explanation import Code, PodFinding
from kai import keys
from kube.kinds import Pod
from service.text import one_line

_AMOUNT: Final = r"[0-9]{1,12}(?:\.[0-9]{1,6})?"
_REQUESTED: Final = re.compile(rf"orkload requested ({_AMOUNT})")
_OF_NODE: Final = re.compile(r"Reason: (OverLimit|NonPreemptibleOverQuota), Details: ")
_FULL: Final = {
    "OverLimit": re.compile(
        r" quota has reached the allowable limit of (?:GPUs|CPU cores|memory)\. Limit is"
        rf" ({_AMOUNT}) ([A-Za-z]{{1,10}}), currently ({_AMOUNT}) "
    ),
    "NonPreemptibleOverQuota": re.compile(rf" quota is ({_AMOUNT}) ([A-Za-z]{{1,10}}), while ({_AMOUNT}) "),
}
"""KAI's words after the name of a full queue, by the reason (v0.9.8 to v0.17.0): limit, unit, use."""
_PREEMPTIBLE_PRIORITIES: Final = ("train", "build-preemptible")
"""Those of KAI's own priority classes that are preemptible."""
_INSTEAD: Final[Mapping[Code, tuple[str, tuple[str, ...]]]] = {
    "queue-missing": ("an existing queue without child queues", ("create-queue",)),
    "queue-not-leaf": ("one of its child queues", ()),
    "queue-without-parent": ("a queue with a parent", ("administrator",)),
}
"""The queue to be named instead, and what else can be done."""


def unusable_queue(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a queue that KAI cannot use."""
    name, verdict = evidence.queue_name, evidence.verdict
    is_told = verdict is not None and verdict.reason == "QueueDoesNotExist"
    if not name and (evidence.pod_group.known is not None or is_told):
        # KAI takes a label without a value as the name of the queue.
        act, place = "set-or-remove-queue", place_of_label(evidence)
        what = f"the pod's queue is empty: a label {keys.QUEUE_LABEL} has no value"
        return finding(evidence, "queue-missing", what, act, place=place)
    if not name:
        return None
    is_unexplained = verdict is not None and verdict.is_unexplained
    # The name may be the owner's where the PodGroup cannot be read: then KAI's words must fit.
    counts = evidence.pod_group.known is not None or verdict is None or is_told or is_unexplained
    read = [fact.known for fact in evidence.queues.values() if fact.known is not None]
    missing = [each for each, fact in evidence.queues.items() if fact.is_missing]
    tree = QueueTree(read, missing=missing if counts or missing != [name] else ())
    fault = tree.fault(name, (evidence.kai_version,) if evidence.kai_version else ())
    if fault is not None and (fault.code != "queue-without-parent" or is_unexplained):
        return _unusable(evidence, fault.code, fault.sentence, remedy=fault.remedy, command=fault.command)
    if not is_told:
        return None
    if not evidence.queues or not all(fact.is_known for fact in evidence.queues.values()):
        return _unusable(evidence, "queue-missing", f"KAI does not find the queue {name}, or a parent of it")
    # A queue of another node pool, whose label keeps it from the pod's scheduler.
    pool, queue = node_pool_of(evidence), evidence.queues[name].known
    if queue is None or queue.node_pool == pool:
        return None
    what = f"the queue {name} is of {_pool(queue.node_pool)}, and the pod of {_pool(pool)}"
    what += ", whose scheduler does not know it"
    acts, place = ("name-queue-of-pool", "name-pool-of-queue"), place_of_label(evidence)
    return finding(evidence, "queue-of-other-pool", what, *acts, pool=pool or "default", place=place)


def _pool(name: str) -> str:
    return f"the node pool {one_line(name)}" if name else "the default node pool"


def _unusable(evidence: PodEvidence, code: Code, what: str, **values: Any) -> PodFinding:
    """Return the finding for a queue that has to be replaced, on the namespace if the pod has its queue."""
    which, act = _INSTEAD[code]
    values |= {"which": which, "place": place_of_label(evidence)}
    is_from_workload = any(each.label(keys.QUEUE_LABEL) == evidence.queue_name for each in evidence.owners)
    acts = ["set-queue-of-namespace", "set-queue-of-workload"]
    acts = ["set-queue"] if evidence.decision.known is None or is_from_workload else acts
    return finding(evidence, code, what, *acts, *act, **values)


def place_of_label(evidence: PodEvidence) -> str:
    """Return where a label of the pod is to be changed."""
    owner = evidence.owners[-1] if evidence.owners else None
    if owner is not None and owner.kind:
        return f"on {owner.kind} {owner.metadata.name} and in its pod template"
    pod = evidence.pod.known
    if pod is not None and pod.metadata.owner_references:
        return "on the workload and in its pod template"
    return "in a new pod, which replaces this one"


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
    of_nodes = []
    for match in filter(None, map(_OF_NODE.search, verdict.text.split("\n"))):
        text = match.string[match.end() :]
        amount = _REQUESTED.search(text)
        of_nodes.append((float(amount[1]) if amount else float("inf"), match[1], text))
    return _full(evidence, *min(of_nodes)[1:], "", " on GPUs of this size") if of_nodes else None


def _full(evidence: PodEvidence, reason: str, text: str, name: str, where: str = "") -> PodFinding:
    text = text.removeprefix(f"{reason}:").strip()
    match, request, is_limit = _FULL[reason].search(text), _REQUESTED.search(text), reason == "OverLimit"
    code: Code = "queue-over-limit" if is_limit else "queue-over-quota"
    change, why = _preemptible(evidence)
    values: dict[str, Any] = {"change": change, "place": place_of_label(evidence)}
    if match is None or request is None:
        of_quota = "the pod is not preemptible, and the queue's quota is used"
        what = "a limit of the queue is reached" if is_limit else of_quota
        act = "wait-in-queue" if is_limit else "preemptible"
        return finding(evidence, code, f"{what}: {one_line(text)}", act, **values)
    most, unit, used, requested = float(match[1]), match[2], float(match[3]), float(request[1])
    display_name = text[: match.start()].rpartition(", but ")[2]
    name, queue = _named(evidence, name, display_name)
    resource, amount = _resource(most, unit)
    is_gang, is_never = (evidence.gang_size or 1) > 1, requested > most + SMALLEST
    never = f": {'they' if is_gang else 'it'} can never start there{where}" if is_never else ""
    asks = f"{requested_together(evidence, requested, unit)}{never}"
    bound = "limit" if is_limit else "quota"
    details = {bound: most, "used": used, "requested": requested}
    own = evidence.queues.get(name)  # a queue that the pod does not use is not to be edited
    under = own.known.children if own is not None and own.known is not None else ()
    values |= {
        "resource": f"{resource}.{bound}",
        "queue": name if own is not None else "",
        "holders": who_holds(evidence, {name, *under}) if name else "",
    }
    if is_limit:
        uses = f", and {asks}" if never else f" and uses {number(used)}; {asks}"
        smaller = "fewer-or-other-queue" if is_gang else "request-less-or-other-queue"
        acts = [smaller if never else "wait-in-queue", "raise-queue"]
        return finding(evidence, code, f"{queue} may use {amount}{uses}", *acts, details=details, **values)
    named = [owner.label(keys.QUEUE_LABEL) for owner in evidence.owners]
    named += [evidence.pod.known.queue_label] if evidence.pod.known else []
    is_default = keys.DEFAULT_QUEUE in (name, display_name) and not any(named)
    acts = ["preemptible", *([] if never else ["wait-for-guaranteed"])]
    acts += [*(["name-a-queue"] if is_default else []), "raise-queue"]
    what = (
        f"the pod is not preemptible{f' ({why})' if why else ''}, and such pods may use only the quota of"
        f" {queue.rstrip(',')}: {amount}, of which {number(used)} is used; {asks}"
    )
    return finding(evidence, code, what, *acts, details=details, **values)


def _resource(value: float, unit: str) -> tuple[str, str]:
    if "GPU" in unit:
        return "gpu", gpus(value)
    resource, words = ("cpu", f"CPU {unit}") if "core" in unit else ("memory", f"{unit} of memory")
    return resource, f"{number(value)} {words}"


def _preemptible(evidence: PodEvidence) -> tuple[str, str]:
    """Return how to make the pod preemptible, and what makes it not preemptible; that is empty if unknown.

    The label decides before the priority (v0.10.0 and later, `default_grouper.go`).
    """
    group, pod = evidence.pod_group.known, evidence.pod.known
    priority = group.spec.priority_class_name if group else ""
    labels = [owner.label(keys.PREEMPTIBILITY) for owner in evidence.owners]
    labels += [pod.metadata.labels.get(keys.PREEMPTIBILITY, "")] if pod else []
    if "non-preemptible" in labels:
        also = "" if priority in _PREEMPTIBLE_PRIORITIES else f" and set {keys.PRIORITY_LABEL}: train"
        why = f"label {keys.PREEMPTIBILITY}: non-preemptible"
        return f"Remove the label {keys.PREEMPTIBILITY}{also}", why
    change = f"Use a preemptible priority with the label {keys.PRIORITY_LABEL}: train"
    return change, f"priority {priority}" if priority else ""


def _named(evidence: PodEvidence, name: str, display_name: str) -> tuple[str, str]:
    """Return the name of the pod's queue or of a parent, empty if unknown, and the queue in words.

    KAI's text has the display name of a queue, if it has one.
    """
    names = {each: fact.known.display_name if fact.known else each for each, fact in evidence.queues.items()}
    matching = [each for each, words in names.items() if words == display_name]
    name = name or (matching[0] if len(matching) == 1 else "")
    own, queue = evidence.queue_name, f"the queue {one_line(name or display_name)}"
    relation = "above the pod's queue" if name else "which is the pod's queue"
    or_above = "" if name else " or above it"
    return name, queue if own in ("", name) else f"{queue}, {relation} {own}{or_above},"
