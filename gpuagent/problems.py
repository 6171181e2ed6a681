"""Problems that metrics and the API report. Most suspend verdicts, those about reservation pods do not.

Faults of the agent's own pod are in the API and the log alone.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Cause(StrEnum):
    """The `reason` label of `kaishare_agent_attribution_problem`."""

    NVML = "nvml"
    """The driver does not respond, or not in time, for one GPU or at all."""
    PROC_DENIED = "proc-denied"
    """The owner of a process on the GPU is unknown: /proc is not readable, or does not show it."""
    PID_NAMESPACE = "pid-namespace"
    """The agent does not run in the host's PID namespace, so the driver hides all processes."""
    TRUNCATED = "truncated"
    """The driver lists at most 950 processes, and the list has that length."""
    GARBAGE = "garbage"
    """The driver's list is implausible: a process uses more memory than its device has."""
    MEMORY_UNKNOWN = "memory-unknown"
    """The driver does not report the memory of a process; only a lower bound of its pod's memory on that GPU
    is known."""
    NEGATIVE_UNATTRIBUTED = "negative-unattributed"
    """The processes use more memory than the device reports as used."""
    PODS_STALE = "pods-stale"
    """The source of pods has been silent for 180 s, or has never answered."""
    SAMPLE_STALE = "sample-stale"
    """The last successful sample is too old (`sampling.sampler.longest_gap`)."""
    RESERVATION_CONFLICT = "reservation-conflict"
    """One GPU has reservation pods, or pods with whole GPUs, of two namespaces; suspends no verdict."""
    RESERVATION_UNRESOLVED = "reservation-unresolved"
    """A reservation pod names no GPU of this node; suspends no verdict."""
    GPU_MISSING = "gpu-missing"
    """The node has more GPUs, by its label or capacity, than the driver lists; suspends no verdict."""


SUSPENDS_NOTHING: Final = frozenset(
    {Cause.RESERVATION_CONFLICT, Cause.RESERVATION_UNRESOLVED, Cause.GPU_MISSING}
)
"""Tenants can cause problems of reservation pods, so suspending verdicts would let them escape a flag. A GPU
that is missing leaves what is known of the others."""


LEAVES_LOWER_BOUNDS: Final = frozenset({Cause.TRUNCATED, Cause.PROC_DENIED})
"""Problems that hide processes, but leave the others and their owners as they are. The memory of these is a
lower bound, and a lower bound above a limit still grounds a verdict."""


class OwnCause(StrEnum):
    """A fault of the agent's own pod or the node's labels: in the API and the log, not in metrics.

    It suspends nothing.
    """

    DEVICE_FILES = "device-files"
    """No GPU answers, and the container has no access to the driver's device files."""
    VISIBLE_DEVICES = "visible-devices"
    """The container got only some GPUs of the node."""
    MIG_MONITOR = "mig-monitor"
    """The container did not get the right to read the memory of GPUs in MIG mode."""
    HOST_PROC = "host-proc"
    """/proc or the PID namespace is not the node's or is hidden, and no process on a GPU was found yet."""
    NODE_LABEL = "node-label"
    """The label nvidia.com/gpu.memory is not the memory of the node's GPUs, or these are several models."""
    RIGHTS = "rights"
    """The API server does not grant the agent a right that it needs."""


OF_WHOLE_DRIVER: Final = frozenset(
    {"DriverNotLoaded", "Uninitialized", "NotReady", "LibraryNotFound", "LibRmVersionMismatch"}
)
"""Errors that may concern the whole driver. Drivers also return them for one GPU while the others work. Of a
call with a device, such an error removes that GPU alone, and makes the agent ask for the count of GPUs."""
NOT_LISTED: Final = "NotListed"
"""In place of an error: the driver listed the GPU before, and does not list it now."""
LOST: Final = frozenset({NOT_LISTED, "GpuIsLost", "ResetRequired", "GpuNotFound"})
"""Errors that say that the GPU itself is lost."""


class RiskName(StrEnum):
    """What can take memory that pods are promised."""

    PODS = "pods-above-share"
    PROMISES = "promised-above-total"
    HOST = "host-processes"
    ENDED = "ended-pods"
    UNATTRIBUTED = "unattributed"
    """Memory that no process accounts for."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One current problem and its scope."""

    cause: Cause | OwnCause
    gpu_uuid: str = ""
    """Empty if the problem concerns the whole node."""
    detail: str = ""
    """One line for a person: the observation, and the remedy if there is one."""
    error: str = ""
    """For `nvml`: the driver's error, such as GpuIsLost, which decides the first act."""


_NARROW: Final = SUSPENDS_NOTHING | {Cause.MEMORY_UNKNOWN} | frozenset(OwnCause)


@dataclass(frozen=True, slots=True)
class Suspension:
    """The scope in which the problems of one moment suspend verdicts.

    `memory-unknown` is not included, since it concerns one pod on a GPU and not the GPU. Problems of
    reservation pods suspend nothing.
    """

    covers_all: bool
    """Whether all verdicts are suspended: a problem concerns the node, or every GPU has one."""
    gpu_uuids: frozenset[str]
    """GPUs whose verdicts are suspended."""

    @classmethod
    def of(
        cls,
        problems: Iterable[Problem],
        present: Collection[str],
        *,
        ignored: frozenset[Cause] = frozenset(),
    ) -> "Suspension":
        """Compute the scope from the problems and the UUIDs of the GPUs that responded.

        A lost GPU is represented by its problem. `ignored` are causes that are left out.
        """
        wide = [problem for problem in problems if problem.cause not in _NARROW | ignored]
        bad = frozenset(problem.gpu_uuid for problem in wide if problem.gpu_uuid)
        node = any(not problem.gpu_uuid for problem in wide)
        return cls(node or (bool(bad) and bad.issuperset(present)), bad)

    def covers(self, gpu_uuid: str) -> bool:
        """Whether verdicts on that GPU are suspended; an empty UUID means no particular GPU."""
        return self.covers_all or gpu_uuid in self.gpu_uuids
