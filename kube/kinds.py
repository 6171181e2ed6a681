"""Every kind of object that a tool reads, once. All fields are optional, and unknown fields are ignored.

The webhook's pods (`kai/pod.py`) and the agent's (`gpuagent/pods/objects.py`) are apart: they have bounds of
their own. KAI's kinds have the same fields in v0.9.8, v0.13.4 and v0.17.0. An object that does not fit raises
msgspec's errors (`service.text.MALFORMED`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct

from kai import keys
from kai.numbers import parse_quantity
from kai.pod import PodView, Quantity, decode_pod, gpu_groups
from kai.queue import Queue
from kube.device_kinds import DeviceClass, ResourceClaim, ResourceSlice
from kube.metadata import EVERYTHING, LabelSelector, Requirement, Time, VersionedMeta
from service.text import one_line

T = TypeVar("T")

NO_RESERVED_GPU: Final = "-1"  # `RESERVED_GPU` of a reservation pod that found no GPU (`discovery.go`)
_LONGEST: Final = 200  # characters


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind: where the API server has its objects, and the type of one."""

    group: str  # empty for the core group
    version: str
    resource: str  # as in paths, such as `deployments`
    name: str  # as in manifests, such as `Deployment`
    type: type[T]

    @cached_property
    def decode(self) -> Callable[[bytes | str], T]:
        """Decodes one object; raises msgspec's errors."""
        return msgspec.json.Decoder(self.type).decode

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of one object, or of the list in a namespace or in all."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        within = f"/namespaces/{namespace}" if namespace else ""
        return f"{root}{within}/{self.resource}{f'/{name}' if name else ''}"

    @property
    def full_resource(self) -> str:
        """The resource with its group, as in RBAC messages: `deployments.apps`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


class ObjectOwner(Struct, frozen=True, rename="camel"):
    api_version: str
    kind: str
    name: str
    uid: str = ""
    controller: bool = False


class FullMeta(VersionedMeta, frozen=True, rename="camel"):
    """`metadata` with all that tools read. Its annotations may be large."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: list[ObjectOwner] = msgspec.field(default_factory=list)
    creation_timestamp: Time | None = None
    deletion_timestamp: str = ""  # empty for an object that is not being deleted

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    @property
    def owner(self) -> ObjectOwner | None:
        """The controller, else the first owner; None without owners."""
        owners = self.owner_references
        return next((owner for owner in owners if owner.controller), owners[0] if owners else None)


class PartialObject(Struct, frozen=True):
    """What every object has; by itself all that is read of an object (PartialObjectMetadata)."""

    metadata: FullMeta

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def queue_label(self) -> str:
        return self.metadata.labels.get(keys.QUEUE_LABEL, "")


Namespace = PartialObject
decode_partial_object = msgspec.json.Decoder(PartialObject).decode


class Taint(Struct, frozen=True):
    key: str
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


