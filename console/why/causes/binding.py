"""Why a pod for which KAI chose a node is not bound. Pure.

The condition PodBound and the Events Scheduled and Bound prove nothing: KAI v0.9.8, v0.13.4 and v0.17.0 wrote
them for pods that were never bound. BindRequests are created again for every attempt.
"""

from datetime import timedelta
from typing import Any, Final

from console.cluster.facts import Fact, items
from console.cluster.rules import is_missed_by_kai, missed_by_kai
from console.why.acts import finding
from console.why.causes.unscheduled import SETTLED
from console.why.evidence import PodEvidence, is_reservation, waited
from console.why.explanation import Code, PodFinding
from kai import keys
from kube.kinds import NO_RESERVED_GPU, BindRequest, Event, Pod
from service.text import one_line
from service.units import duration

_NO_CONFIG_MAP: Final = "no desired configmap name found"
_NO_RESERVATION: Final = "failed waiting for GPU reservation pod"
_RESERVES: Final = "KAI reserves the pod's GPU with a reservation pod, which"
_WAITS_FOR: Final = "waits for the reservation pod of the GPU, which"
_ATTEMPT: Final = timedelta(minutes=2)
"""Time within which an error of the binder explains the next attempt, which KAI makes every 40 s."""
_LONGEST_END: Final = timedelta(minutes=10)
"""Time after which a pod that waits for the end of evicted pods waits for something else."""


def waiting_for_evicted(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a pod that KAI will place where pods that it evicted still end.

    The Event Pipelined tells of it in v0.9.8, v0.13.4 and v0.17.0.
    """
    events = [e for e in items(evidence.pod_events) if e.component in ("", keys.SCHEDULER_NAME) and e.last]
    newest = max(events, key=lambda event: event.last or evidence.now, default=None)
    if newest is None or newest.reason != "Pipelined" or evidence.bind_request.known is not None:
        return None
    if newest.last is not None and evidence.now - newest.last > _LONGEST_END:
        return None
    what = "KAI has evicted pods for this one, and waits until they have ended"
    return finding(evidence, Code.WAITING_FOR_EVICTED, what, "wait-for-evicted")


def binding(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return why the binder has not bound the pod; None if KAI has not chosen a node."""
    request = evidence.bind_request.known
    error = _last_error(evidence)
    if request is None and (error is None or not _is_last(evidence, "BindingError", "Unschedulable")):
        return None
    text = error.message if error else (request.status.reason if request and request.status else "")
    bound = pod.status.condition("PodBound")
    text = text or (bound.message if bound and bound.status == "False" else "")
    # Later attempts of v0.9.8 have another error than the one that tells of the missed webhook.
    was_told = any(_NO_CONFIG_MAP in event.message for event in items(evidence.pod_events))
    if _NO_CONFIG_MAP in text or (was_told and is_missed_by_kai(pod)):
        missed = missed_by_kai()
        return finding(
            evidence, Code.KAI_ADMISSION_MISSED, missed.sentence, "delete-missed", "order-webhooks"
        )
    if _NO_RESERVATION in text:
        return _reservation_not_ready(evidence, f"{_RESERVES} has not reported its GPU in time")
    if text:
        what = f"KAI's binder cannot bind the pod: {one_line(text)}"
        return finding(evidence, Code.BINDING_FAILED, what, "wait-for-binder", "read-binder")
    return _in_progress(evidence, request) if request is not None else None


def chosen(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a pod for which KAI chose a node last, where the BindRequest cannot be read."""
    if evidence.bind_request.known is not None or not _is_last(evidence, "Scheduled", "Unschedulable"):
        return None
    return _unbound(evidence)


def _unbound(evidence: PodEvidence) -> PodFinding:
    what = (
        "KAI chose a node, and the pod is not bound: KAI's binder does not run, or waits for the reservation"
        " of the GPU"
    )
    return finding(evidence, Code.UNDECIDED, what, "wait-a-minute", "ask-for-binding")


def _last_error(evidence: PodEvidence) -> Event | None:
    """Return the binder's newest error; None if it is about an earlier attempt and some time ago."""
    errors = [event for event in items(evidence.pod_events) if event.reason == "BindingError"]
    request = evidence.bind_request.known
    created = request.metadata.creation_timestamp if request is not None else None
    if not errors or errors[-1].last is None or created is None:
        return errors[-1] if errors else None
    return errors[-1] if errors[-1].last >= created or created - errors[-1].last < _ATTEMPT else None


def _is_last(evidence: PodEvidence, reason: str, other: str) -> bool:
    """Whether there is an Event of a reason, and none of another reason after it."""
    times = {
        each: max(
            (e.last.timestamp() for e in items(evidence.pod_events) if e.reason == each and e.last),
            default=0.0,
        )
        for each in (reason, other)
    }
    return 0 < times[reason] >= times[other]


def _reservation_not_ready(evidence: PodEvidence, what: str) -> PodFinding:
    return finding(evidence, Code.RESERVATION_NOT_READY, what, "wait-for-reservation", "read-reservations")


def _in_progress(evidence: PodEvidence, request: BindRequest) -> PodFinding:
    """Return the finding for a BindRequest without a result and without an error."""
    groups = frozenset(request.spec.selected_gpu_groups or ())
    reserved = [
        pod.metadata.annotations.get(keys.RESERVED_GPU, "")
        for pod in items(evidence.shared_gpu_pods)
        if is_reservation(pod) and pod.gpu_groups & groups
    ]
    if NO_RESERVED_GPU in reserved:
        return _reservation_not_ready(evidence, f"{_RESERVES} found no GPU")
    if "" in reserved:
        what = f"KAI chose a node, and {_WAITS_FOR} has not reported its GPU yet"
        return _reservation_not_ready(evidence, what)
    age = evidence.since(request.metadata.creation_timestamp)
    if age is not None and age < SETTLED:
        passed = duration(age.total_seconds())
        what = f"KAI chose a node {passed} ago, and its binder has not answered yet"
        return finding(evidence, Code.BINDER_SILENT, what, "wait-seconds")
    what = f"KAI chose a node, and its binder has not answered{waited(age)}"
    acts = ["find-reservation"] if groups and not evidence.has_reservations else []
    excluded_by: list[Fact[Any]] = [
        evidence.pod_events,
        *([evidence.shared_gpu_pods] if groups else []),
    ]
    return finding(evidence, Code.BINDER_SILENT, what, *acts, "start-binder", excluded_by=excluded_by)
