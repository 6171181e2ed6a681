"""What is known about one pod or workload: facts, requests, KAI's last words, who holds GPUs. Pure."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import isnan
from typing import Final, NamedTuple

from console.cluster.facts import NOT_READ, Fact, Listing, Why, items
from gpuagent.api_types import ApiPod
from kai import keys
from kai.installation import NAMESPACE
from kai.queue import Queue
from kai.releases import Version
from kai.share import Share
from kai.share_bytes import Card
from kube.device_kinds import DeviceClass, ResourceClaim, ResourceSlice
from kube.kinds import BindRequest, Event, Node, Pod, PodGroup, PodOwner, SchedulingShard
from service.text import one_line
from service.units import duration
from webhook.policy.checks import readable, whole_gpus

_REASON: Final = re.compile(r"(QueueDoesNotExist|OverLimit|NonPreemptibleOverQuota|PodSchedulingErrors): ?")
_LONGEST: Final = 8192  # characters of a verdict that are read: one line for each reason and node
_MOST_REASONS: Final = 16
"""Reasons of a PodGroup's condition that are compared with the text; KAI writes one or two."""
_UNEXPLAINED: Final = ("Unable to schedule pod", "Unable to schedule podgroup")
"""All that KAI says of a queue with children and, in v0.9.8, of a queue without a parent."""
_MOST_CLAIMS: Final = 8  # ResourceClaims of a pod that a sentence names
SMALLEST: Final = 0.005  # half of the smallest part of a GPU that KAI counts
_MOST_GPUS: Final = 65536  # more GPUs than any node has; a larger number is no number of GPUs
_CONTROLLERS: Final = ("ReplicaSet", "Job", "StatefulSet", "DaemonSet", "ReplicationController")
"""Controllers whose pods work for themselves; pods of others may be ranks of one job."""
_MOST_HOLDERS: Final = 3  # pods that are named
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecision:
    """What the webhook decided about the pod, and what it would decide now."""

    reason: str = ""  # the code that the webhook wrote on the pod at its creation; empty if it wrote none
    now_reason: str = ""  # the code for a new pod like this one; empty if the policy cannot be read
    now: str = ""  # what a new pod like this one would get, as a sentence; empty if the policy cannot be read


class AgentFigures(NamedTuple):
    """What the node's agent reports about the pod."""

    pod: ApiPod | None  # None if the agent does not list it: it has no share, no GPU and no memory on one
    neighbours: int = 0  # number of other pods on the pod's GPUs


class GpuPod(NamedTuple):
    """A pod of KAI that holds GPUs, or waits for them."""

    namespace: str
    name: str
    queue: str  # queue label of the pod; empty without one
    group: str  # name of the PodGroup; empty before KAI has grouped the pod
    request: str  # the GPUs in words
    created_at: datetime
    is_bound: bool
    ends_at: datetime | None  # the latest, by `spec.activeDeadlineSeconds`; None without that


class SchedulerVerdict(NamedTuple):
    """KAI's last words about a pod: its condition PodScheduled, the PodGroup's condition, Unschedulable.

    The scheduler writes the same in all three (v0.9.8 to v0.17.0). It stays when the scheduler ends.
    """

    text: str  # the pod's own text, else its group's; at most 8192 characters
    group_text: str  # the text of the PodGroup, which has the gang's cause; empty if unknown
    queue: str  # the full queue's name, by the PodGroup; empty if that names none for this text
    reason: str  # the code of the reason, such as `OverLimit`; empty if KAI gives none
    since: datetime | None  # when KAI said it first

    @property
    def all_text(self) -> str:
        """Both texts."""
        return f"{self.text}\n{self.group_text}"

    @property
    def is_unexplained(self) -> bool:
        """Whether KAI gives no reason."""
        return self.text.strip() in _UNEXPLAINED


