"""One moment of the node, settled and immutable: the only thing that metrics, pages and verdicts read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuagent.gpus.reading import Gpu
from gpuagent.problems import Cause, Problem
from gpuagent.shares.pod_shares import PodShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one pod holds on one GPU (or MIG device)."""

    pod_share: PodShare
    gpu_uuid: str
    gpu_index: int
    used_bytes: int | None
    """None: a process's memory is unknown, or the GPU's list cannot be believed."""
    processes: int
    is_mig: bool = False
    """On a MIG device, or on a GPU that is split into some: reported, never judged."""
    has_unknown_memory: bool = False
    """The driver cannot tell the memory of one of these processes: stops every verdict on the pod."""
    is_by_uid: bool = True
    """Whether the cgroup path of every process names the pod by the UID that the API server gave it. A
    container's ID and a static pod's hash stand in fields that others may write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAccount:
    """One GPU's sums."""

    gpu: Gpu
    promised_bytes: int | None
    host_bytes: int | None
    unattributed_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What was known at one moment."""

    taken_at: float
    """On the injected clock, seconds."""
    wall_time: float
    """Unix time."""
    gpus: tuple[GpuAccount, ...]
    holdings: tuple[Holding, ...]
    """Every pod on every GPU where it holds something or is assigned; reservation pods left out."""
    pod_shares: tuple[PodShare, ...]
    """Every pod of the node that has a share or a GPU, or holds GPU memory."""
    pod_uids: frozenset[str] = frozenset()
    """Every pod of the node that is not finished, whether or not it has to do with a GPU."""
    problems: tuple[Problem, ...] = ()
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(call, error) of the driver to its count."""
    driver_version: str = ""
    is_simulated: bool = False
    pods_are_listed: bool = True
    """Whether the node's pods have been listed, be it long ago."""

    @property
    def is_good(self) -> bool:
        """Whether the driver answered: for a GPU at least, or that there is none."""
        return bool(self.gpus) or not any(problem.cause is Cause.NVML for problem in self.problems)
