"""How far present problems reach: what may not be judged while they last. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from gpuagent.problems import SUSPENDS_NOTHING, Cause, Problem

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
