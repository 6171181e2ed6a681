"""What a pod may use on each GPU: the candidates of all sources, and the entitlement that counts. Pure.

`shares.share_resolver` reads the candidates, `shares.entitlement` decides which of them counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Final

from msgspec import Struct

from gpuagent.pods.inventory import NodePod
from gpuagent.pods.pod_owners import NO_WORKLOAD, Tenant, Workload
from kai.installation import SharingMode


class ShareSource(StrEnum):
    """Source of a share, best first; the `source` label of the share series."""

    BIND_REQUEST = "bind-request"
    ANNOTATION = "annotation"
    WHOLE_GPU = "whole-gpu"
    RESOURCE_CLAIM = "resource-claim"


class LimitSource(StrEnum):
    """Source of a limit; the `source` label of the limit series."""

    ANNOTATION = "annotation"
    DRIVER = "driver"
    """What the driver holds the pod's containers to, by any tool."""


class Validity(Enum):
    """Whether a candidate may count."""

    COUNTS = "counts"
    """It decides unless a better source has a candidate."""
    OVERRULED = "overruled"
    """KAI's BindRequest says that the pod has no share."""
    IGNORED = "ignored"
    """KAI did not place the pod, so it never read the candidate."""
    LATER = "later"
    """The pod's owner wrote it after the first one was seen."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What one source says a pod may use, whether or not it counts."""

    source: ShareSource
    text: str
    """The share in the source's own form: `gpu-fraction 0.5`, `portion 0.50`."""
    bytes_per_gpu: Mapping[str, int | None]
    """By GPU UUID; the key is empty while the GPU is unknown. None if the memory of the device is unknown."""
    validity: Validity = Validity.COUNTS


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes on one GPU, and their source."""

    bytes: int
    source: ShareSource | LimitSource


class Relation(Enum):
    """What a GPU is to a pod."""

    OWN = "own"
    """Assigned to the pod."""
    POSSIBLE = "possible"
    """It was the pod's before KAI recorded another one, or may be the pod's while its GPU is not certain."""
    WITHHELD = "withheld"
    """The pod has whole GPUs, and a KAI group holds this one, so no device plugin handed it out."""
    OTHER = "other"


class Entitlement(Struct, frozen=True, gc=False):
    """The candidate that counts for a pod on one GPU."""

    relation: Relation
    share: Amount | None = None
    """What the pod is compared with; promised to the pod if the GPU is its own. None: nothing or unknown."""
    limit: Amount | None = None
    """Limit of an enforcer, which takes precedence over the share."""
    is_excused: bool = False
    """Whether the use of the GPU is no violation, or cannot be compared with anything."""
    ignored_limit: Amount | None = None
    """A limit that does not count: it is above the share, and KAI's mode is not known to enforce it."""
    peers: frozenset[str] = frozenset()
    """UIDs of the pods that share the pod's ResourceClaims, this pod included; empty if there is no other.
    What they use together is compared with the share, and none is evicted."""


NOTHING: Final = Entitlement(Relation.OTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodShare:
    """A pod with its candidates and entitlements."""

    pod: NodePod
    tenant: Tenant | None = None
    queue: str = ""
    """The pod's queue label as first seen; empty if it has none."""
    size: str = ""
    """The annotation kaishare.dev/size as first seen, if it is a size's name; for display only."""
    workload: Workload = NO_WORKLOAD
    """The pod's workload, for display only."""
    sharing_mode: SharingMode | None = None
    """KAI's mode, for advice; None if it is not stated."""
    candidates: tuple[Candidate, ...] = ()
    """Best first."""
    source: ShareSource | None = None
    """Source of the candidate that counts; None without a share. A pod with both a whole GPU and a share is
    compared with its share. KAI up to v0.10.0 admits such pods (PR #660)."""
    groups: tuple[str, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    """GPUs assigned to the pod; empty if it has none or if they are unknown."""
    is_unresolved: bool = False
    """Whether a GPU of the pod's share is unknown. A group label alone is no share, since any user can write
    one."""
    awaits_record: bool = False
    """Whether KAI may have placed the pod: its BindRequest is not known yet, and no group label shows it."""
    entitlements: Mapping[str, Entitlement] = field(default_factory=dict)
    """By UUID of the GPU."""
    elsewhere: Entitlement = NOTHING
    """On every other GPU."""
    changed: str = ""
    """Differences from a better source or from the first annotations; empty if none (`share-changed`)."""
    lacks_reservation: bool = False
    """Whether the pod runs with a share in a group without a reservation pod (`no-reservation`)."""
    has_unsized_gpus: bool = False
    """Whether the pod gets GPUs of unknown size: by a ResourceClaim, or by another GPU resource than
    `nvidia.com/gpu`."""
    notes: tuple[str, ...] = ()
    """Malformed values, one line each with pod, key and allowed values."""

    def on(self, gpu_uuid: str) -> Entitlement:
        """Return the entitlement on one GPU."""
        return self.entitlements.get(gpu_uuid, self.elsewhere)

    @property
    def has_share(self) -> bool:
        """Whether any candidate counts."""
        return self.source is not None

    @property
    def is_from_kai(self) -> bool:
        """Whether the share is one of KAI, which records it, and reserves its GPU."""
        return self.source in (ShareSource.BIND_REQUEST, ShareSource.ANNOTATION)

    @property
    def is_whole(self) -> bool:
        """Whether whole GPUs are the pod's only share; such a pod is never over."""
        return self.source is ShareSource.WHOLE_GPU

    @property
    def shares(self) -> dict[str, Amount]:
        """What the pod is promised, by UUID of its GPUs."""
        own = ((uuid, each) for uuid, each in self.entitlements.items() if each.relation is Relation.OWN)
        return {uuid: each.share for uuid, each in own if each.share is not None}

    @property
    def limits(self) -> dict[str, Amount]:
        """Limits of an enforcer by UUID of the GPU."""
        return {uuid: each.limit for uuid, each in self.entitlements.items() if each.limit is not None}

    def promised_on(self, gpu_uuid: str) -> Amount | None:
        """Return the share that the pod is promised on one GPU; None without or of unknown size."""
        entitlement = self.on(gpu_uuid)
        return entitlement.share if entitlement.relation is Relation.OWN else None
