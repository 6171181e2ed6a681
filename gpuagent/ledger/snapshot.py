"""The immutable state of the node at one sample: the only input of metrics, pages and verdicts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from gpuagent.gpus.gpu_reading import Gpu, LostGpu
from gpuagent.ledger.driver_limits import PodLimits
from gpuagent.pods.inventory import EndedPod
from gpuagent.problems import Cause, Problem, RiskName
from gpuagent.shares.pod_share import PodShare


class Holding(Struct, frozen=True, kw_only=True, gc=False):
    """The memory and utilisation of one pod on one GPU or MIG device.

    A msgspec Struct, since there are many and it is cheap to create.
    """

    pod_share: PodShare
    gpu_uuid: str
    gpu_index: int
    used_bytes: int | None
    """None: the memory of a process is unknown, or the GPU's process list is incomplete or implausible."""
    processes: int | None
    """None: the owner of a process is unknown, or the GPU's process list is incomplete or implausible."""
    known_bytes: int = 0
    """Memory of the processes that are known to be the pod's: a lower bound where `used_bytes` is None."""
    utilization_ratio: float | None = None
    """Share of the last interval in which these processes had a kernel running, from 0 to 1; None if the
    driver does not report it."""
    is_mig: bool = False
    """Whether this is a MIG device, or a GPU in MIG mode: reported, never evaluated."""
    may_share_mps: bool = False
    """Whether a process of the pod is, or may be, a client of an MPS server outside of the pod."""
    together: tuple[int, bool] | None = None
    """Known memory of all pods that share the pod's ResourceClaims, and whether they may use more; None if
    the pod shares none."""
    bears_share: bool = True
    """False for all but one of the pods that share ResourceClaims, so that their share counts once. It is the
    one with the lowest UID, so that it is the same in each sample."""
    is_attributed_by_uid: bool = True
    """Whether the cgroup path of every process names the pod first, by its UID, which the API server
    assigned. Tenants can write a container ID, a static pod's hash, or the name of a cgroup below their
    own."""

    @property
    def compared(self) -> tuple[int, bool]:
        """The known memory to compare with the share, and whether it is a lower bound."""
        return self.together or (self.known_bytes, self.used_bytes is None)


class RiskCause(Struct, frozen=True, gc=False):
    """One cause of memory at risk, in bytes."""

    name: RiskName
    bytes: int


class EndedHolding(NamedTuple):
    """The memory of a pod that is no longer listed, on one GPU."""

    pod: EndedPod
    used_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAccount:
    """The sums of one GPU, in bytes."""

    gpu: Gpu
    promised_bytes: int | None
    host_bytes: int | None
    unattributed_bytes: int | None
    at_risk_bytes: int | None
    """Unused shares beyond the free and the reserved memory (`ledger.balance`)."""
    risk_causes: tuple[RiskCause, ...] = ()
    """What has taken memory of a GPU at risk, the largest first."""
    ended_pods_bytes: int | None = 0
    """Memory of the processes of pods that are no longer listed."""
    ended_pods: tuple[EndedHolding, ...] = ()
    ended_bytes: int | None = 0
    """Memory of the processes that ended before their owner was looked up, which may be any pod's; None if it
    is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything known at one sample."""

    taken_at: float
    """Start of the sample, in monotonic seconds of the injected clock."""
    wall_time: float
    """Unix time."""
    gpus: tuple[GpuAccount, ...]
    lost_gpus: tuple[LostGpu, ...] = ()
    """GPUs that did not respond; they have no account and no holdings."""
    holdings: tuple[Holding, ...]
    """Every pod on every GPU that it uses or that is assigned to it, without reservation pods."""
    pod_shares: tuple[PodShare, ...]
    """Every pod of the node that has a share, a GPU or GPU memory."""
    pod_uids: frozenset[str] = frozenset()
    """Every unfinished pod of the node, with or without a GPU."""
    driver_limits: Mapping[tuple[str, str], PodLimits] = field(default_factory=dict)
    """Limits that the driver holds containers to, by pod UID and GPU."""
    limits_unknown: str = ""
    """Why the driver's limits cannot be known on this node, in one line; empty if they can."""
    problems: tuple[Problem, ...] = ()
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of failed driver calls by (call, error)."""
    driver_version: str = ""
    is_simulated: bool = False
    pods_are_listed: bool = True
    """Whether the node's pods have ever been listed."""

    @property
    def is_good(self) -> bool:
        """Whether the driver responded: with at least one GPU, or with zero GPUs."""
        return bool(self.gpus) or not any(problem.cause is Cause.NVML for problem in self.problems)
