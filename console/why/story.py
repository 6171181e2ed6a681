"""The story of a pod: Events and decisions in order of time. Pure.

The words of KAI, of the API server and of the agent come from Events and conditions, as they are. A message
that is repeated is one step with a count. What KAI writes about binding proves nothing (v0.17.0): a pod is
bound when it has a node.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from console.cluster.facts import items
from console.why.causes.placed import uses_of
from console.why.causes.unscheduled import COMBINED, HARMLESS, evictions
from console.why.evidence import PodEvidence, PolicyDecision, request_of
from console.why.explanation import Step
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.messages import EVICTED, WITHIN_SHARE
from kai import kaishare_keys
from kube.kinds import Event, Pod
from service.text import ELLIPSIS, LONGEST_VALUE, counted, joined, one_line

_OF_GROUP: Final = ("Unschedulable", "NotReady", "StaleJob")
_OF_POD: Final = (
    *("Unschedulable", "Pipelined", "BindingError", "PodGrouperWarning"),  # KAI's
    *("FailedScheduling", "SyncError"),  # of Kubernetes' scheduler and of vCluster
    *("TriggeredScaleUp", "NotTriggerScaleUp", "Nominated"),  # of autoscalers
    # the kubelet's
    *("BackOff", "Failed", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedMount"),
    *("FailedPrepareDynamicResources", "NetworkNotReady", "UnexpectedAdmissionError"),
)
"""Reasons of the Events about a pod that waits."""
_FLAGS: Final = (*(reason.event_reason for reason in FlagReason), WITHIN_SHARE)
_MOST: Final = 5  # different messages of one kind that are steps of their own
_MOST_COMPARED: Final = 50  # different messages of one kind that are compared with each other
_LEAST_REPEATED: Final = 30  # length of a message from which its words in another message are no coincidence
_EARLIEST: Final = datetime.fromtimestamp(0, UTC)
_LONGEST: Final = 4096
"""Characters of a message that are read."""
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_RESERVATION: Final = ("kai-resource-reservation/", "gpu-reservation-")
_SUFFIX: Final = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}\b")
"""The end of a generated name (apimachinery, `pkg/util/rand`)."""


def tell_story(evidence: PodEvidence) -> list[Step]:
    """Return the steps in order of time; a repeated message stands where it was told first.

    A step of unknown time stands where a pod's life has it. Of a kind, the newest 5 messages are told.
    """
    latest: datetime | None = None
    ordered = []
    for part in _parts(evidence):
        first = min((step.at for step in part if step.at), default=latest)
        latest = max(filter(None, (first, latest)), default=None)
        ordered += [((step.at or first or _EARLIEST).timestamp(), step) for step in part]
    return [step for _, step in sorted(ordered, key=lambda each: each[0])]


def _parts(evidence: PodEvidence) -> Iterator[list[Step]]:
    pod = evidence.pod.known
    yield _steps("evicted", _evicted(evidence))
    yield [*_created(evidence, pod)]
    refused = ((each, each.message.removeprefix(COMBINED)) for each in items(evidence.creation_events))
    yield _steps("refused", (_told(each, text.removeprefix("Error creating: ")) for each, text in refused))
    yield [*_decided(evidence, pod), *_grouped(evidence, pod)] if pod else []
    yield _steps("waiting", _waiting(evidence, pod))
    yield [*_placed(evidence, pod)] if pod else []
    yield _steps("flagged", (_told(each, each.message) for each in evidence.about_pod(*_FLAGS)))


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
    decision, text = evidence.decision.known or PolicyDecision(), "kaishare added nothing to the pod"
    if decision.reason:
        size = one_line(pod.metadata.annotations.get(kaishare_keys.SIZE, ""), LONGEST_VALUE)
        policy = f"by kaishare in namespace {pod.metadata.namespace}{f', size {size}' if size else ''}"
        text = f"{policy}: {request_of(pod).text} ({one_line(decision.reason)})"
    if decision.now and decision.now_reason != decision.reason:
        text += f"; a new pod would get now: {one_line(decision.now)}"
    if decision.reason or decision.now:
        yield Step(at=pod.metadata.creation_timestamp, what="decided", text=text)


def _grouped(evidence: PodEvidence, pod: Pod) -> Iterator[Step]:
    group, queue = evidence.pod_group.known, one_line(evidence.queue_name)
    if group is not None:
        priority, least = one_line(group.spec.priority_class_name), group.spec.min_member or 0
        text = f"by KAI in the queue {queue}{f', priority {priority}' if priority else ''}"
        text += f", with at least {counted(least, 'pod')} at once" if least > 1 else ""
        yield Step(at=group.metadata.creation_timestamp, what="grouped", text=text)
    elif pod.pod_group_name:
        text = f"by KAI{f', by its labels in the queue {queue}' if queue else ''}"
        yield Step(at=None, what="grouped", text=text)


def _placed(evidence: PodEvidence, pod: Pod) -> Iterator[Step]:
    def since(kind: str) -> datetime | None:
        condition = pod.status.condition(kind)
        is_true = condition is not None and condition.status == "True"
        return condition.last_transition_time if condition and is_true else pod.status.start_time

    if pod.is_bound:
        yield Step(at=since("PodScheduled"), what="bound", text=f"to node {one_line(pod.spec.node_name)}")
    if pod.status.phase == "Running":
        figures, uses = evidence.figures, uses_of(evidence.figures.known)
        parts = [f"no figures: {figures.line}"] if figures.line else uses
        neighbours = figures.known.neighbours if figures.known else 0
        parts += [f"{counted(neighbours, 'other pod')} on the same GPU"] if uses else []
        parts += [counted(pod.status.restarts, "restart")] if pod.status.restarts else []
        text = joined(parts) or "all containers have started"
        yield Step(at=since("Ready"), what="running", text=text)


_Told = tuple[str, Step]  # an object, and what was told about it


def _told(event: Event, text: str) -> _Told:
    step = Step(at=event.first, last=event.last, times=event.times, what="", text=text)
    return f"{event.involved_object.kind}/{event.involved_object.name}", step


def _waiting(evidence: PodEvidence, pod: Pod | None) -> Iterator[_Told]:
    group, order = evidence.pod_group.known, evidence.bind_request.known
    scheduled = pod.status.condition("PodScheduled") if pod is not None else None
    condition = group.condition if group is not None else None
    is_waiting = pod is not None and not pod.is_bound

    def once(about: str, at: datetime | None, text: str) -> _Told:
        return about, Step(at=at, last=at, what="", text=text)

    if scheduled is not None and scheduled.status == "False":
        yield once("condition", scheduled.last_transition_time, _bare(scheduled.message))
    if condition is not None:
        yield once("condition of the group", condition.last_transition_time, _bare(condition.message))
    if is_waiting and order is not None:
        text = f"KAI chose the node {order.spec.selected_node}"
        yield once("BindRequest", order.metadata.creation_timestamp, text)
    for event in items(evidence.pod_events):
        if event.reason == "Scheduled" and is_waiting and order is None:  # proves no more than the order
            yield _told(event, "KAI chose a node")
        elif event.reason in _OF_POD and not _is_harmless(event, pod):
            yield _told(event, _bare(event.message))
    name = pod.pod_group_name if pod is not None else ""
    for event in items(evidence.group_events):
        if event.reason in _OF_GROUP and name in ("", event.involved_object.name):
            yield _told(event, _bare(event.message))


def _is_harmless(event: Event, pod: Pod | None) -> bool:
    """Whether an Event is about an error that the next attempt has overcome."""
    if event.reason == "PodGrouperWarning":
        return bool(pod and pod.pod_group_name) or any(text in event.message for text in HARMLESS)
    return event.reason == "SyncError" and HARMLESS[-1] in event.message


def _bare(message: str) -> str:
    """Return a verdict of KAI without the words that it puts before and after each one."""
    text = message[:_LONGEST].strip().removeprefix("PodSchedulingErrors: ")
    if text.startswith("Resources were not found for pod "):
        text = text.partition(" due to: ")[2] or text
    if text.startswith("Scheduling conditions were not met for pod "):
        text = text.partition(":\n")[2] or text
    return " ".join(text.split()).rstrip(". ")


def _evicted(evidence: PodEvidence) -> Iterator[_Told]:
    yield from (_told(each, each.message.partition("\n")[0]) for each in evictions(evidence))
    yield from (_told(each, each.message) for each in evidence.about_pod(EVICTED))


def _steps(what: str, messages: Iterable[_Told]) -> list[Step]:
    """Return a step for each of the newest different messages, the oldest first."""
    by_text: defaultdict[str, list[_Told]] = defaultdict(list)
    for about, step in messages:
        if step.text.strip():
            by_text[_key(step.text)].append((about, step))
    combined = sorted(map(_combined, by_text.values()), key=_age)
    newest = combined[-_MOST_COMPARED:]
    # The message of a PodGroup contains those of its pods.
    texts = [step.text for step in newest if len(step.text) > _LEAST_REPEATED]
    different = [step for step in newest if not any(text in step.text for text in texts if text != step.text)]
    rest, steps = len(combined) - len(newest) + len(different[:-_MOST]), []
    for step in different[-_MOST:]:
        last = step.last if step.times > 1 and step.last != step.at else None
        steps.append(replace(step, what=what, last=last, text=one_line(step.text).rstrip(". ")))
    return [*([Step(at=None, what=what, text=counted(rest, "earlier message"))] if rest else []), *steps]


def _key(text: str) -> str:
    """Return what equal messages have in common.

    KAI names another GPU group at every attempt, and a controller another pod at every refusal.
    """
    text = text[:_LONGEST].replace("podgroup", "pod")
    words = _SUFFIX.sub(ELLIPSIS, _UUID.sub(ELLIPSIS, text)).split()
    return " ".join(ELLIPSIS if word.startswith(_RESERVATION) else word for word in words)


def _combined(messages: Sequence[_Told]) -> Step:
    """Combine equal messages. KAI tells the same about a pod and its PodGroup: the larger count counts."""
    times: Counter[str] = Counter()
    for about, step in messages:
        times[about] += step.times
    steps = [step for _, step in messages]
    first = min((step.at for step in steps if step.at), default=None)
    return replace(max(steps, key=_age), at=first, times=max(times.values()))


def _age(step: Step) -> float:
    return step.last.timestamp() if step.last else 0.0
