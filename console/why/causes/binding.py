"""Why a pod for which KAI chose a node is not bound. Pure.

The condition PodBound and the Events Scheduled and Bound prove nothing: KAI v0.9.8, v0.13.4 and v0.17.0 wrote
them for pods that were never bound. BindRequests are created again for every attempt.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from console.why.causes.silence import KAI_PODS, silence
from console.why.evidence import PodEvidence, known
from console.why.evidence_objects import NO_RESERVED_GPU, EventObject, PodObject
from console.why.explanation import Code, PodFinding, Remedy
from console.why.redaction import Redactor
from kai import keys

_NO_CONFIG_MAP: Final = "no desired configmap name found"
_NO_RESERVATION: Final = "failed waiting for GPU reservation pod"
_ATTEMPT: Final = timedelta(minutes=2)
"""Time within which an error of the binder explains the next attempt, which KAI makes every 40 s."""
_LONGEST_END: Final = timedelta(minutes=10)
"""Time after which a pod that waits for the end of evicted pods waits for something else."""
_RESERVATION_PODS: Final = (
    f"kubectl get pods --all-namespaces --selector {keys.APP_LABEL}={keys.RESERVATION_APP}"
)


def binding(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> PodFinding | None:
    """Return why the binder has not bound the pod; None if KAI has not chosen a node."""
    request = known(evidence.bind_request)
    error = _last_error(evidence, pod)
    if request is None and (error is None or not _is_last(evidence, "BindingError", "Unschedulable")):
        return None
    text = error.message if error else (request.status.reason if request and request.status else "")
    text = text or _condition_text(pod)
    if _NO_CONFIG_MAP in text or (
        keys.SHARED_GPU_CONFIGMAP not in pod.metadata.annotations and _was_missed(evidence)
    ):
        return _admission_missed(pod)
    if _NO_RESERVATION in text:
        return _reservation_not_ready(
            "KAI reserves the pod's GPU with a reservation pod, which has not reported its GPU in time"
        )
    if text:
        return PodFinding(
            Code.BINDING_FAILED,
            f"KAI's binder cannot bind the pod: {redactor.clean(text)}",
            [
                Remedy("KAI tries again, perhaps on another node: wait a minute."),
                Remedy("If it repeats, an administrator looks at the log of KAI's binder.", KAI_PODS),
            ],
        )
    return _in_progress(evidence)


def waiting_for_evicted(evidence: PodEvidence) -> PodFinding | None:
    """Return the finding for a pod that KAI will place where pods that it evicted still end.

    The Event Pipelined tells of it in v0.9.8, v0.13.4 and v0.17.0.
    """
    events = [
        event for event in evidence.pod_events if event.component in ("", keys.SCHEDULER_NAME) and event.last
    ]
    newest = max(events, key=lambda event: event.last or evidence.now, default=None)
    if newest is None or newest.reason != "Pipelined" or known(evidence.bind_request) is not None:
        return None
    if newest.last is not None and evidence.now - newest.last > _LONGEST_END:
        return None
    return PodFinding(
        Code.WAITING_FOR_EVICTED,
        "KAI has evicted pods for this one, and waits until they have ended",
        [Remedy("Wait: an evicted pod may take its terminationGracePeriodSeconds, 30 s by default.")],
    )


def chosen(evidence: PodEvidence) -> PodFinding | None:
    """Return the finding for a pod for which KAI chose a node last, where the BindRequest cannot be read."""
    if known(evidence.bind_request) is not None or not _is_last(evidence, "Scheduled", "Unschedulable"):
        return None
    return PodFinding(
        Code.UNDECIDED,
        "KAI chose a node, and the pod is not bound: KAI's binder does not run, or waits for the reservation"
        " of the GPU",
        [
            Remedy("Wait a minute; KAI tries again."),
            Remedy(
                f"Then ask an administrator: kaishare why -n {evidence.namespace}"
                f" {evidence.name} shows more with"
                " the right to read bindrequests.scheduling.run.ai and the pods of kai-resource-reservation."
            ),
        ],
    )


def _last_error(evidence: PodEvidence, pod: PodObject) -> EventObject | None:
    """Return the binder's newest error; None if it is about an earlier attempt and some time ago."""
    errors = [event for event in evidence.pod_events if event.reason == "BindingError"]
    if not errors or pod.is_bound:
        return None
    error, request = errors[-1], known(evidence.bind_request)
    created = request.metadata.creation_timestamp if request is not None else None
    if error.last is None or created is None:
        return error
    return error if error.last >= created or created - error.last < _ATTEMPT else None


