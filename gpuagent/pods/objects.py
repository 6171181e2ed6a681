"""Kubernetes objects that describe a node's pods, with the fields that the agent reads.

Missing fields and null become empty values, as in Go, unlike in `kube.kinds`: a file is not checked by an API
server, and its errors are reported with the field's name. Any other wrong type is an ObjectError.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from kai import keys
from kai.pod import explain_shape
from service.text import one_line

_LONGEST_NAME: Final = 120


class ObjectError(ValueError):
    """A malformed object; one line with the object, the field and the expected type."""


class Owner(Struct, frozen=True):
    """An entry of `metadata.ownerReferences`."""

    kind: str | None = None
    name: str | None = None
    uid: str | None = None
    controller: bool | None = None


_NO_OWNER: Final = Owner()


class Metadata(Struct, frozen=True, rename="camel"):
    """`metadata` of any object."""

    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str | None] | None = None
    annotations: dict[str, str | None] | None = None
    owner_references: list[Owner] | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace or "default", self.name or ""

    @property
    def controller(self) -> Owner:
        """The controller that would recreate the object; an owner without fields if there is none."""
        owners = self.owner_references or ()
        return next((owner for owner in owners if owner.controller), _NO_OWNER)

    @property
    def pod_owner_uid(self) -> str | None:
        """UID of the owning pod; None if there is none."""
        owners = self.owner_references or ()
        return next((owner.uid for owner in owners if owner.kind == "Pod"), None)


class Present(Struct, frozen=True):
    """An object of which only the presence matters."""


Quantity = str | int | float


class Resources(Struct, frozen=True):
    """`resources` of a container: amounts by resource name."""

    limits: dict[str, Quantity | None] | None = None
    requests: dict[str, Quantity | None] | None = None

    @property
    def gpus(self) -> Quantity | None:
        """Amount of `nvidia.com/gpu`: the limit, which counts for extended resources, or else the request."""
        limit = self.limits.get(keys.GPU_RESOURCE) if self.limits else None
        if limit is not None:
            return limit
        return self.requests.get(keys.GPU_RESOURCE) if self.requests else None


class Variable(Struct, frozen=True):
    """An entry of `env` of a container."""

    name: str | None = None
    value: str | None = None


class Container(Struct, frozen=True):
    """One container of any type."""

    name: str
    resources: Resources | None = None
    env: list[Variable] | None = None
    restart_policy: str | None = field(default=None, name="restartPolicy")

    @property
    def is_sidecar(self) -> bool:
        """Whether an init container runs beside the containers until the pod ends."""
        return self.restart_policy == "Always"


class ContainerState(Struct, frozen=True):
    """`state` or `lastState` of a container: `waiting`, `running` or `terminated`."""

    running: Present | None = None
    terminated: Present | None = None


class ContainerStatus(Struct, frozen=True, rename="camel"):
    """Status of one container, as the kubelet reports it."""

    name: str
    container_id: str | None = field(default=None, name="containerID")
    state: ContainerState | None = None
    last_state: ContainerState | None = None

    @property
    def has_started(self) -> bool:
        """Whether the container has run: it has an ID, or a state after its start."""
        states = [state for state in (self.state, self.last_state) if state is not None]
        return bool(self.container_id) or any(state.running or state.terminated for state in states)


class ClaimReference(Struct, frozen=True, rename="camel"):
    """An entry of `spec.resourceClaims` or `status.resourceClaimStatuses` of a pod."""

    name: str | None = None
    resource_claim_name: str | None = None


class ExtendedResource(Struct, frozen=True, rename="camel"):
    """An entry of `requestMappings`: the resource of a container that a claim provides."""

    resource_name: str | None = None


class ExtendedResourceClaim(Struct, frozen=True, rename="camel"):
    """`status.extendedResourceClaimStatus` of a pod: the claim that the scheduler made for its resources."""

    resource_claim_name: str | None = None
    request_mappings: list[ExtendedResource] | None = None


class SchedulingGroup(Struct, frozen=True, rename="camel"):
    """`spec.schedulingGroup` of a pod: the PodGroup of Kubernetes for which its claims may be reserved."""

    pod_group_name: str | None = None


class PodSpec(Struct, frozen=True, rename="camel"):
    """`spec` of a pod."""

    node_name: str | None = None
    scheduler_name: str | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    ephemeral_containers: list[Container] | None = None
    resource_claims: list[ClaimReference] | None = None
    """Claims of DRA. The requested devices are in another object."""
    scheduling_group: SchedulingGroup | None = None


class StatusCondition(Struct, frozen=True):
    """An entry of `status.conditions`."""

    type: str | None = None
    status: str | None = None


class PodStatus(Struct, frozen=True, rename="camel"):
    """`status` of a pod."""

    phase: str | None = None
    conditions: list[StatusCondition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    ephemeral_container_statuses: list[ContainerStatus] | None = None
    resource_claim_statuses: list[ClaimReference] | None = None
    extended_resource_claim_status: ExtendedResourceClaim | None = None

    @property
    def containers(self) -> Iterator[ContainerStatus]:
        """Status of every container, init containers included."""
        yield from self.container_statuses or ()
        yield from self.init_container_statuses or ()
        yield from self.ephemeral_container_statuses or ()


class Pod(Struct, frozen=True):
    """A v1 Pod."""

    metadata: Metadata
    spec: PodSpec
    status: PodStatus | None = None


class NodeStatus(Struct, frozen=True):
    """`status` of a Node: amounts by resource name."""

    capacity: dict[str, Quantity | None] | None = None
    allocatable: dict[str, Quantity | None] | None = None


class Node(Struct, frozen=True):
    """A v1 Node."""

    metadata: Metadata
    status: NodeStatus | None = None


class Namespace(Struct, frozen=True):
    """A v1 Namespace."""

    metadata: Metadata


class ReceivedGpu(Struct, frozen=True):
    """`spec.receivedGPU` of a BindRequest."""

    count: int | None = None
    portion: str | None = None


class BindRequestSpec(Struct, frozen=True, rename="camel"):
    """`spec` of a BindRequest."""

    received_gpu: ReceivedGpu | None = field(default=None, name="receivedGPU")
    received_resource_type: str | None = None
    selected_gpu_groups: list[str] | None = field(default=None, name="selectedGPUGroups")


class BindRequestObject(Struct, frozen=True):
    """A scheduling.run.ai/v1alpha2 BindRequest; it has the same name as its pod."""

    metadata: Metadata
    spec: BindRequestSpec


KubernetesObject = Pod | Node | Namespace | BindRequestObject

_TYPES: Final[Mapping[str, type[KubernetesObject]]] = {
    "Pod": Pod,
    "Node": Node,
    "Namespace": Namespace,
    "BindRequest": BindRequestObject,
}


def decode_object(document: Any, *, kind: str = "") -> KubernetesObject | None:
    """Convert a decoded JSON or YAML object; return None for an irrelevant kind.

    `kind` is that of an object without `kind`, such as an item of a list.

    Raises:
        ObjectError: the object is malformed.
    """
    if not isinstance(document, dict):
        raise ObjectError(f"{kind or 'an object'}: expected object, got {_type_name(document)}")
    kind = document.get("kind") or kind
    type_ = _TYPES.get(kind) if isinstance(kind, str) else None
    if type_ is None:
        if not isinstance(kind, str) or not kind:
            raise ObjectError("an object without kind; expected one such as Pod")
        return None
    try:
        decoded = msgspec.convert(document, type_)
    except msgspec.ValidationError as error:
        reason = _wrong_string(document) or explain_shape(error, "object")
        raise ObjectError(f"{kind} {_name_of(document)}: {reason}") from None
    if not decoded.metadata.name:
        raise ObjectError(f"{kind} {_name_of(document)}: metadata.name: expected a name, got none")
    return decoded


def objects_of(documents: list[Any]) -> Iterator[tuple[Any, str]]:
    """Yield every object of the documents, with the kind that its list implies (`PodList` implies Pod).

    Raises:
        ObjectError: a document is neither an object nor a list of objects.
    """
    for document in documents:
        kind = document.get("kind") if isinstance(document, dict) else None
        if not isinstance(kind, str) or not kind:
            raise ObjectError(
                f"expected a v1 PodList, a v1 List or objects with a kind, got {_type_name(document)}"
                + (" without kind" if isinstance(document, dict) else "")
            )
        if not kind.endswith("List"):
            yield document, kind
            continue
        items = document.get("items")
        if items is None:
            continue
        if not isinstance(items, list):
            raise ObjectError(f"{kind}: items: expected array, got {_type_name(items)}")
        for item in items:
            if isinstance(item, dict) and str(item.get("kind", "")).endswith("List"):
                yield from objects_of([item])
            else:
                yield item, kind.removesuffix("List")


def _wrong_string(document: dict[str, Any]) -> str | None:
    """Name the key whose value YAML parsed as another type than string; msgspec names only the map."""
    metadata = document.get("metadata")
    for name in ("labels", "annotations"):
        strings = metadata.get(name) if isinstance(metadata, dict) else None
        for key, value in strings.items() if isinstance(strings, dict) else ():
            if value is not None and not isinstance(value, str):
                return f"metadata.{name}[{key}]: expected str, got {_type_name(value)}; put it in quotes"
    return None


def _name_of(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return "without metadata"
    parts = [part for part in (metadata.get("namespace"), metadata.get("name")) if isinstance(part, str)]
    return one_line("/".join(parts), _LONGEST_NAME) or "without a name"


def _type_name(value: Any) -> str:
    names = {dict: "object", list: "array", str: "str", bool: "bool", int: "int", float: "float"}
    return names.get(type(value), "null" if value is None else type(value).__name__)
