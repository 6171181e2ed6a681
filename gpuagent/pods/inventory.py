"""What is known of a node's pods at one moment, whatever it was read from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpuagent.pods.launches import Launch
from gpuagent.pods.objects import FINISHED_PHASES, is_running


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePod:
    """One pod on this node, as the API server (or a file) has it; `pods.reading` bounds its size."""

    namespace: str
    name: str
    uid: str
    phase: str
    """`Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`."""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    container_ids: tuple[str, ...] = ()
    """Of every container that has one: 64 hex digits of `status.*containerStatuses[].containerID`."""
    whole_gpus: int = 0
    """`nvidia.com/gpu` that the device plugin gives it: of all containers together, or of its largest init
    container."""
    has_unsized_gpus: bool = False
    """Whether it gets GPUs of a size that cannot be read from it: by a resource claim (DRA), or by a GPU
    resource other than `nvidia.com/gpu`."""
    config_map_names: tuple[str, ...] = ()
    """Names that KAI's ConfigMap of the pod can have, the likeliest first."""
    launches: tuple[Launch, ...] = field(default=(), repr=False)
    """How containers that mention a framework are started; empty without a share."""
    scheduler_name: str = ""
    config_hash: str = ""
    """A static pod's name in cgroup paths (annotation kubernetes.io/config.hash), or empty."""
    is_bound: bool = True
    """Whether spec.nodeName is set; what only an annotation says counts from then on."""
    controller_uid: str = ""
    """UID of what made it and would make another; empty if nobody would."""
    has_started: bool = False
    """Whether a container has started, init containers included; what the phase does not tell."""
    is_terminating: bool = False
    """Whether somebody has deleted or evicted it, and it is on its way out."""
    notes: tuple[str, ...] = ()
    """Values that are left out for their size, one line each."""

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name: how BindRequests are named."""
        return self.namespace, self.name

    @property
    def is_finished(self) -> bool:
        """Whether every container ended for good: such a pod holds and promises nothing."""
        return self.phase in FINISHED_PHASES

    @property
    def is_running(self) -> bool:
        """Whether the pod can have processes, in an init container at least."""
        return is_running(self.phase, has_started=self.has_started)


@dataclass(frozen=True, slots=True, kw_only=True)
class BindRequest:
    """KAI's own word on a pod's share (scheduling.run.ai/v1alpha2, written by scheduler and binder)."""

    pod_uid: str
    """From its owner reference; empty if it has none."""
    portion: str
    """`receivedGPU.portion`, two decimals; empty if it has none."""
    count: int
    groups: tuple[str, ...]
    resource_type: str = ""
    """`Fraction` or `Regular`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationPod:
    """A pod that asks for a whole GPU in order to hold it for a KAI group, and has not ended."""

    namespace: str
    """On the host."""
    name: str
    uid: str
    gpu: str
    """The GPU UUID that its annotation names, which need not exist; empty while it names none."""
    is_tenants: bool
    """Whether it belongs to a KAI inside a vCluster, so that the tenant can write anything on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Everything known about this node's pods. Readers never change it; a change makes a new one."""

    pods: Mapping[str, NodePod] = field(default_factory=dict)
    """By UID: the pods of this node, reservation pods left out."""
    reservations: Mapping[str, str] = field(default_factory=dict)
    """GPU group to the GPU UUID its reservation pod on this node names; empty while it names none."""
    tenant_reservations: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """The same for a KAI that runs inside a vCluster, by host namespace and group. The tenant can make them
    up, so they count only for pods of that namespace."""
    bind_requests: Mapping[tuple[str, str], BindRequest] = field(default_factory=dict)
    """By namespace and name of the pod."""
    bind_requests_unknown: frozenset[tuple[str, str]] = frozenset()
    """Namespace and name of the pods whose BindRequest may exist unseen: the request for it is still to be
    made, failed, or was answered with an object that cannot be read. A missing right, a missing API and a
    pods file are answers: a pod without a BindRequest then goes by its group label alone."""
    config_maps: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    """Data of KAI's ConfigMaps, by namespace and name."""
    config_map_owners: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """UID of the pod that owns a ConfigMap, by namespace and name; empty if something else owns it, absent if
    nothing does."""
    node_labels: Mapping[str, str] | None = None
    """Labels of this node; None if its object could not be had."""
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Labels of the namespaces that could be had."""
    reservation_uids: frozenset[str] = frozenset()
    """UIDs (and config hashes) of reservation pods: their processes are theirs, but they appear in no
    `kaishare_pod_*` series."""
    reservation_pods: tuple[ReservationPod, ...] = ()
    """Every reservation pod of the node, those of tenants included."""
    tenant_reservation_uids: frozenset[str] = frozenset()
    """UIDs among `pods` that are reservation pods of a KAI inside a vCluster: they promise nothing, but what
    they hold is shown, since any pod of that tenant could pose as one."""

    @property
    def tenant_reservation_count(self) -> int:
        """How many of the reservation pods belong to a KAI inside a vCluster."""
        return sum(pod.is_tenants for pod in self.reservation_pods)


class PodSource(Protocol):
    """Where an Inventory comes from."""

    @property
    def inventory(self) -> Inventory | None:
        """The last good inventory; None until there is one."""

    def seconds_since_contact(self) -> float:
        """How long ago the source was last known to be right, on the injected clock."""

    async def run(self) -> None:
        """Keep the inventory up to date until cancelled."""
