"""Why KAI's scheduler has not decided about a pod: another scheduler, a gate, no PodGroup, silence. Pure."""

import re
from datetime import timedelta
from typing import Any, Final

from console.cluster.facts import Fact, Why, items
from console.why.acts import ACTS, finding
from console.why.causes.creation import refusal
from console.why.evidence import PodEvidence, PolicyDecision, request_of, waited
from console.why.explanation import Code, PodFinding
from kai import keys
from kube.kinds import Event, Pod, text_at
from service.text import listed, one_line
from service.units import duration

SETTLED: Final = timedelta(seconds=20)
"""Time after which a program of KAI is probably down; each was done within 3 s (v0.9.8, v0.13.4, v0.17.0)."""
HARMLESS: Final = ("not found", "already exists", "the object has been modified")
"""Parts of the texts of PodGrouperWarning that healthy pods have, too (all three releases)."""
_MOST_REPEATED: Final = 25
"""KAI's client writes an Event at most 25 times for an object (client-go, `events_cache.go`)."""
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
_WAITING: Final = re.compile(
    r"Waiting for ([0-9]{1,6}) pods(?: for SubGroup (\S{1,253}))?, currently ([0-9]{1,6}) exist,"
    r" ([0-9]{1,6}) are gated"
)


def is_in_kai(pod: Pod, scheduler: str) -> bool:
    """Whether KAI's scheduler, or the one that the policy names, schedules the pod."""
    name = pod.spec.scheduler_name
    is_other = name == keys.DEFAULT_SCHEDULER or not pod.pod_group_name
    return name in (keys.SCHEDULER_NAME, scheduler) or not is_other


def outside_kai(evidence: PodEvidence, pod: Pod) -> PodFinding:
    """Return the finding for a pod that another scheduler schedules."""
    name = pod.spec.scheduler_name
    condition = pod.status.condition("PodScheduled")
    request = request_of(pod)
    if name != keys.DEFAULT_SCHEDULER and not pod.is_bound and condition is None:
        yet = " yet" if evidence.age is not None and evidence.age < SETTLED else ""
        what = f"the pod names the scheduler {name}, and no program has looked at the pod{yet}"
        acts = ["correct-scheduler", "set-scheduler"]
        return finding(evidence, Code.SCHEDULER_UNKNOWN, what, *acts, scheduler=evidence.scheduler)
    may_ask = evidence.decision.is_missing and request.is_any and not pod.queue_label
    asks = ["ask-for-queue"] if may_ask else []
    if request.is_share:
        effect = "runs without a GPU" if pod.is_bound else "gets no GPU"
        effect = f"its share of {request.text} is ignored, and it {effect}"
    elif pod.queue_label or (evidence.decision.known is not None and request.is_any):
        effect = "its queue does not count"
        effect += f", and {request.text} is taken outside of every queue" if request.is_any else ""
    else:
        says = f": {one_line(condition.message)}" if condition and condition.status == "False" else ""
        acts = [] if pod.is_bound else [*asks, "read-events"]
        return finding(evidence, Code.OUTSIDE_KAI, f"{name} schedules the pod, not KAI{says}", *acts)
    acts = [*_left_alone(evidence), *asks, "set-scheduler"]
    what = f"{name} schedules the pod, not KAI: {effect}"
    return finding(evidence, Code.OTHER_SCHEDULER, what, *acts, scheduler=evidence.scheduler)


def _left_alone(evidence: PodEvidence) -> list[str]:
    decision = evidence.decision.known or PolicyDecision()
    act = f"left-{decision.now_reason}"
    acts = [act] if act in ACTS else ["left-before"] * decision.now.startswith("changed")
    return [] if decision.reason else acts


