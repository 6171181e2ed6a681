"""Why a workload has no pod, or how a pod that is gone has ended. Pure."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from console.cluster.facts import items
from console.cluster.rules import refuser_of, sharing_off, unreachable_webhook
from console.why.acts import finding
from console.why.evidence import PodEvidence
from console.why.explanation import Code, PodFinding
from kube.kinds import Event, Pod
from service.text import one_line
from service.units import duration

COMBINED: Final = "(combined from similar events): "
_STALE_JOB: Final = re.compile(r"([0-9]{1,6}) pods are active, minMember is ([0-9]{1,6})")
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
    if removed is None:
        return _untold(evidence)
    if removed.reason == "Evict":
        return _evicted(evidence, removed, "the pod", "create-again")
    match = _STALE_JOB.search(removed.message)
    left = f"{match[1]} of the {match[2]} that it needs were left" if match else one_line(removed.message)
    what = f"KAI evicted the workload's pods, because the group had lost a member: {left}"
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


def _untold(evidence: PodEvidence) -> PodFinding:
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


def _not_wanted(evidence: PodEvidence) -> PodFinding | None:
    workload, name = evidence.workload.known, f"{evidence.kind} {evidence.name}"
    if workload is not None and workload.spec.suspend:
        return finding(evidence, "no-pod", f"{name} is suspended", "resume")
    if workload is not None and workload.spec.replicas == 0:
        return finding(evidence, "no-pod", f"{name} has 0 replicas", "scale-up")
    return None
