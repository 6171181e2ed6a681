"""All that is known about one pod or workload: the input of the core. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import TypeVar

from console.why.evidence_objects import (
    Claim,
    EventObject,
    NodeObject,
    PodBindRequest,
    PodGroupObject,
    PodObject,
    Shard,
    WorkloadObject,
)
from gpuagent.api_types import ApiGpu, ApiPod
from kai import keys
from kai.queue import Queue

T = TypeVar("T")


class Absence(Enum):
    """Why an object is not in the evidence."""

    MISSING = "missing"
    """The API server says that it does not exist."""
    UNSERVED = "unserved"
    """The API server does not serve the kind: KAI is not installed, or runs on the host of a vCluster."""
    FORBIDDEN = "forbidden"
    """The caller may not read it."""
    FAILED = "failed"
    """The request failed."""
    PARTIAL = "partial"
    """Only a part of the list was read: it exceeds a limit, or an object of it cannot be decoded."""
    NOT_READ = "not-read"
    """It was not requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecision:
    """What the webhook decided about the pod, and what it would decide now."""

    reason: str
    """The code that the webhook wrote on the pod at its creation; empty if it wrote none."""
    now_reason: str
    """The code for a new pod like this one; empty if the policy cannot be read."""
    now: str
    """What a new pod like this one would get, as a sentence; empty if the policy cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFigures:
    """What the node's agent reports about the pod."""

    pod: ApiPod | None
    """None if the agent does not list the pod: it has no share, no GPU and no memory on one."""
    gpus: Sequence[ApiGpu]
    """The GPUs of the node."""
    neighbours: int
    """Number of other pods on the pod's GPUs."""
    failure: str = ""
    """Why there are no figures; empty if there are."""


@dataclass(slots=True, kw_only=True)
class PodEvidence:
    """The objects about one pod or workload, as far as the caller may read them. The reader fills it."""

    now: datetime
    """The API server's time."""
    namespace: str
    kind: str = "Pod"
    """Kind that the caller named."""
    name: str
    pod: PodObject | Absence
    workload: WorkloadObject | Absence = Absence.NOT_READ
    """The workload that the caller named."""
    owners: Sequence[WorkloadObject] = ()
    """The pod's owners that were read, the nearest first."""
    pod_events: Sequence[EventObject] = ()
    """Events about the pod, oldest first."""
    group_events: Sequence[EventObject] = ()
    """Events about PodGroups of the namespace whose name contains the pod's or workload's, oldest first."""
    creation_events: Sequence[EventObject] = ()
    """Events about pods that could not be created for the workload, oldest first."""
    are_events_read: bool = True
    """Whether all these Events could be read, so that a missing one means something."""
    pod_group: PodGroupObject | Absence = Absence.NOT_READ
    bind_request: PodBindRequest | Absence = Absence.NOT_READ
    queues: Mapping[str, Queue | Absence] = field(default_factory=dict)
    """The pod's queue and its parents by name."""
    nodes: Sequence[NodeObject] | Absence = Absence.NOT_READ
    shared_gpu_pods: Sequence[PodObject] | Absence = Absence.NOT_READ
    """The pods of all namespaces with the label of a GPU group, reservation pods among them.

    Of a bound pod those in its own groups; if they have no reservation pod, those of other groups as well.
    """
    group_members: Sequence[PodObject] = ()
    """The other pods of the pod's namespace in the pod's GPU groups."""
    claims: Mapping[str, Claim | Absence] = field(default_factory=dict)
    """The PersistentVolumeClaims that the pod mounts, by name."""
    shards: Sequence[Shard] | Absence = Absence.NOT_READ
    scheduler: str = keys.SCHEDULER_NAME
    """The scheduler that the namespace's policy names."""
    decision: PolicyDecision | None = None
    """None if the pod's namespace is not managed, or cannot be read."""
    figures: AgentFigures | None = None
    """None for a pod that does not run, or if the caller may not read the agents."""
    sees_all: bool = False
    """Whether the caller may list pods in all namespaces, so that no name is hidden."""
    not_visible: Sequence[str] = ()
    """The objects that the caller may not read, such as `Queue team-a`."""
    notes: Sequence[str] = ()
    """Requests that failed for another reason, one line each."""

    @property
    def age(self) -> timedelta | None:
        """Age of the pod; None without a pod."""
        return None if isinstance(self.pod, Absence) else self.since(self.pod.metadata.creation_timestamp)

    def since(self, moment: datetime | None) -> timedelta | None:
        """Return the time since a moment, at least 0; None without one."""
        return None if moment is None else max(self.now - moment, timedelta())

    @property
    def is_kai_served(self) -> bool:
        """Whether the API server serves KAI's kinds: not in a vCluster whose host has KAI."""
        return Absence.UNSERVED not in (self.pod_group, self.bind_request)

    @property
    def queue_name(self) -> str:
        """The queue that counts: the PodGroup's, else the topmost owner's label, else the pod's own label.

        Empty if none of them names one.
        """
        if isinstance(self.pod_group, PodGroupObject):
            return self.pod_group.spec.queue
        top = self.owners[-1].metadata.labels.get(keys.QUEUE_LABEL, "") if self.owners else ""
        return top or ("" if isinstance(self.pod, Absence) else self.pod.queue_label)


def known(value: T | Absence) -> T | None:
    """Return an object, or None if it is absent for any reason."""
    return None if isinstance(value, Absence) else value
