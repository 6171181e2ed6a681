"""One sample after it was judged: what everything that follows from verdicts starts from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuagent.snapshot import Snapshot
from gpuagent.verdicts.judge import Transition, Verdicts
from gpuagent.wishes import Wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One snapshot, and what was made of it."""

    snapshot: Snapshot
    verdicts: Verdicts
    transitions: tuple[Transition, ...] = ()
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    """What the pods' namespaces ask for, by pod UID; nothing is asked for those that are not here."""
    reservation_uids: frozenset[str] = frozenset()
    """UIDs of pods that are, or pose as, KAI's reservation pods."""
