"""The story of a pod: what happened to it, in order of time. Pure.

The words of KAI, of the API server and of the agent come from Events and conditions. A message that is
repeated is one step with a count. What KAI writes about binding proves nothing (v0.17.0): a pod is bound when
it has a node.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from console.why.causes.bound import uses_of
from console.why.causes.creation import evictions
from console.why.causes.group_refused import HARMLESS
from console.why.causes.requested_gpus import request_of
from console.why.evidence import PodEvidence, known
from console.why.evidence_objects import EventObject, PodBindRequest, PodObject
from console.why.explanation import Step
from console.why.membership import workload_of
from console.why.redaction import Redactor, without_suffixes
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.messages import EVICTED, WITHIN_SHARE
from kai import kaishare_keys
from service.text import ELLIPSIS, LONGEST_VALUE, counted, joined, one_line
from webhook.policy.reasons import Reason

_OF_GROUP: Final = frozenset({"Unschedulable", "NotReady", "StaleJob"})
_OF_POD: Final = frozenset(
    {"Unschedulable", "Pipelined", "BindingError", "PodGrouperWarning", "FailedScheduling", "SyncError"}
)
"""Reasons of the Events of KAI, of Kubernetes' scheduler and of vCluster about a pod that waits."""
_OF_KUBELET: Final = frozenset(
    {
        "BackOff",
        "Failed",
        "FailedAttachVolume",
        "FailedCreatePodSandBox",
        "FailedMount",
        "FailedPrepareDynamicResources",
        "NetworkNotReady",
        "UnexpectedAdmissionError",
    }
)
_FLAGS: Final = frozenset({reason.event_reason for reason in FlagReason} | {WITHIN_SHARE})

_DECISIONS: Final = {reason.code: reason.text for reason in Reason}

_MOST: Final = 5
"""Different messages of one kind that are steps of their own."""
_MOST_CLEANED: Final = 50
"""Different messages of one kind in which names are looked for."""
_LONGEST: Final = 4096
"""Characters of a condition's message that are read; `reading.events` has bounded those of Events."""

_LEAST_REPEATED: Final = 30
"""Length of a message from which its words in another message are no coincidence."""

_COMBINED: Final = "(combined from similar events): "
_CREATING: Final = "Error creating: "
_ERRORS: Final = "PodSchedulingErrors: "
_FOR_POD: Final = "Resources were not found for pod "
_CONDITIONS: Final = "Scheduling conditions were not met for pod "
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_RESERVATION: Final = "kai-resource-reservation/"


def tell_story(evidence: PodEvidence, redactor: Redactor) -> list[Step]:
    """Return the steps in order of time; a repeated message stands where it was told first.

    A step of unknown time stands where a pod's life has it. At most 5 messages of a kind are told, the newest
    ones, and the number of the others.
    """
    latest: datetime | None = None
    ordered = []
    for part in _parts(evidence, redactor):
        first = min((step.at for step in part if step.at), default=latest)
        latest = max(filter(None, (first, latest)), default=None)
        for step in part:
            at = step.at or first
            ordered.append((at.timestamp() if at else 0.0, step))
    return [step for _, step in sorted(ordered, key=lambda each: each[0])]


def _parts(evidence: PodEvidence, redactor: Redactor) -> Iterator[list[Step]]:
    """Yield the steps by kind, in the order of a pod's life."""
    pod = known(evidence.pod)
    yield _evicted(evidence, redactor)
    yield [*_created(evidence, pod)]
    yield _refused(evidence, redactor)
    if pod is not None:
        yield [*_decided(evidence, pod)]
        yield [*_grouped(evidence, pod, redactor)]
    yield _waiting(evidence, pod, redactor)
    if pod is not None:
        yield [*_bound(pod, redactor)]
        yield [*_running(evidence, pod, redactor)]
    yield _from_events(_of(evidence.pod_events, _FLAGS), "flagged", redactor)


def _created(evidence: PodEvidence, pod: PodObject | None) -> Iterator[Step]:
    workload = known(evidence.workload)
    if pod is not None:
        owners = [(owner.kind, owner.name) for owner in pod.metadata.owner_references if owner.controller][:1]
        owners += [(owner.kind, owner.metadata.name) for owner in evidence.owners]
        names = [one_line(f"{kind} {name}") for kind, name in dict.fromkeys(owners)]
        owner = f" by {' of '.join(names)}" if names else ", without a workload"
        text = f"pod {one_line(pod.name)}{owner}, requests {request_of(pod).text}"
        yield Step(at=pod.metadata.creation_timestamp, what="created", text=text)
    elif workload is not None:
        text = one_line(f"{evidence.kind} {workload.metadata.name}")
        yield Step(at=workload.metadata.creation_timestamp, what="created", text=text)


