"""The story of a pod: Events and decisions in order of time. Pure.

The words of KAI, of the API server and of the agent come from Events and conditions, as they are. A message
that is repeated is one step with a count. What KAI writes about binding proves nothing (v0.17.0): a pod is
bound when it has a node.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from console.cluster.facts import items
from console.why.causes.bound import uses_of
from console.why.causes.creation import COMBINED, evictions
from console.why.causes.unscheduled import HARMLESS
from console.why.evidence import PodEvidence, PolicyDecision, request_of
from console.why.explanation import Step
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.messages import EVICTED, WITHIN_SHARE
from kai import kaishare_keys
from kube.kinds import Event, Pod
from service.text import ELLIPSIS, LONGEST_VALUE, counted, joined, one_line
from webhook.policy.reasons import Reason

_OF_GROUP: Final = frozenset({"Unschedulable", "NotReady", "StaleJob"})
_OF_POD: Final = frozenset(
    {
        *("Unschedulable", "Pipelined", "BindingError", "PodGrouperWarning"),  # KAI's
        *("FailedScheduling", "SyncError"),  # of Kubernetes' scheduler and of vCluster
        *(
            "BackOff",
            "Failed",
            "FailedAttachVolume",
            "FailedCreatePodSandBox",
            "FailedMount",
        ),  # the kubelet's
        *("FailedPrepareDynamicResources", "NetworkNotReady", "UnexpectedAdmissionError"),
    }
)
"""Reasons of the Events about a pod that waits."""
_FLAGS: Final = frozenset({reason.event_reason for reason in FlagReason} | {WITHIN_SHARE})
_DECISIONS: Final = {reason.code: reason.text for reason in Reason}
_MOST: Final = 5
"""Different messages of one kind that are steps of their own."""
_MOST_COMPARED: Final = 50
"""Different messages of one kind that are compared with each other."""
_LEAST_REPEATED: Final = 30
"""Length of a message from which its words in another message are no coincidence."""
_LONGEST: Final = 4096
"""Characters of a condition's message that are read; `events` has bounded those of Events."""
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NUMBERED: Final = re.compile(r"(kai-resource-reservation/|gpu-reservation-)\S{1,253}")
_SUFFIX: Final = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}\b")
"""The end of a generated name (apimachinery, `pkg/util/rand`)."""


def tell_story(evidence: PodEvidence) -> list[Step]:
    """Return the steps in order of time; a repeated message stands where it was told first.

    A step of unknown time stands where a pod's life has it. At most 5 messages of a kind are told, the newest
    ones, and the number of the others.
    """
    latest: datetime | None = None
    ordered = []
    for part in _parts(evidence):
        first = min((step.at for step in part if step.at), default=latest)
        latest = max(filter(None, (first, latest)), default=None)
        for step in part:
            at = step.at or first
            ordered.append((at.timestamp() if at else 0.0, step))
    return [step for _, step in sorted(ordered, key=lambda each: each[0])]


def _parts(evidence: PodEvidence) -> Iterator[list[Step]]:
    """Yield the steps by kind, in the order of a pod's life."""
    pod = evidence.pod.known
    yield _evicted(evidence)
    yield [*_created(evidence, pod)]
    refusals = items(evidence.creation_events)
    texts = (each.message.removeprefix(COMBINED).removeprefix("Error creating: ") for each in refusals)
    yield _steps(map(_message, refusals, texts), "refused")
    if pod is not None:
        yield [*_decided(evidence, pod)]
        yield [*_grouped(evidence, pod)]
    yield _waiting(evidence, pod)
    if pod is not None:
        yield [*_bound(pod)]
        yield [*_running(evidence, pod)]
    yield _steps((_message(each) for each in items(evidence.pod_events) if each.reason in _FLAGS), "flagged")


def _created(evidence: PodEvidence, pod: Pod | None) -> Iterator[Step]:
    workload = evidence.workload.known
    if pod is not None:
        owners = [(owner.kind, owner.name) for owner in pod.metadata.owner_references if owner.controller][:1]
        owners += [(owner.kind, owner.metadata.name) for owner in evidence.owners]
        names = [f"{kind} {name}" for kind, name in dict.fromkeys(owners)]
        owner = f" by {' of '.join(names)}" if names else ", without a workload"
        text = one_line(f"pod {pod.name}{owner}, requests {request_of(pod).text}")
        yield Step(at=pod.metadata.creation_timestamp, what="created", text=text)
    elif workload is not None:
        text = one_line(f"{evidence.kind} {workload.metadata.name}")
        yield Step(at=workload.metadata.creation_timestamp, what="created", text=text)