@dataclass(slots=True, kw_only=True)
class PodEvidence:
    """The facts about one pod or workload, as far as the caller may read them. The reader fills it."""

    now: datetime  # the API server's time
    namespace: str
    kind: str = "Pod"  # kind that the caller named
    name: str
    pod: Fact[Pod]
    workload: Fact[PodOwner] = NOT_READ  # the workload that the caller named
    owners: Sequence[PodOwner] = ()  # the pod's owners that were read, the nearest first
    pod_events: Listing[Event] = NOT_READ  # Events about the pod, oldest first
    group_events: Listing[Event] = NOT_READ  # about PodGroups of the pod and its workload, oldest first
    creation_events: Listing[Event] = NOT_READ  # about pods that could not be created, oldest first
    pod_group: Fact[PodGroup] = NOT_READ
    bind_request: Fact[BindRequest] = NOT_READ
    queues: Mapping[str, Fact[Queue]] = field(default_factory=dict)  # the pod's queue and its parents by name
    nodes: Listing[Node] = NOT_READ
    shared_gpu_pods: Listing[Pod] = NOT_READ
    """The pods of all namespaces in GPU groups, reservation pods among them; for a bound pod the reservation
    pods of its node."""
    gpu_pods: Listing[GpuPod] = NOT_READ  # KAI's pods of all namespaces that hold GPUs, or wait for them
    scaling_pods: Listing[Pod] = NOT_READ  # of KAI's node-scale-adjuster, which ask an autoscaler for nodes
    group_members: Listing[Pod] = NOT_READ  # the other pods of the pod's namespace in its GPU groups
    device_claims: Listing[ResourceClaim] = NOT_READ  # of all namespaces, or else of the pod's
    are_device_claims_of_all: bool = False  # whether these are the ResourceClaims of all namespaces
    device_classes: Listing[DeviceClass] = NOT_READ
    slices: Listing[ResourceSlice] = NOT_READ
    shards: Listing[SchedulingShard] = NOT_READ
    scheduler: str = keys.SCHEDULER_NAME  # the scheduler that the namespace's policy names
    decision: Fact[PolicyDecision] = NOT_READ  # missing: the pod's namespace has no queue label
    kai_namespace: str = NAMESPACE  # by KAI's webhook; the usual one if that cannot be read
    kai_version: Version | None = None  # KAI's release by the webhook's settings; None if unknown
    figures: Fact[AgentFigures] = NOT_READ  # read of a running pod only
    not_visible: Sequence[str] = ()  # the objects that the caller may not read, such as `Queue team-a`
    notes: Sequence[str] = ()  # requests that failed for another reason, one line each

    @property
    def age(self) -> timedelta | None:
        """Age of the pod; None without a pod."""
        return self.since(self.pod.known.metadata.creation_timestamp) if self.pod.known else None

    def since(self, moment: datetime | None) -> timedelta | None:
        """Return the time since a moment, at least 0; None without one."""
        return None if moment is None else max(self.now - moment, timedelta())

    def about_pod(self, *reasons: str) -> list[Event]:
        """Return the Events about the pod with one of these reasons, oldest first."""
        return [event for event in items(self.pod_events) if event.reason in reasons]

    def about_groups(self, reason: str, name: str = "") -> list[Event]:
        """Return the Events with a reason about PodGroups, oldest first; about one if a name is given."""
        events = (event for event in items(self.group_events) if event.reason == reason)
        return [event for event in events if name in ("", event.involved_object.name)]

    @property
    def are_events_read(self) -> bool:
        """Whether all Events that were requested could be read, so that a missing one means something."""
        return not any(each.line for each in (self.pod_events, self.group_events, self.creation_events))

    @property
    def is_kai_served(self) -> bool:
        """Whether the API server serves KAI's kinds: not in a vCluster whose host has KAI."""
        return Why.UNSERVED not in (self.pod_group.why, self.bind_request.why)

    @property
    def gang_size(self) -> int | None:
        """Number of pods that KAI starts together; None if the PodGroup is not known."""
        group = self.pod_group.known
        return None if group is None else max(group.spec.min_member or 1, 1)

    def is_rank(self, pod: Pod) -> bool:
        """Whether the pod is one of several that start together: by its PodGroup, else by its controller."""
        owner = pod.metadata.owner
        by_owner = owner is not None and owner.controller and owner.kind not in _CONTROLLERS
        return bool(by_owner) if self.gang_size is None else self.gang_size > 1

    @property
    def queue_name(self) -> str:
        """The queue that counts: the PodGroup's, else the topmost owner's label, else the pod's; or empty."""
        if self.pod_group.known:
            return self.pod_group.known.spec.queue
        top = self.owners[-1].metadata.labels.get(keys.QUEUE_LABEL, "") if self.owners else ""
        return top or (self.pod.known.queue_label if self.pod.known else "")

    @property
    def reservations(self) -> list[Pod]:
        """The reservation pods that were read; without any, a missing one means nothing."""
        return [pod for pod in items(self.shared_gpu_pods) if is_reservation(pod)]

    @property
    def verdict(self) -> SchedulerVerdict | None:
        """KAI's last verdict about the pod; None if KAI has said nothing."""
        pod, group = self.pod.known, self.pod_group.known
        scheduled = pod.status.condition("PodScheduled") if pod else None
        said = [(event.message, event.first) for event in self.about_pod("Unschedulable")[-1:]]
        if scheduled is not None and scheduled.status == "False" and scheduled.message:
            said = [(scheduled.message, scheduled.last_transition_time)]
        text, since = said[0] if said else ("", None)
        condition = group.condition if group else None
        of_group = self.about_groups("Unschedulable", pod.pod_group_name or "-")[-1:] if pod else []
        group_text = (condition.message if condition else "") or "".join(each.message for each in of_group)
        if not text and not group_text:
            return None
        own_text, reasons = (text or group_text)[:_LONGEST], (condition.reasons if condition else None) or ()
        is_same = not text or text.strip(". \n") in group_text
        match = _REASON.match(text) or (_REASON.match(group_text) if is_same else None)
        reason = match[1] if match else reasons[0].reason if reasons and is_same else ""
        of_text = (each for each in reasons[:_MOST_REASONS] if each.message and each.message in own_text)
        queue = next((each.queue for each in of_text if each.queue), "")
        since = since or (condition.last_transition_time if condition else None)
        return SchedulerVerdict(own_text, group_text[:_LONGEST], queue, reason, since)


