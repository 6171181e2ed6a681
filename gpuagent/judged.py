"""One sample after it was judged: what everything that follows from verdicts starts from."""

from dataclasses import dataclass

from gpuagent.snapshot import Snapshot
from gpuagent.verdicts.judge import Transition, Verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One snapshot, and what was made of it."""

    snapshot: Snapshot
    verdicts: Verdicts
    transitions: tuple[Transition, ...] = ()
