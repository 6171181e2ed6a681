"""Data types of a sample: the GPUs, and the origin of each process according to /proc."""

from dataclasses import dataclass, field
from enum import StrEnum

from gpuagent.gpus.gpu_reading import GpuReading
from gpuagent.gpus.memory_limits import NO_LIMITS, NodeLimits
from gpuagent.problems import Problem


class LookupResult(StrEnum):
    """Result of looking up a process."""

    CONTAINER = "container"
    """A process in a container: its cgroup path names a pod, or at least a container."""
    HOST = "host"
    """A host process: its cgroup path names no pod and no container."""
    GONE = "gone"
    """The process ended before its cgroup was read, or another process has its PID now. Valid in one
    sample only: a process that the driver lists again in the next sample is DENIED if its owner is still
    unknown."""
    DENIED = "denied"
    """/proc is not readable, or does not show the owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a process runs, according to /proc."""

    result: LookupResult
    pod_uids: tuple[str, ...] = ()
    """Every pod in the cgroup path, outermost first: UIDs with dashes, or a static pod's config hash."""
    container_id: str = ""
    """64 hex digits, or empty."""
    name: str = ""
    """`/proc/<pid>/comm`, which the process chooses. It identifies an MPS server, but never an owner."""
    container_path: str = field(default="", compare=False)
    """Path of the container's cgroup in the unified hierarchy, as the agent sees it; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state of a node at one time: the GPUs, and the origin of every process on them."""

    reading: GpuReading
    origins: dict[int, Origin]
    taken_at: float
    """Start of the reading, in monotonic seconds of the injected clock."""
    wall_time: float
    """Unix time of the start."""
    seconds: float
    """Duration of the reading."""
    is_extra: bool = False
    """Whether the sample was taken beside the schedule, as before an eviction. It stands for no time."""
    problems: tuple[Problem, ...] = ()
    """Problems of the look-up in /proc (`proc-denied`, `pid-namespace`). The driver's problems are in the
    reading."""
    limits: NodeLimits = NO_LIMITS
    """Limits that the driver holds the containers with a process to."""

    @property
    def ended_at(self) -> float:
        """End of the reading, in monotonic seconds; the age of the sample counts from it."""
        return self.taken_at + self.seconds
