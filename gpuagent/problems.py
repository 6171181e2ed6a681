"""Problems that metrics and the API report. Most suspend verdicts; those about reservation pods do not."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Cause(StrEnum):
    """The `reason` label of `kaishare_agent_attribution_problem`."""

    NVML = "nvml"
    """The driver does not answer: for one GPU, or at all."""
    PROC_DENIED = "proc-denied"
    """The owner of a process on the GPU is unknown: /proc may not be read, or does not tell."""
    PID_NAMESPACE = "pid-namespace"
    """The agent does not run in the host's PID namespace, so that the driver hides every process from it."""
    TRUNCATED = "truncated"
    """The driver lists at most 950 processes, and the list is that long."""
    GARBAGE = "garbage"
    """The driver's list cannot be true: a process holds more than its device has."""
    MEMORY_UNKNOWN = "memory-unknown"
    """The driver cannot tell one process's memory; suspends the verdicts on that process's pod only."""
    NEGATIVE_UNATTRIBUTED = "negative-unattributed"
    """The processes hold more than the device says is used."""
    PODS_STALE = "pods-stale"
    """Nothing was heard from the source of pods for 60 s."""
    SAMPLE_STALE = "sample-stale"
    """The last good sample is older than three intervals."""
    RESERVATION_CONFLICT = "reservation-conflict"
    """Reservation pods, or pods with whole GPUs, of two namespaces have one GPU; suspends nothing."""
    RESERVATION_UNRESOLVED = "reservation-unresolved"
    """A reservation pod names no GPU of this node; suspends nothing."""


SUSPENDS_NOTHING: Final = frozenset({Cause.RESERVATION_CONFLICT, Cause.RESERVATION_UNRESOLVED})
"""A tenant can bring these about, and taking verdicts away would be what that tenant wants."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One present cause and its scope."""

    cause: Cause
    gpu_uuid: str = ""
    """Empty: it concerns the whole node."""
    detail: str = ""
    """One line for a person: what was seen, and what to do if anything can be done."""


_NARROW: Final = SUSPENDS_NOTHING | {Cause.MEMORY_UNKNOWN}


@dataclass(frozen=True, slots=True)
class Suspension:
    """The scope of the problems of one moment.

    `memory-unknown` is not in it: it stops the verdicts of one pod, and never those of a GPU. Nor are the
    causes about reservation pods, which stop none.
    """

    is_total: bool
    """Nothing is judged: a problem concerns the node, or every GPU has one."""
    gpu_uuids: frozenset[str]
    """GPUs on which nothing is judged."""

    @classmethod
    def of(cls, problems: Iterable[Problem], present: Collection[str]) -> "Suspension":
        """Take the problems, and the UUIDs of the GPUs that answered; a lost GPU counts by its problem."""
        wide = [problem for problem in problems if problem.cause not in _NARROW]
        bad = frozenset(problem.gpu_uuid for problem in wide if problem.gpu_uuid)
        node = any(not problem.gpu_uuid for problem in wide)
        return cls(node or (bool(bad) and bad.issuperset(present)), bad)

    def covers(self, gpu_uuid: str) -> bool:
        """Whether nothing is judged on that GPU; an empty UUID is no GPU in particular."""
        return self.is_total or gpu_uuid in self.gpu_uuids
