"""What is the matter with a pod that has a node: its containers, its GPU, its flags; and notes. Pure."""

from collections.abc import Iterator
from datetime import UTC
from typing import Final

from console.why.causes.binding import are_reservations_visible, is_reservation
from console.why.causes.group_refused import group_unchanged
from console.why.causes.requested_gpus import request_of
from console.why.causes.silence import KAI_PODS, SETTLED, waited
from console.why.evidence import AgentFigures, PodEvidence, known
from console.why.evidence_objects import NO_RESERVED_GPU, EventObject, PodObject
from console.why.explanation import Code, PodFinding, Remedy
from console.why.redaction import Redactor
from gpuagent.api_types import ApiVerdict
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.messages import WITHIN_SHARE
from kai import keys
from kube.kinds import ContainerStatus
from service.names import is_dns_label
from service.text import first_few, one_line, quoted
from service.units import duration, size

_STARTING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
_MANY_RESTARTS: Final = 3
_CONTROLLERS: Final = frozenset({"ReplicaSet", "Job", "StatefulSet", "DaemonSet", "ReplicationController"})
"""Controllers whose pods work for themselves; pods of others may be ranks of one job."""
_FLAG_REASONS: Final = {reason.event_reason: reason for reason in FlagReason}


def failed(pod: PodObject, redactor: Redactor) -> PodFinding:
    """Return the finding for a pod whose phase is Failed."""
    status = pod.status
    ended = [
        f"container {redactor.clean(each.name)} ended with {_exit(each)}"
        for each in pod.status.containers
        if each.state.terminated is not None and each.state.terminated.exit_code
    ]
    words = redactor.clean(f"{status.reason}: {status.message}" if status.message else status.reason)
    what = "; ".join(part for part in (words, first_few(ended, 3)) if part) or "the kubelet gives no reason"
    remedies = [Remedy("Look at its log.", _logs(pod))]
    if status.reason == "UnexpectedAdmissionError":
        remedies = [
            Remedy(
                "Administrator: two schedulers share a node, so that KAI allocated a GPU that was taken. Give"
                " each scheduler its own nodes."
            )
        ]
    return PodFinding(Code.FAILED, f"the pod has failed: {what}", remedies)


def terminating(evidence: PodEvidence, pod: PodObject) -> PodFinding:
    """Return the finding for a pod that is being deleted."""
    return PodFinding(
        Code.TERMINATING,
        "the pod is being deleted",
        [
            Remedy(
                "Wait for its containers to end; a finalizer can hold it as well.",
                f"kubectl get pod {pod.name} --namespace {evidence.namespace} -o"
                f" jsonpath={{.metadata.finalizers}}",
            )
        ],
    )


