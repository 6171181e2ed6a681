"""What each pod may hold on which GPU, and who says so. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuagent.pods.inventory import NodePod
from gpuagent.tenants import Tenant


class ShareSource(StrEnum):
    """Who said how large a share is, best first; the `source` label of the share series."""

    BIND_REQUEST = "bind-request"
    KAI_CONFIGMAP = "kai-configmap"
    ANNOTATION = "annotation"
    WHOLE_GPU = "whole-gpu"


class LimitSource(StrEnum):
    """Who was told to enforce a limit; the `source` label of the limit series."""

    ANNOTATION = "annotation"
    HAMI_CORE = "hami-core"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One source's word on a pod's share, whether or not it decides."""

    source: ShareSource
    text: str
    """As the source has it: `gpu-fraction 0.5`, `portion 0.50`."""
    bytes_per_gpu: Mapping[str, int | None]
    """By GPU UUID (or "" while the GPU is unknown); None: the device memory it refers to is unknown."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes on one GPU, and who says so."""

    bytes: int
    source: ShareSource | LimitSource


@dataclass(frozen=True, slots=True, kw_only=True)
class PodClaim:
    """One pod's claim on GPU memory, settled."""

    pod: NodePod
    tenant: Tenant | None = None
    queue: str = ""
    """The pod's queue label as first seen; empty if it has none."""
    asks_for_share: bool = False
    """Whether anything says that the pod has a share (of its own making or KAI's)."""
    groups: tuple[str, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    """The GPUs that are the pod's; empty if they are unknown or it has none."""
    is_unresolved: bool = False
    """Whether the pod has a GPU group, or a share, that leads to no known GPU: then nothing is unassigned."""
    shares: Mapping[str, Amount] = field(default_factory=dict)
    """Effective share by GPU UUID."""
    limits: Mapping[str, Amount] = field(default_factory=dict)
    """What an enforcer was told, by GPU UUID; the verdict is against this where there is one."""
    candidates: tuple[Candidate, ...] = ()
    changed: str = ""
    """What differs from a better source, or from what was first seen; empty if nothing (`share-changed`)."""
    lacks_reservation: bool = False
    """Whether it runs with a share in a group that has no reservation pod (`no-reservation`)."""
    notes: tuple[str, ...] = ()
    """Values that could not be read, one line each, naming pod, key and what is allowed."""
