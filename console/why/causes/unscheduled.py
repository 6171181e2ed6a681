"""Why there is no pod, or KAI's scheduler has not decided: a refusal, a gate, no PodGroup, silence. Pure."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final

from console.cluster.facts import Fact, items
from console.cluster.rules import refuser_of, sharing_off, unreachable_webhook
from console.why.acts import ACTS, finding
from console.why.evidence import PodEvidence, PolicyDecision, request_of, waited
from console.why.explanation import REPEATED_BY_KAI, Code, PodFinding
from kai import keys
from kube.kinds import Event, Pod, text_at
from service.text import listed, one_line
from service.units import duration

COMBINED: Final = "(combined from similar events): "
_MISSING: Final[tuple[tuple[re.Pattern[str], Code, tuple[str, ...], str], ...]] = (
    (re.compile(r"exceeded quota: (\S{1,253}), "), "resource-quota-exceeded", ("quota", "later"),
     "the namespace's ResourceQuota {} leaves no room for the pod ({rest})"),
    (re.compile(r'RuntimeClass "([^"]{1,253})" not found'), "runtime-class-missing",
     ("install-runtime-class", "correct-runtime-class", "later"),
     "the pod names the RuntimeClass {}, which does not exist"),
    (re.compile(r"no PriorityClass with name (\S{1,253}) was found"), "priority-class-missing",
     ("correct-priority-class", "later"), "the pod names the PriorityClass {}, which does not exist"),
)  # fmt: skip
"""The API server's own words about what a pod lacks."""


def why_no_pod(evidence: PodEvidence) -> PodFinding:
    """Return why there is no pod: refused at its creation, evicted, deleted, or never asked for."""
    refused = _newest(items(evidence.creation_events))
    removed = _newest((*evictions(evidence), *evidence.about_groups("StaleJob")))
    if not_wanted := _not_wanted(evidence):
        return not_wanted
    if refused is not None and (removed is None or refused.moment >= removed.moment):
        return refusal(evidence, refused.message)
    if removed is not None:
        return _removed(evidence, removed)
    place, unread = f"in the namespace {evidence.namespace}", "not all Events could be read"
    unread = "" if evidence.are_events_read else unread
    if evidence.kind != "Pod":
        what = f"{evidence.kind} {evidence.name} {place} has no pod, and {unread or 'no Event says why'}"
        return finding(evidence, "no-pod", what, "look-at-workload")
    if items(evidence.pod_events):
        what = f"the pod existed and is gone, and {unread or 'no Event tells of an eviction by KAI'}"
        return finding(evidence, "pod-deleted", what, "create-again", "spare-reservations")
    what = f"there is no pod {evidence.name} {place}, and {unread or 'no Event about it'}"
    return finding(evidence, "no-pod", what, "look-for-name")


def _removed(evidence: PodEvidence, removed: Event) -> PodFinding:
    if removed.reason == "Evict":
        return _evicted(evidence, removed, "the pod", "create-again")
    words = one_line(removed.message)
    what = f"KAI evicted the workload's pods, because the group had lost a member: {words}"
    return finding(evidence, "gang-stale", what, "find-lost-member")


def _newest(events: Iterable[Event]) -> Event | None:
    return max(events, key=attrgetter("moment"), default=None)


def refused_later(evidence: PodEvidence, pod: Pod) -> Iterator[PodFinding]:
    """Yield the refusal of a further pod of a named workload later than the newest one's creation."""
    refused, created = _newest(items(evidence.creation_events)), pod.metadata.creation_timestamp
    if refused is None or created is None or refused.moment <= created.timestamp() or _not_wanted(evidence):
        return
    cause, age = refusal(evidence, refused.message), evidence.since(refused.last)
    ago = f" {duration(age.total_seconds())} ago" if age else ""
    further = f"a further pod of {evidence.kind} {evidence.name} was refused{ago}"
    yield replace(cause, sentence=f"{further}: {cause.sentence}")


