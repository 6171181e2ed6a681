"""The answer of `kaishare why`: state, findings, what to do, and the story in order of time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from console.why.codes import Code

_AT_REST: Final = ("Running", "Succeeded")
"""The states in which nothing is waited for."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Something that a person can do."""

    text: str
    """A sentence, in one line."""
    command: str = ""
    """A command for a shell that does it, or shows more; empty for none."""


@dataclass(frozen=True, slots=True)
class PodFinding:
    """A cause, or a note, about the pod."""

    code: Code
    sentence: str
    """What is the matter, as a clause without its end: `queue vision may use 1 GPU and uses 1`."""
    remedies: Sequence[Remedy] = ()
    details: Mapping[str, float | str] = field(default_factory=dict)
    """Figures of the sentence for programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A line of the story."""

    at: datetime | None
    """When it happened first; None if unknown."""
    last: datetime | None = None
    """When it happened last, if more than once."""
    times: int = 1
    what: str
    """`created`, `decided`, `grouped`, `waiting`, `bound`, `running`, `flagged`, `evicted` or `refused`."""
    text: str
    """Details in one line, printable and without names that are hidden from the caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer for one pod or workload."""

    namespace: str
    kind: str
    name: str
    state: str
    """`Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`, `Terminating`, or `No pod`."""
    findings: Sequence[PodFinding]
    """The cause first, then notes. Never empty."""
    story: Sequence[Step] = ()
    not_visible: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def cause(self) -> PodFinding:
        """The finding that decides."""
        return self.findings[0]

    @property
    def is_fine(self) -> bool:
        """Whether nothing is wrong."""
        return self.state in _AT_REST and all(finding.code.is_fine for finding in self.findings)
