"""The core of `kaishare why`: from the evidence to the answer. Pure.

The rules are asked in the order in which a pod goes through Kubernetes and KAI; the first cause that applies
is the answer. A state that no rule knows is told as it is, with KAI's last words.
"""

from collections.abc import Iterator

from console.why.answer import Answer, Finding, Remedy
from console.why.causes.binding import binding, chosen, waiting_for_evicted
from console.why.causes.bound import bound, failed, running, terminating
from console.why.causes.creation import evicted_before, why_no_pod
from console.why.causes.host import ask_host, not_served, refused_by_host, without_host_commands
from console.why.causes.outside import gated, is_in_kai, outside_kai, ungrouped
from console.why.causes.queues import full_queue, unexplained, unusable_queue
from console.why.causes.silence import silent
from console.why.causes.unschedulable import unschedulable
from console.why.causes.words_of_kai import Verdict, verdict_of
from console.why.codes import Code
from console.why.evidence import Absence, Evidence
from console.why.objects import Pod
from console.why.story import tell_story
from console.why.words import Redactor
from service.units import duration

_ENDED = ("Succeeded", "Failed")


def explain(evidence: Evidence) -> Answer:
    """Return the answer for a pod or workload."""
    redactor = Redactor.of(evidence)
    pod = evidence.pod
    findings = list(_findings(evidence, redactor))
    notes = list(evidence.notes)
    if not evidence.is_kai_served and not isinstance(pod, Absence):
        findings = list(map(without_host_commands, findings))
        notes.append(ask_host(evidence))
    return Answer(
        namespace=evidence.namespace,
        kind=evidence.kind if isinstance(pod, Absence) else "Pod",
        name=evidence.name if isinstance(pod, Absence) else pod.name,
        state=_state(pod),
        findings=findings,
        story=tell_story(evidence, redactor),
        not_visible=evidence.not_visible,
        notes=notes,
    )


def find_cause(evidence: Evidence) -> Finding:
    """Return the cause alone, without the story."""
    return next(_findings(evidence, Redactor.of(evidence)))


def _state(pod: Pod | Absence) -> str:
    if isinstance(pod, Absence):
        return "No pod"
    if pod.metadata.deletion_timestamp and pod.status.phase not in _ENDED:
        return "Terminating"
    return pod.status.phase or "Pending"


def _findings(evidence: Evidence, redactor: Redactor) -> Iterator[Finding]:
    """Yield the cause, then notes."""
    pod = evidence.pod
    if isinstance(pod, Absence):
        yield why_no_pod(evidence, redactor)
    elif pod.status.phase == "Succeeded":
        yield Finding(Code.SUCCEEDED, "all containers have ended without an error")
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
        yield from evicted_before(evidence, redactor)
    else:
        findings = [] if is_in_kai(evidence, pod) else [outside_kai(evidence, pod, redactor)]
        findings += bound(evidence, pod, redactor)
        yield from findings or [running(evidence, pod)]


def _pending(evidence: Evidence, pod: Pod, redactor: Redactor) -> Finding:
    """Return why KAI has not bound a pod."""
    verdict = verdict_of(evidence)
    is_served = evidence.is_kai_served
    return (
        gated(pod, redactor)
        or refused_by_host(evidence, pod, redactor)
        or (ungrouped(evidence, pod, redactor) if is_served else None)
        or waiting_for_evicted(evidence)
        or binding(evidence, pod, redactor)
        or unusable_queue(evidence, verdict, redactor)
        or (_of_verdict(evidence, pod, verdict, redactor) if verdict else None)
        or (None if verdict else silent(evidence, pod, redactor))
        or chosen(evidence)
        or (None if verdict or is_served else not_served(evidence))
        or _undecided(evidence, verdict, redactor)
    )


def _of_verdict(evidence: Evidence, pod: Pod, verdict: Verdict, redactor: Redactor) -> Finding | None:
    return (
        full_queue(evidence, verdict, redactor)
        or unschedulable(evidence, pod, verdict, redactor)
        or unexplained(evidence, verdict, redactor)
    )


def _undecided(evidence: Evidence, verdict: Verdict | None, redactor: Redactor) -> Finding:
    """Return the state as it is, for a cause that no rule knows."""
    since = verdict.since if verdict else None
    age = evidence.age
    seconds = (
        (evidence.now - since).total_seconds() if since else age.total_seconds() if age is not None else None
    )
    waited = "" if seconds is None else f" for {duration(max(seconds, 0.0))}"
    words = f"; its last words: {redactor.clean(verdict.text)}" if verdict else ", and says nothing"
    return Finding(
        Code.UNDECIDED,
        f"KAI has not placed the pod{waited}{words}",
        [
            Remedy(
                "Ask an administrator to run the same command, and to look at the log of KAI's scheduler.",
                f"kaishare why -n {evidence.namespace} {evidence.name}",
            )
        ],
    )