def _decided(evidence: PodEvidence, pod: Pod) -> Iterator[Step]:
    """Yield what kaishare decided about the pod, by the annotation, and what it would decide now."""
    decision = evidence.decision.known or PolicyDecision()
    if not (decision.reason or decision.now):
        return
    text = _decision(decision.reason, pod) if decision.reason else "kaishare added nothing to the pod"
    if decision.now and decision.now_reason != decision.reason:
        text += f"; a new pod would get now: {one_line(decision.now)}"
    yield Step(at=pod.metadata.creation_timestamp, what="decided", text=text)


def _decision(code: str, pod: Pod) -> str:
    """Return the sentence of a reason, up to the first detail that the pod does not have."""
    template = _DECISIONS.get(code)
    if template is None:
        return f"by kaishare: {one_line(code, LONGEST_VALUE)}"
    size = pod.metadata.annotations.get(kaishare_keys.SIZE, "")
    names = [container.name for container in pod.view.containers] if pod.view else []
    details = {
        "container": one_line(names[0] or "", LONGEST_VALUE) if names else ELLIPSIS,
        "share": request_of(pod).text,
        "namespace": pod.metadata.namespace,
        "size": f", size {one_line(size, LONGEST_VALUE)}" if size else "",
    }
    for name, value in details.items():
        template = template.replace(f"{{{name}}}", value)
    sentence, unknown, _ = template.partition("{")
    return f"{sentence}{ELLIPSIS if unknown else ''} ({code})"


def _grouped(evidence: PodEvidence, pod: Pod) -> Iterator[Step]:
    group = evidence.pod_group.known
    if group is None:
        if pod.pod_group_name:
            name = evidence.queue_name
            queue = f", by its labels in the queue {one_line(name)}" if name else ""
            yield Step(at=None, what="grouped", text=f"by KAI{queue}")
        return
    text = f"by KAI in the queue {one_line(group.spec.queue)}"
    if group.spec.priority_class_name:
        text += f", priority {one_line(group.spec.priority_class_name)}"
    if (group.spec.min_member or 0) > 1:
        text += f", with at least {counted(group.spec.min_member or 0, 'pod')} at once"
    yield Step(at=group.metadata.creation_timestamp, what="grouped", text=text)


def _waiting(evidence: PodEvidence, pod: Pod | None) -> list[Step]:
    """Return what KAI, the scheduler and the kubelet said about the pod and its PodGroup."""
    words: list[_Message] = []
    group = evidence.pod_group.known
    scheduled = pod.status.condition("PodScheduled") if pod is not None else None
    if scheduled is not None and scheduled.status == "False":
        at = scheduled.last_transition_time
        words.append(_Message(_bare(scheduled.message), "condition", at, at))
    if group is not None and group.condition is not None:
        at = group.condition.last_transition_time
        words.append(_Message(_bare(group.condition.message), "condition of the group", at, at))
    if pod is not None and not pod.is_bound:
        words += _choices(evidence)
    name = pod.pod_group_name if pod is not None else ""
    of_kai = [event for event in items(evidence.pod_events) if event.reason in _OF_POD]
    of_kai += [
        event
        for event in items(evidence.group_events)
        if event.reason in _OF_GROUP and name in ("", event.involved_object.name)
    ]
    words += [_message(event, _bare(event.message)) for event in of_kai if not _is_harmless(event, pod)]
    return _steps(words, "waiting")


def _choices(evidence: PodEvidence) -> Iterator["_Message"]:
    """Yield that KAI chose a node: its order to the binder, else the Events about it, which prove no more."""
    order = evidence.bind_request.known
    if order is not None:
        at = order.metadata.creation_timestamp
        yield _Message(f"KAI chose the node {order.spec.selected_node}", "BindRequest", at, at)
        return
    for event in items(evidence.pod_events):
        if event.reason == "Scheduled":
            yield _message(event, "KAI chose a node")


def _is_harmless(event: Event, pod: Pod | None) -> bool:
    """Whether an Event is about an error that the next attempt has overcome."""
    if event.reason == "PodGrouperWarning":
        is_grouped = pod is not None and bool(pod.pod_group_name)
        return is_grouped or any(text in event.message for text in HARMLESS)
    return event.reason == "SyncError" and HARMLESS[-1] in event.message


def _bare(message: str) -> str:
    """Return a verdict of KAI without the words that it puts before and after each one."""
    text = message[:_LONGEST].strip().removeprefix("PodSchedulingErrors: ")
    if text.startswith("Resources were not found for pod "):
        text = text.partition(" due to: ")[2] or text
    if text.startswith("Scheduling conditions were not met for pod "):
        text = text.partition(":\n")[2] or text
    return " ".join(text.split()).rstrip(". ")


