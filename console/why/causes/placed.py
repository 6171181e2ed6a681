"""A pod for which KAI chose a node: why it is not bound, or what is the matter with it there. Pure.

The condition PodBound and the Events Scheduled and Bound prove nothing: KAI v0.9.8, v0.13.4 and v0.17.0 wrote
them for pods that were never bound. BindRequests are created again for every attempt.
"""

import re
from collections.abc import Iterator
from datetime import UTC, timedelta
from typing import Any, Final

from console.cluster.facts import Fact, items
from console.cluster.rules import is_missed_by_kai, missed_by_kai
from console.why.acts import finding
from console.why.causes.unscheduled import SETTLED, guarded, silence
from console.why.evidence import AgentFigures, PodEvidence, request_of, waited
from console.why.explanation import Code, PodFinding
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.messages import WITHIN_SHARE
from kai import keys
from kube.kinds import NO_RESERVED_GPU, ContainerStatus, Event, Pod
from service.text import LONGEST_LINE, counted, first_few, one_line, quoted
from service.units import size

_NO_CONFIG_MAP: Final = "no desired configmap name found"
_NO_RESERVATION: Final = "failed waiting for GPU reservation pod"
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
    of_containers = (key for key in annotations if key.startswith(keys.CONTAINER_PREFIX))
    has_mode = any(key.endswith(".gpus.devices") for key in of_containers)
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
    request, error = evidence.bind_request.known, next(reversed(evidence.about_pod("BindingError")), None)
    made = request.metadata.creation_timestamp if request is not None else None
    if error is not None and error.last is not None and made is not None and made - error.last >= _ATTEMPT:
        error = None  # about an earlier attempt
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
    reserved = [each.metadata.annotations.get(keys.RESERVED_GPU, NO_RESERVED_GPU) for each in pods]
    if _NO_RESERVATION in text or (not text and NO_RESERVED_GPU in reserved):
        trouble = next((each.status.trouble for each in pods if each.status.phase != "Running"), "")
        why = f" ({trouble})" if trouble not in ("", "Pending") else ""
        what = f"KAI reserves the pod's GPU with a reservation pod, which has not reported its GPU{why}"
        return _waits(evidence, "reservation-not-ready", what, "read-reservations")
    if text:
        what = f"KAI's binder cannot bind the pod: {one_line(text)}"
        return _waits(evidence, "binding-failed", what, "read-binder")
    what = f"KAI chose a node, and its binder has not answered{waited(evidence.since(made))}"
    known: list[Fact[Any]] = [evidence.pod_events, *([evidence.shared_gpu_pods] if groups else [])]
    unseen = ["read-reservations"] if groups and not evidence.reservations else []
    acts = [*_first_acts(evidence), *unseen, "start-kai"]
    return silence(evidence, "binder-silent", what, made, acts, excluded_by=known, program="binder")


def chosen(evidence: PodEvidence, _pod: Pod) -> PodFinding | None:
    """Return the finding for a pod for which KAI chose a node last, where the BindRequest cannot be read."""
    if evidence.bind_request.known is not None or not _is_last(evidence, "Scheduled"):
        return None
    what = "KAI chose a node, and the pod is not bound: KAI's binder does not run, or waits for the"
    return _waits(evidence, "undecided", f"{what} reservation of the GPU", "ask-for-binding")


def _is_last(evidence: PodEvidence, reason: str) -> bool:
    both = [evidence.about_pod(each) for each in (reason, "Unschedulable")]
    own, verdict = (events[-1].moment if events else 0.0 for events in both)
    return 0 < own >= verdict


