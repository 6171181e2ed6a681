"""What is the matter with a pod for which KAI chose a node: its binding, containers, GPU and flags. Pure.

The condition PodBound and the Events Scheduled and Bound prove nothing: KAI v0.9.8, v0.13.4 and v0.17.0 wrote
them for pods that were never bound. BindRequests are created again for every attempt.
"""

from collections.abc import Iterator
from datetime import UTC, timedelta
from operator import attrgetter
from typing import Any, Final

from console.cluster.facts import Fact, items
from console.cluster.rules import is_missed_by_kai, missed_by_kai
from console.why.acts import finding
from console.why.causes.unscheduled import SETTLED, guarded
from console.why.evidence import AgentFigures, PodEvidence, is_reservation, request_of, waited
from console.why.explanation import Code, PodFinding
from gpuagent.api_types import ApiVerdict
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.messages import WITHIN_SHARE
from kai import keys
from kube.kinds import NO_RESERVED_GPU, BindRequest, ContainerStatus, Event, Pod
from service.text import counted, first_few, one_line, quoted
from service.units import duration, size

_STARTING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
_MANY_RESTARTS: Final = 3
_CONTROLLERS: Final = frozenset({"ReplicaSet", "Job", "StatefulSet", "DaemonSet", "ReplicationController"})
"""Controllers whose pods work for themselves; pods of others may be ranks of one job."""
_BY_EVENT: Final = {reason.event_reason: reason for reason in FlagReason}
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
        what = missed_by_kai().sentence
        return finding(evidence, Code.KAI_ADMISSION_MISSED, what, "delete-missed", "order-webhooks")
    if _NO_RESERVATION in text:
        return _reservation_not_ready(evidence, f"{_RESERVES} has not reported its GPU in time")
    if text:
        what = f"KAI's binder cannot bind the pod: {one_line(text)}"
        return finding(evidence, Code.BINDING_FAILED, what, "wait-a-minute", "read-binder")
    return _in_progress(evidence, request) if request is not None else None


