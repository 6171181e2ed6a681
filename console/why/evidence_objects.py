"""The parts of Kubernetes' and KAI's objects that tell why a pod does not run. Pure.

KAI's objects have the same fields in v0.9.8, v0.13.4 and v0.17.0: PodGroup `scheduling.run.ai/v2alpha2`,
BindRequest `scheduling.run.ai/v1alpha2`, Queue `scheduling.run.ai/v2`.
"""

from datetime import datetime
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from kai import keys
from kai.numbers import parse_quantity
from kai.pod import PodView, Quantity, decode_pod, gpu_groups
from kube.kinds import FullMeta, PodStatus, Taint
from kube.metadata import Time

NO_RESERVED_GPU: Final = "-1"
"""Value of `RESERVED_GPU` on a reservation pod that found no GPU (`discovery.go`)."""


class Meta(FullMeta, frozen=True):
    """`metadata` with the time of creation."""

    uid: str = ""
    creation_timestamp: Time | None = None


class _Gate(Struct, frozen=True):
    name: str = ""


class _ClaimVolume(Struct, frozen=True, rename="camel"):
    claim_name: str = ""


class _Volume(Struct, frozen=True, rename="camel"):
    persistent_volume_claim: _ClaimVolume | None = None


class _PodSpec(Struct, frozen=True, rename="camel"):
    scheduler_name: str = ""
    node_name: str = ""
    scheduling_gates: list[_Gate] | None = None
    node_selector: dict[str, str] | None = None
    volumes: list[_Volume] | None = None


class PodObject(Struct, frozen=True, dict=True):
    """A pod as the API server has it. `document` is its JSON, for what KAI reads of it."""

    metadata: Meta
    spec: _PodSpec = _PodSpec()
    status: PodStatus = PodStatus()
    document: bytes = field(default=b"", name="-")

    @property
    def name(self) -> str:
        """Name of the pod."""
        return self.metadata.name

    @cached_property
    def view(self) -> PodView | None:
        """What KAI reads; None if it cannot be decoded."""
        try:
            return decode_pod(self.document)
        except ValueError:
            return None

    @property
    def is_bound(self) -> bool:
        """Whether the pod has a node. KAI's Events and conditions about binding prove nothing (v0.17.0)."""
        return bool(self.spec.node_name)

    @property
    def pod_group_name(self) -> str:
        """Name of the PodGroup, which KAI's pod-grouper writes; empty before that."""
        return self.metadata.annotations.get(keys.POD_GROUP_NAME, "")

    @property
    def queue_label(self) -> str:
        """The queue that the pod names; empty if it names none."""
        return self.metadata.labels.get(keys.QUEUE_LABEL, "")

    @property
    def gpu_groups(self) -> frozenset[str]:
        """The GPU groups of a pod with a share, one for each of its GPUs."""
        return frozenset(gpu_groups(self.metadata.labels)) - {""}

    @property
    def claim_names(self) -> tuple[str, ...]:
        """Names of the PersistentVolumeClaims that the pod mounts."""
        volumes = (volume.persistent_volume_claim for volume in self.spec.volumes or ())
        return tuple(volume.claim_name for volume in volumes if volume is not None)


def _text_at(value: Any, *path: str) -> str:
    """Return the text at a path of decoded JSON; empty if there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


class UnschedulableReason(Struct, frozen=True):
    """One of `reasons` of a PodGroup's scheduling condition."""

    reason: str = ""
    message: str = ""
    details: Any = None
    """Its form depends on the reason."""

    @property
    def queue(self) -> str:
        """Name of the queue that is full, not its display name; empty if KAI names none."""
        return _text_at(self.details, "queueDetails", "name")


class SchedulingCondition(Struct, frozen=True, rename="camel"):
    """One of `status.schedulingConditions` of a PodGroup: KAI's last words about it."""

    message: str = ""
    last_transition_time: Time | None = None
    reasons: list[UnschedulableReason] | None = None


class _Allocation(Struct, frozen=True):
    allocated: dict[str, Quantity] | None = None


class _PodGroupSpec(Struct, frozen=True, rename="camel"):
    queue: str = ""
    min_member: int | None = None
    priority_class_name: str = ""


class _PodGroupStatus(Struct, frozen=True, rename="camel"):
    scheduling_conditions: list[SchedulingCondition] | None = None
    resources_status: _Allocation | None = None


class PodGroupObject(Struct, frozen=True):
    """KAI's PodGroup: the pods that it schedules together, in one queue."""

    metadata: Meta
    spec: _PodGroupSpec = _PodGroupSpec()
    status: _PodGroupStatus | None = None

    @property
    def condition(self) -> SchedulingCondition | None:
        """The newest scheduling condition; None if KAI has said nothing."""
        conditions = (self.status.scheduling_conditions if self.status else None) or ()
        return conditions[-1] if conditions else None

    @property
    def has_allocation(self) -> bool:
        """Whether KAI's podgroup-controller has entered what the group holds."""
        resources = self.status.resources_status if self.status else None
        return bool(resources and resources.allocated)