def gated(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return the finding for a pod with scheduling gates, at which no scheduler looks."""
    gates = listed([gate.name for gate in pod.spec.scheduling_gates or ()])
    if not gates:
        return None
    what = f"the pod has the scheduling gate {gates}: no scheduler looks at it before the gate is removed"
    return finding(evidence, Code.SCHEDULING_GATE, what, "open-gate")


def refused_by_host(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return the finding for a pod of a vCluster that its host refuses (Event SyncError, v0.36.1)."""
    if pod.pod_group_name:
        return None  # the host has accepted the pod
    texts = [event.message for event in evidence.about_pod("SyncError") if HARMLESS[-1] not in event.message]
    return refusal(evidence, texts[-1]) if texts else None


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
    code, what = Code.GROUP_REFUSED, "the guard refuses the pod's PodGroup"
    if pod.pod_group_name:
        code, what = Code.GROUP_UNCHANGED, "the guard keeps the pod's PodGroup as it is"
    return finding(evidence, code, f"{what}: {words}", act)


def _warnings(evidence: PodEvidence) -> list[Event]:
    """Return the warnings of KAI's pod-grouper that healthy pods do not have, oldest first."""
    events = evidence.about_pod("PodGrouperWarning")
    return [e for e in events if _REFUSAL.search(e.message) or not any(map(e.message.count, HARMLESS))]


def ungrouped(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return the finding for a pod without a PodGroup, which KAI's scheduler therefore does not know."""
    if pod.pod_group_name:
        return None
    refused = guarded(evidence, pod)
    if refused is not None or not evidence.is_kai_served:
        return refused
    code, warnings = Code.POD_GROUP_MISSING, _warnings(evidence)
    if warnings:
        what = f"KAI's pod-grouper cannot group the pod: {one_line(warnings[-1].message)}"
        return finding(evidence, code, what, "read-pod-grouper")
    age = evidence.age
    what = f"KAI's pod-grouper has not grouped the pod{waited(age)}, so that no scheduler looks at it"
    if not evidence.pod_events.is_known:
        return finding(evidence, code, what, "read-events")  # they may name a refusal
    if age is not None and age < SETTLED:
        passed = duration(age.total_seconds())
        what = f"KAI's pod-grouper has not grouped the pod yet, {passed} after its creation"
        return finding(evidence, code, what, "wait-seconds")
    return finding(evidence, code, what, "start-kai", program="pod-grouper")


def incomplete_gang(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return the finding for a gang that lacks pods."""
    events = evidence.about_groups("NotReady", pod.pod_group_name or "-")
    if evidence.verdict is not None or not events or _is_over(evidence, events[-1]):
        return None
    match, details = _WAITING.search(events[-1].message), {}
    what = f"the workload's pods are not complete: {one_line(events[-1].message)}"
    if match is not None:
        of = f" of its part {match[2]}" if match[2] else ""
        gates = f", {match[4]} of them with a scheduling gate" if match[4] != "0" else ""
        exist = f"{match[3]} exist{'s' * (match[3] == '1')}"
        what = f"the workload needs {match[1]} pods{of} at the same time, and only {exist}{gates}"
        details = {"needed": int(match[1]), "exist": int(match[3])}
    return finding(evidence, Code.GANG_INCOMPLETE, what, "find-missing-pods", details=details)


def _is_over(evidence: PodEvidence, event: Event) -> bool:
    """Whether a gang has been completed since: KAI repeats the Event while it is true, up to a limit."""
    is_counted = event.last is not None and event.times < _MOST_REPEATED
    return is_counted and evidence.now.timestamp() - event.moment > SETTLED.total_seconds()


def node_pool(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a node pool for which KAI has no scheduler."""
    pool = node_pool_of(evidence)
    is_known = evidence.pod_group.is_known and _are_shards_known(evidence)
    is_served = any(text_at(shard.spec, "partitionLabelValue") == pool for shard in items(evidence.shards))
    if evidence.verdict is not None or not pool or not is_known or is_served:
        return None
    what = f"the pod names the node pool {pool}, for which KAI has no scheduler (SchedulingShard)"
    return finding(evidence, Code.NODE_POOL_WITHOUT_SHARD, what, "correct-node-pool", "create-shard")


def node_pool_of(evidence: PodEvidence) -> str:
    """Return the node pool of the pod's group or, unread, of the pod; empty for the default one."""
    pod, group = evidence.pod.known, evidence.pod_group.known
    labels = {**(pod.metadata.labels if pod else {}), **(group.metadata.labels if group else {})}
    return labels.get(keys.NODE_POOL_LABEL, "")


def _are_shards_known(evidence: PodEvidence) -> bool:  # without the kind, no node pool has a scheduler
    return evidence.shards.is_known or evidence.shards.why is Why.UNSERVED


def no_scheduler(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a PodGroup about which the scheduler has said nothing.

    So do v0.9.8 of a queue that does not exist, and every release of a node pool without a SchedulingShard.
    """
    if evidence.verdict is not None or evidence.about_pod("Scheduled"):
        return None
    group = evidence.pod_group.known
    known: list[Fact[Any]] = [evidence.pod_group, evidence.bind_request, evidence.pod_events]
    known += [evidence.group_events, *evidence.queues.values()]
    known += [evidence.shards] if node_pool_of(evidence) and not _are_shards_known(evidence) else []
    age = evidence.since(group.metadata.creation_timestamp) if group else evidence.age
    if group is not None and age is not None and age < SETTLED:
        passed = duration(age.total_seconds())
        what = f"KAI's scheduler has not looked at the pod yet, {passed} after it was grouped"
        acts = ["wait-seconds"]
    else:
        what = f"KAI's scheduler has said nothing about the pod{waited(age)}"
        acts = ["start-scheduler", "mend-root-queues"]
    return finding(evidence, Code.SCHEDULER_SILENT, what, *acts, excluded_by=known)


def not_served(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a pod about which nothing is said, where KAI's kinds are not served."""
    if evidence.is_kai_served or evidence.verdict is not None:
        return None
    how_long = waited(evidence.age)
    what = f"KAI has said nothing about the pod{how_long}, and KAI's objects are not on this API server"
    return finding(evidence, Code.KAI_NOT_SERVED, what, "ask-host", "check-dns", "install-kai")
