"""A pod's share on each GPU, with the source of each figure. Pure.

`shares.share_resolver` finds them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tests.gpuagent.old_core.pods.inventory import NodePod
from tests.gpuagent.old_core.pods.pod_owners import NO_WORKLOAD, Tenant, Workload


class ShareSource(StrEnum):
    """Source of a share, best first; the `source` label of the share series."""

    BIND_REQUEST = "bind-request"
    ANNOTATION = "annotation"
    WHOLE_GPU = "whole-gpu"


class LimitSource(StrEnum):
    """Source of a limit; the `source` label of the limit series."""

    ANNOTATION = "annotation"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod's share according to one source, whether or not that source decides."""

    source: ShareSource
    text: str
    """The share in the source's own form: `gpu-fraction 0.5`, `portion 0.50`."""
    bytes_per_gpu: Mapping[str, int | None]
    """By GPU UUID; the key is empty while the GPU is unknown. None if the memory of the device is unknown."""
    counts: bool = True
    """Whether the candidate decides if no better source has one."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes on one GPU, and their source."""

    bytes: int
    source: ShareSource | LimitSource


@dataclass(frozen=True, slots=True, kw_only=True)
class PodShare:
    """A pod's shares, limits and GPUs."""

    pod: NodePod
    tenant: Tenant | None = None
    queue: str = ""
    """The pod's queue label as first seen; empty if it has none."""
    size: str = ""
    """The annotation kaishare.dev/size as first seen, if it is a size's name; for display only."""
    workload: Workload = NO_WORKLOAD
    """The pod's workload, for display only."""
    has_share: bool = False
    """Whether any source has a share for the pod."""
    is_whole: bool = False
    """Whether whole GPUs are the pod's only share; such a pod is never over. A pod with both a whole GPU and
    a share is compared with its share. KAI up to v0.10.0 admits such pods (PR #660)."""
    groups: tuple[str, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    """GPUs assigned to the pod; empty if it has none or if they are unknown."""
    is_unresolved: bool = False
    """Whether a GPU of the pod's share is unknown; no GPU is then unassigned. A group label alone is no
    share, since any user can write one."""
    awaits_bind_request: bool = False
    """Whether the pod may have a share: it has no group label, and its BindRequest is unknown."""
    is_annotation_ignored: bool = False
    """Whether the pod runs with a share annotation that does not count, since KAI did not place the pod."""
    shares: Mapping[str, Amount] = field(default_factory=dict)
    """Effective share by GPU UUID."""
    allowed_elsewhere: Mapping[str, Amount] = field(default_factory=dict)
    """Share by UUID of the other GPUs that may be the pod's, or were. The pod may use as much there without
    a flag, and nothing is promised."""
    former_gpus: frozenset[str] = frozenset()
    """GPUs that were the pod's own before KAI recorded other ones."""
    has_doubtful_gpus: bool = False
    """Whether the pod's GPUs may be other ones than those known: its group has no reservation pod that names
    a GPU, or had none before its GPU was known. No use of a GPU is then newly unassigned."""
    limits: Mapping[str, Amount] = field(default_factory=dict)
    """Limit of an enforcer by GPU UUID; it takes precedence over the share in verdicts."""
    gpus_with_undecided_limit: frozenset[str] = frozenset()
    """GPUs on which the pod has a limit above its share, and `--gpu-sharing-mode` does not state whether KAI
    enforces it. The pod is compared with its share there, and not evicted."""
    candidates: tuple[Candidate, ...] = ()
    changed: str = ""
    """Differences from a better source or from the first annotations; empty if none (`share-changed`)."""
    lacks_reservation: bool = False
    """Whether the pod runs with a share in a group without a reservation pod (`no-reservation`)."""
    unavailable_gpus: frozenset[str] = frozenset()
    """GPUs that KAI groups hold, so that this pod with whole GPUs cannot have them; empty for other pods."""
    notes: tuple[str, ...] = ()
    """Malformed values, one line each with pod, key and allowed values."""

    def share_on(self, gpu_uuid: str) -> Amount | None:
        """Return the share with which the pod is compared on a GPU, its own or another; None without one."""
        return self.shares.get(gpu_uuid) or self.allowed_elsewhere.get(gpu_uuid)

    def may_own(self, gpu_uuid: str) -> bool:
        """Whether a GPU is or was the pod's, or may be."""
        return self.has_doubtful_gpus or gpu_uuid in self.gpu_uuids or gpu_uuid in self.former_gpus