def is_reservation(pod: Pod) -> bool:
    """Whether the pod is one of KAI's reservation pods, in the namespace that KAI uses by default.

    Only KAI may create pods there. Pods elsewhere do not count (a binder's --resource-reservation-namespace).
    """
    return pod.metadata.namespace == pod.metadata.labels.get(keys.APP_LABEL) == keys.RESERVATION_APP


def waited(age: timedelta | None) -> str:
    """Return how long something has lasted, such as ` for 3 min`; empty if unknown."""
    return f" for {duration(age.total_seconds())}" if age else ""


class Request(NamedTuple):
    """The GPUs that a pod requests: a share of GPUs, or whole ones."""

    share: Share | None = None
    whole: int = 0  # number of whole GPUs
    claims: tuple[str, ...] = ()  # the pod's names of ResourceClaims, whose devices queues do not count

    @property
    def is_any(self) -> bool:
        """Whether the pod requests any GPU."""
        return self.share is not None or self.whole > 0

    @property
    def text(self) -> str:
        """The request in words."""
        if self.share is None:
            devices = f"the devices of ResourceClaim {', '.join(self.claims)}" if self.claims else "no GPU"
            return gpus(self.whole) if self.whole else devices
        memory, count = self.share.memory_mib, self.share.devices
        part = number(self.share.fraction or 0) if memory is None else f"{memory} MiB"
        return f"{part} of {f'each of {count} GPUs' if count > 1 else 'a GPU'}"

    @property
    def total(self) -> float | None:
        """Number of GPUs that KAI counts for the pod; None for an amount of memory."""
        part = self.portion(None)
        return self.whole if self.share is None else None if part is None else part * self.share.devices

    def portion(self, card: Card | None) -> float | None:
        """Return the part of such a GPU that is needed in one piece, as KAI counts it; 1 for a whole one."""
        if self.share is None:
            return 1.0 if self.whole else None
        if self.share.memory_mib is not None:
            return None if card is None else card.portion_of_memory(self.share.memory_mib)
        return round(self.share.fraction or 0, 2)