def refusal(evidence: PodEvidence, message: str) -> PodFinding:
    """Return the finding for the message of an API server that refused a pod."""
    message = message.removeprefix(COMBINED)
    for pattern, code, acts, sentence in _MISSING:
        if match := pattern.search(message):
            what = sentence.format(match[1], rest=one_line(message[match.end() :]))
            return finding(evidence, code, what, *acts)
    if fault := unreachable_webhook(message, evidence.kai_namespace):
        values: dict[str, Any] = {"remedy": fault.remedy, "command": fault.command}
        return finding(evidence, fault.code, fault.sentence, "administrator", "later", **values)
    refuser = refuser_of(message)
    if refuser is None:
        words = f"the API server refuses the pod: {one_line(message)}"
        return finding(evidence, "refused-at-creation", words, "change-named", "later")
    words = one_line(message[refuser.end :].partition("denied the request")[2] or message[refuser.end :])
    words = f"refuses the pod: {words.lstrip(': ')}"
    if "kaishare" in refuser.name:
        return finding(evidence, "refused-by-guard", f"kaishare {words}", "change-refused", "later")
    if evidence.kai_namespace not in refuser.name:
        words = f"{one_line(refuser.name)} {words}"
        return finding(evidence, "refused-at-creation", words, "change-named", "later")
    if "GPU sharing is disabled" in message:
        fault, acts = sharing_off(), ("request-whole", "administrator", "later")
        return finding(evidence, fault.code, fault.sentence, *acts, remedy=fault.remedy, command="")
    return finding(evidence, "refused-by-kai", f"KAI {words}", "change-refused", "later")


def evictions(evidence: PodEvidence) -> list[Event]:
    """Return the Events about evictions of this pod, or of earlier pods of the workload, oldest first."""
    evicted = evidence.about_groups("Evict")
    if evidence.kind != "Pod" or not evidence.pod.is_missing:
        return evicted
    return [event for event in evicted if f"/{evidence.name} " in event.message]


def evicted_before(evidence: PodEvidence) -> list[PodFinding]:
    """Return a note about an earlier pod of the same workload that KAI evicted, if it did."""
    return [_evicted(evidence, each, "an earlier pod of the workload") for each in evictions(evidence)[-1:]]


def _evicted(evidence: PodEvidence, event: Event, which: str, *acts: str) -> PodFinding:
    """Return the finding for a pod that KAI evicted; the first line of the Event names the evictor.

    Its text is "preempted" for a reclaim as well, which has figures of both queues (v0.9.8 to v0.17.0).
    """
    first, _, figures = event.message.partition("\n")
    if "bin packing" in first:
        act, why = "nothing", ", to use fewer GPUs in parts (consolidation)"
    elif figures.strip():
        act, why = "wait-for-quota", ", because another queue was owed the GPUs"
    elif "higher priority" in first:
        act, why = "use-priority", " for a workload of higher priority"
    else:
        act, why = "use-priority", f": {one_line(first)}"
    return finding(evidence, "evicted", f"KAI evicted {which}{why}", act, *acts)


def _not_wanted(evidence: PodEvidence) -> PodFinding | None:
    workload, name = evidence.workload.known, f"{evidence.kind} {evidence.name}"
    if workload is not None and workload.spec.suspend:
        return finding(evidence, "no-pod", f"{name} is suspended", "resume")
    if workload is not None and workload.spec.replicas == 0:
        return finding(evidence, "no-pod", f"{name} has 0 replicas", "scale-up")
    return None


SETTLED: Final = timedelta(seconds=20)
"""Time after which a program of KAI is probably down; each was done within 3 s (v0.9.8, v0.13.4, v0.17.0)."""
HARMLESS: Final = ("not found", "already exists", "the object has been modified")
"""Parts of the texts of PodGrouperWarning that healthy pods have, too (all three releases)."""
_REFUSAL: Final = re.compile(
    r"ValidatingAdmissionPolicy 'kaishare-guard-[a-z]{1,20}' with binding '[^']{1,253}' denied request:"
    r" kaishare-guard: "
)
_LONGEST_WORDS: Final = 600
"""The guard's longest sentence has about 560 characters; an Event's message has at most 1024."""
_GUARD_ACTS: Final = {
    'queue "': "guard-queue",
    "priority and preemptibility stay": "guard-priority",
    "a pod stays in its PodGroup": "guard-owner",
    "the name of the PodGroup": "guard-spark",
    "only KAI's scheduler writes": "guard-annotations",
}
"""What to do, by the beginning of the guard's sentence."""
_WAITING: Final = re.compile(r"Waiting for ([0-9]{1,6}) pods.{0,300}?, currently ([0-9]{1,6}) exist")