_STARTING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
_MANY_RESTARTS: Final = 3
_LONGEST: Final = 4096  # characters of the kubelet's message that are read
_BY_EVENT: Final = {reason.event_reason: reason for reason in FlagReason}
_NOT_STARTED: Final = ("StartError", "ContainerCannotRun")
"""Reasons of a container that has "ended", though the runtime never started it (containerd, Docker)."""
_WITHOUT_LOG: Final = (*_NOT_STARTED, "ContainerStatusUnknown")
"""Reasons of a container that has no log: the last one is of a container that the kubelet does not find."""
_NOT_CREATED: Final = ("CreateContainerError", "CreateContainerConfigError", "RunContainerError")
_OF_NODE: Final = ("kubelet", "attachdetach-controller")
"""The programs that write Events about a pod on its node."""
_RUNTIME: Final = ("CDI device", "no runtime for", "nvidia-container", "RuntimeHandler")
_NO_PROGRAM: Final = ("executable file not found", "no such file or directory")
_DEVICES: Final = "the device plugin had not yet registered its GPUs"
_SCHEDULERS: Final = "two schedulers share the node, each of which needs nodes of its own"
_REFUSALS: Final = (
    ("UnexpectedAdmissionError: .*no healthy devices", f"after a restart {_DEVICES}, or a GPU has failed"),
    ("UnexpectedAdmissionError", f"{_DEVICES}, a GPU has failed, or {_SCHEDULERS}"),
    ("OutOf", f"{_SCHEDULERS}, a static pod took the room, or KAI counts sidecars unlike the kubelet"),
    ("NodeAffinity", "the node's labels have changed"),
    ("TopologyAffinityError", "the kubelet finds no CPUs and GPUs that are close to each other"),
    ("Node|Terminated", "the node was shut down"),
    ("Evicted", "the node ran short of memory or of disk"),
    ("Preempting", "the kubelet made room for a critical pod"),
    ("", "the kubelet's log has more"),
)
"""What may have led the kubelet to refuse or end a pod, by the beginning of its words."""


def failed(evidence: PodEvidence, pod: Pod) -> PodFinding:
    """Return the finding for a pod whose phase is Failed; without a container that ran there is no log."""
    status, ended = pod.status, how_ended(pod)
    has_run = any(map(_has_run, status.containers))
    for each in status.containers:
        if not has_run and (error := _runtime_error(each)):
            return _not_started(evidence, f"container {each.name} has not started", error)
    words = f"{status.reason}: {status.message[:_LONGEST]}"
    causes = next(causes for start, causes in _REFUSALS if re.match(start, words))
    is_refusal = status.reason not in ("", "DeadlineExceeded")
    acts = ["delete-refused", "read-kubelet"] if is_refusal else ["raise-deadline"] if status.reason else []
    acts += ["read-log"] if has_run else [] if acts else ["read-events"]
    values: dict[str, Any] = {"causes": causes, "node": pod.spec.node_name or "NODE"}
    if has_run or not is_refusal:
        return finding(evidence, "failed", f"the pod has failed: {ended}", *acts, **values)
    where = f" of node {pod.spec.node_name}" if pod.spec.node_name else ""
    what = f"the kubelet{where} refused or ended the pod, which has no log: {ended}"
    return finding(evidence, "refused-by-kubelet", what, *acts, **values)


def how_ended(pod: Pod) -> str:
    """Return how a failed pod has ended, in the kubelet's words and by its containers' exit codes."""
    status = pod.status
    bad = [each for each in status.containers if each.state.terminated and each.state.terminated.exit_code]
    ended = [f"container {each.name} ended with {_exit(each)}" for each in bad]
    words = one_line(f"{status.reason}: {status.message}" if status.message else status.reason)
    return "; ".join(part for part in (words, first_few(ended, 3)) if part) or "the kubelet gives no reason"


