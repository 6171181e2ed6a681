"""Reads KAI's PodGroups: queue and subgroups of running pods, and the GPUs that KAI counts for them."""

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import msgspec
from msgspec import Struct

from console.doctor.api_reader import ApiReader, ListResult, ListSpec
from kai import keys
from kai.numbers import parse_quantity
from kai.pod import Quantity
from kube.kinds import FullMeta

DEFAULT_SUBGROUP: Final = "default"
"""The only subgroup of a PodGroup without subgroups, and the subgroup of a pod without the label
(`job_info.go` of v0.9.8, v0.13.4 and v0.17.0)."""

GROUP: Final = "scheduling.run.ai"
API_VERSION: Final = "v2alpha2"
_POD_GROUPS: Final = ListSpec(
    resource="podgroups",
    group=GROUP,
    version=API_VERSION,
    without="the queues of running pods were not checked",
    is_namespaced=True,
)


class _SubGroup(Struct, frozen=True):
    name: str
    parent: str | None = None


class _Spec(Struct, frozen=True, rename="camel"):
    queue: str = ""
    sub_groups: list[_SubGroup] | None = None


class _Resources(Struct, frozen=True):
    allocated: dict[str, Quantity] | None = None
    requested: dict[str, Quantity] | None = None


class _Status(Struct, frozen=True):
    resources: _Resources | None = msgspec.field(name="resourcesStatus", default=None)


class PodGroup(Struct, frozen=True, dict=True):
    """A PodGroup: the pods that KAI schedules together in one queue."""

    metadata: FullMeta
    spec: _Spec = _Spec()
    status: _Status | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.metadata.namespace, self.metadata.name

    @property
    def queue_label(self) -> str:
        """The queue label, by which KAI before v0.13.0 adds up `Queue.status`; empty without one."""
        return self.metadata.labels.get(keys.QUEUE_LABEL, "")

    @property
    def allocated_gpus(self) -> float | None:
        """The GPUs that KAI counts for the pods of the group; None if the figure cannot be read."""
        resources = self.status.resources if self.status else None
        return gpu_amount(resources.allocated if resources else None)

    @property
    def has_pods(self) -> bool:
        """Whether the group has pods, as the guard sees it: by the status that KAI writes."""
        resources = self.status.resources if self.status else None
        return resources is not None and bool(resources.allocated or resources.requested)

    @cached_property
    def pod_subgroups(self) -> frozenset[str]:
        """The subgroups whose pods KAI counts: those without children (`subgroup_info/factory.go`)."""
        subgroups = self.spec.sub_groups or ()
        parents = {subgroup.parent.lower() for subgroup in subgroups if subgroup.parent}
        return frozenset(
            subgroup.name for subgroup in subgroups if subgroup.name not in parents
        ) or frozenset({DEFAULT_SUBGROUP})


decode_pod_group = msgspec.json.Decoder(PodGroup).decode


async def list_pod_groups(reader: ApiReader) -> ListResult[PodGroup]:
    """List KAI's PodGroups; a failed request is recorded in the reader."""
    return await reader.list(_POD_GROUPS, decode_pod_group)


def gpu_amount(amounts: Mapping[str, Quantity] | None) -> float | None:
    """Return the whole and shared GPUs in a list of resources; None if the quantity cannot be read.

    MIG devices have other resource names. KAI's status keeps them apart, too (`resources.go`, SumResources).
    """
    try:
        return float(parse_quantity((amounts or {}).get(keys.GPU_RESOURCE, 0)))
    except (ValueError, OverflowError):  # OverflowError: the API server stores 1e999
        return None