def _bound(pod: Pod) -> Iterator[Step]:
    if pod.is_bound:
        scheduled = pod.status.condition("PodScheduled")
        is_told = scheduled is not None and scheduled.status == "True"
        at = scheduled.last_transition_time if scheduled and is_told else pod.status.start_time
        yield Step(at=at, what="bound", text=f"to node {one_line(pod.spec.node_name)}")


def _running(evidence: PodEvidence, pod: Pod) -> Iterator[Step]:
    if pod.status.phase != "Running":
        return
    ready = pod.status.condition("Ready")
    at = ready.last_transition_time if ready and ready.status == "True" else pod.status.start_time
    parts = [f"no figures: {evidence.figures.line}"] if evidence.figures.line else []
    figures = evidence.figures.known
    if figures is not None:
        parts = uses_of(figures)
        parts += [f"{counted(figures.neighbours, 'other pod')} on the same GPU"] if parts else []
    parts += [counted(pod.status.restarts, "restart")] if pod.status.restarts else []
    waiting = sum(not container.ready for container in pod.status.container_statuses or ())
    parts += [f"{counted(waiting, 'container is', 'containers are')} not ready"] if waiting else []
    yield Step(at=at, what="running", text=joined(parts) or "all containers have started")


def _evicted(evidence: PodEvidence) -> list[Step]:
    """Return the evictions of the pod, or of earlier pods of the workload, by KAI and by the agent."""
    words = [
        _message(event, event.message.partition("\n")[0])
        for event in evictions(evidence)
        if not _is_of_sibling(event, evidence.pod.known)
    ]
    words += [_message(event) for event in items(evidence.pod_events) if event.reason == EVICTED]
    return _steps(words, "evicted")


def _is_of_sibling(event: Event, pod: Pod | None) -> bool:
    """Whether another pod of the workload was evicted while this one existed."""
    created = pod.metadata.creation_timestamp if pod is not None else None
    if pod is None or created is None or event.first is None:
        return False
    return event.involved_object.name != pod.pod_group_name and event.first > created


@dataclass(frozen=True, slots=True)
class _Message:
    """A message about one object, or equal messages, as often as they were told."""

    text: str
    about: str
    """The object."""
    first: datetime | None
    last: datetime | None
    times: int = 1


def _message(event: Event, text: str | None = None) -> _Message:
    about = f"{event.involved_object.kind}/{event.involved_object.name}"
    return _Message(event.message if text is None else text, about, event.first, event.last, event.times)


def _steps(messages: Iterable[_Message], what: str) -> list[Step]:
    """Return a step for each of the newest different messages, the oldest first."""
    combined = _combined(messages)
    newest = combined[:_MOST_COMPARED]
    different = [each for each in newest if not any(_repeats(each, other) for other in newest)]
    steps = []
    for message in reversed(different[:_MOST]):
        last = message.last if message.times > 1 and message.last != message.first else None
        text = one_line(message.text).rstrip(". ")
        steps.append(Step(at=message.first, last=last, times=message.times, what=what, text=text))
    rest = len(different[_MOST:]) + len(combined[_MOST_COMPARED:])
    return [Step(at=None, what=what, text=counted(rest, "earlier message")), *steps] if rest else steps


def _repeats(message: _Message, other: _Message) -> bool:
    """Whether a message contains another one, as that of a PodGroup contains those of its pods."""
    return len(message.text) > len(other.text) > _LEAST_REPEATED and other.text in message.text


def _combined(messages: Iterable[_Message]) -> list[_Message]:
    """Combine equal messages, and return the newest first.

    KAI tells the same about a pod and its PodGroup: the larger count is that of the message.
    """
    by_text: defaultdict[str, list[_Message]] = defaultdict(list)
    for message in messages:
        if message.text.strip():
            by_text[_key(message.text)].append(message)
    return sorted(map(_sum, by_text.values()), key=_age, reverse=True)


def _key(text: str) -> str:
    """Return what equal messages have in common.

    KAI names another GPU group at every attempt, and a controller another pod at every refusal.
    """
    text = text.replace("podgroup", "pod")
    for pattern in (_UUID, _NUMBERED, _SUFFIX):
        text = pattern.sub(ELLIPSIS, text)
    return " ".join(text.split())


def _sum(messages: Sequence[_Message]) -> _Message:
    times: defaultdict[str, int] = defaultdict(int)
    for message in messages:
        times[message.about] += message.times
    newest = max(messages, key=_age)
    return replace(
        newest,
        first=min((message.first for message in messages if message.first), default=None),
        last=max((message.last for message in messages if message.last), default=None),
        times=max(times.values()),
    )


def _age(message: _Message) -> float:
    return message.last.timestamp() if message.last else 0.0
