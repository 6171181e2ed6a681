"""Kubernetes objects as the API server sends them: what all kinds have in common, and a pod's status."""

from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from service.text import one_line

Time = Annotated[datetime, Meta(tz=True)]
"""A time as the API server writes it, with a time zone; one without is an error, as it cannot be compared."""

METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Media type of a list without spec and status."""


class ObjectMeta(Struct, frozen=True, rename="camel"):
    """`metadata` of an object: what identifies it.

    A decoder that needs further fields uses a subclass, so that labels, annotations and owners are decoded
    only where they are used.
    """

    name: str
    namespace: str = ""
    """Empty for an object that is not namespaced."""


class VersionedMeta(ObjectMeta, frozen=True):
    """`metadata` of an object that is read to be patched."""

    resource_version: str = ""
    """Precondition of the patch; empty if the API server sent none."""


class LabelledMeta(ObjectMeta, frozen=True):
    """`metadata` with labels."""

    labels: dict[str, str] = {}


class ObjectOwner(Struct, frozen=True, rename="camel"):
    """One of `metadata.ownerReferences`."""

    api_version: str
    kind: str
    name: str
    controller: bool = False

    @property
    def group_kind(self) -> tuple[str, str]:
        """API group and kind; the group is empty for the core group."""
        return self.api_version.rpartition("/")[0], self.kind


class FullMeta(LabelledMeta, frozen=True):
    """`metadata` with all that decides about pods. Its annotations may be large."""

    annotations: dict[str, str] = {}
    owner_references: list[ObjectOwner] = []
    deletion_timestamp: str = ""
    """Time from which the object is being deleted; empty if it is not."""


class Taint(Struct, frozen=True):
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


class PartialObject(Struct, frozen=True):
    """An object of which only the metadata is read (PartialObjectMetadata of Kubernetes)."""

    metadata: FullMeta


decode_partial_object = msgspec.json.Decoder(PartialObject).decode


def resource_path(group: str, version: str, resource: str, namespace: str = "") -> str:
    """Return the path of the list of a kind's objects, in one namespace or in all.

    Args:
        group: API group; empty for the core group.
        version: API version, such as `v1`.
        resource: name in paths, such as `deployments`.
        namespace: the namespace; empty for all, and for a kind without namespaces.
    """
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    return f"{root}/namespaces/{namespace}/{resource}" if namespace else f"{root}/{resource}"


_LONGEST: Final = 200  # characters


class PodCondition(Struct, frozen=True, rename="camel"):
    """One of `status.conditions` of a pod."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class _Waiting(Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Runs(Struct, frozen=True, rename="camel"):
    started_at: datetime | None = None


class _Ended(Struct, frozen=True, rename="camel"):
    reason: str = ""
    exit_code: int | None = None


class _ContainerState(Struct, frozen=True):
    waiting: _Waiting | None = None
    running: _Runs | None = None
    terminated: _Ended | None = None


class ContainerObject(Struct, frozen=True, rename="camel"):
    """The state of a container."""

    name: str = ""
    ready: bool = False
    started: bool | None = None
    """Whether the startup probe has succeeded; a sidecar ends the wait of the containers after it by that."""
    restart_count: int = 0
    state: _ContainerState = _ContainerState()
    last_state: _ContainerState = _ContainerState()


class PodStatus(Struct, frozen=True, rename="camel"):
    """`status` of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: datetime | None = None
    conditions: list[PodCondition] | None = None
    init_container_statuses: list[ContainerObject] | None = None
    container_statuses: list[ContainerObject] | None = None

    @property
    def containers(self) -> tuple[ContainerObject, ...]:
        """The init containers, then the containers."""
        return (*(self.init_container_statuses or ()), *(self.container_statuses or ()))

    def condition(self, kind: str) -> PodCondition | None:
        """Return a condition by its type."""
        return next((each for each in self.conditions or () if each.type == kind), None)

    @property
    def is_ready(self) -> bool:
        """Whether the condition Ready is True."""
        condition = self.condition("Ready")
        return condition is not None and condition.status == "True"

    @property
    def restarts(self) -> int:
        """The restarts of all containers."""
        return sum(container.restart_count for container in self.container_statuses or ())

    @property
    def trouble(self) -> str:
        """The most specific reason why the pod is not ready, in one line; empty for a ready pod.

        A waiting container's reason comes with the kubelet's message, a pod without a node with the
        scheduler's.
        """
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
