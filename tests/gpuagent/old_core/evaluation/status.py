"""The agent's status: the last snapshot while it is fresh, and all problems. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from gpuagent.gpus.gpu_reading import LostGpu
from gpuagent.problems import LEAVES_LOWER_BOUNDS, Cause, OwnCause, Problem, Suspension
from tests.gpuagent.old_core.evaluation.history import History
from tests.gpuagent.old_core.ledger.snapshot import Snapshot
from tests.gpuagent.old_core.sampling.sampler import longest_gap
from tests.gpuagent.old_core.verdicts.over_share import OverSharePolicy
from tests.gpuagent.old_core.verdicts.verdict import Transition, TransitionCounts, Verdicts

PODS_STALE_SECONDS: Final = 180.0
"""Time without contact after which the pods count as unknown.

A silent watch is renewed after 150 s, and the API server has 10 s for its answer.
"""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The newest sample, evaluated: the state from which status, Events and evictions are derived."""

    snapshot: Snapshot
    """The newest sample, whether or not the driver responded."""
    verdicts: Verdicts = field(default_factory=Verdicts)
    transitions: tuple[Transition, ...] = ()
    """Flags that this sample raised, cleared or dropped."""
    over_share_policies: Mapping[str, OverSharePolicy] = field(default_factory=dict)
    """Over-share policies by pod UID; a pod without a policy is absent."""
    reservation_uids: frozenset[str] = frozenset()
    """UIDs of the reservation pods of the cluster's own KAI, by their namespace. Tenants' pods with the
    labels of a reservation pod are not included."""
    good_at: float | None = None
    """End of the last sample for which the driver responded, in monotonic seconds; None before the first."""
    good_wall_time: float | None = None
    """Unix time of the same moment."""
    history: History | None = None
    """The past up to this sample or a later one; None without a record."""
    transition_counts: TransitionCounts = field(default_factory=dict)
    """Transitions since the agent started, with those of this sample."""

    @cached_property
    def attributed_by_uid(self) -> frozenset[tuple[str, str]]:
        """Pod UID and GPU UUID of the holdings whose processes were all attributed by the pod's UID."""
        return frozenset(
            (holding.pod_share.pod.uid, holding.gpu_uuid)
            for holding in self.snapshot.holdings
            if holding.is_attributed_by_uid
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The agent's state at one moment: the only input of metrics, API and readiness."""

    snapshot: Snapshot | None
    """None before the first sample, and while the last one is stale; no figure is known then."""
    verdicts: Verdicts = field(default_factory=Verdicts)
    over_share_policies: Mapping[str, OverSharePolicy] = field(default_factory=dict)
    """Over-share policies by pod UID; a pod without a policy is absent."""
    problems: tuple[Problem, ...] = ()
    attribution_ok: bool | None
    """None before the first sample."""
    good_wall_time: float | None = None
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of failed driver calls by (call, error). The counts stay when the snapshot is gone."""
    driver_version: str = ""
    lost_gpus: tuple[LostGpu, ...] = ()
    """GPUs that did not respond in the newest sample, even if that sample is stale."""
    transitions: TransitionCounts = field(default_factory=dict)
    """Flags raised, cleared and dropped since the agent started."""
    history: History | None = None
    """The past up to the newest sample, for the page; None without a record."""
    unready: tuple[str, ...] = ()
    """Why the agent is not ready, one line each; empty once the driver responds and the pods are listed."""


def status_at(
    now: float, evaluation: Evaluation | None, *, started_at: float, interval: float, pods_silent_for: float
) -> Status:
    """Return the current status.

    Args:
        now: seconds on the injected clock.
        evaluation: evaluation of the newest sample; None before the first.
        started_at: start of the agent, on the same clock.
        interval: average seconds between two samples.
        pods_silent_for: seconds since the source of pods was known to be up to date.
    """
    snapshot = evaluation.snapshot if evaluation else None
    good_at = evaluation.good_at if evaluation else None
    problems: dict[tuple[Cause | OwnCause, str], Problem] = {}
    for problem in snapshot.problems if snapshot else ():
        problems.setdefault((problem.cause, problem.gpu_uuid), problem)
    if pods_silent_for > PODS_STALE_SECONDS:
        problems[Cause.PODS_STALE, ""] = pods_stale(pods_silent_for)
    age = now - (started_at if good_at is None else good_at)
    is_stale = age > longest_gap(interval)
    if is_stale:
        detail = (
            f"no successful sample within {age:.1f} s"
            if good_at is None
            else f"the last successful sample is {age:.1f} s old"
        )
        problems[Cause.SAMPLE_STALE, ""] = Problem(Cause.SAMPLE_STALE, "", detail)
    present = {account.gpu.uuid for account in snapshot.gpus} if snapshot else set()
    is_suspended = Suspension.of(problems.values(), present).covers_all
    nothing_is_known = Suspension.of(problems.values(), present, ignored=LEAVES_LOWER_BOUNDS).covers_all
    is_known = snapshot is not None or is_stale
    verdicts = evaluation.verdicts if evaluation else Verdicts()
    return Status(
        snapshot=None if is_stale else snapshot,
        verdicts=_while_it_lasts(verdicts, is_stale=is_stale, nothing_is_known=nothing_is_known),
        over_share_policies=evaluation.over_share_policies if evaluation else {},
        problems=tuple(problems.values()),
        attribution_ok=not is_suspended if is_known else None,
        good_wall_time=evaluation.good_wall_time if evaluation else None,
        errors=snapshot.errors if snapshot else {},
        driver_version=snapshot.driver_version if snapshot else "",
        lost_gpus=snapshot.lost_gpus if snapshot else (),
        transitions=evaluation.transition_counts if evaluation else {},
        history=evaluation.history if evaluation else None,
        unready=_unready(snapshot, problems.values()) if is_known else ("no sample yet",),
    )


def _unready(snapshot: Snapshot | None, problems: Iterable[Problem]) -> tuple[str, ...]:
    """Return why the agent is not ready.

    The driver does not respond, or the pods were never listed. Missing figures do not count.
    """
    causes = {Cause.SAMPLE_STALE}
    if snapshot is not None and not snapshot.is_good:
        causes.add(Cause.NVML)
    if snapshot is not None and not snapshot.pods_are_listed:
        causes.add(Cause.PODS_STALE)
    return tuple(dict.fromkeys(problem.detail for problem in problems if problem.cause in causes))


def _while_it_lasts(verdicts: Verdicts, *, is_stale: bool, nothing_is_known: bool) -> Verdicts:
    """Return the verdicts that hold now; those by a lower bound survive an incomplete list of processes."""
    if is_stale:
        return Verdicts()
    return replace(verdicts, by_key={}) if nothing_is_known else verdicts


def pods_stale(seconds: float) -> Problem:
    """Return the problem of a source of pods that is silent for some seconds; infinite: since the start."""
    since = "yet" if math.isinf(seconds) else f"for {seconds:.0f} s"
    return Problem(Cause.PODS_STALE, "", f"no contact with the source of pods {since}")
