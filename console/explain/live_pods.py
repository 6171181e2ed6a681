"""Pods of a cluster and their owners: as new ones would be created, and their sums. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Struct

from console.explain.document_parts import as_map, as_maps
from console.explain.gpu_sums import GpuAmount, RunningPods
from console.explain.manifest_pods import FoundPod
from kai import keys
from kai.key_classes import is_written_by_kai_only
from kai.pod import Owner
from service.text import one_line

_NAME_SHOWN = 63

ObjectKey = tuple[str, str]
"""Namespace and uid. An owner in another namespace does not count, as in Kubernetes' garbage collector."""


class OwnerReference(Owner):
    """One of `metadata.ownerReferences`, with what identifies the owner."""

    uid: str | None = None
    controller: bool | None = None

    @property
    def title(self) -> str:
        """Kind and name in one line."""
        return f"{one_line(self.kind or '', _NAME_SHOWN)} {one_line(self.name or '', _NAME_SHOWN)}"


class OwnedMetadata(Struct):
    """`metadata` of an object: what identifies it, and its owners."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    ownerReferences: list[OwnerReference] | None = None  # noqa: N815 - the name in JSON

    @property
    def key(self) -> ObjectKey:
        """Namespace and uid."""
        return self.namespace, self.uid

    @property
    def owner(self) -> OwnerReference | None:
        """The controller, else the first owner; None without owners."""
        owners = self.ownerReferences or ()
        return next((owner for owner in owners if owner.controller), owners[0] if owners else None)

    @property
    def owner_key(self) -> ObjectKey | None:
        """Namespace and uid of the owner; None without owners."""
        owner = self.owner
        return None if owner is None else (self.namespace, owner.uid or "")


class OwnedObject(Struct):
    """The part of an object that identifies it."""

    metadata: OwnedMetadata


_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_CREATED_METADATA: Final = ("name", "generateName", "namespace", "labels", "annotations", "ownerReferences")
_NOT_CREATED_SPEC: Final = ("nodeName", "priority", "ephemeralContainers")
_ROLE_LABELS: Final = (
    "training.kubeflow.org/replica-type",
    "jobset.sigs.k8s.io/replicatedjob-name",
    "leaderworkerset.sigs.k8s.io/worker-index",
    "training.kubeflow.org/job-role",
)
"""Labels by which the pods of a workload's templates differ; see the sources in `controllers.OPERATORS`."""


class PodMetadata(OwnedMetadata):
    """`metadata` of a live pod."""

    creationTimestamp: str | None = None  # noqa: N815 - the name in JSON
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _PodStatus(Struct):
    phase: str | None = None


class LivePod(OwnedObject):
    """The parts of a live pod that tell its workload and its state."""

    metadata: PodMetadata
    status: _PodStatus | None = None

    @property
    def has_ended(self) -> bool:
        """Whether no container of the pod will run again."""
        return self.status is not None and self.status.phase in keys.FINISHED_PHASES

    @property
    def is_of_workload(self) -> bool:
        """Whether another object created the pod. A mirror pod's owner is its node, which creates nothing."""
        metadata = self.metadata
        return metadata.owner is not None and keys.MIRROR_POD not in (metadata.annotations or {})

    @property
    def age_key(self) -> tuple[str, str]:
        """A key that is larger for newer pods, and differs for pods of the same second."""
        return self.metadata.creationTimestamp or "", self.metadata.name


decode_live_pod: Final = msgspec.json.Decoder(LivePod).decode


def as_new(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a live pod as its creator would send it again.

    The result lacks what only the cluster can have written: status, uid and other fields of the API server,
    keys that only KAI may write, the volume of the service account's token, default tolerations, the number
    of the PriorityClass, ephemeral containers, a generated name, and the node. A node that the creator wrote
    stays: `managedFields` record it for the creator, and not for a scheduler's binding (seen on Kubernetes
    1.36.3).

    Everything else stays, because any creator may have written it: defaults of the API server, and the share,
    queue, scheduler and annotations of an earlier change by the webhook. `ExplainedPod.earlier` tells about
    the earlier change.
    """
    metadata, spec = as_map(pod.get("metadata")), as_map(pod.get("spec"))
    new_metadata: dict[str, Any] = {key: metadata[key] for key in _CREATED_METADATA if key in metadata}
    for part in ("labels", "annotations"):
        if isinstance(new_metadata.get(part), dict):
            entries = new_metadata[part].items()
            new_metadata[part] = {
                key: text for key, text in entries if key != _APPLIED and not is_written_by_kai_only(key)
            }
    prefix, name = new_metadata.get("generateName"), new_metadata.get("name")
    if prefix and isinstance(prefix, str) and str(name).startswith(prefix):
        del new_metadata["name"]
    new_spec = {key: value for key, value in spec.items() if key not in _NOT_CREATED_SPEC}
    if "nodeName" in spec and _creator_wrote_node(metadata.get("managedFields")):
        new_spec["nodeName"] = spec["nodeName"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": new_metadata, "spec": new_spec}


def _creator_wrote_node(entries: Any) -> bool:
    return any(
        "f:nodeName" in as_map(as_map(entry.get("fieldsV1")).get("f:spec")) and not entry.get("subresource")
        for entry in as_maps(entries)
    )


@dataclass(frozen=True, slots=True)
class TemplateRoles:
    """Tells which template of a workload a pod comes from, by a label."""

    label: str
    positions: Mapping[str, int]
    """Position of the template by the label's value."""
    otherwise: int | None = None
    """Position of the template for other values; None if there is none."""

    @classmethod
    def of(cls, templates: Sequence[FoundPod]) -> "TemplateRoles | None":
        """Return the roles of a workload's templates; None if no known label tells them apart."""
        if len(templates) <= 1:
            return cls("", {}, 0)
        for label in _ROLE_LABELS:
            values = [each.additions.labels.get(label) if each.additions else None for each in templates]
            positions = {value: values.index(value) for value in values if value is not None}
            others = [position for position in range(len(values)) if position not in positions.values()]
            if positions and len(others) <= 1:
                return cls(label, positions, others[0] if others else None)
        return None

    def position_of(self, labels: Mapping[str, str]) -> int | None:
        """Return the position of a pod's template; None if the pod's label does not tell."""
        return self.positions.get(labels.get(self.label, ""), self.otherwise)


@dataclass(slots=True)
class PodSums:
    """Numbers and requests of pods by workload and template."""

    _pods: dict[tuple[ObjectKey, int], RunningPods] = field(default_factory=dict)

    def add(self, workload: ObjectKey, position: int, amount: GpuAmount) -> None:
        """Count a pod of a workload's template."""
        before = self.of(workload, position)
        self._pods[workload, position] = RunningPods(before.count + 1, before.requested + amount)

    def of(self, workload: ObjectKey, position: int) -> RunningPods:
        """Return the pods of a workload's template."""
        return self._pods.get((workload, position), _NO_PODS)


_NO_PODS: Final = RunningPods(0, GpuAmount())