def bound(evidence: PodEvidence, pod: Pod) -> Iterator[PodFinding]:
    """Yield the findings for a pod that has a node, problems first, then notes; none without a problem."""
    yield from _flags(evidence)
    yield from filter(None, [_waiting(evidence, pod)])
    reserved = {
        group
        for each in evidence.reservations
        if each.spec.node_name == pod.spec.node_name
        and each.status.phase not in keys.FINISHED_PHASES
        and each.metadata.annotations.get(keys.RESERVED_GPU, NO_RESERVED_GPU) != NO_RESERVED_GPU
        for group in each.gpu_groups
    }
    # Without any reservation pod, KAI may create them in another namespace.
    if evidence.reservations and pod.status.phase == "Running" and pod.gpu_groups - reserved:
        what = "the pod runs, and its GPU has no reservation pod: KAI may give the GPU to other pods, or"
        what, known = f"{what} delete this pod", [evidence.shared_gpu_pods]
        yield finding(evidence, "no-reservation", what, "delete-missed", excluded_by=known)
    others = sum(each.pod_group_name == pod.pod_group_name for each in items(evidence.group_members))
    if evidence.is_rank(pod) and others:  # NCCL refuses two ranks on a device
        what = f"the pod runs on the same GPU as {counted(others, 'other pod')} of its job"
        yield finding(evidence, "ranks-share-gpu", what, "whole-gpus-for-ranks", "one-pod-for-ranks")
    yield from _notes(evidence, pod)


def running(evidence: PodEvidence, pod: Pod) -> PodFinding:
    """Return the finding for a pod with which nothing is wrong, and what is not known about it."""
    unknown = []
    if not (evidence.pod_events.is_known or evidence.figures.is_known):
        unknown.append("its flags are not known, since neither all Events nor its node's agent could be read")
    if pod.gpu_groups and evidence.shared_gpu_pods.is_known and not evidence.reservations:
        no_pod = f"since {keys.RESERVATION_APP} has no reservation pod on its node"
        unknown.append(f"whether its GPU is reserved is not known, {no_pod}")
    request = request_of(pod)
    has = f"the pod has {request.text}" if request.is_any or request.claims else ""
    if uses := uses_of(evidence.figures.known):
        has = f"{has or 'the pod has no GPU'}, and uses {first_few(uses, 4)}"
    verdict = "nothing wrong is seen" if unknown else "nothing is wrong"
    return finding(evidence, "running", "; ".join(filter(None, [verdict, has, *unknown])))


def uses_of(figures: AgentFigures | None) -> list[str]:
    """Return the memory in use and the share on each GPU of the pod; empty if the agent does not list it."""
    uses = []
    for holding in figures.pod.gpus if figures and figures.pod else ():
        share = figures.pod.share_on(holding.gpu_uuid) if figures and figures.pod else None
        of_share = f" of {size(share.bytes)}" if share else ""
        uses.append(f"{size(holding.used_bytes)}{of_share} on GPU {holding.gpu}")
    return uses


def _waiting(evidence: PodEvidence, pod: Pod) -> PodFinding | None:
    status, node = pod.status, pod.spec.node_name
    if status.reason == "NodeLost" or status.phase == "Unknown":
        reason = one_line(status.reason) or "phase Unknown"
        what = f"the kubelet of the pod's node does not answer ({reason})"
        return finding(evidence, "container-waiting", what, "look-at-node", node=node)
    for each in status.containers:
        if not _has_run(each) and (error := _runtime_error(each)):
            return _not_started(evidence, f"container {each.name} has not started", error)
        if trouble := _trouble(evidence, each):
            log = "read-log" if each.state.terminated else "read-last-log"
            act = log if _has_run(each) else "read-events"
            return finding(evidence, "container-waiting", f"container {each.name} {trouble}", act)
    if status.phase in ("", "Pending"):
        return _starting(evidence, pod)
    ready, statuses = status.condition("Ready"), status.container_statuses or ()
    if ready is None or ready.status != "False":
        return None
    how_long = waited(evidence.since(ready.last_transition_time))
    unready = next((each for each in statuses if not each.ready and each.state.terminated is None), None)
    if unready is not None:
        what = f"container {unready.name} is not ready{how_long}"
        acts = ["read-readiness", "read-container-log"]
        return finding(evidence, "container-waiting", what, *acts, container=unready.name)
    if not all(each.ready for each in statuses):
        return None
    says = f": {one_line(ready.message)}" if ready.message else ""
    what = f"the pod is not ready{how_long}, and its containers are{says}"
    return finding(evidence, "container-waiting", what, "read-readiness", "look-at-node", node=node)


