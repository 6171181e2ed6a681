"""Data types of a node's pods and KAI's records at one moment, and whether they can be read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from gpuagent.pods.bounds import ContainerCommand
from kai import keys
from service.log import JsonLog, OngoingProblem, problem_logger

Key = tuple[str, str]
"""Namespace and name of a pod, and of its BindRequest."""


class UnavailableReason(StrEnum):
    """Why a kind of object cannot be read."""

    DENIED = "denied"
    NOT_SERVED = "not-served"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unavailable:
    """A kind of object that cannot be read."""

    resource: str
    reason: UnavailableReason
    line: str
    """One line for a person: the error, its consequence, and the remedy if there is one."""


class Availability:
    """The current state of one kind; logs each change of the reason."""

    def __init__(self, resource: str, log: JsonLog) -> None:
        self._resource = resource
        self.problem: Unavailable | None = None
        """None while the kind can be read."""
        self._ongoing = OngoingProblem(
            problem_logger(log, "resource unavailable", "resource available again", resource=resource)
        )

    def update(self, problem: Unavailable | None) -> None:
        """Set the state."""
        self.problem = problem
        if problem is None:
            self._ongoing.update("")
        else:
            self._ongoing.update(problem.line, kind=problem.reason)

    def update_by_watch(self, cause: str, problem: str, without: str, version: str = "") -> None:
        """Set the state of a watched kind by the cause of the watch's problem, empty without one.

        Causes that the watch of the pods reports, too, say nothing about the kind.
        """
        if cause in ("unreachable", "credentials"):
            return
        reason, line = UnavailableReason.ERROR, problem
        if cause == "403":
            reason, line = UnavailableReason.DENIED, f"no right to list and watch {self._resource}"
            without = f"{without}; grant the right to change that"
        elif cause == "404":
            reason, line = UnavailableReason.NOT_SERVED, f"the API server has no {self._resource}{version}"
        state = Unavailable(resource=self._resource, reason=reason, line=f"{line}: {without}")
        self.update(state if cause else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePod:
    """One pod of this node; `pods.bounds` limits its size."""

    namespace: str
    name: str
    uid: str
    phase: str
    """`Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`."""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    container_ids: tuple[str, ...] = ()
    """IDs of all containers: 64 hex digits from `status.*containerStatuses[].containerID`."""
    container_names: tuple[str, ...] = ()
    """Names of the containers with these IDs, in the same order."""
    memory_variables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By container: the variables of `keys.MEMORY_VARIABLES` in the pod's spec, for those that have one."""
    whole_gpus: int = 0
    """Number of `nvidia.com/gpu` from the device plugin: of all containers and sidecars together, or of an
    init container and the sidecars before it, if those are more."""
    has_unsized_resource: bool = False
    """Whether the pod requests a GPU resource of unknown size, other than `nvidia.com/gpu`."""
    claims: tuple[str, ...] = ()
    """Names of the pod's ResourceClaims (DRA)."""
    has_unnamed_claims: bool = False
    """Whether the pod has more claims than these: without a name yet, or too many."""
    has_gpus_by_claim: bool = False
    """Whether a claim, and not the device plugin, gives the pod its `nvidia.com/gpu`."""
    scheduling_group: str = ""
    """The Kubernetes PodGroup for which the pod's claims may be reserved; empty without one."""
    commands: tuple[ContainerCommand, ...] = field(default=(), repr=False)
    """Start of the containers that mention a framework; empty for a pod without a share."""
    scheduler_name: str = ""
    config_hash: str = ""
    """A static pod's name in cgroup paths (annotation kubernetes.io/config.hash), or empty."""
    controller_uid: str = ""
    """UID of the controller that would recreate the pod; empty if there is none."""
    controller_kind: str = ""
    controller_name: str = ""
    has_started: bool = False
    """Whether a container has started, init containers included. The phase does not show that."""
    has_bound_condition: bool = False
    """Whether the status has the condition PodBound, which KAI's binder writes. Pod owners of a cluster may
    not write the status; those of a vCluster may."""
    created: str = ""
    """Creation time as the API server writes it (`2026-11-21T00:23:49Z`); empty if there is none."""
    is_terminating: bool = False
    """Whether the pod has been deleted or evicted, and is about to end."""
    notes: tuple[str, ...] = ()
    """Values that are ignored because of their size, one line each."""

    @property
    def key(self) -> Key:
        """Namespace and name, also of the pod's BindRequest."""
        return self.namespace, self.name

    @property
    def is_finished(self) -> bool:
        """Whether all containers have ended for good; such a pod uses and reserves nothing."""
        return self.phase in keys.FINISHED_PHASES

    @property
    def holds_whole_gpus(self) -> bool:
        """Whether the pod requests whole GPUs of the device plugin and has not finished."""
        return self.whole_gpus > 0 and not self.has_gpus_by_claim and not self.is_finished

    @property
    def is_running(self) -> bool:
        """Whether the pod can have processes, at least in an init container.

        A pod is Pending while its init containers run, and while one container runs and another cannot start
        (Kubernetes, `getPhase` in `pkg/kubelet/kubelet_pods.go`).
        """
        return self.phase == "Running" or (self.has_started and not self.is_finished)


