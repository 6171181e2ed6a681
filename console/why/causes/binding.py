"""Why a pod for which KAI chose a node is not bound: KAI's webhook, its binder, the reservation pod. Pure.

The condition PodBound and the Events Scheduled and Bound prove nothing: KAI v0.9.8, v0.13.4 and v0.17.0 wrote
them for pods that were never bound. BindRequests are created again for every attempt.
"""

from datetime import timedelta
from typing import Any, Final

from console.cluster.facts import Fact, items
from console.cluster.rules import is_missed_by_kai, missed_by_kai
from console.why.acts import finding
from console.why.causes.bound import how_ended
from console.why.causes.unscheduled import SETTLED
from console.why.evidence import PodEvidence, waited
from console.why.explanation import PodFinding
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


def missed(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return the finding for a pod with a share that KAI's webhook never saw, from the pod itself.

    Up to v0.17 KAI's webhook names a ConfigMap on every pod with a share (recorded with v0.9.8, v0.13.4 and
    v0.17.0). Since v0.18 a missing name proves nothing: the mode NvFractions has no ConfigMap
    (`gpu_sharing_nvfractions.go`). The binder's own words prove it with every release.
    """
    version = evidence.kai_version
    is_written = version is not None and not version.has_sharing_modes and not _has_nv_fractions(evidence)
    was_told = any(_NO_CONFIG_MAP in event.message for event in items(evidence.pod_events))
    is_missed = evidence.is_kai_served and is_missed_by_kai(pod) and (is_written or was_told)
    return _missed(evidence) if is_missed else None


def _has_nv_fractions(evidence: PodEvidence) -> bool:
    """Whether KAI's binder has written that mode's annotation on a pod, whatever the settings say."""
    annotations = (key for pod in items(evidence.shared_gpu_pods) for key in pod.metadata.annotations)
    return any(key.startswith(keys.CONTAINER_PREFIX) and key.endswith(".gpus.devices") for key in annotations)


def _missed(evidence: PodEvidence) -> PodFinding:
    what = missed_by_kai().sentence
    return finding(evidence, "kai-admission-missed", what, "delete-missed", "order-webhooks")


def _first_acts(evidence: PodEvidence) -> list[str]:
    """Return what to do first about a pod that KAI's webhook may have missed, with an unknown release."""
    pod, is_unknown = evidence.pod.known, evidence.kai_version is None and evidence.is_kai_served
    return ["delete-if-missed"] if is_unknown and pod is not None and is_missed_by_kai(pod) else []


def waiting_for_evicted(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a pod that KAI will place where evicted pods still end (Event Pipelined)."""
    events = [e for e in items(evidence.pod_events) if e.component in ("", keys.SCHEDULER_NAME) and e.last]
    newest = max(events, key=lambda event: event.last or evidence.now, default=None)
    if newest is None or newest.reason != "Pipelined" or evidence.bind_request.known is not None:
        return None
    if newest.last is not None and evidence.now - newest.last > _LONGEST_END:
        return None
    what = "KAI has evicted pods for this one, and waits until they have ended"
    return finding(evidence, "waiting-for-evicted", what, "wait-for-evicted")


def binding(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return why the binder has not bound the pod; None if KAI has not chosen a node."""
    request = evidence.bind_request.known
    error = _last_error(evidence)
    if request is None and (error is None or not _is_last(evidence, "BindingError", "Unschedulable")):
        return None
    text = error.message if error else (request.status.reason if request and request.status else "")
    bound = pod.status.condition("PodBound")
    text = text or (bound.message if bound and bound.status == "False" else "")
    if _NO_CONFIG_MAP in text:
        return _missed(evidence)
    if failed := _failed_reservation(evidence, request):
        return failed
    if _NO_RESERVATION in text:
        return _reservation_not_ready(evidence, f"{_RESERVES} has not reported its GPU in time")
    if text:
        what = f"KAI's binder cannot bind the pod: {one_line(text)}"
        acts = [*_first_acts(evidence), "wait-a-minute", "read-binder"]
        return finding(evidence, "binding-failed", what, *acts)
    return _in_progress(evidence, request) if request is not None else None


def chosen(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a pod for which KAI chose a node last, where the BindRequest cannot be read."""
    if evidence.bind_request.known is not None or not _is_last(evidence, "Scheduled", "Unschedulable"):
        return None
    what = "KAI chose a node, and the pod is not bound: KAI's binder does not run, or waits for the"
    acts = [*_first_acts(evidence), "wait-a-minute", "ask-for-binding"]
    return finding(evidence, "undecided", f"{what} reservation of the GPU", *acts)


def _last_error(evidence: PodEvidence) -> Event | None:
    """Return the binder's newest error; None if it is about an earlier attempt and some time ago."""
    errors = evidence.about_pod("BindingError")
    request = evidence.bind_request.known
    created = request.metadata.creation_timestamp if request is not None else None
    if not errors or errors[-1].last is None or created is None:
        return errors[-1] if errors else None
    return errors[-1] if errors[-1].last >= created or created - errors[-1].last < _ATTEMPT else None


def _is_last(evidence: PodEvidence, reason: str, other: str) -> bool:
    own, others = (max((e.moment for e in evidence.about_pod(each)), default=0.0) for each in (reason, other))
    return 0 < own >= others


def _reservation_not_ready(evidence: PodEvidence, what: str) -> PodFinding:
    acts = [*_first_acts(evidence), "wait-a-minute", "read-reservations"]
    return finding(evidence, "reservation-not-ready", what, *acts)


def _failed_reservation(evidence: PodEvidence, request: BindRequest | None) -> PodFinding | None:
    groups = frozenset((request.spec.selected_gpu_groups if request else None) or ())
    pods = [pod for pod in evidence.reservations if pod.gpu_groups & groups]
    if not pods or any(pod.status.phase != "Failed" for pod in pods):
        return None
    name, words = pods[0].name, how_ended(pods[0])
    what = f"KAI reserves the pod's GPU with the reservation pod {name}, which has failed: {words}"
    return finding(evidence, "reservation-failed", what, "read-failed-reservation", reservation=name)


def _in_progress(evidence: PodEvidence, request: BindRequest) -> PodFinding:
    groups = frozenset(request.spec.selected_gpu_groups or ())
    pods = [pod for pod in evidence.reservations if pod.gpu_groups & groups]
    reserved = [pod.metadata.annotations.get(keys.RESERVED_GPU, "") for pod in pods]
    if NO_RESERVED_GPU in reserved:
        return _reservation_not_ready(evidence, f"{_RESERVES} found no GPU")
    if "" in reserved:
        trouble = next((pod.status.trouble for pod in pods if pod.status.phase != "Running"), "")
        why = f" ({trouble})" if trouble not in ("", "Pending") else ""
        what = f"KAI chose a node, and {_WAITS_FOR} has not reported its GPU yet{why}"
        return _reservation_not_ready(evidence, what)
    age = evidence.since(request.metadata.creation_timestamp)
    if age is not None and age < SETTLED:
        passed = duration(age.total_seconds())
        what = f"KAI chose a node {passed} ago, and its binder has not answered yet"
        return finding(evidence, "binder-silent", what, "wait-seconds")
    what = f"KAI chose a node, and its binder has not answered{waited(age)}"
    acts = [*_first_acts(evidence), *(["find-reservation"] if groups and not evidence.reservations else [])]
    known: list[Fact[Any]] = [evidence.pod_events, *([evidence.shared_gpu_pods] if groups else [])]
    acts += ["start-kai"]
    return finding(evidence, "binder-silent", what, *acts, excluded_by=known, program="binder")