def _decided(evidence: PodEvidence, pod: PodObject) -> Iterator[Step]:
    """Yield what kaishare decided about the pod, by the annotation, and what it would decide now."""
    decision = evidence.decision
    if decision is None or not (decision.reason or decision.now):
        return
    text = _decision(decision.reason, pod) if decision.reason else "kaishare added nothing to the pod"
    if decision.now and decision.now_reason != decision.reason:
        text += f"; a new pod would get now: {one_line(decision.now)}"
    yield Step(at=pod.metadata.creation_timestamp, what="decided", text=text)


def _decision(code: str, pod: PodObject) -> str:
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


def _grouped(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> Iterator[Step]:
    group = known(evidence.pod_group)
    if group is None:
        if pod.pod_group_name:
            name = evidence.queue_name
            queue = f", by its labels in the queue {redactor.clean(name)}" if name else ""
            yield Step(at=None, what="grouped", text=f"by KAI{queue}")
        return
    text = f"by KAI in the queue {redactor.clean(group.spec.queue)}"
    if group.spec.priority_class_name:
        text += f", priority {redactor.clean(group.spec.priority_class_name)}"
    if (group.spec.min_member or 0) > 1:
        text += f", with at least {counted(group.spec.min_member or 0, 'pod')} at once"
    yield Step(at=group.metadata.creation_timestamp, what="grouped", text=text)


def _bound(pod: PodObject, redactor: Redactor) -> Iterator[Step]:
    if pod.is_bound:
        scheduled = pod.status.condition("PodScheduled")
        is_told = scheduled is not None and scheduled.status == "True"
        at = scheduled.last_transition_time if scheduled and is_told else pod.status.start_time
        yield Step(at=at, what="bound", text=f"to node {redactor.name(pod.spec.node_name)}")


def _running(evidence: PodEvidence, pod: PodObject, redactor: Redactor) -> Iterator[Step]:
    if pod.status.phase != "Running":
        return
    ready = pod.status.condition("Ready")
    at = ready.last_transition_time if ready and ready.status == "True" else pod.status.start_time
    parts = []
    figures = evidence.figures
    if figures is not None and figures.failure:
        parts.append(f"no figures: {redactor.clean(figures.failure)}")
    elif figures is not None:
        parts = uses_of(figures)
        parts += [f"{counted(figures.neighbours, 'other pod')} on the same GPU"] if parts else []
    containers = pod.status.container_statuses or ()
    parts += [counted(pod.status.restarts, "restart")] if pod.status.restarts else []
    waiting = sum(not container.ready for container in containers)
    parts += [f"{counted(waiting, 'container is', 'containers are')} not ready"] if waiting else []
    yield Step(at=at, what="running", text=joined(parts) or "all containers have started")


@dataclass(frozen=True, slots=True)
class _Message:
    """A message about one object, or equal messages, as often as they were told."""

    text: str
    about: str
    """The object."""
    first: datetime | None
    last: datetime | None
    times: int = 1


def _from_events(events: Iterable[EventObject], what: str, redactor: Redactor) -> list[Step]:
    return _steps(map(_message, events), what, redactor)


def _message(event: EventObject, text: str | None = None) -> _Message:
    about = f"{event.involved_object.kind}/{event.involved_object.name}"
    message = event.message if text is None else text
    return _Message(message, about, event.first, event.last, event.times)


def _of(events: Iterable[EventObject], reasons: frozenset[str]) -> Iterator[EventObject]:
    return (event for event in events if event.reason in reasons)


def _waiting(evidence: PodEvidence, pod: PodObject | None, redactor: Redactor) -> list[Step]:
    """Return what KAI, the scheduler and the kubelet said about the pod and its PodGroup."""
    words: list[_Message] = []
    group = known(evidence.pod_group)
    if pod is not None:
        condition = pod.status.condition("PodScheduled")
        if condition is not None and condition.status == "False":
            at = condition.last_transition_time
            words.append(_Message(_bare(condition.message), "condition", at, at))
        if not pod.is_bound:
            words += _choices(evidence, known(evidence.bind_request))
    if group is not None and group.condition is not None:
        at = group.condition.last_transition_time
        words.append(_Message(_bare(group.condition.message), "condition of the group", at, at))
    name = pod.pod_group_name if pod is not None else ""
    events = [event for event in evidence.group_events if name in ("", event.involved_object.name)]
    of_kai = [*_of(evidence.pod_events, _OF_POD | _OF_KUBELET), *_of(events, _OF_GROUP)]
    words += [_message(event, _bare(event.message)) for event in of_kai if not _is_harmless(event, pod)]
    return _steps(words, "waiting", redactor)


def _choices(evidence: PodEvidence, order: PodBindRequest | None) -> Iterator[_Message]:
    """Yield that KAI chose a node: its order to the binder, else the Events about it, which prove no more."""
    if order is not None:
        at = order.metadata.creation_timestamp
        yield _Message(f"KAI chose the node {order.spec.selected_node}", "BindRequest", at, at)
        return
    for event in evidence.pod_events:
        if event.reason == "Scheduled":
            yield _message(event, "KAI chose a node")


def _is_harmless(event: EventObject, pod: PodObject | None) -> bool:
    """Whether an Event is about an error that the next attempt has overcome."""
    if event.reason == "PodGrouperWarning":
        is_grouped = pod is not None and bool(pod.pod_group_name)
        return is_grouped or any(text in event.message for text in HARMLESS)
    return event.reason == "SyncError" and HARMLESS[-1] in event.message


def _bare(message: str) -> str:
    """Return a verdict of KAI without the words that it puts before and after each one."""
    text = message[:_LONGEST].strip().removeprefix(_ERRORS)
    if text.startswith(_FOR_POD):
        text = text.partition(" due to: ")[2] or text
    if text.startswith(_CONDITIONS):
        text = text.partition(":\n")[2] or text
    return " ".join(text.split()).rstrip(". ")


def _evicted(evidence: PodEvidence, redactor: Redactor) -> list[Step]:
    """Return the evictions of the pod, or of earlier pods of the workload, by KAI and by the agent."""
    words = [
        _message(event, _of_owner(event).partition("\n")[0])
        for event in evictions(evidence)
        if not _is_of_sibling(event, known(evidence.pod))
    ]
    words += [_message(event) for event in evidence.pod_events if event.reason == EVICTED]
    return _steps(words, "evicted", redactor)


def _is_of_sibling(event: EventObject, pod: PodObject | None) -> bool:
    """Whether another pod of the workload was evicted while this one existed."""
    created = pod.metadata.creation_timestamp if pod is not None else None
    if pod is None or created is None or event.first is None:
        return False
    return event.involved_object.name != pod.pod_group_name and event.first > created


def _of_owner(event: EventObject) -> str:
    """Return the message of an Event about a pod's PodGroup without the generated end of the pod's name."""
    owner = workload_of(event.involved_object.name).rpartition("-")[0]
    return without_suffixes(event.message, owner)


def _refused(evidence: PodEvidence, redactor: Redactor) -> list[Step]:
    """Return the refusals of pods; they differ by the generated end of the pod's name only."""
    words = []
    for event in evidence.creation_events:
        text = event.message.removeprefix(_COMBINED).removeprefix(_CREATING)
        words.append(_message(event, without_suffixes(text, event.involved_object.name)))
    return _steps(words, "refused", redactor)


def _steps(messages: Iterable[_Message], what: str, redactor: Redactor) -> list[Step]:
    """Return a step for each of the newest different messages, the oldest first, after one for those before.

    Messages that differ by hidden names only are one step.
    """
    raw = _combined(messages)
    newest = raw[:_MOST_CLEANED]
    short = [each for each in newest if not any(_repeats(each, other) for other in newest)]
    clean = (replace(each, text=redactor.clean(each.text).rstrip(". ")) for each in short)
    different = _combined(clean)
    steps = [_step(message, what) for message in reversed(different[:_MOST])]
    rest = len(different[_MOST:]) + len(raw[_MOST_CLEANED:])
    return [Step(at=None, what=what, text=counted(rest, "earlier message")), *steps] if rest else steps


def _repeats(message: _Message, other: _Message) -> bool:
    """Whether a message contains another one, as that of a PodGroup contains those of its pods."""
    return len(message.text) > len(other.text) > _LEAST_REPEATED and other.text in message.text


def _step(message: _Message, what: str) -> Step:
    is_repeated = message.times > 1 and message.last != message.first
    last = message.last if is_repeated else None
    return Step(at=message.first, last=last, times=message.times, what=what, text=message.text)


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
    """Return what equal messages have in common: KAI names another GPU group at every attempt."""
    words = _UUID.sub(ELLIPSIS, text.replace("podgroup", "pod")).split()
    return " ".join(ELLIPSIS if word.startswith(_RESERVATION) else word for word in words)


def _sum(messages: Sequence[_Message]) -> _Message:
    times: defaultdict[str, int] = defaultdict(int)
    for message in messages:
        times[message.about] += message.times
    about, most = max(times.items(), key=lambda item: item[1])
    return _Message(
        text=max(messages, key=_age).text,
        about=about,
        first=min((message.first for message in messages if message.first), default=None),
        last=max((message.last for message in messages if message.last), default=None),
        times=most,
    )


def _age(message: _Message) -> float:
    return message.last.timestamp() if message.last else 0.0