class Toleration(Struct, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Whether the pod may get onto a node with the taint."""
        if self.effect not in ("", taint.effect) or (self.key and self.key != taint.key):
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


class _NodeTerm(Struct, frozen=True, rename="camel"):
    match_expressions: list[Requirement] | None = None
    match_fields: list[Requirement] | None = None


class _NodeSelector(Struct, frozen=True, rename="camel"):
    node_selector_terms: list[_NodeTerm] | None = None


class _NodeAffinity(Struct, frozen=True):
    required: _NodeSelector | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(Struct, frozen=True, rename="camel"):
    node_affinity: _NodeAffinity | None = None

    def selects(self, name: str, labels: Mapping[str, str]) -> bool:
        required = self.node_affinity.required if self.node_affinity else None
        if required is None:
            return True
        fields = {**labels, "metadata.name": name}
        terms = (
            (*(term.match_expressions or ()), *(term.match_fields or ()))
            for term in required.node_selector_terms or ()
        )
        return any(lines and all(line.holds(fields) for line in lines) for lines in terms)


def gpu_amount(amounts: Mapping[str, Quantity] | None) -> float | None:
    """Return the whole and shared GPUs in a list of resources; None if the quantity cannot be read.

    MIG devices have other resource names. KAI's status keeps them apart, too (`resources.go`, SumResources).
    """
    try:
        return float(parse_quantity((amounts or {}).get(keys.GPU_RESOURCE, 0)))
    except (ValueError, OverflowError):  # OverflowError: the API server stores 1e999
        return None


class ContainerPort(Struct, frozen=True, rename="camel"):
    container_port: int
    name: str = ""


class Container(Struct, frozen=True, rename="camel"):
    name: str = ""
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    ports: list[ContainerPort] | None = None
    startup_probe: Any = None
    liveness_probe: Any = None
    readiness_probe: Any = None

    @property
    def words(self) -> tuple[str, ...]:
        return *(self.command or ()), *(self.args or ())


class _Named(Struct, frozen=True):
    name: str = ""


class DeviceClaim(Struct, frozen=True, rename="camel"):
    """One of a pod's `spec.resourceClaims` or `status.resourceClaimStatuses`."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(Struct, frozen=True, rename="camel"):
    containers: list[Container] | None = None
    scheduler_name: str = ""
    node_name: str = ""
    scheduling_gates: list[_Named] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    volumes: list[Any] | None = None
    resource_claims: list[DeviceClaim] | None = None
    active_deadline_seconds: int | None = None


class PodCondition(Struct, frozen=True, rename="camel"):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class _State(Struct, frozen=True, rename="camel"):
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    exit_code: int | None = None


class ContainerState(Struct, frozen=True):
    waiting: _State | None = None
    running: _State | None = None
    terminated: _State | None = None


class ContainerStatus(Struct, frozen=True, rename="camel"):
    name: str = ""
    ready: bool = False
    started: bool | None = None
    """Whether the startup probe has succeeded; a sidecar ends the wait of the containers after it by that."""
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodStatus(Struct, frozen=True, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: datetime | None = None
    conditions: list[PodCondition] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[DeviceClaim] | None = None

    @property
    def containers(self) -> tuple[ContainerStatus, ...]:
        return (*(self.init_container_statuses or ()), *(self.container_statuses or ()))

    def condition(self, kind: str) -> PodCondition | None:
        return next((each for each in self.conditions or () if each.type == kind), None)

    @property
    def is_ready(self) -> bool:
        condition = self.condition("Ready")
        return condition is not None and condition.status == "True"

    @property
    def restarts(self) -> int:
        return sum(container.restart_count for container in self.container_statuses or ())

    @property
    def trouble(self) -> str:
        """Why the pod is not ready, with the kubelet's or the scheduler's words; empty for a ready pod."""
        if self.is_ready:
            return ""
        for container in self.containers:
            waiting = container.state.waiting
            if waiting is not None and waiting.reason not in ("", "PodInitializing"):
                return _words(waiting.reason, waiting.message)
        condition = self.condition("PodScheduled")
        if condition is not None and condition.status == "False":
            return _words(condition.reason or "not scheduled", condition.message)
        return "not ready" if self.phase == "Running" else one_line(self.phase or "no status", _LONGEST)


def _words(reason: str, message: str) -> str:
    return one_line(f"{reason}: {message}" if message else reason, _LONGEST)


class Pod(PartialObject, frozen=True, dict=True):
    """A pod. `document` is its JSON where it is kept, for what KAI reads of it."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
    document: bytes = msgspec.field(default=b"", name="-")

    @cached_property
    def view(self) -> PodView | None:
        """What KAI reads; None if the document was not kept, or cannot be decoded."""
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
    def gpu_groups(self) -> frozenset[str]:
        """The GPU groups of a pod with a share, one for each of its GPUs."""
        return frozenset(gpu_groups(self.metadata.labels)) - {""}

    def claim_of(self, reference: DeviceClaim) -> str | None:
        """Return the name of a ResourceClaim of the pod, empty before it has one; None if none is needed."""
        if reference.resource_claim_name:
            return reference.resource_claim_name
        made = {each.name: each.resource_claim_name for each in self.status.resource_claim_statuses or ()}
        return made.get(reference.name, "")

    @property
    def claim_names(self) -> tuple[str, ...]:
        names = (text_at(each, "persistentVolumeClaim", "claimName") for each in self.spec.volumes or ())
        return tuple(filter(None, names))


def decode_pod_with_document(document: bytes) -> Pod:
    """Decode a pod and keep its JSON; raises msgspec's errors (`service.text.MALFORMED`)."""
    return msgspec.structs.replace(PODS.decode(document), document=document)


def text_at(value: Any, *path: str) -> str:
    """Return the text at a path of decoded JSON; empty if there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


class UnschedulableReason(Struct, frozen=True):
    reason: str = ""
    message: str = ""
    details: Any = None  # its form depends on the reason

    @property
    def queue(self) -> str:
        """Name of the queue that is full, not its display name; empty if KAI names none."""
        return text_at(self.details, "queueDetails", "name")


class SchedulingCondition(Struct, frozen=True, rename="camel"):
    """One of `status.schedulingConditions` of a PodGroup: KAI's last words about it."""

    message: str = ""
    last_transition_time: Time | None = None
    reasons: list[UnschedulableReason] | None = None


class SubGroup(Struct, frozen=True):
    name: str
    parent: str | None = None


class _PodGroupSpec(Struct, frozen=True, rename="camel"):
    queue: str = ""
    min_member: int | None = None
    priority_class_name: str = ""
    sub_groups: list[SubGroup] | None = None


class _Resources(Struct, frozen=True):
    allocated: dict[str, Quantity] | None = None
    requested: dict[str, Quantity] | None = None


class _PodGroupStatus(Struct, frozen=True, rename="camel"):
    scheduling_conditions: list[SchedulingCondition] | None = None
    resources_status: _Resources | None = None


class PodGroup(PartialObject, frozen=True, dict=True):
    """KAI's PodGroup: the pods that it schedules together, in one queue."""

    spec: _PodGroupSpec = _PodGroupSpec()
    status: _PodGroupStatus | None = None

    @property
    def queue_label(self) -> str:
        """The queue label, by which KAI before v0.13.0 adds up `Queue.status`; empty without one."""
        return self.metadata.labels.get(keys.QUEUE_LABEL, "")

    @property
    def condition(self) -> SchedulingCondition | None:
        """The newest scheduling condition; None if KAI has said nothing."""
        conditions = (self.status.scheduling_conditions if self.status else None) or ()
        return conditions[-1] if conditions else None

    @property
    def resources(self) -> _Resources:
        """What the group holds and requests, as KAI's podgroup-controller has entered it."""
        return (self.status.resources_status if self.status else None) or _Resources()

    @property
    def allocated_gpus(self) -> float | None:
        """The GPUs that KAI counts for the pods of the group; None if the figure cannot be read."""
        return gpu_amount(self.resources.allocated)

    @property
    def has_pods(self) -> bool:
        """Whether the group has pods, as the guard sees it: by the status that KAI writes."""
        return bool(self.resources.allocated or self.resources.requested)


class _BindSpec(Struct, frozen=True, rename="camel"):
    selected_node: str = ""
    selected_gpu_groups: list[str] | None = msgspec.field(default=None, name="selectedGPUGroups")


class _PhaseStatus(Struct, frozen=True):
    phase: str = ""
    reason: str = ""


class BindRequest(PartialObject, frozen=True):
    """KAI's BindRequest: the scheduler's order to the binder to bind one pod."""

    spec: _BindSpec = _BindSpec()
    status: _PhaseStatus | None = None


class SchedulingShard(PartialObject, frozen=True):
    """KAI's SchedulingShard: the scheduler of one node pool."""

    spec: Any = None


class _InvolvedObject(Struct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class _Series(Struct, frozen=True, rename="camel"):
    count: int = 0
    last_observed_time: Time | None = None


class Event(PartialObject, frozen=True, rename="camel"):
    involved_object: _InvolvedObject = _InvolvedObject()
    type: str = ""
    reason: str = ""
    message: str = ""
    source: dict[str, str] = {}
    reporting_component: str = ""
    first_timestamp: Time | None = None
    last_timestamp: Time | None = None
    event_time: Time | None = None
    count: int | None = None
    series: _Series | None = None

    @property
    def component(self) -> str:
        """The program that wrote the Event, by its own word."""
        return self.reporting_component or self.source.get("component", "")

    @property
    def times(self) -> int:
        return max(self.count or (self.series.count if self.series else 0), 1)

    @property
    def first(self) -> datetime | None:
        return self.first_timestamp or self.event_time or self.metadata.creation_timestamp

    @property
    def last(self) -> datetime | None:
        return (self.series.last_observed_time if self.series else None) or self.last_timestamp or self.first

    @property
    def moment(self) -> float:
        """The Unix time at which it was told last, by which Events are sorted; 0 if unknown."""
        return self.last.timestamp() if self.last is not None else 0.0


class _NodeSpec(Struct, frozen=True):
    taints: list[Taint] | None = None
    unschedulable: bool = False


class _NodeStatus(Struct, frozen=True):
    allocatable: dict[str, Quantity] | None = None
    capacity: dict[str, Quantity] | None = None
    conditions: list[PodCondition] | None = None


class Node(PartialObject, frozen=True):
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()

    @property
    def taints(self) -> tuple[Taint, ...]:
        """The taints that keep pods without a toleration away."""
        return tuple(each for each in self.spec.taints or () if each.effect in ("NoSchedule", "NoExecute"))

    @property
    def gpus(self) -> int:
        """Whole GPUs that the node's device plugin offers; 0 without one."""
        return int(gpu_amount(self.status.allocatable) or 0)


class _OwnerSpec(Struct, frozen=True, rename="camel"):
    """The fields of type Any have another content in some custom resources."""

    replicas: int | None = None
    suspend: bool | None = None
    selector: Any = None
    completion_mode: Any = None
    template: Any = None


class PodOwner(PartialObject, frozen=True):
    """An owner of pods, of any kind."""

    kind: str = ""
    spec: _OwnerSpec = _OwnerSpec()
    status: Any = None

    @property
    def old_pods(self) -> int:
        """Pods of an earlier template that a Deployment keeps beside a new one (`maxSurge`); else 0."""
        if self.kind != "Deployment" or not isinstance(self.status, dict):
            return 0
        every, updated = self.status.get("replicas", 0), self.status.get("updatedReplicas", 0)
        is_surging = isinstance(every, int) and isinstance(updated, int) and every > (self.spec.replicas or 0)
        return max(every - updated, 0) if is_surging else 0

    def label(self, key: str) -> str:
        """Return a label of the object, else of its pod template; empty if both lack it."""
        return self.metadata.labels.get(key, "") or text_at(self.spec.template, "metadata", "labels", key)


class PodTemplate(Struct, frozen=True):
    spec: PodSpec = PodSpec()


class _TemplateSpec(Struct, frozen=True):
    template: PodTemplate = PodTemplate()


class _TemplateStatus(Struct, frozen=True, rename="camel"):
    desired_number_scheduled: int = 0  # nodes that should run a pod of a DaemonSet


class Controller(PartialObject, frozen=True):
    """A Deployment or a DaemonSet, with its pod template."""

    spec: _TemplateSpec = _TemplateSpec()
    status: _TemplateStatus = _TemplateStatus()

    @property
    def template(self) -> PodSpec:
        return self.spec.template.spec


class ConfigMap(PartialObject, frozen=True):
    data: dict[str, str] | None = None


class PriorityClass(PartialObject, frozen=True):
    value: int = 0
    is_default: bool = msgspec.field(name="globalDefault", default=False)


class _LimitRangeItem(Struct, frozen=True, rename="camel"):
    type: str = ""
    default: dict[str, Quantity] | None = None
    default_request: dict[str, Quantity] | None = None
    min: dict[str, Quantity] | None = None
    max: dict[str, Quantity] | None = None
    max_limit_request_ratio: dict[str, Quantity] | None = None


class _LimitRangeSpec(Struct, frozen=True):
    limits: list[_LimitRangeItem] | None = None


class LimitRange(PartialObject, frozen=True):
    spec: _LimitRangeSpec = _LimitRangeSpec()

    def needs(self, resource: str) -> bool:
        """Whether pods must request the resource: a bound refuses a container or pod without an amount.

        Source: Kubernetes 1.36 plugin/pkg/admission/limitranger/admission.go, minConstraint, maxConstraint,
        limitRequestRatioConstraint.
        """
        return any(
            resource in (bound or ())
            for item in self.spec.limits or ()
            if item.type in ("Container", "Pod")
            for bound in (item.min, item.max, item.max_limit_request_ratio)
        )

    def container_defaults(self) -> tuple[dict[str, Quantity], dict[str, Quantity]]:
        """Return the limits and the requests that a container gets by default."""
        limits: dict[str, Quantity] = {}
        requests: dict[str, Quantity] = {}
        for item in self.spec.limits or ():
            if item.type == "Container":
                limits |= item.default or {}
                requests |= item.default_request or {}
        return limits, requests


def gpu_limit_ranges(limits: Iterable[LimitRange]) -> dict[str, str]:
    """Return by namespace the first LimitRange that refuses pods without a whole GPU."""
    return dict(sorted((each.metadata.key for each in limits if each.needs(keys.GPU_RESOURCE)), reverse=True))


class ServicePort(Struct, frozen=True):
    name: str = ""
    port: int | None = None


class _ServiceSpec(Struct, frozen=True, rename="camel"):
    type: str = "ClusterIP"
    external_name: str = ""
    ports: list[ServicePort] | None = None


class Service(PartialObject, frozen=True):
    spec: _ServiceSpec = _ServiceSpec()


class SliceEndpoint(Struct, frozen=True):
    addresses: list[str]
    conditions: dict[str, bool | None] = {}


class EndpointSlice(PartialObject, frozen=True):
    endpoints: list[SliceEndpoint] | None = None
    ports: list[ServicePort] | None = None


class AdmissionMatch(Struct, frozen=True, rename="camel"):
    """The requests that an admission policy or its binding selects."""

    namespace_selector: LabelSelector = EVERYTHING
    object_selector: LabelSelector = EVERYTHING
    resource_rules: list[dict[str, Any]] | None = None
    exclude_resource_rules: list[dict[str, Any]] | None = None
    match_policy: str = "Equivalent"


class AdmissionPolicySpec(Struct, frozen=True, rename="camel"):
    match_constraints: AdmissionMatch = AdmissionMatch()
    match_conditions: list[dict[str, str]] | None = None
    variables: list[dict[str, str]] | None = None
    validations: list[dict[str, str]] | None = None
    mutations: list[dict[str, Any]] | None = None
    failure_policy: str = "Fail"
    reinvocation_policy: str = ""
    param_kind: dict[str, str] | None = None


class AdmissionPolicy(PartialObject, frozen=True):
    """A ValidatingAdmissionPolicy or a MutatingAdmissionPolicy."""

    spec: AdmissionPolicySpec = AdmissionPolicySpec()


class _BindingSpec(Struct, frozen=True, rename="camel"):
    policy_name: str = ""
    validation_actions: list[str] | None = None
    match_resources: AdmissionMatch = AdmissionMatch()
    param_ref: dict[str, Any] | None = None


class AdmissionBinding(PartialObject, frozen=True):
    spec: _BindingSpec = _BindingSpec()


PODS: Final = Kind("", "v1", "pods", "Pod", Pod)
NODES: Final = Kind("", "v1", "nodes", "Node", Node)
NAMESPACES: Final = Kind("", "v1", "namespaces", "Namespace", PartialObject)
EVENTS: Final = Kind("", "v1", "events", "Event", Event)
SERVICES: Final = Kind("", "v1", "services", "Service", Service)
CONFIG_MAPS: Final = Kind("", "v1", "configmaps", "ConfigMap", ConfigMap)
LIMIT_RANGES: Final = Kind("", "v1", "limitranges", "LimitRange", LimitRange)
DAEMON_SETS: Final = Kind("apps", "v1", "daemonsets", "DaemonSet", Controller)
ENDPOINT_SLICES: Final = Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", EndpointSlice)
PRIORITY_CLASSES: Final = Kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", PriorityClass)
QUEUES: Final = Kind("scheduling.run.ai", "v2", "queues", "Queue", Queue)
POD_GROUPS: Final = Kind("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup", PodGroup)
BIND_REQUESTS: Final = Kind("scheduling.run.ai", "v1alpha2", "bindrequests", "BindRequest", BindRequest)
SHARDS: Final = Kind("kai.scheduler", "v1", "schedulingshards", "SchedulingShard", SchedulingShard)
KAI_CONFIGS: Final = Kind("kai.scheduler", "v1", "configs", "Config", PartialObject)
RESOURCE_CLAIMS: Final = Kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", ResourceClaim)
RESOURCE_SLICES: Final = Kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", ResourceSlice)
DEVICE_CLASSES: Final = Kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", DeviceClass)
RUNTIME_CLASSES: Final = Kind("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", PartialObject)
_ADMISSION: Final = "admissionregistration.k8s.io"
MUTATING_POLICIES: Final = Kind(
    _ADMISSION, "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", AdmissionPolicy
)
MUTATING_BINDINGS: Final = Kind(
    _ADMISSION, "v1", "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", AdmissionBinding
)
VALIDATING_POLICIES: Final = Kind(
    _ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", AdmissionPolicy
)
VALIDATING_BINDINGS: Final = Kind(
    _ADMISSION,
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    AdmissionBinding,
)
