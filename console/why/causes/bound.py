"""What is the matter with a pod that has a node: its containers, GPU and flags. Pure."""

import re
from collections.abc import Iterator
from datetime import UTC
from operator import attrgetter
from typing import Any, Final

from console.cluster.facts import items
from console.why.acts import finding
from console.why.causes.unscheduled import SETTLED, guarded
from console.why.evidence import AgentFigures, PodEvidence, request_of, waited
from console.why.explanation import Code, PodFinding
from gpuagent.api_types import ApiVerdict
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.messages import WITHIN_SHARE
from kai import keys
from kube.kinds import NO_RESERVED_GPU, ContainerStatus, Event, Pod
from service.text import LONGEST_LINE, counted, first_few, one_line, quoted
from service.units import size

_STARTING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
_MANY_RESTARTS: Final = 3
_LONGEST: Final = 4096  # characters of the kubelet's message that are read
_CONTROLLERS: Final = frozenset({"ReplicaSet", "Job", "StatefulSet", "DaemonSet", "ReplicationController"})
"""Controllers whose pods work for themselves; pods of others may be ranks of one job."""
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
_REFUSALS: Final = (
    ("UnexpectedAdmissionError: .*no healthy devices", "after a restart {devices}, or a GPU has failed"),
    ("UnexpectedAdmissionError", "{devices}, a GPU has failed, or {schedulers}"),
    ("OutOf", "{schedulers}, a static pod took the room, or KAI counts sidecars unlike the kubelet"),
    ("NodeAffinity", "the node's labels have changed"),
    ("TopologyAffinityError", "the kubelet finds no CPUs and GPUs that are close to each other"),
    ("Node|Terminated", "the node was shut down"),
    ("Evicted", "the node ran short of memory or of disk"),
    ("Preempting", "the kubelet made room for a critical pod"),
    ("", "the kubelet's log has more"),
)
"""What may have led the kubelet to refuse or end a pod, by the beginning of its words."""
_SUSPECTS: Final = {
    "devices": "the device plugin had not yet registered its GPUs",
    "schedulers": "two schedulers share the node, each of which needs nodes of its own",
}


def failed(evidence: PodEvidence, pod: Pod) -> PodFinding:
    """Return the finding for a pod whose phase is Failed; without a container that ran there is no log."""
    status, node, ended = pod.status, pod.spec.node_name, how_ended(pod)
    has_run = any(map(_has_run, status.containers))
    for each in status.containers:
        if not has_run and _runtime_error(each):
            return _not_started(evidence, f"container {each.name} has not started", _runtime_error(each))
    words = f"{status.reason}: {status.message[:_LONGEST]}"
    causes = next(causes for start, causes in _REFUSALS if re.match(start, words)).format(**_SUSPECTS)
    acts = ["delete-refused", "read-kubelet"] if status.reason else []
    acts = ["raise-deadline"] if status.reason == "DeadlineExceeded" else acts
    acts += ["read-log"] if has_run else [] if acts else ["read-events"]
    code, what = Code.FAILED, f"the pod has failed: {ended}"
    if acts[0] == "delete-refused" and not has_run:
        code, where = Code.REFUSED_BY_KUBELET, f" of node {node}" if node else ""
        what = f"the kubelet{where} refused or ended the pod, which has no log: {ended}"
    return finding(evidence, code, what, *acts, causes=causes, node=node or "NODE")


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
    yield from _waiting(evidence, pod)
    yield from _reservation(evidence, pod)
    yield from _ranks(evidence, pod)
    yield from _notes(evidence, pod)


def running(evidence: PodEvidence, pod: Pod) -> PodFinding:
    """Return the finding for a pod with which nothing is wrong, and what is not known about it."""
    no_flags = "its flags are not known, since neither all of its Events nor its node's agent could be read"
    no_pod = f"since the namespace {keys.RESERVATION_APP} has no reservation pod"
    unknown = [] if evidence.pod_events.is_known or evidence.figures.is_known else [no_flags]
    if pod.gpu_groups and evidence.shared_gpu_pods.is_known and not evidence.reservations:
        unknown += [f"whether its GPU is reserved is not known, {no_pod}"]
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
        error = _runtime_error(each)
        if error and not _has_run(each):
            yield _not_started(evidence, f"container {each.name} has not started", error)
            return
        trouble = _trouble(evidence, each)
        if trouble:
            log = "read-log" if each.state.terminated else "read-last-log"
            what = f"container {each.name} {trouble}"
            yield finding(evidence, code, what, log if _has_run(each) else "read-events")
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
    sidecars = {each.name for each in pod.view.init_containers if each.is_sidecar} if pod.view else set()
    for each in pod.status.init_container_statuses or ():
        runs = each.state.running
        if runs is not None and not (each.name in sidecars and each.started):
            what = f"the init container {each.name} runs{waited(evidence.since(runs.started_at))}"
            what, act = f"{what}, and the pod's containers start after it", "read-container-log"
            return finding(evidence, Code.CONTAINER_WAITING, what, act, container=each.name)
    what = f"the pod is bound, and the kubelet has not started its containers{waited(evidence.age)}"
    events = [event for event in items(evidence.pod_events) if event.component in _OF_NODE]
    if events and events[-1].type == "Warning":  # a later Event of another type means that it was overcome
        return _not_started(evidence, what, events[-1].message)
    return finding(evidence, Code.CONTAINER_WAITING, what, "read-events")


