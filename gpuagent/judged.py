"""One sample after it was judged: what everything that follows from verdicts starts from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gpuagent.snapshot import Snapshot
from gpuagent.verdicts.judge import Transition, Verdicts
from gpuagent.wishes import Wish


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One snapshot, and what was made of it."""

    snapshot: Snapshot
    verdicts: Verdicts
    transitions: tuple[Transition, ...] = ()
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    """What the pods' namespaces ask for, by pod UID; nothing is asked for those that are not here."""
    reservation_uids: frozenset[str] = frozenset()
    """UIDs of the reservation pods of the cluster's own KAI, by their namespace. A pod of a tenant's that has
    the labels of a reservation pod is not one."""

    @cached_property
    def held_by_uid(self) -> frozenset[tuple[str, str]]:
        """Pod UID and GPU UUID of the holdings whose every process is found by the pod's UID."""
        return frozenset(
            (holding.claim.pod.uid, holding.gpu_uuid)
            for holding in self.snapshot.holdings
            if holding.is_by_uid
        )