def _starting(evidence: PodEvidence, pod: Pod) -> PodFinding:
    sidecars = {each.name for each in pod.view.init_containers if each.is_sidecar} if pod.view else set()
    for each in pod.status.init_container_statuses or ():
        runs = each.state.running
        if runs is not None and not (each.name in sidecars and each.started):
            what = f"the init container {each.name} runs{waited(evidence.since(runs.started_at))}"
            what, act = f"{what}, and the pod's containers start after it", "read-container-log"
            return finding(evidence, "container-waiting", what, act, container=each.name)
    what = f"the pod is bound, and the kubelet has not started its containers{waited(evidence.age)}"
    events = [event for event in items(evidence.pod_events) if event.component in _OF_NODE]
    if events and events[-1].type == "Warning":  # a later Event of another type means that it was overcome
        return _not_started(evidence, what, events[-1].message)
    return finding(evidence, "container-waiting", what, "read-events")


def _not_started(evidence: PodEvidence, what: str, words: str) -> PodFinding:
    acts = ["mend-runtime"] if any(part in words for part in _RUNTIME) else []
    acts += ["correct-command"] if not acts and any(part in words for part in _NO_PROGRAM) else []
    what = f"{what}: {one_line(words, LONGEST_LINE * 2)}"
    node = evidence.pod.known.spec.node_name if evidence.pod.known else ""
    return finding(evidence, "container-not-started", what, *acts, "read-events", node=node)


def _runtime_error(container: ContainerStatus) -> str:
    waiting, ends = container.state.waiting, (container.state.terminated, container.last_state.terminated)
    if waiting is not None and waiting.reason in _NOT_CREATED:
        return f"{waiting.reason}: {waiting.message}"
    return next((end.message or end.reason for end in ends if end and end.reason in _NOT_STARTED), "")


def _has_run(container: ContainerStatus) -> bool:
    ends = (container.state.terminated, container.last_state.terminated)
    return bool(container.state.running) or any(end and end.reason not in _WITHOUT_LOG for end in ends)


def _trouble(evidence: PodEvidence, container: ContainerStatus) -> str:
    """Return what is the matter with a container, as the end of a sentence; empty if nothing is."""
    waiting, ended, runs = container.state.waiting, container.state.terminated, container.state.running
    last = container.last_state.terminated
    if waiting is not None and waiting.reason not in _STARTING:
        words = f"{waiting.reason}: {waiting.message}" if waiting.message else waiting.reason
        return f"does not run: {one_line(words)}{f'; it ended with {_exit(container)}' if last else ''}"
    if ended is not None:
        return f"has ended with {_exit(container)}" if ended.exit_code else ""
    if container.restart_count < _MANY_RESTARTS or last is None or not last.exit_code:
        return ""
    # A run that has lasted for half of the pod's life ends the talk of earlier ones.
    present, age = evidence.since(runs.started_at if runs else None), evidence.age
    if present is not None and age is not None and present > age / 2:
        return ""
    return f"has been restarted {container.restart_count} times; it ended with {_exit(container)}"


def _exit(status: ContainerStatus) -> str:
    ended = status.state.terminated or status.last_state.terminated
    if ended is None or ended.exit_code is None:
        return "an unknown exit code"
    reason = f" ({ended.reason})" if ended.reason in ("OOMKilled", "ContainerCannotRun", "StartError") else ""
    return f"exit code {ended.exit_code}{reason}"