def request_of(pod: Pod) -> Request:
    """Return what a pod requests; what cannot be read counts as nothing."""
    view = pod.view
    claims = tuple(one_line(each.name) for each in (pod.spec.resource_claims or ())[:_MOST_CLAIMS])
    share = readable(lambda: view.share_request) if view is not None else None
    if share is not None and not isnan(share.fraction or 0):
        return Request(share, claims=claims)
    whole = (readable(lambda: whole_gpus(view)) if view is not None else 0) or 0
    return Request(whole=whole if 0 <= whole <= _MOST_GPUS else 0, claims=claims)


def requested_together(evidence: PodEvidence, requested: float, unit: str = "GPU") -> str:
    """Return the subject of what KAI says that "the workload" requests, an amount of a unit.

    The number is that of all pods that KAI starts together: the pod's only if it is alone, or requests it.
    """
    pod, size = evidence.pod.known, evidence.gang_size
    if size is not None and size > 1:
        return f"the workload needs {size} pods at the same time, which request {number(requested)} in all"
    own = request_of(pod).total if pod is not None and "GPU" in unit else None
    is_of_pod = size == 1 if own is None else abs(own - requested) < SMALLEST
    return f"the {'pod' if is_of_pod else 'workload'} requests {number(requested)}"


def number(value: float) -> str:
    """Format an amount with at most two decimals, without trailing zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def gpus(value: float) -> str:
    """Format a number of GPUs: `0 GPUs`, `0.5 GPU`, `1 GPU`, `2 GPUs`."""
    return f"{number(value)} GPU{'' if 0 < value <= 1 else 's'}"


def gpu_pod(pod: Pod) -> GpuPod | None:
    """Return what is kept of a pod of KAI; None for one that requests no GPU."""
    request, created = request_of(pod), pod.metadata.creation_timestamp
    if not request.is_any or created is None:
        return None
    start, seconds, ends_at = pod.status.start_time, pod.spec.active_deadline_seconds, None
    if start is not None and seconds is not None:
        with suppress(OverflowError):  # an end that no calendar has is none
            ends_at = start + timedelta(seconds=seconds)
    place, queue, group = pod.metadata.key, pod.queue_label, pod.pod_group_name
    return GpuPod(*place, queue, group, request.text, created, pod.is_bound, ends_at)


def who_holds(evidence: PodEvidence, queues: Collection[str] = ()) -> str:
    """Return the pods that hold GPUs, of some queues or all, and the pod's place, as the end of a sentence.

    The pod that ends first comes first, and the queue of a pod is the one of its label. KAI takes the
    workload of the highest priority in a queue first, and of equal ones the oldest (v0.17.0, `priority.go`,
    `elastic.go`). Empty if the caller may not list the pods of all namespaces.
    """
    pods = [
        pod for pod in evidence.gpu_pods.known or () if pod.is_bound and (not queues or pod.queue in queues)
    ]
    pods.sort(key=lambda pod: (pod.ends_at or _LATEST, pod.created_at, pod.namespace, pod.name))
    named = []
    for pod in pods[:_MOST_HOLDERS]:
        queue = f", queue {one_line(pod.queue)}" if pod.queue else ""
        ends = f", ends by {pod.ends_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if pod.ends_at else ""
        named.append(f"{pod.namespace}/{pod.name} ({pod.request}{queue}{ends})")
    named += [f"and {len(pods) - _MOST_HOLDERS} more"] if len(pods) > _MOST_HOLDERS else []
    place = place_of(evidence) or (1, 1)
    turn = f". By age its workload is number {place[0]} of {place[1]} that wait in the queue"
    return f"{': ' if pods else ''}{'; '.join(named)}{turn if place[1] > 1 else ''}"


def place_of(evidence: PodEvidence) -> tuple[int, int] | None:
    """Return the place of the pod's workload among those that wait in its queue, by age, and their number."""
    own, queue = evidence.pod.known, evidence.queue_name
    waiting: dict[tuple[str, str], datetime] = {}
    for pod in evidence.gpu_pods.known or ():
        if not pod.is_bound and pod.queue == queue:
            key = pod.namespace, pod.group or pod.name
            waiting[key] = min(waiting.get(key, pod.created_at), pod.created_at)
    order = sorted(waiting, key=lambda key: (waiting[key], key))
    key = (own.metadata.namespace, own.pod_group_name or own.name) if own is not None else ("", "")
    return (order.index(key) + 1, len(order)) if queue and key in waiting else None
