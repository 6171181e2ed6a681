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


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What came in so far."""

    started_at: float
    """On the injected clock, like every time here but the wall times."""
    snapshot: Snapshot | None = None
    """The newest, good or not."""
    verdicts: Verdicts = field(default_factory=Verdicts)
    over_share_policies: Mapping[str, OverSharePolicy] = field(default_factory=dict)
    good_at: float | None = None
    """When the last good sample was taken; None before the first."""
    good_wall_time: float | None = None


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


def status_at(now: float, facts: Facts, *, interval: float, pods_silent_for: float) -> Status:
    """Say what holds now; times are seconds.

    `pods_silent_for` is how long ago the source of pods was last known to be right.
    """
    problems: dict[tuple[Cause, str], Problem] = {}
    for problem in facts.snapshot.problems if facts.snapshot else ():
        problems.setdefault((problem.cause, problem.gpu_uuid), problem)
    if pods_silent_for > PODS_STALE_SECONDS:
        problems[Cause.PODS_STALE, ""] = pods_stale(pods_silent_for)
    age = now - (facts.started_at if facts.good_at is None else facts.good_at)
    is_stale = age > INTERVALS_UNTIL_STALE * interval
    if is_stale:
        detail = (
            f"the last good sample is {age:.1f} s old"
            if facts.good_at is not None
            else (f"no good sample in {age:.1f} s")
        )
        problems[Cause.SAMPLE_STALE, ""] = Problem(Cause.SAMPLE_STALE, "", detail)
    present = {account.gpu.uuid for account in facts.snapshot.gpus} if facts.snapshot else set()
    is_suspended = Suspension.of(problems.values(), present).is_total
    is_known = facts.snapshot is not None or is_stale
    return Status(
        snapshot=None if is_stale else facts.snapshot,
        verdicts=_while_it_lasts(facts.verdicts, is_stale=is_stale, is_suspended=is_suspended),
        over_share_policies=facts.over_share_policies,
        problems=tuple(problems.values()),
        attribution_ok=not is_suspended if is_known else None,
        good_wall_time=facts.good_wall_time,
        errors=facts.snapshot.errors if facts.snapshot else {},
        driver_version=facts.snapshot.driver_version if facts.snapshot else "",
        unready=_unready(facts, problems.values()) if is_known else ("no sample yet",),
    )


def _unready(facts: Facts, problems: Iterable[Problem]) -> tuple[str, ...]:
    """Say why the driver does not answer, or that the pods were never listed; a missing figure is neither."""
    causes = {Cause.SAMPLE_STALE}
    if facts.snapshot is not None and not facts.snapshot.is_good:
        causes.add(Cause.NVML)
    if facts.snapshot is not None and not facts.snapshot.pods_are_listed:
        causes.add(Cause.PODS_STALE)
    return tuple(dict.fromkeys(problem.detail for problem in problems if problem.cause in causes))


def _while_it_lasts(verdicts: Verdicts, *, is_stale: bool, is_suspended: bool) -> Verdicts:
    if is_stale:
        return Verdicts()
    return replace(verdicts, judged={}) if is_suspended else verdicts


def pods_stale(seconds: float) -> Problem:
    """The problem that the source of pods is silent for so many seconds; infinite: it was never heard."""
    since = "yet" if math.isinf(seconds) else f"for {seconds:.0f} s"
    return Problem(Cause.PODS_STALE, "", f"nothing was heard from the source of pods {since}")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One snapshot, and what was made of it."""

    snapshot: Snapshot
    verdicts: Verdicts
    transitions: tuple[Transition, ...] = ()
    over_share_policies: Mapping[str, OverSharePolicy] = field(default_factory=dict)
    """What the pods' namespaces ask for, by pod UID; nothing is asked for those that are not here."""
    reservation_uids: frozenset[str] = frozenset()
    """UIDs of the reservation pods of the cluster's own KAI, by their namespace. A pod of a tenant's that has
    the labels of a reservation pod is not one."""

    @cached_property
    def held_by_uid(self) -> frozenset[tuple[str, str]]:
        """Pod UID and GPU UUID of the holdings whose every process is found by the pod's UID."""
        return frozenset(
            (holding.pod_share.pod.uid, holding.gpu_uuid)
            for holding in self.snapshot.holdings
            if holding.is_by_uid
        )