class EndedPod(Struct, frozen=True, gc=False):
    """The names of a pod that is no longer listed."""

    uid: str
    namespace: str
    name: str
    owner: str
    """Kind and name of its workload, such as `Deployment/web`; empty if it had none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindRequest:
    """KAI's record of a pod's share (scheduling.run.ai/v1alpha2, written by its scheduler and binder)."""

    pod_uid: str
    """UID in the owner reference; empty if there is none."""
    portion: str
    """`receivedGPU.portion` with two decimals; empty if there is none."""
    count: int
    groups: tuple[str, ...]
    resource_type: str = ""
    """`Fraction` or `Regular`."""
    created: str = ""
    """Creation time, as of a pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedGpu:
    """What one ResourceClaim gives on one GPU."""

    claim_uid: str
    claim: str
    """Name of the claim."""
    gpu_uuid: str
    bytes: int | None = None
    """None for the whole GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClaims:
    """What the ResourceClaims of a pod give."""

    gpus: tuple[ClaimedGpu, ...] = ()
    is_sized: bool = False
    """Whether all claims are known, and the memory of each GPU among their results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationPod:
    """An unfinished pod that requests a whole GPU to reserve it for a KAI group."""

    namespace: str
    """Namespace on the host."""
    name: str
    uid: str
    gpu: str
    """GPU UUID in the pod's annotation, empty without one. A GPU with that UUID may not exist."""
    is_tenants: bool
    """Whether the pod belongs to a KAI inside a vCluster, whose tenant can write everything on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All known pods of this node and KAI's records of them. Immutable."""

    pods: Mapping[str, NodePod] = field(default_factory=dict)
    """Pods of this node by UID, without reservation pods."""
    reservations: Mapping[str, str] = field(default_factory=dict)
    """GPU UUID by GPU group, as the reservation pod on this node names it; empty if it names none."""
    tenant_reservations: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """The same for KAI inside vClusters, by host namespace and group. Tenants can forge these entries, so
    they count only for pods of the same namespace."""
    undecided_groups: frozenset[tuple[str, str]] = frozenset()
    """Host namespace and group of pods that a vCluster's KAI may use as reservation pods. The labels of their
    namespaces are unknown, so they reserve nothing, and the group is not said to lack a reservation pod."""
    bind_requests: Mapping[Key, BindRequest] = field(default_factory=dict)
    """BindRequests by namespace and name of the pod; the last one seen of a pod, also if it was deleted."""
    bind_requests_unknown: frozenset[Key] = frozenset()
    """Namespace and name of pods whose BindRequest is unknown: the BindRequests have not been listed, their
    watch fails, or the BindRequest is malformed. Without the right or the API, or with a pods file, the
    BindRequest is known to be absent; the pod's group label alone then counts."""
    unplaced_uids: frozenset[str] = frozenset()
    """UIDs of pods that certainly started without a BindRequest. Their group labels are not from KAI."""
    claims: Mapping[str, PodClaims] = field(default_factory=dict)
    """What ResourceClaims give, by the pod's UID. A pod with claims and no entry may have any GPU."""
    node_labels: Mapping[str, str] | None = None
    """Labels of this node; None if the Node could not be fetched."""
    offered_gpus: int = 0
    """Number of `nvidia.com/gpu` that the node offers, by its capacity or allocatable; 0 if unknown."""
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels of the namespaces that could be fetched."""
    reservation_uids: frozenset[str] = frozenset()
    """UIDs and config hashes of the reservation pods. Their processes are attributed to them, but they
    have no `kaishare_pod_*` series."""
    ended: Mapping[str, EndedPod] = field(default_factory=dict)
    """Pods that were listed before, by UID; their processes may still run."""
    reservation_pods: tuple[ReservationPod, ...] = ()
    """All reservation pods of the node, including those of tenants."""
    tenant_reservation_uids: frozenset[str] = frozenset()
    """UIDs among `pods` of the reservation pods of KAI inside a vCluster. They have no share, but their
    usage is reported, since any pod of the tenant could pose as one."""

    @property
    def labelled_gpus(self) -> int | None:
        """Number of GPUs by the node label `nvidia.com/gpu.count`; None without a number in the label."""
        text = (self.node_labels or {}).get(keys.NODE_GPU_COUNT, "")
        return int(text) if re.fullmatch("[0-9]{1,4}", text) else None


class PodSource(Protocol):
    """A source of an Inventory."""

    @property
    def inventory(self) -> Inventory | None:
        """The last valid inventory; None before the first."""

    def seconds_since_contact(self) -> float:
        """Return the seconds since the source was last known to be up to date, on the injected clock."""

    async def run(self) -> None:
        """Keep the inventory up to date until cancelled."""