def is_in_kai(pod: Pod, scheduler: str) -> bool:
    """Whether KAI's scheduler, or the one that the policy names, schedules the pod."""
    name = pod.spec.scheduler_name
    is_other = name == keys.DEFAULT_SCHEDULER or not pod.pod_group_name
    return name in (keys.SCHEDULER_NAME, scheduler) or not is_other


def outside_kai(evidence: PodEvidence, pod: Pod) -> PodFinding:
    """Return the finding for a pod that another scheduler schedules."""
    name, request = pod.spec.scheduler_name, request_of(pod)
    condition = pod.status.condition("PodScheduled")
    if name != keys.DEFAULT_SCHEDULER and not pod.is_bound and condition is None:
        what = f"the pod names the scheduler {name}, and no program has looked at it{waited(evidence.age)}"
        acts = ["correct-scheduler", "set-scheduler"]
        return finding(evidence, "scheduler-unknown", what, *acts, scheduler=evidence.scheduler)
    may_ask = evidence.decision.is_missing and request.is_any and not pod.queue_label
    asks = ["ask-for-queue"] if may_ask else []
    what = f"{name} schedules the pod, not KAI"
    if request.share is not None:
        effect = "runs without a GPU" if pod.is_bound else "gets no GPU"
        what += f": its share of {request.text} is ignored, and it {effect}"
    elif pod.queue_label or (evidence.decision.known is not None and request.is_any):
        what += ": its queue does not count"
        what += f", and {request.text} is taken outside of every queue" if request.is_any else ""
    else:
        what += f": {one_line(condition.message)}" if condition and condition.status == "False" else ""
        return finding(evidence, "outside-kai", what, *([] if pod.is_bound else [*asks, "read-events"]))
    decision = evidence.decision.known or PolicyDecision()
    left = f"left-{decision.now_reason}"
    acts = [left] if left in ACTS else ["left-before"] * decision.now.startswith("changed")
    acts = [*([] if decision.reason else acts), *asks, "set-scheduler"]
    return finding(evidence, "other-scheduler", what, *acts, scheduler=evidence.scheduler)