def bound(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> Iterator[PodFinding]:
    """Yield the findings for a pod that has a node, problems first, then notes; none without a problem."""
    yield from _flags(evidence, redactor)
    yield from _waiting(evidence, pod, redactor)
    yield from _reservation(evidence, pod)
    yield from _ranks(evidence, pod)
    yield from _notes(evidence, pod, redactor)


def running(evidence: PodEvidence, pod: PodObject) -> PodFinding:
    """Return the finding for a pod with which nothing is wrong."""
    unknown = "".join(f"; {clause}" for clause in _unknown(evidence, pod))
    verdict = "nothing wrong is seen" if unknown else "nothing is wrong"
    return PodFinding(Code.RUNNING, f"{verdict}{_use(evidence, pod)}{unknown}")


def _unknown(evidence: PodEvidence, pod: PodObject) -> Iterator[str]:
    """Yield what is not known about a running pod though the caller may read it, as clauses."""
    if not evidence.are_events_read and (evidence.figures is None or evidence.figures.failure):
        yield "its flags are not known, since neither all of its Events nor its node's agent could be read"
    is_listed = known(evidence.shared_gpu_pods) is not None
    if pod.gpu_groups and is_listed and not are_reservations_visible(evidence):
        yield (
            f"whether its GPU is reserved is not known, since the namespace {keys.RESERVATION_APP} has no"
            " reservation pod"
        )


def _waiting(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> Iterator[PodFinding]:
    if pod.status.reason == "NodeLost" or pod.status.phase == "Unknown":
        reason = redactor.clean(pod.status.reason) or "phase Unknown"
        yield PodFinding(
            Code.CONTAINER_WAITING,
            f"the kubelet of the pod's node does not answer ({reason})",
            [Remedy("Administrator: look at the node.", f"kubectl get node {pod.spec.node_name}")],
        )
        return
    for each in pod.status.containers:
        trouble = _trouble(evidence, each, redactor)
        if trouble:
            has_run = (each.state.terminated or each.last_state.terminated) is not None
            remedy = Remedy("The pod's Events have the kubelet's words.", _describe(pod))
            if has_run:
                previous = "" if each.state.terminated else " --previous"
                remedy = Remedy("Look at the log of its last run.", f"{_logs(pod)}{previous}")
            yield PodFinding(
                Code.CONTAINER_WAITING, f"container {redactor.clean(each.name)} {trouble}", [remedy]
            )
            return
    if pod.status.phase in ("", "Pending"):
        yield _starting(evidence, pod, redactor)
    elif pod.status.phase == "Running":
        yield from _not_ready(evidence, pod, redactor)


def _not_ready(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> Iterator[PodFinding]:
    """Yield a finding for a pod whose containers run without an error, and that gets no requests."""
    ready = pod.status.condition("Ready")
    if ready is None or ready.status != "False":
        return
    how_long = waited(evidence.since(ready.last_transition_time))
    statuses = pod.status.container_statuses or ()
    unready = next((each for each in statuses if not each.ready and each.state.terminated is None), None)
    if unready is not None:
        yield PodFinding(
            Code.CONTAINER_WAITING,
            f"container {redactor.clean(unready.name)} is not ready{how_long}",
            [
                Remedy("The pod's Events say whether its readiness probe fails.", _describe(pod)),
                Remedy("Look at its log: it may still load a model.", _logs_of(pod, unready)),
            ],
        )
    elif all(each.ready for each in statuses):
        words = f": {redactor.clean(ready.message)}" if ready.message else ""
        yield PodFinding(
            Code.CONTAINER_WAITING,
            f"the pod is not ready{how_long}, and its containers are{words}",
            [
                Remedy("A readiness gate is not met; the pod's conditions name it.", _describe(pod)),
                Remedy(
                    "Or the kubelet of its node does not answer.", f"kubectl get node {pod.spec.node_name}"
                ),
            ],
        )


def _starting(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> PodFinding:
    """Return the finding for a bound pod whose containers have not started, without an error."""
    sidecars = {each.name for each in pod.view.init_containers if each.is_sidecar} if pod.view else set()
    for each in pod.status.init_container_statuses or ():
        runs = each.state.running
        if runs is not None and not (each.name in sidecars and each.started):
            return PodFinding(
                Code.CONTAINER_WAITING,
                f"the init container {redactor.clean(each.name)} runs"
                f"{waited(evidence.since(runs.started_at))}, and the pod's containers start after it",
                [Remedy("Look at its log.", _logs_of(pod, each))],
            )
    return PodFinding(
        Code.CONTAINER_WAITING,
        f"the pod is bound, and the kubelet has not started its containers{waited(evidence.age)}",
        [Remedy("The pod's Events have the kubelet's words.", _describe(pod))],
    )


def _trouble(evidence: PodEvidence, container: ContainerStatus, redactor: Redactor) -> str:
    """Return what is the matter with a container, as the end of a sentence; empty if nothing is."""
    waiting, ended, last = (
        container.state.waiting,
        container.state.terminated,
        container.last_state.terminated,
    )
    if waiting is not None and waiting.reason not in _STARTING:
        words = f"{waiting.reason}: {waiting.message}" if waiting.message else waiting.reason
        tail = f"; it ended with {_exit(container)}" if last is not None else ""
        return f"does not run: {redactor.clean(words)}{tail}"
    if ended is not None:
        return f"has ended with {_exit(container)}" if ended.exit_code else ""
    has_failed = container.restart_count >= _MANY_RESTARTS and last is not None and bool(last.exit_code)
    if has_failed and not _is_steady(evidence, container):
        return f"has been restarted {container.restart_count} times; it ended with {_exit(container)}"
    return ""


def _is_steady(evidence: PodEvidence, container: ContainerStatus) -> bool:
    """Whether the present run of a container has lasted for more than half of the pod's life.

    A container that ends again and again, at whatever interval, has no such run.
    """
    runs, age = container.state.running, evidence.age
    if runs is None or runs.started_at is None or age is None:
        return False
    return evidence.now - runs.started_at > age / 2


def _exit(status: ContainerStatus) -> str:
    ended = status.state.terminated or status.last_state.terminated
    if ended is None or ended.exit_code is None:
        return "an unknown exit code"
    reason = f" ({ended.reason})" if ended.reason in ("OOMKilled", "ContainerCannotRun", "StartError") else ""
    return f"exit code {ended.exit_code}{reason}"


def _reservation(evidence: PodEvidence, pod: PodObject) -> Iterator[PodFinding]:
    """Yield a finding for a GPU group without a reservation pod: KAI may give the GPU to others.

    None without any reservation pod: KAI may create them in another namespace.
    """
    pods = known(evidence.shared_gpu_pods) or ()
    if not are_reservations_visible(evidence) or not pod.gpu_groups or pod.status.phase != "Running":
        return
    reserved = {
        group
        for each in pods
        if is_reservation(each)
        and each.spec.node_name == pod.spec.node_name
        and each.metadata.annotations.get(keys.RESERVED_GPU, NO_RESERVED_GPU) != NO_RESERVED_GPU
        for group in each.gpu_groups
    }
    if pod.gpu_groups - reserved:
        yield PodFinding(
            Code.NO_RESERVATION,
            "the pod runs, and its GPU has no reservation pod: KAI may give the GPU to other pods, or delete"
            " this pod",
            [
                Remedy(
                    "Delete the pod, so that it is placed again.",
                    f"kubectl delete pod {pod.name} --namespace {pod.metadata.namespace}",
                )
            ],
        )


def _ranks(evidence: PodEvidence, pod: PodObject) -> Iterator[PodFinding]:
    """Yield a finding for pods of one gang on one GPU: NCCL refuses two ranks on a device."""
    group = known(evidence.pod_group)
    controller = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
    is_gang = (
        (group.spec.min_member or 1) > 1
        if group is not None
        else controller is not None and controller.kind not in _CONTROLLERS
    )
    if not is_gang or not pod.gpu_groups:
        return
    others = [
        other
        for other in evidence.group_members
        if other.name != pod.name
        and other.pod_group_name == pod.pod_group_name
        and other.gpu_groups & pod.gpu_groups
    ]
    if others:
        yield PodFinding(
            Code.RANKS_SHARE_GPU,
            f"the pod runs on the same GPU as {len(others)} other pod{'s' * (len(others) > 1)} of its job",
            [
                Remedy(
                    "If each rank needs a GPU of its own, request whole GPUs:"
                    ' the annotation kaishare.dev/whole-gpu: "true" in the template, and no share.'
                ),
                Remedy("Or use one pod with several GPUs (gpu-fraction-num-devices)."),
            ],
        )


def _flags(evidence: PodEvidence, redactor: Redactor) -> Iterator[PodFinding]:
    """Yield a finding for each flag, by the node's agent, else by the newest of its Events."""
    events = _flag_events(evidence)
    figures = evidence.figures
    if figures is not None and figures.pod is not None and not figures.failure:
        flagged = {verdict.reason: verdict for verdict in figures.pod.verdicts if verdict.flagged}
        for reason in FlagReason:
            if reason.value in flagged:
                yield _flag(reason, events.get(reason), redactor, flagged[reason.value])
        return
    for reason, event in events.items():
        yield _flag(reason, event, redactor, None)


def _flag_events(evidence: PodEvidence) -> dict[FlagReason, EventObject]:
    """Return the agent's newest Event of each reason that no later Event about the same GPU ends."""
    events: dict[tuple[FlagReason, str], EventObject] = {}
    for event in sorted(evidence.pod_events, key=lambda event: event.last.timestamp() if event.last else 0.0):
        if event.reason in _FLAG_REASONS:
            key = _FLAG_REASONS[event.reason], _gpu_of(event)
            events.pop(key, None)  # so that the newest Event is the last one
            events[key] = event
        elif event.reason == WITHIN_SHARE:
            events.pop((FlagReason.OVER_SHARE, _gpu_of(event)), None)
    return {reason: event for (reason, _), event in events.items()}


def _gpu_of(event: EventObject) -> str:
    """Return the GPU that a message about memory names: `uses 9.0 GiB on GPU 0 (GPU-1), within its share`."""
    return event.message.partition(" on ")[2].partition(",")[0]


def _flag(
    reason: FlagReason, event: EventObject | None, redactor: Redactor, verdict: ApiVerdict | None
) -> PodFinding:
    summary = reason.summary
    details: dict[str, float | str] = {"reason": reason.value}
    if verdict is not None and verdict.is_of_memory:
        used = verdict.used_bytes if verdict.used_bytes is not None else verdict.used_at_least_bytes
        details["usedBytes"] = float(used or 0)
        summary = f"uses {size(used)}" if verdict.allowed_bytes is not None else f"{summary} ({size(used)})"
        if verdict.allowed_bytes is not None:
            details["allowedBytes"] = float(verdict.allowed_bytes)
            summary += f", and may use {size(verdict.allowed_bytes)}"
        summary += f", for {duration(verdict.over_seconds)}"
    sentence = f"the pod is flagged ({reason.value}): it {summary}"
    if verdict is None and event is not None and reason is not FlagReason.OVER_SHARE:
        # Only over-share has an Event when it clears.
        when = f" at {event.last.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if event.last else ""
        sentence = (
            f"the pod was flagged ({reason.value}){when}, because it {summary}; whether it still is cannot be"
            " seen without its node's agent"
        )
    message, _, act = event.message.partition(". ") if event is not None else ("", "", "")
    hints = [redactor.clean(message.partition("; ")[2]), redactor.clean(act)]
    if verdict is not None and verdict.first_act:
        hints[1] = one_line(verdict.first_act)
    remedies = [Remedy(hint) for hint in hints if hint] or [Remedy(f"It clears with {reason.cleared_by}.")]
    return PodFinding(Code.FLAGGED, sentence, remedies, details)


def _notes(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> Iterator[PodFinding]:
    """Yield what differs from the words of the pod, and does no harm by itself."""
    yield from filter(None, [group_unchanged(evidence, pod)])
    group = known(evidence.pod_group)
    queue, label = evidence.queue_name, pod.queue_label
    if label and queue and queue != label:
        yield PodFinding(
            Code.QUEUE_OF_OWNER,
            f"the pod counts in the queue {redactor.clean(queue)}, and not in {redactor.clean(label)}, which"
            " its own label names: the label of its topmost owner wins",
            [Remedy(f"Write the same label {keys.QUEUE_LABEL} on the workload and on its pods.")],
        )
    if group is None:
        return
    named = pod.metadata.labels.get(keys.PRIORITY_LABEL, "")
    counted = group.spec.priority_class_name
    if named and counted and named != counted:
        yield PodFinding(
            Code.PRIORITY_CLASS_IGNORED,
            f"the pod counts with the priority {redactor.clean(counted)}, and not with the PriorityClass"
            f" {quoted(named)}, which its label names",
            [
                Remedy(
                    "If that PriorityClass does not exist, use train, build-preemptible, build or inference;"
                    f" else the label {keys.PRIORITY_LABEL} of the topmost owner wins.",
                    "kubectl get priorityclass",
                )
            ],
        )
    age = evidence.age
    if (
        request_of(pod).is_any
        and not group.has_allocation
        and pod.status.phase == "Running"
        and age is not None
        and age > SETTLED
    ):
        yield PodFinding(
            Code.ACCOUNTING_MISSING,
            "KAI's podgroup-controller has not entered the pod's GPUs, so that the figures"
            " of its queue are too low",
            [Remedy("Administrator: start KAI's podgroup-controller again.", KAI_PODS)],
        )


def _use(evidence: PodEvidence, pod: PodObject) -> str:
    """Return how much of its share a running pod uses, as far as the agent tells."""
    request = request_of(pod)
    text = f"; the pod has {request.text}" if request.is_any else ""
    uses = uses_of(evidence.figures) if evidence.figures is not None else []
    return f"{text or '; the pod has no GPU'}, and uses {first_few(uses, 4)}" if uses else text


def uses_of(figures: AgentFigures) -> list[str]:
    """Return the memory in use and the share on each GPU of the pod; empty if the agent does not list it."""
    pod = figures.pod
    uses = []
    for holding in pod.gpus if pod is not None else ():
        share = pod.share_on(holding.gpu_uuid) if pod is not None else None
        of_share = f" of {size(share.bytes)}" if share else ""
        uses.append(f"{size(holding.used_bytes)}{of_share} on GPU {holding.gpu}")
    return uses


def _logs(pod: PodObject) -> str:
    return f"kubectl logs {pod.name} --namespace {pod.metadata.namespace} --all-containers"


def _logs_of(pod: PodObject, container: ContainerStatus) -> str:
    name = container.name if is_dns_label(container.name) else "CONTAINER"
    return f"kubectl logs {pod.name} --namespace {pod.metadata.namespace} --container {name}"


def _describe(pod: PodObject) -> str:
    return f"kubectl describe pod {pod.name} --namespace {pod.metadata.namespace}"