def chosen(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a pod for which KAI chose a node last, where the BindRequest cannot be read."""
    if evidence.bind_request.known is not None or not _is_last(evidence, "Scheduled", "Unschedulable"):
        return None
    what = (
        "KAI chose a node, and the pod is not bound: KAI's binder does not run, or waits for the reservation"
    )
    return finding(evidence, Code.UNDECIDED, f"{what} of the GPU", "wait-a-minute", "ask-for-binding")


def _last_error(evidence: PodEvidence) -> Event | None:
    """Return the binder's newest error; None if it is about an earlier attempt and some time ago."""
    errors = evidence.about_pod("BindingError")
    request = evidence.bind_request.known
    created = request.metadata.creation_timestamp if request is not None else None
    if not errors or errors[-1].last is None or created is None:
        return errors[-1] if errors else None
    return errors[-1] if errors[-1].last >= created or created - errors[-1].last < _ATTEMPT else None


def _is_last(evidence: PodEvidence, reason: str, other: str) -> bool:
    """Whether there is an Event of a reason, and none of another reason after it."""
    own, others = (max((e.moment for e in evidence.about_pod(each)), default=0.0) for each in (reason, other))
    return 0 < own >= others


def _reservation_not_ready(evidence: PodEvidence, what: str) -> PodFinding:
    return finding(evidence, Code.RESERVATION_NOT_READY, what, "wait-a-minute", "read-reservations")


def _in_progress(evidence: PodEvidence, request: BindRequest) -> PodFinding:
    """Return the finding for a BindRequest without a result and without an error."""
    groups = frozenset(request.spec.selected_gpu_groups or ())
    pods = [pod for pod in items(evidence.shared_gpu_pods) if is_reservation(pod) and pod.gpu_groups & groups]
    reserved = [pod.metadata.annotations.get(keys.RESERVED_GPU, "") for pod in pods]
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
    known: list[Fact[Any]] = [evidence.pod_events, *([evidence.shared_gpu_pods] if groups else [])]
    acts += ["start-kai"]
    return finding(evidence, Code.BINDER_SILENT, what, *acts, excluded_by=known, program="binder")


def failed(evidence: PodEvidence, pod: Pod) -> PodFinding:
    """Return the finding for a pod whose phase is Failed."""
    status = pod.status
    bad = [each for each in status.containers if each.state.terminated and each.state.terminated.exit_code]
    ended = [f"container {each.name} ended with {_exit(each)}" for each in bad]
    words = one_line(f"{status.reason}: {status.message}" if status.message else status.reason)
    what = "; ".join(part for part in (words, first_few(ended, 3)) if part) or "the kubelet gives no reason"
    act = "part-schedulers" if status.reason == "UnexpectedAdmissionError" else "read-log"
    return finding(evidence, Code.FAILED, f"the pod has failed: {what}", act)


def bound(evidence: PodEvidence, pod: Pod) -> Iterator[PodFinding]:
    """Yield the findings for a pod that has a node, problems first, then notes; none without a problem."""
    yield from _flags(evidence)
    yield from _waiting(evidence, pod)
    yield from _reservation(evidence, pod)
    yield from _ranks(evidence, pod)
    yield from _notes(evidence, pod)


def running(evidence: PodEvidence, pod: Pod) -> PodFinding:
    """Return the finding for a pod with which nothing is wrong, and what is not known about it."""
    no_flags = "its flags are not known, since neither all of its Events nor its node's agent could be read"
    no_pod = (
        f"whether its GPU is reserved is not known, since the namespace {keys.RESERVATION_APP} has no"
        " reservation pod"
    )
    unknown = [] if evidence.pod_events.is_known or evidence.figures.is_known else [no_flags]
    if pod.gpu_groups and evidence.shared_gpu_pods.is_known and not evidence.has_reservations:
        unknown += [no_pod]
    request = request_of(pod)
    has = f"the pod has {request.text}" if request.is_any or request.claims else ""
    uses = uses_of(evidence.figures.known) if evidence.figures.known else []
    if uses:
        has = f"{has or 'the pod has no GPU'}, and uses {first_few(uses, 4)}"
    verdict = "nothing wrong is seen" if unknown else "nothing is wrong"
    return finding(evidence, Code.RUNNING, "; ".join(filter(None, [verdict, has, *unknown])))


def uses_of(figures: AgentFigures) -> list[str]:
    """Return the memory in use and the share on each GPU of the pod; empty if the agent does not list it."""
    pod = figures.pod
    uses = []
    for holding in pod.gpus if pod else ():
        share = pod.share_on(holding.gpu_uuid) if pod else None
        of_share = f" of {size(share.bytes)}" if share else ""
        uses.append(f"{size(holding.used_bytes)}{of_share} on GPU {holding.gpu}")
    return uses


def _waiting(evidence: PodEvidence, pod: Pod) -> Iterator[PodFinding]:
    code, node = Code.CONTAINER_WAITING, pod.spec.node_name
    if pod.status.reason == "NodeLost" or pod.status.phase == "Unknown":
        reason = one_line(pod.status.reason) or "phase Unknown"
        what = f"the kubelet of the pod's node does not answer ({reason})"
        yield finding(evidence, code, what, "look-at-node", node=node)
        return
    for each in pod.status.containers:
        trouble = _trouble(evidence, each)
        if trouble:
            has_run = (each.state.terminated or each.last_state.terminated) is not None
            log = "read-log" if each.state.terminated else "read-last-log"
            what = f"container {each.name} {trouble}"
            yield finding(evidence, code, what, log if has_run else "read-events")
            return
    if pod.status.phase in ("", "Pending"):
        yield _starting(evidence, pod)
        return
    ready = pod.status.condition("Ready")
    if pod.status.phase != "Running" or ready is None or ready.status != "False":
        return
    how_long = waited(evidence.since(ready.last_transition_time))
    statuses = pod.status.container_statuses or ()
    unready = next((each for each in statuses if not each.ready and each.state.terminated is None), None)
    if unready is not None:
        what = f"container {unready.name} is not ready{how_long}"
        yield finding(evidence, code, what, "read-probe", "read-container-log", container=unready.name)
    elif all(each.ready for each in statuses):
        says = f": {one_line(ready.message)}" if ready.message else ""
        what = f"the pod is not ready{how_long}, and its containers are{says}"
        yield finding(evidence, code, what, "read-gate", "look-at-node", node=node)


def _starting(evidence: PodEvidence, pod: Pod) -> PodFinding:
    """Return the finding for a bound pod whose containers have not started, without an error."""
    sidecars = {each.name for each in pod.view.init_containers if each.is_sidecar} if pod.view else set()
    for each in pod.status.init_container_statuses or ():
        runs = each.state.running
        if runs is not None and not (each.name in sidecars and each.started):
            how_long = waited(evidence.since(runs.started_at))
            what = f"the init container {each.name} runs{how_long}, and the pod's containers start after it"
            act = "read-container-log"
            return finding(evidence, Code.CONTAINER_WAITING, what, act, container=each.name)
    what = f"the pod is bound, and the kubelet has not started its containers{waited(evidence.age)}"
    return finding(evidence, Code.CONTAINER_WAITING, what, "read-events")


def _trouble(evidence: PodEvidence, container: ContainerStatus) -> str:
    """Return what is the matter with a container, as the end of a sentence; empty if nothing is."""
    waiting, ended = container.state.waiting, container.state.terminated
    last = container.last_state.terminated
    if waiting is not None and waiting.reason not in _STARTING:
        words = f"{waiting.reason}: {waiting.message}" if waiting.message else waiting.reason
        tail = f"; it ended with {_exit(container)}" if last is not None else ""
        return f"does not run: {one_line(words)}{tail}"
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
    started = runs.started_at if runs else None
    return started is not None and age is not None and evidence.now - started > age / 2


def _exit(status: ContainerStatus) -> str:
    ended = status.state.terminated or status.last_state.terminated
    if ended is None or ended.exit_code is None:
        return "an unknown exit code"
    reason = f" ({ended.reason})" if ended.reason in ("OOMKilled", "ContainerCannotRun", "StartError") else ""
    return f"exit code {ended.exit_code}{reason}"


def _reservation(evidence: PodEvidence, pod: Pod) -> Iterator[PodFinding]:
    """Yield a finding for a GPU group without a reservation pod: KAI may give the GPU to others.

    None without any reservation pod: KAI may create them in another namespace.
    """
    if not evidence.has_reservations or pod.status.phase != "Running":
        return
    reserved = {
        group
        for each in items(evidence.shared_gpu_pods)
        if is_reservation(each)
        and each.spec.node_name == pod.spec.node_name
        and each.metadata.annotations.get(keys.RESERVED_GPU, NO_RESERVED_GPU) != NO_RESERVED_GPU
        for group in each.gpu_groups
    }
    if pod.gpu_groups - reserved:
        what = (
            "the pod runs, and its GPU has no reservation pod: KAI may give the GPU to other pods, or delete"
        )
        known = [evidence.shared_gpu_pods]
        yield finding(evidence, Code.NO_RESERVATION, f"{what} this pod", "place-again", excluded_by=known)


def _ranks(evidence: PodEvidence, pod: Pod) -> Iterator[PodFinding]:
    """Yield a finding for pods of one gang on one GPU: NCCL refuses two ranks on a device."""
    group = evidence.pod_group.known
    controller = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
    is_gang = controller is not None and controller.kind not in _CONTROLLERS
    if group is not None:
        is_gang = (group.spec.min_member or 1) > 1
    others = sum(each.pod_group_name == pod.pod_group_name for each in evidence.group_members)
    if is_gang and others:
        what = f"the pod runs on the same GPU as {counted(others, 'other pod')} of its job"
        yield finding(evidence, Code.RANKS_SHARE_GPU, what, "whole-gpus-for-ranks", "one-pod-for-ranks")


def _flags(evidence: PodEvidence) -> Iterator[PodFinding]:
    """Yield a finding for each flag, by the node's agent, else by the newest of its Events."""
    events = _flag_events(evidence)
    figures = evidence.figures.known
    if figures is None or figures.pod is None:
        yield from (_flag(evidence, reason, event, None) for reason, event in events.items())
        return
    flagged = {verdict.reason: verdict for verdict in figures.pod.verdicts if verdict.flagged}
    for reason in (each for each in FlagReason if each.value in flagged):
        yield _flag(evidence, reason, events.get(reason), flagged[reason.value])


def _flag_events(evidence: PodEvidence) -> dict[FlagReason, Event]:
    """Return the agent's newest Event of each reason that no later Event about the same GPU ends."""
    events: dict[tuple[FlagReason, str], Event] = {}
    for event in sorted(items(evidence.pod_events), key=attrgetter("moment")):
        gpu = event.message.partition(" on ")[2].partition(",")[0]  # `… on GPU 0 (GPU-1), within its share`
        if event.reason in _BY_EVENT:
            key = _BY_EVENT[event.reason], gpu
            events.pop(key, None)  # so that the newest Event is the last one
            events[key] = event
        elif event.reason == WITHIN_SHARE:
            events.pop((FlagReason.OVER_SHARE, gpu), None)
    return {reason: event for (reason, _), event in events.items()}


def _flag(
    evidence: PodEvidence, reason: FlagReason, event: Event | None, verdict: ApiVerdict | None
) -> PodFinding:
    """Return the finding for a flag; what to do comes from the agent, by its answer or its Event."""
    text, _, act = event.message.partition(". ") if event is not None else ("", "", "")
    line = (verdict.message if verdict else None) or text
    message, _, hint = line.partition("; ")  # a framework's option
    details: dict[str, float | str] = {"reason": reason.value}
    if verdict is not None and verdict.is_of_memory:
        details["usedBytes"] = float(verdict.used_bytes or verdict.used_at_least_bytes or 0)
        if verdict.allowed_bytes is not None:
            details["allowedBytes"] = float(verdict.allowed_bytes)
    uses = one_line(message) if verdict is not None and message else reason.summary
    what = f"the pod is flagged ({reason.value}): it {uses}"
    if verdict is None and event is not None and reason is not FlagReason.OVER_SHARE:
        # Only over-share has an Event when it clears.
        when = f" at {event.last.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if event.last else ""
        what = f"the pod was flagged ({reason.value}){when}, because it {reason.summary}; whether it still is"
        what += " cannot be seen without its node's agent"
    both = ". ".join(filter(None, [hint, (verdict.first_act if verdict else None) or act]))
    acts = ["agent"] if both else ["clear-flag"]
    values: dict[str, Any] = {"act": both, "cleared_by": reason.cleared_by}
    return finding(evidence, Code.FLAGGED, what, *acts, details=details, **values)


def _notes(evidence: PodEvidence, pod: Pod) -> Iterator[PodFinding]:
    """Yield what differs from the words of the pod, and does no harm by itself."""
    yield from filter(None, [guarded(evidence, pod) if pod.pod_group_name else None])
    group = evidence.pod_group.known
    queue, label = evidence.queue_name, pod.queue_label
    if label and queue and queue != label:
        what = (
            f"the pod counts in the queue {queue}, and not in {label}, which its own label names: the label"
            " of its topmost owner wins"
        )
        yield finding(evidence, Code.QUEUE_OF_OWNER, what, "equal-queues")
    if group is None:
        return
    named = pod.metadata.labels.get(keys.PRIORITY_LABEL, "")
    kept = group.spec.priority_class_name
    if named and kept and named != kept:
        what = (
            f"the pod counts with the priority {kept}, and not with the PriorityClass {quoted(named)},"
            " which its label names"
        )
        yield finding(evidence, Code.PRIORITY_CLASS_IGNORED, what, "known-priority")
    age = evidence.age
    is_settled = pod.status.phase == "Running" and age is not None and age > SETTLED
    if is_settled and request_of(pod).is_any and not group.has_allocation:
        what = (
            "KAI's podgroup-controller has not entered the pod's GPUs, so that the figures of its queue are"
            " too low"
        )
        yield finding(evidence, Code.ACCOUNTING_MISSING, what, "start-kai", program="podgroup-controller")