def gated(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return the finding for a pod with scheduling gates, at which no scheduler looks."""
    gates = listed([gate.name for gate in pod.spec.scheduling_gates or ()])
    what = f"the pod has the scheduling gate {gates}: no scheduler looks at it before the gate is removed"
    return finding(evidence, "scheduling-gate", what, "open-gate") if gates else None


def refused_by_host(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return the finding for a pod of a vCluster that its host refuses (Event SyncError, v0.36.1)."""
    texts = [event.message for event in evidence.about_pod("SyncError") if HARMLESS[-1] not in event.message]
    has_refused = texts and not pod.pod_group_name  # else the host has accepted the pod
    return refusal(evidence, texts[-1]) if has_refused else None


def guarded(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return the finding for a pod whose PodGroup the guard refuses: the first one, else a change of it.

    The refusal is in the newest warning of KAI's pod-grouper about the pod, which vCluster copies to its
    tenant. Anyone who may create Events in the namespace can write one: the guard's words are quoted, and
    what to do comes from here.
    """
    own = {"", pod.metadata.uid}
    events = [e for e in _warnings(evidence) if e.component == "pod-grouper" and e.involved_object.uid in own]
    match = _REFUSAL.search(events[-1].message) if events else None
    if match is None:
        return None
    words = one_line(match.string[match.end() :], _LONGEST_WORDS)
    act = next((act for start, act in _GUARD_ACTS.items() if words.startswith(start)), "guard-other")
    if pod.pod_group_name:
        what = f"the guard keeps the pod's PodGroup as it is: {words}"
        return finding(evidence, "group-unchanged", what, act)
    return finding(evidence, "group-refused", f"the guard refuses the pod's PodGroup: {words}", act)


def _warnings(evidence: PodEvidence) -> list[Event]:
    """Return the warnings of KAI's pod-grouper that healthy pods do not have, oldest first."""
    events = evidence.about_pod("PodGrouperWarning")
    return [e for e in events if _REFUSAL.search(e.message) or not any(map(e.message.count, HARMLESS))]


def ungrouped(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return the finding for a pod without a PodGroup, which KAI's scheduler therefore does not know."""
    refused = guarded(evidence, pod)
    if pod.pod_group_name or refused is not None or not evidence.is_kai_served:
        return None if pod.pod_group_name else refused
    if warnings := _warnings(evidence):
        what = f"KAI's pod-grouper cannot group the pod: {one_line(warnings[-1].message)}"
        return finding(evidence, "pod-group-missing", what, "read-pod-grouper")
    age = waited(evidence.age)
    what = f"KAI's pod-grouper has not grouped the pod{age}, so that no scheduler looks at it"
    if not evidence.pod_events.is_known:
        return finding(evidence, "pod-group-missing", what, "read-events")  # they may name a refusal
    created = pod.metadata.creation_timestamp
    return silence(evidence, "pod-group-missing", what, created, ["start-kai"], program="pod-grouper")


def silence(
    evidence: PodEvidence, code: Code, what: str, since: datetime | None, acts: list[str], **values: Any
) -> PodFinding:
    """Return the finding for a program of KAI that has not acted since a moment; at first there is time."""
    age = evidence.since(since)
    if age is not None and age < SETTLED:
        return finding(evidence, code, what, "wait-seconds")
    return finding(evidence, code, what, *acts, **values)


def incomplete_gang(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return the finding for a gang that lacks pods, about which KAI repeats an Event, up to a limit."""
    events = evidence.about_groups("NotReady", pod.pod_group_name or "-")
    if evidence.verdict is not None or not events:
        return None
    is_counted = events[-1].last is not None and events[-1].times < REPEATED_BY_KAI
    if is_counted and evidence.now.timestamp() - events[-1].moment > SETTLED.total_seconds():
        return None
    what = f"the workload's pods are not complete: {one_line(events[-1].message)}"
    match = _WAITING.search(events[-1].message)
    details = {"needed": int(match[1]), "exist": int(match[2])} if match else {}
    return finding(evidence, "gang-incomplete", what, "find-missing-pods", details=details)


def node_pool(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a node pool for which KAI has no scheduler."""
    pool, shards = node_pool_of(evidence), evidence.shards
    is_served = any(text_at(shard.spec, "partitionLabelValue") == pool for shard in items(shards))
    is_known = evidence.pod_group.is_known and shards.is_answered  # without the kind, no pool has a scheduler
    if evidence.verdict is not None or not pool or not is_known or is_served:
        return None
    what = f"the pod names the node pool {pool}, for which KAI has no scheduler (SchedulingShard)"
    return finding(evidence, "node-pool-without-shard", what, "correct-node-pool", "create-shard")


def node_pool_of(evidence: PodEvidence) -> str:
    """Return the node pool of the pod's group or, unread, of the pod; empty for the default one."""
    pod, group = evidence.pod.known, evidence.pod_group.known
    labels = {**(pod.metadata.labels if pod else {}), **(group.metadata.labels if group else {})}
    return labels.get(keys.NODE_POOL_LABEL, "")


def no_scheduler(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a PodGroup about which the scheduler has said nothing.

    So do v0.9.8 of a queue that does not exist, and every release of a node pool without a SchedulingShard.
    """
    if evidence.verdict is not None or evidence.about_pod("Scheduled"):
        return None
    group = evidence.pod_group.known
    known: list[Fact[Any]] = [evidence.pod_group, evidence.bind_request, evidence.pod_events]
    known += [evidence.group_events, *evidence.queues.values()]
    known += [evidence.shards] if node_pool_of(evidence) and not evidence.shards.is_answered else []
    since = group.metadata.creation_timestamp if group else None
    what = f"KAI's scheduler has said nothing about the pod{waited(evidence.since(since) or evidence.age)}"
    acts = ["start-scheduler", "mend-root-queues"]
    return silence(evidence, "scheduler-silent", what, since, acts, excluded_by=known)


def not_served(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a pod about which nothing is said, where KAI's kinds are not served."""
    if evidence.is_kai_served or evidence.verdict is not None:
        return None
    how_long = waited(evidence.age)
    what = f"KAI has said nothing about the pod{how_long}, and KAI's objects are not on this API server"
    return finding(evidence, "kai-not-served", what, "ask-host", "check-dns", "install-kai")