def _flags(evidence: PodEvidence) -> Iterator[PodFinding]:
    """Yield a finding for each flag, by the node's agent, else by the newest of its Events."""
    pod = evidence.figures.known.pod if evidence.figures.known else None
    if pod is None:
        for reason, event in _flag_events(evidence).items():
            text, _, act = event.message.partition(". ")
            message, _, hint = text.partition("; ")  # a framework's option
            when = f" at {event.last.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if event.last else ""
            why = one_line(message) or reason.summary
            what = f"the pod was flagged ({reason.value}){when}, because it {why}; whether it still is cannot"
            what += " be seen without its node's agent"
            yield _flag(evidence, reason, what, [hint, act], {})
        return
    flagged = {verdict.reason: verdict for verdict in pod.verdicts if verdict.flagged}
    for reason in (each for each in FlagReason if each.value in flagged):
        verdict = flagged[reason.value]
        message, _, hint = (verdict.message or reason.summary).partition("; ")
        details: dict[str, float | str] = {}
        if verdict.is_of_memory:
            details["usedBytes"] = float(verdict.used_bytes or verdict.used_at_least_bytes or 0)
        if verdict.is_of_memory and verdict.allowed_bytes is not None:
            details["allowedBytes"] = float(verdict.allowed_bytes)
        what, policy = f"the pod is flagged ({reason.value}): it {one_line(message)}", pod.over_share_policy
        if reason is FlagReason.OVER_SHARE and policy is not None and policy.evict:
            what += "; its namespace lets the agent evict such pods"
        yield _flag(evidence, reason, what, [hint, verdict.first_act or ""], details)


def _flag_events(evidence: PodEvidence) -> dict[FlagReason, Event]:
    """Return the agent's newest Event of each reason that no later Event about the same GPU ends."""
    events: dict[tuple[FlagReason, str], Event] = {}
    for event in items(evidence.pod_events):
        gpu = event.message.partition(" on ")[2].partition(",")[0]  # `… on GPU 0 (GPU-1), within its share`
        if reason := _BY_EVENT.get(event.reason):
            events.pop((reason, gpu), None)  # so that the newest Event is the last one
            events[reason, gpu] = event
        elif event.reason == WITHIN_SHARE:
            events.pop((FlagReason.OVER_SHARE, gpu), None)
    return {reason: event for (reason, _), event in events.items()}


def _flag(
    evidence: PodEvidence, reason: FlagReason, what: str, acts: list[str], details: dict[str, float | str]
) -> PodFinding:
    names = ["agent" if any(acts) else "clear-flag"]
    names += ["ask-for-share"] if reason is FlagReason.OVER_SHARE else []
    values: dict[str, Any] = {"act": ". ".join(filter(None, acts)), "cleared_by": reason.cleared_by}
    details = {"reason": reason.value, **details}
    return finding(evidence, "flagged", what, *names, details=details, **values)


def _notes(evidence: PodEvidence, pod: Pod) -> Iterator[PodFinding]:
    if pod.pod_group_name and (refused := guarded(evidence, pod)):
        yield refused
    queue, label = evidence.queue_name, pod.queue_label
    if label and queue and queue != label:
        what = f"the pod counts in the queue {queue}, and not in {label}, which its own label names"
        what += ": the label of its topmost owner wins"
        yield finding(evidence, "queue-of-owner", what, "equal-queues")
    group, age = evidence.pod_group.known, evidence.age
    if group is None:
        return
    named, kept = pod.metadata.labels.get(keys.PRIORITY_LABEL, ""), group.spec.priority_class_name
    if named and kept and named != kept:
        what = f"the pod counts with the priority {kept}, and not with the PriorityClass {quoted(named)}"
        what += ", which its label names"
        yield finding(evidence, "priority-class-ignored", what, "known-priority")
    is_settled = pod.status.phase == "Running" and age is not None and age > SETTLED
    if is_settled and request_of(pod).is_any and not group.resources.allocated:
        who = "podgroup-controller"
        what = f"KAI's {who} has not entered the pod's GPUs, so that the figures of its queue are too low"
        yield finding(evidence, "accounting-missing", what, "start-kai", program=who)