def _not_started(evidence: PodEvidence, what: str, words: str) -> PodFinding:
    acts = ["mend-runtime"] if any(part in words for part in _RUNTIME) else []
    acts += ["correct-command"] if not acts and any(part in words for part in _NO_PROGRAM) else []
    what = f"{what}: {one_line(words, LONGEST_LINE * 2)}"
    node = evidence.pod.known.spec.node_name if evidence.pod.known else ""
    return finding(evidence, Code.CONTAINER_NOT_STARTED, what, *acts, "read-events", node=node)


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
    """Whether the present run has lasted for half of the pod's life, which ends the talk of earlier ones."""
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
    if not evidence.reservations or pod.status.phase != "Running":
        return
    reserved = {
        group
        for each in evidence.reservations
        if each.spec.node_name == pod.spec.node_name
        and each.status.phase not in keys.FINISHED_PHASES
        and each.metadata.annotations.get(keys.RESERVED_GPU, NO_RESERVED_GPU) != NO_RESERVED_GPU
        for group in each.gpu_groups
    }
    if pod.gpu_groups - reserved:
        what = "the pod runs, and its GPU has no reservation pod: KAI may give the GPU to other pods, or"
        known = [evidence.shared_gpu_pods]
        what += " delete this pod"
        yield finding(evidence, Code.NO_RESERVATION, what, "place-again", excluded_by=known)


def _ranks(evidence: PodEvidence, pod: Pod) -> Iterator[PodFinding]:
    """Yield a finding for pods of one gang on one GPU: NCCL refuses two ranks on a device."""
    group = evidence.pod_group.known
    owner = pod.metadata.owner
    is_gang = owner is not None and owner.controller and owner.kind not in _CONTROLLERS
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
    text, _, act = event.message.partition(". ") if event is not None else ("", "", "")
    figures = evidence.figures.known.pod if evidence.figures.known else None
    line = (verdict.message if verdict else None) or text
    message, _, hint = line.partition("; ")  # a framework's option
    details: dict[str, float | str] = {"reason": reason.value}
    if verdict is not None and verdict.is_of_memory:
        details["usedBytes"] = float(verdict.used_bytes or verdict.used_at_least_bytes or 0)
        if verdict.allowed_bytes is not None:
            details["allowedBytes"] = float(verdict.allowed_bytes)
    uses = one_line(message) if verdict is not None and message else reason.summary
    what = f"the pod is flagged ({reason.value}): it {uses}"
    policy = figures.over_share_policy if figures else None
    if reason is FlagReason.OVER_SHARE and policy is not None and policy.evict:
        what += "; its namespace lets the agent evict such pods"
    if verdict is None and event is not None:
        when = f" at {event.last.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if event.last else ""
        if reason is FlagReason.OVER_SHARE:
            what += f";{when} it {one_line(message)}" if message else ""
        else:  # only over-share has an Event when it clears
            what = f"the pod was flagged ({reason.value}){when}, because it {one_line(message) or uses};"
            what += " whether it still is cannot be seen without its node's agent"
    both = ". ".join(filter(None, [hint, (verdict.first_act if verdict else None) or act]))
    acts = ["agent"] if both else ["clear-flag"]
    acts += ["ask-for-share"] if reason is FlagReason.OVER_SHARE else []
    values: dict[str, Any] = {"act": both, "cleared_by": reason.cleared_by}
    return finding(evidence, Code.FLAGGED, what, *acts, details=details, **values)


def _notes(evidence: PodEvidence, pod: Pod) -> Iterator[PodFinding]:
    yield from filter(None, [guarded(evidence, pod) if pod.pod_group_name else None])
    group = evidence.pod_group.known
    queue, label = evidence.queue_name, pod.queue_label
    if label and queue and queue != label:
        what = f"the pod counts in the queue {queue}, and not in {label}, which its own label names"
        what += ": the label of its topmost owner wins"
        yield finding(evidence, Code.QUEUE_OF_OWNER, what, "equal-queues")
    if group is None:
        return
    named = pod.metadata.labels.get(keys.PRIORITY_LABEL, "")
    kept = group.spec.priority_class_name
    if named and kept and named != kept:
        what = f"the pod counts with the priority {kept}, and not with the PriorityClass {quoted(named)}"
        what += ", which its label names"
        yield finding(evidence, Code.PRIORITY_CLASS_IGNORED, what, "known-priority")
    age = evidence.age
    is_settled = pod.status.phase == "Running" and age is not None and age > SETTLED
    if is_settled and request_of(pod).is_any and not group.resources.allocated:
        who = "podgroup-controller"
        what = f"KAI's {who} has not entered the pod's GPUs, so that the figures of its queue are too low"
        yield finding(evidence, Code.ACCOUNTING_MISSING, what, "start-kai", program=who)
