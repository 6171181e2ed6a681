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
from console.why.causes.unscheduled import silence
from console.why.evidence import PodEvidence, waited
from console.why.explanation import Code, PodFinding
from kai import keys
from kube.kinds import NO_RESERVED_GPU, BindRequest, Event, Pod
from service.text import one_line

_NO_CONFIG_MAP: Final = "no desired configmap name found"
_NO_RESERVATION: Final = "failed waiting for GPU reservation pod"
_RESERVES: Final = "KAI reserves the pod's GPU with a reservation pod, which"
_ATTEMPT: Final = timedelta(minutes=2)
"""Time within which an error of the binder explains the next attempt, which KAI makes every 40 s."""
_LONGEST_END: Final = timedelta(minutes=10)
"""Time after which a pod that waits for the end of evicted pods waits for something else."""


def missed(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return the finding for a pod with a share that KAI's webhook never saw, from the pod itself.

    Up to v0.17 KAI's webhook names a ConfigMap on every pod with a share (recorded with v0.9.8, v0.13.4 and
    v0.17.0). Since v0.18 a missing name proves nothing: the mode NvFractions has no ConfigMap
    (`gpu_sharing_nvfractions.go`), and its binder writes annotations on pods, whatever the settings say. The
    binder's own words prove it with every release.
    """
    version = evidence.kai_version
    annotations = (key for each in items(evidence.shared_gpu_pods) for key in each.metadata.annotations)
    has_mode = any(
        key.startswith(keys.CONTAINER_PREFIX) and key.endswith(".gpus.devices") for key in annotations
    )
    is_written = version is not None and not version.has_sharing_modes and not has_mode
    was_told = any(_NO_CONFIG_MAP in event.message for event in items(evidence.pod_events))
    is_missed = evidence.is_kai_served and is_missed_by_kai(pod) and (is_written or was_told)
    return _missed(evidence) if is_missed else None


def _missed(evidence: PodEvidence) -> PodFinding:
    what = missed_by_kai().sentence
    return finding(evidence, "kai-admission-missed", what, "delete-missed", "order-webhooks")


def _first_acts(evidence: PodEvidence) -> list[str]:
    """Return what to do first about a pod that KAI's webhook may have missed, with an unknown release."""
    pod, is_unknown = evidence.pod.known, evidence.kai_version is None and evidence.is_kai_served
    return ["delete-if-missed"] if is_unknown and pod is not None and is_missed_by_kai(pod) else []


def _waits(evidence: PodEvidence, code: Code, what: str, act: str) -> PodFinding:
    return finding(evidence, code, what, *_first_acts(evidence), "wait-a-minute", act)


def waiting_for_evicted(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a pod that KAI will place where evicted pods still end (Event Pipelined)."""
    events = [e for e in items(evidence.pod_events) if e.component in ("", keys.SCHEDULER_NAME) and e.last]
    newest = events[-1] if events else None
    if newest is None or newest.reason != "Pipelined" or evidence.bind_request.known is not None:
        return None
    if newest.last is not None and evidence.now - newest.last > _LONGEST_END:
        return None
    what = "KAI has evicted pods for this one, and waits until they have ended"
    return finding(evidence, "waiting-for-evicted", what, "wait-for-evicted")


def binding(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    """Return why the binder has not bound the pod; None if KAI has not chosen a node."""
    request, error = evidence.bind_request.known, _last_error(evidence)
    if request is None and (error is None or not _is_last(evidence, "BindingError")):
        return None
    text = error.message if error else (request.status.reason if request and request.status else "")
    bound = pod.status.condition("PodBound")
    text = text or (bound.message if bound and bound.status == "False" else "")
    if _NO_CONFIG_MAP in text:
        return _missed(evidence)
    groups = frozenset((request.spec.selected_gpu_groups if request else None) or ())
    pods = [each for each in evidence.reservations if each.gpu_groups & groups]
    if pods and all(each.status.phase == "Failed" for each in pods):
        what = f"KAI reserves the pod's GPU with the reservation pod {pods[0].name}, which has failed: "
        return finding(evidence, "reservation-failed", what + how_ended(pods[0]), "read-reservations")
    if _NO_RESERVATION in text:
        what = f"{_RESERVES} has not reported its GPU in time"
        return _waits(evidence, "reservation-not-ready", what, "read-reservations")
    if text:
        what = f"KAI's binder cannot bind the pod: {one_line(text)}"
        return _waits(evidence, "binding-failed", what, "read-binder")
    return _in_progress(evidence, request, pods) if request is not None else None


def chosen(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a pod for which KAI chose a node last, where the BindRequest cannot be read."""
    if evidence.bind_request.known is not None or not _is_last(evidence, "Scheduled"):
        return None
    what = "KAI chose a node, and the pod is not bound: KAI's binder does not run, or waits for the"
    return _waits(evidence, "undecided", f"{what} reservation of the GPU", "ask-for-binding")


def _last_error(evidence: PodEvidence) -> Event | None:
    """Return the binder's newest error; None if it is about an earlier attempt and some time ago."""
    error = next(reversed(evidence.about_pod("BindingError")), None)
    request = evidence.bind_request.known
    created = request.metadata.creation_timestamp if request is not None else None
    if error is None or error.last is None or created is None:
        return error
    return error if created - error.last < _ATTEMPT else None


def _is_last(evidence: PodEvidence, reason: str) -> bool:
    both = [evidence.about_pod(each) for each in (reason, "Unschedulable")]
    own, verdict = (events[-1].moment if events else 0.0 for events in both)
    return 0 < own >= verdict


def _in_progress(evidence: PodEvidence, request: BindRequest, pods: list[Pod]) -> PodFinding:
    reserved = [pod.metadata.annotations.get(keys.RESERVED_GPU, "") for pod in pods]
    if NO_RESERVED_GPU in reserved:
        what = f"{_RESERVES} found no GPU"
        return _waits(evidence, "reservation-not-ready", what, "read-reservations")
    if "" in reserved:
        trouble = next((pod.status.trouble for pod in pods if pod.status.phase != "Running"), "")
        why = f" ({trouble})" if trouble not in ("", "Pending") else ""
        what = (
            "KAI chose a node, and waits for the reservation pod of the GPU, which has not reported its GPU"
        )
        return _waits(evidence, "reservation-not-ready", f"{what} yet{why}", "read-reservations")
    groups, created = request.spec.selected_gpu_groups, request.metadata.creation_timestamp
    what = f"KAI chose a node, and its binder has not answered{waited(evidence.since(created))}"
    known: list[Fact[Any]] = [evidence.pod_events, *([evidence.shared_gpu_pods] if groups else [])]
    unseen = ["read-reservations"] if groups and not evidence.reservations else []
    acts = [*_first_acts(evidence), *unseen, "start-kai"]
    return silence(evidence, "binder-silent", what, created, acts, excluded_by=known, program="binder")
