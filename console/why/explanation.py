"""The answer of `kaishare why`: state, findings with stable codes, what to do, and the story."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from console.cluster.facts import Fact


class Code(StrEnum):
    """The cause of a pod's state. Scripts rely on the values."""

    # There is no pod.
    RESOURCE_QUOTA_EXCEEDED = "resource-quota-exceeded"
    GPU_SHARING_OFF = "gpu-sharing-off"
    REFUSED_BY_KAI = "refused-by-kai"
    REFUSED_BY_GUARD = "refused-by-guard"
    REFUSED_AT_CREATION = "refused-at-creation"
    WEBHOOK_UNREACHABLE = "webhook-unreachable"
    RUNTIME_CLASS_MISSING = "runtime-class-missing"
    PRIORITY_CLASS_MISSING = "priority-class-missing"
    NO_POD = "no-pod"
    EVICTED = "evicted"
    GANG_STALE = "gang-stale"
    POD_DELETED = "pod-deleted"
    # KAI does not schedule the pod.
    OTHER_SCHEDULER = "other-scheduler"
    SCHEDULER_UNKNOWN = "scheduler-unknown"
    OUTSIDE_KAI = "outside-kai"
    KAI_NOT_SERVED = "kai-not-served"
    # KAI has not looked at the pod.
    SCHEDULING_GATE = "scheduling-gate"
    GROUP_REFUSED = "group-refused"
    POD_GROUP_MISSING = "pod-group-missing"
    NODE_POOL_WITHOUT_SHARD = "node-pool-without-shard"
    SCHEDULER_SILENT = "scheduler-silent"
    # The queue.
    QUEUE_MISSING = "queue-missing"
    QUEUE_NOT_LEAF = "queue-not-leaf"
    QUEUE_WITHOUT_PARENT = "queue-without-parent"
    QUEUE_OVER_LIMIT = "queue-over-limit"
    QUEUE_OVER_QUOTA = "queue-over-quota"
    # KAI finds no node.
    TOPOLOGY_MISSING = "topology-missing"
    TOPOLOGY_DOES_NOT_FIT = "topology-does-not-fit"
    CLAIM_NOT_BOUND = "claim-not-bound"
    NO_GPU_NODES = "no-gpu-nodes"
    NODE_TOO_SMALL = "node-too-small"
    GANG_DOES_NOT_FIT = "gang-does-not-fit"
    GANG_INCOMPLETE = "gang-incomplete"
    GPU_MEMORY_TOO_BIG = "gpu-memory-too-big"
    GPU_MEMORY_LABEL_MISSING = "gpu-memory-label-missing"
    NODE_SELECTOR_MATCHES_NONE = "node-selector-matches-none"
    TAINT_NOT_TOLERATED = "taint-not-tolerated"
    NODES_CORDONED = "nodes-cordoned"
    NO_GPU_FITS = "no-gpu-fits"
    NO_NODE_FITS = "no-node-fits"
    WAITING_FOR_EVICTED = "waiting-for-evicted"
    UNDECIDED = "undecided"
    # KAI chose a node, and the pod is not bound.
    KAI_ADMISSION_MISSED = "kai-admission-missed"
    RESERVATION_NOT_READY = "reservation-not-ready"
    BINDER_SILENT = "binder-silent"
    BINDING_FAILED = "binding-failed"
    # The pod is bound.
    CONTAINER_WAITING = "container-waiting"
    NO_RESERVATION = "no-reservation"
    RANKS_SHARE_GPU = "ranks-share-gpu"
    FLAGGED = "flagged"
    FAILED = "failed"
    TERMINATING = "terminating"
    GROUP_UNCHANGED = "group-unchanged"
    QUEUE_OF_OWNER = "queue-of-owner"
    PRIORITY_CLASS_IGNORED = "priority-class-ignored"
    ACCOUNTING_MISSING = "accounting-missing"
    RUNNING = "running"
    SUCCEEDED = "succeeded"

    @property
    def is_fine(self) -> bool:
        """Whether the pod runs or has ended as it should; a note about it is not a problem."""
        return self in _FINE

    @property
    def page(self) -> str:
        """Place in the documentation that explains the code."""
        return f"docs/troubleshooting.md#{self.value}"


_FINE: Final = frozenset(
    {
        Code.OUTSIDE_KAI,
        Code.GROUP_UNCHANGED,
        Code.QUEUE_OF_OWNER,
        Code.PRIORITY_CLASS_IGNORED,
        Code.ACCOUNTING_MISSING,
        Code.RUNNING,
        Code.SUCCEEDED,
    }
)


_AT_REST: Final = ("Running", "Succeeded")
"""The states in which nothing is waited for."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something that a person can do."""

    text: str
    """A sentence, in one line."""
    command: str = ""
    """A command for a shell that does it, or shows more; empty for none."""


@dataclass(frozen=True, slots=True)
class PodFinding:
    """A cause, or a note, about the pod."""

    code: Code
    sentence: str
    """What is the matter, as a clause without its end: `queue vision may use 1 GPU and uses 1`."""
    remedies: Sequence[Remedy] = ()
    details: Mapping[str, float | str] = field(default_factory=dict)
    """Figures of the sentence for programs."""
    excluded_by: Sequence[Fact[Any]] = ()
    """Of a cause by exclusion: the facts that exclude every other cause. The core refuses it without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A line of the story."""

    at: datetime | None
    """When it happened first; None if unknown."""
    last: datetime | None = None
    """When it happened last, if more than once."""
    times: int = 1
    what: str
    """`created`, `decided`, `grouped`, `waiting`, `bound`, `running`, `flagged`, `evicted` or `refused`."""
    text: str
    """Details in one line, printable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer for one pod or workload."""

    namespace: str
    kind: str
    name: str
    state: str
    """`Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`, `Terminating`, or `No pod`."""
    findings: Sequence[PodFinding]
    """The cause first, then notes. Never empty."""
    story: Sequence[Step] = ()
    not_visible: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def cause(self) -> PodFinding:
        """The finding that decides."""
        return self.findings[0]

    @property
    def is_fine(self) -> bool:
        """Whether nothing is wrong."""
        return self.state in _AT_REST and all(finding.code.is_fine for finding in self.findings)
