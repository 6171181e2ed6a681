"""What the agent can say at this moment: the last snapshot while it is fresh, and why not if not. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from gpuagent.ledger.snapshot import Snapshot
from gpuagent.problems import Cause, Problem, Suspension
from gpuagent.verdicts.judge import Transition, Verdicts
from gpuagent.verdicts.over_share import OverSharePolicy

INTERVALS_UNTIL_STALE: Final = 3
PODS_STALE_SECONDS: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The newest sample, evaluated: the state from which status, Events and evictions are derived."""

    snapshot: Snapshot
    """Of the newest sample, whether or not the driver answered."""
    verdicts: Verdicts = field(default_factory=Verdicts)
    transitions: tuple[Transition, ...] = ()
    """Flags that this sample raised or took away."""
    over_share_policies: Mapping[str, OverSharePolicy] = field(default_factory=dict)
    """What the pods' namespaces ask for, by pod UID; a pod that is not here asks for nothing."""
    reservation_uids: frozenset[str] = frozenset()
    """UIDs of the reservation pods of the cluster's own KAI, by their namespace. A tenant's pod with the
    labels of a reservation pod is not one of them."""
    good_at: float | None = None
    """When the last sample was taken for which the driver answered, on the injected clock; None before the
    first."""
    good_wall_time: float | None = None
    """Unix time of the same moment."""

    @cached_property
    def held_by_uid(self) -> frozenset[tuple[str, str]]:
        """Pod UID and GPU UUID of the holdings whose every process is found by the pod's UID."""
        return frozenset(
            (holding.pod_share.pod.uid, holding.gpu_uuid)
            for holding in self.snapshot.holdings
            if holding.is_by_uid
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What holds at one moment; the only thing that metrics, API and readiness read."""

    snapshot: Snapshot | None
    """None before the first sample, and while the last one is stale: then no figure is anybody's."""
    verdicts: Verdicts = field(default_factory=Verdicts)
    over_share_policies: Mapping[str, OverSharePolicy] = field(default_factory=dict)
    """What the pods' namespaces ask for, by pod UID; nothing is asked for those that are not here."""
    problems: tuple[Problem, ...] = ()
    attribution_ok: bool | None
    """None before the first sample."""
    good_wall_time: float | None = None
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(call, error) of the driver to its count; counts stay when figures go."""
    driver_version: str = ""
    unready: tuple[str, ...] = ()
    """Why the agent has nothing to tell, one line each; empty once the driver answers and pods are listed."""


def status_at(
    now: float, evaluation: Evaluation | None, *, started_at: float, interval: float, pods_silent_for: float
) -> Status:
    """Return what the agent can say now.

    Args:
        now: seconds on the injected clock.
        evaluation: of the newest sample; None before the first.
        started_at: when the agent started, on the same clock.
        interval: seconds between two samples.
        pods_silent_for: seconds since the source of pods was last known to be up to date.
    """
    snapshot = evaluation.snapshot if evaluation else None
    good_at = evaluation.good_at if evaluation else None
    problems: dict[tuple[Cause, str], Problem] = {}
    for problem in snapshot.problems if snapshot else ():
        problems.setdefault((problem.cause, problem.gpu_uuid), problem)
    if pods_silent_for > PODS_STALE_SECONDS:
        problems[Cause.PODS_STALE, ""] = pods_stale(pods_silent_for)
    age = now - (started_at if good_at is None else good_at)
    is_stale = age > INTERVALS_UNTIL_STALE * interval
    if is_stale:
        detail = (
            f"no successful sample within {age:.1f} s"
            if good_at is None
            else f"the last successful sample is {age:.1f} s old"
        )
        problems[Cause.SAMPLE_STALE, ""] = Problem(Cause.SAMPLE_STALE, "", detail)
    present = {account.gpu.uuid for account in snapshot.gpus} if snapshot else set()
    is_suspended = Suspension.of(problems.values(), present).is_total
    is_known = snapshot is not None or is_stale
    verdicts = evaluation.verdicts if evaluation else Verdicts()
    return Status(
        snapshot=None if is_stale else snapshot,
        verdicts=_while_it_lasts(verdicts, is_stale=is_stale, is_suspended=is_suspended),
        over_share_policies=evaluation.over_share_policies if evaluation else {},
        problems=tuple(problems.values()),
        attribution_ok=not is_suspended if is_known else None,
        good_wall_time=evaluation.good_wall_time if evaluation else None,
        errors=snapshot.errors if snapshot else {},
        driver_version=snapshot.driver_version if snapshot else "",
        unready=_unready(snapshot, problems.values()) if is_known else ("no sample yet",),
    )


def _unready(snapshot: Snapshot | None, problems: Iterable[Problem]) -> tuple[str, ...]:
    """Say why the driver does not answer, or that the pods were never listed; a missing figure is neither."""
    causes = {Cause.SAMPLE_STALE}
    if snapshot is not None and not snapshot.is_good:
        causes.add(Cause.NVML)
    if snapshot is not None and not snapshot.pods_are_listed:
        causes.add(Cause.PODS_STALE)
    return tuple(dict.fromkeys(problem.detail for problem in problems if problem.cause in causes))


def _while_it_lasts(verdicts: Verdicts, *, is_stale: bool, is_suspended: bool) -> Verdicts:
    if is_stale:
        return Verdicts()
    return replace(verdicts, judged={}) if is_suspended else verdicts


def pods_stale(seconds: float) -> Problem:
    """The problem that the source of pods is silent for so many seconds; infinite: it was never heard."""
    since = "yet" if math.isinf(seconds) else f"for {seconds:.0f} s"
    return Problem(Cause.PODS_STALE, "", f"no contact with the source of pods {since}")
