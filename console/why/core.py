"""The core of `kaishare why`: from the evidence to the answer. Pure.

The rules are asked in the order in which a pod goes through Kubernetes and KAI; the first cause that applies
is the answer. A state that no rule knows is told as it is, with KAI's last words.
"""

from collections.abc import Iterator
from dataclasses import replace

from console.why.causes.binding import binding, chosen, waiting_for_evicted
from console.why.causes.bound import bound, failed, running, terminating
from console.why.causes.creation import evicted_before, refused_later, why_no_pod
from console.why.causes.group_refused import group_refused, group_unchanged
from console.why.causes.outside import gated, is_in_kai, outside_kai, ungrouped
from console.why.causes.queue_causes import full_queue, unexplained, unusable_queue
from console.why.causes.scheduler_verdict import SchedulerVerdict, verdict_of
from console.why.causes.silence import silent, waited
from console.why.causes.unschedulable import unschedulable
from console.why.causes.vcluster_host import ask_host, not_served, refused_by_host, without_host_commands
from console.why.evidence import Absence, PodEvidence
from console.why.evidence_objects import PodObject
from console.why.explanation import Code, Explanation, PodFinding, Remedy
from console.why.redaction import Redactor
from console.why.story import tell_story
from kai import keys


def explain(evidence: PodEvidence) -> Explanation:
    """Return the answer for a pod or workload."""
    redactor = Redactor.of(evidence)
    pod = evidence.pod
    findings = list(_findings(evidence, redactor))
    if not evidence.is_kai_served and not isinstance(pod, Absence):
        findings = list(map(without_host_commands, findings))
        cause = findings[0]
        findings[0] = replace(cause, remedies=[*cause.remedies, ask_host(pod)])
    return Explanation(
        namespace=evidence.namespace,
        kind=evidence.kind if isinstance(pod, Absence) else "Pod",
        name=evidence.name if isinstance(pod, Absence) else pod.name,
        state=_state(pod),
        findings=findings,
        story=tell_story(evidence, redactor),
        not_visible=evidence.not_visible,
        notes=evidence.notes,
    )


def find_cause(evidence: PodEvidence) -> PodFinding:
    """Return the cause alone, without the story."""
    return next(_findings(evidence, Redactor.of(evidence)))


def _state(pod: PodObject | Absence) -> str:
    if isinstance(pod, Absence):
        return "No pod"
    if pod.metadata.deletion_timestamp and pod.status.phase not in keys.FINISHED_PHASES:
        return "Terminating"
    return pod.status.phase or "Pending"


def _findings(evidence: PodEvidence, redactor: Redactor) -> Iterator[PodFinding]:
    """Yield the cause, then notes."""
    pod = evidence.pod
    if isinstance(pod, Absence):
        yield why_no_pod(evidence, redactor)
    elif pod.status.phase == "Succeeded":
        yield PodFinding(Code.SUCCEEDED, "all containers have ended without an error")
    elif pod.status.phase == "Failed":
        yield failed(pod, redactor)
    elif pod.metadata.deletion_timestamp:
        yield terminating(evidence, pod)
    elif not pod.is_bound:
        yield (
            _pending(evidence, pod, redactor)
            if is_in_kai(evidence, pod)
            else outside_kai(evidence, pod, redactor)
        )
        yield from filter(None, [group_unchanged(evidence, pod)])
        yield from evicted_before(evidence, redactor)
    else:
        findings = [] if is_in_kai(evidence, pod) else [outside_kai(evidence, pod, redactor)]
        findings += bound(evidence, pod, redactor)
        findings += refused_later(evidence, pod, redactor)
        yield from findings or [running(evidence, pod)]


def _pending(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> PodFinding:
    """Return why KAI has not bound a pod."""
    verdict = verdict_of(evidence)
    is_served = evidence.is_kai_served
    return (
        gated(pod, redactor)
        or refused_by_host(evidence, pod, redactor)
        or group_refused(evidence, pod)
        or (ungrouped(evidence, pod, redactor) if is_served else None)
        or waiting_for_evicted(evidence)
        or binding(evidence, pod, redactor)
        or chosen(evidence)
        or unusable_queue(evidence, verdict, redactor)
        or (_of_verdict(evidence, pod, verdict, redactor) if verdict else None)
        or (None if verdict else silent(evidence, pod, redactor))
        or (None if verdict or is_served else not_served(evidence))
        or _undecided(evidence, pod, verdict, redactor)
    )


def _of_verdict(
    evidence: PodEvidence, pod: PodObject, verdict: SchedulerVerdict, redactor: Redactor
) -> PodFinding | None:
    return (
        full_queue(evidence, verdict, redactor)
        or unschedulable(evidence, pod, verdict, redactor)
        or unexplained(evidence, verdict, redactor)
    )


def _undecided(
    evidence: PodEvidence, pod: PodObject, verdict: SchedulerVerdict | None, redactor: Redactor
) -> PodFinding:
    """Return the state as it is, for a cause that no rule knows."""
    age = evidence.since(verdict.since) if verdict and verdict.since else evidence.age
    words = f"; its last words: {redactor.clean(verdict.text)}" if verdict else ", and says nothing"
    return PodFinding(
        Code.UNDECIDED,
        f"KAI has not placed the pod{waited(age)}{words}",
        [
            *_names_to_check(evidence, pod, redactor),
            Remedy(
                "Ask an administrator to run the same command, and to look at the log of KAI's scheduler.",
                f"kaishare why -n {evidence.namespace} {evidence.name}",
            ),
        ],
    )


def _names_to_check(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> list[Remedy]:
    """Return the names on the pod that KAI may not know, which it does not always tell."""
    pool = pod.metadata.labels.get(keys.NODE_POOL_LABEL, "")
    names = [f"queue {redactor.clean(evidence.queue_name)}"] if evidence.queue_name else []
    names += [f"node pool {redactor.clean(pool)}"] if pool else []
    return [Remedy(f"Check the names that the pod uses: {', '.join(names)}.")] if names else []