class _BindSpec(Struct, frozen=True, rename="camel"):
    selected_node: str = ""
    selected_gpu_groups: list[str] | None = field(default=None, name="selectedGPUGroups")


class _BindStatus(Struct, frozen=True, rename="camel"):
    phase: str = ""
    reason: str = ""


class PodBindRequest(Struct, frozen=True):
    """KAI's BindRequest: the scheduler's order to the binder to bind one pod."""

    metadata: Meta
    spec: _BindSpec = _BindSpec()
    status: _BindStatus | None = None


class _InvolvedObject(Struct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class _EventSource(Struct, frozen=True):
    component: str = ""


class _Series(Struct, frozen=True, rename="camel"):
    count: int = 0
    last_observed_time: Time | None = None


class EventObject(Struct, frozen=True, rename="camel"):
    """An Event (core/v1)."""

    metadata: Meta
    involved_object: _InvolvedObject = _InvolvedObject()
    reason: str = ""
    message: str = ""
    source: _EventSource = _EventSource()
    reporting_component: str = ""
    first_timestamp: Time | None = None
    last_timestamp: Time | None = None
    event_time: Time | None = None
    count: int | None = None
    series: _Series | None = None

    @property
    def component(self) -> str:
        """The program that wrote the Event, by its own word."""
        return self.reporting_component or self.source.component

    @property
    def times(self) -> int:
        """How often it was told."""
        return max(self.count or (self.series.count if self.series else 0), 1)

    @property
    def first(self) -> datetime | None:
        """When it was told first."""
        return self.first_timestamp or self.event_time or self.metadata.creation_timestamp

    @property
    def last(self) -> datetime | None:
        """When it was told last."""
        return (self.series.last_observed_time if self.series else None) or self.last_timestamp or self.first


class _NodeSpec(Struct, frozen=True):
    taints: list[Taint] | None = None


class _NodeStatus(Struct, frozen=True):
    allocatable: dict[str, Quantity] | None = None


class NodeObject(Struct, frozen=True):
    """A node."""

    metadata: Meta
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()

    @property
    def taints(self) -> tuple[str, ...]:
        """The taints that keep pods without a toleration away, as `key=value:effect`."""
        taints = (taint for taint in self.spec.taints or () if taint.effect in ("NoSchedule", "NoExecute"))
        return tuple(map(str, taints))

    @property
    def gpus(self) -> int:
        """Whole GPUs that the node's device plugin offers; 0 without one."""
        try:
            return int(parse_quantity((self.status.allocatable or {}).get(keys.GPU_RESOURCE, 0)))
        except (ValueError, OverflowError):
            return 0


class _ClaimStatus(Struct, frozen=True):
    phase: str = ""


class Claim(Struct, frozen=True):
    """A PersistentVolumeClaim."""

    metadata: Meta
    status: _ClaimStatus = _ClaimStatus()


class _ShardSpec(Struct, frozen=True, rename="camel"):
    partition_label_value: str = ""


class Shard(Struct, frozen=True):
    """KAI's SchedulingShard: the scheduler of one node pool."""

    metadata: Meta
    spec: _ShardSpec = _ShardSpec()


class _WorkloadSpec(Struct, frozen=True, rename="camel"):
    replicas: int | None = None
    suspend: bool | None = None
    completion_mode: Any = None
    """`Indexed` or `NonIndexed` of a Job; a custom resource may have anything there."""
    template: Any = None
    """The pod template; a custom resource may have anything there."""


class WorkloadObject(Struct, frozen=True):
    """An owner of pods, of any kind."""

    metadata: Meta
    kind: str = ""
    spec: _WorkloadSpec = _WorkloadSpec()

    @property
    def has_template(self) -> bool:
        """Whether the object has a pod template in `spec.template`."""
        return isinstance(self.spec.template, dict)

    def label(self, key: str) -> str:
        """Return a label of the object, else of its pod template; empty if both lack it."""
        return self.metadata.labels.get(key, "") or _text_at(self.spec.template, "metadata", "labels", key)


_pod = msgspec.json.Decoder(PodObject).decode


def decode_one_pod(document: bytes) -> PodObject:
    """Decode a pod and keep its JSON; raises msgspec's errors (`service.text.MALFORMED`)."""
    return msgspec.structs.replace(_pod(document), document=document)


decode_pod_group: Final = msgspec.json.Decoder(PodGroupObject).decode
decode_bind_request: Final = msgspec.json.Decoder(PodBindRequest).decode
decode_event: Final = msgspec.json.Decoder(EventObject).decode
decode_node: Final = msgspec.json.Decoder(NodeObject).decode
decode_claim: Final = msgspec.json.Decoder(Claim).decode
decode_shard: Final = msgspec.json.Decoder(Shard).decode
decode_workload: Final = msgspec.json.Decoder(WorkloadObject).decode
