"""Processes each sample in the event loop: attribution, shares, snapshot, verdicts, history and status."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from gpuagent.evaluation.history import History
from gpuagent.evaluation.status import PODS_STALE_SECONDS, Evaluation, pods_stale
from gpuagent.evaluation.transition_log import TransitionLog
from gpuagent.ledger.attribution import PodIndex, attribute
from gpuagent.ledger.balance import build_snapshot
from gpuagent.ledger.driver_limits import DriverLimits
from gpuagent.pods.inventory import Inventory, PodSource
from gpuagent.problems import Cause, Problem
from gpuagent.sampling.sample import Sample
from gpuagent.shares.pod_share import PodShare
from gpuagent.shares.share_resolver import ShareResolver
from gpuagent.verdicts.flag_reasons import FlagReason
from gpuagent.verdicts.flagging import Judge
from gpuagent.verdicts.node_labels import label_problems
from gpuagent.verdicts.over_share import OverSharePolicies, OverSharePolicy
from gpuagent.verdicts.reservations import Reservations
from gpuagent.verdicts.verdict import Change


@dataclass(kw_only=True, eq=False)
class SamplePipeline:
    """Turns samples into evaluations, and keeps the last one. Not thread-safe: use it in the event loop."""

    pods: PodSource
    share_resolver: ShareResolver
    judge: Judge
    is_simulated: bool
    interval: float
    """Seconds."""
    clock: Callable[[], float]
    transition_log: TransitionLog
    over_share_policies: OverSharePolicies = field(default_factory=OverSharePolicies)
    reservations: Reservations = field(default_factory=lambda: Reservations(grace=120.0))
    driver_limits: DriverLimits = field(default_factory=lambda: DriverLimits(None))
    on_evaluation: Callable[[Evaluation], None] = lambda _evaluation: None
    """Receives the evaluation of each sample."""
    own_problems: Callable[[], tuple[Problem, ...]] = tuple
    """Returns the present faults of the agent's own pod."""
    not_evicted: Callable[[Evaluation], Mapping[str, str]] = lambda _evaluation: {}
    """Returns why pods are not evicted, by UID."""

    def __post_init__(self) -> None:
        """Begin without a sample."""
        self._transitions: Counter[tuple[FlagReason, Change]] = Counter()
        self._history = History(interval=self.interval)
        self._started_at = self.clock()
        self._evaluation = Evaluation()
        self._index: tuple[Inventory, PodIndex] | None = None

    def process(self, sample: Sample, errors: Mapping[tuple[str, str], int]) -> None:
        """Evaluate one sample, with the driver's error counts so far, and update the status."""
        inventory = self.pods.inventory
        attribution = None
        pod_shares: tuple[PodShare, ...] = ()
        policies: dict[str, OverSharePolicy] = {}
        if inventory is not None:
            attribution = attribute(sample, self._indexed(inventory))
            pod_shares = self.share_resolver.resolve(inventory, sample.reading.gpus, attribution.gpu_uuids)
            policies = self.over_share_policies.read(inventory)
        snapshot = build_snapshot(
            sample,
            attribution=attribution,
            pod_shares=pod_shares,
            problems=self._problems_of_pods(inventory),
            errors=errors,
            is_simulated=self.is_simulated,
        )
        if inventory is not None:
            conflicts = self.reservations.problems(inventory, snapshot)
            problems = (*snapshot.problems, *conflicts, *label_problems(inventory, snapshot))
            snapshot = replace(snapshot, problems=problems)
        if attribution is not None:
            limits = self.driver_limits.read(sample, attribution, pod_shares)
            unknown = sample.limits.unknown.line if sample.limits.unknown else ""
            snapshot = replace(snapshot, driver_limits=limits, limits_unknown=unknown)
        graces = {uid: policy.grace for uid, policy in policies.items() if policy.grace is not None}
        verdicts, changes = self.judge.judge(snapshot, graces, is_extra=sample.is_extra)
        self._history.record(snapshot)
        self._transitions.update((change.verdict.key.reason, change.change) for change in changes)
        before, is_good = self._evaluation, snapshot.is_good
        self._evaluation = evaluation = Evaluation(
            snapshot=snapshot,
            verdicts=verdicts,
            changes=changes,
            grace=self.judge.grace,
            transitions=dict(self._transitions),
            over_share_policies=policies,
            reservation_uids=inventory.reservation_uids if inventory else frozenset(),
            good_at=sample.ended_at if is_good else before.good_at,
            good_wall_time=sample.wall_time + sample.seconds if is_good else before.good_wall_time,
            history=self._history,
            gpu_sharing_mode=self.driver_limits.mode,
        )
        self._evaluation = evaluation = replace(evaluation, not_evicted=self.not_evicted(evaluation))
        self.transition_log.snapshot(snapshot)
        self.transition_log.over_share_policies(self.over_share_policies.notes)
        self.transition_log.transitions(changes)
        self.log_problems()
        self.on_evaluation(evaluation)

    def status(self) -> Evaluation:
        """Return the evaluation of the newest sample as it stands now."""
        status = self._evaluation.at(
            self.clock(),
            started_at=self._started_at,
            interval=self.interval,
            pods_silent_for=self.pods.seconds_since_contact(),
        )
        return replace(status, problems=(*status.problems, *self.own_problems()))

    def log_problems(self) -> None:
        """Log problems that appeared or disappeared, including those that depend on time alone."""
        self.transition_log.problems(self.status().problems)

    def _problems_of_pods(self, inventory: Inventory | None) -> tuple[Problem, ...]:
        if inventory is None:
            return (Problem(Cause.PODS_STALE, "", "the pods of this node have not been listed yet"),)
        silent = self.pods.seconds_since_contact()
        return (pods_stale(silent),) if silent > PODS_STALE_SECONDS else ()

    def _indexed(self, inventory: Inventory) -> PodIndex:
        if self._index is None or self._index[0] is not inventory:
            self._index = inventory, PodIndex.from_inventory(inventory)
        return self._index[1]
