"""What the event loop does with each sample: claims, accounts, verdicts, and the status they add up to."""

from collections.abc import Callable, Sequence
from typing import Protocol

from gpuagent.changes import ChangeLog
from gpuagent.gpus.reading import Gpu, GpuSource
from gpuagent.ledger import Books, balance
from gpuagent.origin import Sample
from gpuagent.pods.index import PodIndex
from gpuagent.pods.inventory import Inventory, PodSource
from gpuagent.problems import Cause, Problem
from gpuagent.shares import PodClaim
from gpuagent.status import PODS_STALE_SECONDS, Facts, Status, pods_stale, status_at
from gpuagent.verdicts import Judge


class Settles(Protocol):
    """Settles what each pod may hold."""

    def settle(self, inventory: Inventory, devices: Sequence[Gpu]) -> tuple[PodClaim, ...]:
        """Return a claim for every pod of the inventory."""


class Bookkeeper:
    """Keeps the facts. For the event loop's thread only."""

    def __init__(
        self,
        *,
        pods: PodSource,
        claims: Settles,
        judge: Judge,
        source: GpuSource,
        interval: float,
        clock: Callable[[], float],
        changes: ChangeLog,
    ) -> None:
        """Take the parts; the source only for what it counts and is, `interval` in seconds."""
        self._pods = pods
        self._claims = claims
        self._judge = judge
        self._source = source
        self._interval = interval
        self._clock = clock
        self._changes = changes
        self._facts = Facts(started_at=clock())
        self._index: tuple[Inventory, PodIndex] | None = None

    def take(self, sample: Sample) -> None:
        """Settle one sample; from then on the status shows it."""
        inventory = self._pods.inventory
        claims = self._claims.settle(inventory, sample.reading.gpus) if inventory else ()
        snapshot = balance(
            sample,
            Books(
                claims=claims,
                pods=self._indexed(inventory),
                problems=self._problems_of_pods(inventory),
                errors=self._source.errors,
                is_simulated=self._source.is_simulated,
            ),
        )
        verdicts, transitions = self._judge.judge(snapshot)
        before = self._facts
        self._facts = Facts(
            started_at=before.started_at,
            snapshot=snapshot,
            verdicts=verdicts,
            good_at=snapshot.taken_at if snapshot.is_good else before.good_at,
            good_wall_time=snapshot.wall_time if snapshot.is_good else before.good_wall_time,
        )
        self._changes.snapshot(snapshot)
        self._changes.transitions(transitions)
        self.log_problems()

    def status(self) -> Status:
        """Say what holds now."""
        return status_at(
            self._clock(),
            self._facts,
            interval=self._interval,
            pods_silent_for=self._pods.seconds_since_contact(),
        )

    def log_problems(self) -> None:
        """Log which problems came and went, those of mere time among them."""
        self._changes.problems(self.status().problems)

    def _problems_of_pods(self, inventory: Inventory | None) -> tuple[Problem, ...]:
        if inventory is None:
            return (Problem(Cause.PODS_STALE, "", "there is no list of this node's pods yet"),)
        silent = self._pods.seconds_since_contact()
        return (pods_stale(silent),) if silent > PODS_STALE_SECONDS else ()

    def _indexed(self, inventory: Inventory | None) -> PodIndex | None:
        if inventory is None:
            return None
        if self._index is None or self._index[0] is not inventory:
            self._index = inventory, PodIndex.from_inventory(inventory)
        return self._index[1]
