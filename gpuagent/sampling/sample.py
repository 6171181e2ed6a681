"""Where a process belongs by the kernel's word: what /proc said of one PID, before pods are looked up."""

from dataclasses import dataclass
from enum import StrEnum

from gpuagent.gpus.reading import GpuReading
from gpuagent.problems import Problem


class LookupResult(StrEnum):
    """How looking a process up ended."""

    CONTAINER = "container"
    """Its cgroup path holds a pod, or at least a container."""
    HOST = "host"
    """Its cgroup path was read and holds neither."""
    GONE = "gone"
    """It ended before its cgroup was read (or its PID is somebody else's now). Of one sample only: a process
    that the driver lists again in the next is DENIED if it still cannot be placed."""
    DENIED = "denied"
    """/proc may not be read, or does not tell whose it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What /proc says of one process."""

    found: LookupResult
    pod_uids: tuple[str, ...] = ()
    """Every pod in the cgroup path, outermost first: UIDs with dashes, or a static pod's config hash."""
    container_id: str = ""
    """64 hex digits, or empty."""
    name: str = ""
    """`/proc/<pid>/comm`, as the process chose it; for telling an MPS server, never for identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One whole look at a node: the GPUs, and the origin of every PID on them."""

    reading: GpuReading
    origins: dict[int, Origin]
    taken_at: float
    """On the injected clock, seconds: when the reading began."""
    wall_time: float
    """Unix time of the same moment."""
    seconds: float
    """How long it took."""
    problems: tuple[Problem, ...] = ()
    """Of the look-up in /proc (`proc-denied`, `pid-namespace`); those of the driver are in the reading."""