def _is_last(evidence: PodEvidence, reason: str, other: str) -> bool:
    """Whether there is an Event of a reason, and none of another reason after it."""
    last = {each: _last_time(evidence, each) for each in (reason, other)}
    return last[reason] is not None and (last[other] or 0.0) <= (last[reason] or 0.0)


def _last_time(evidence: PodEvidence, reason: str) -> float | None:
    times = [event.last.timestamp() for event in evidence.pod_events if event.reason == reason and event.last]
    return max(times, default=None)


def _was_missed(evidence: PodEvidence) -> bool:
    """Whether the binder has missed what KAI's webhook adds; later attempts of v0.9.8 lack a GPU."""
    return any(_NO_CONFIG_MAP in event.message for event in evidence.pod_events)


def _condition_text(pod: PodObject) -> str:
    condition = pod.status.condition("PodBound")
    return condition.message if condition and condition.status == "False" else ""


def _admission_missed(pod: PodObject) -> PodFinding:
    return PodFinding(
        Code.KAI_ADMISSION_MISSED,
        "the pod was created without KAI's webhook, which would have prepared it for a share: KAI can never"
        " bind it",
        [
            Remedy(
                "Delete the pod and create it again.",
                f"kubectl delete pod {pod.name} --namespace {pod.metadata.namespace}",
            ),
            Remedy(
                "Administrator: kaishare's webhook must be called before KAI's, so its name must sort first.",
                "kubectl get mutatingwebhookconfigurations",
            ),
        ],
    )


def _reservation_not_ready(sentence: str) -> PodFinding:
    return PodFinding(
        Code.RESERVATION_NOT_READY,
        sentence,
        [
            Remedy("Wait a minute; KAI tries again every 40 s."),
            Remedy(
                "If it lasts, an administrator looks at the reservation pods: image,"
                " RuntimeClass, device plugin.",
                _RESERVATION_PODS,
            ),
        ],
    )


def _in_progress(evidence: PodEvidence) -> PodFinding:
    """Return the finding for a BindRequest without a result and without an error."""
    request = known(evidence.bind_request)
    groups = (request.spec.selected_gpu_groups if request else None) or ()
    reservations = _reservations(known(evidence.shared_gpu_pods) or (), groups)
    if any(_reserved_gpu(each) == NO_RESERVED_GPU for each in reservations):
        return _reservation_not_ready("KAI reserves the pod's GPU with a reservation pod, which found no GPU")
    if any(not _reserved_gpu(each) for each in reservations):
        return _reservation_not_ready(
            "KAI chose a node, and waits for the reservation pod of the GPU, which has not"
            " reported its GPU yet"
        )
    created = request.metadata.creation_timestamp if request else None
    remedies = [Remedy("Administrator: start KAI's binder again.", KAI_PODS)]
    if groups and not are_reservations_visible(evidence):
        what = "Administrator: find out whether the reservation pod of the GPU has started."
        remedies.insert(0, Remedy(what, _RESERVATION_PODS))
    return silence(
        Code.BINDER_SILENT,
        evidence.since(created),
        remedies,
        at_first="KAI chose a node {} ago, and its binder has not answered yet",
        later="KAI chose a node, and its binder has not answered{}",
    )


def _reservations(pods: Sequence[PodObject], groups: Sequence[str]) -> list[PodObject]:
    return [pod for pod in pods if is_reservation(pod) and pod.gpu_groups & set(groups)]


def is_reservation(pod: PodObject) -> bool:
    """Whether the pod is one of KAI's reservation pods, in the namespace that KAI uses by default.

    Only KAI may create pods in that namespace, and anyone may write the labels on pods elsewhere. KAI can use
    another namespace (`--resource-reservation-namespace` of the binder), whose pods do not count.
    """
    return (
        pod.metadata.namespace == keys.RESERVATION_APP
        and pod.metadata.labels.get(keys.APP_LABEL) == keys.RESERVATION_APP
    )


def are_reservations_visible(evidence: PodEvidence) -> bool:
    """Whether any reservation pod was read, so that a missing one means something."""
    return any(map(is_reservation, known(evidence.shared_gpu_pods) or ()))


def _reserved_gpu(pod: PodObject) -> str:
    return pod.metadata.annotations.get(keys.RESERVED_GPU, "")
