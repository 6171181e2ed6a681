"""The evaluation of the newest sample: snapshot, verdicts and problems while they are fresh. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gpuagent.evaluation.history import History
from gpuagent.gpus.gpu_reading import LostGpu
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.problems import LEAVES_LOWER_BOUNDS, Cause, OwnCause, Problem, Suspension
from gpuagent.sampling.sampler import longest_gap
from gpuagent.verdicts.flag_reasons import FROM_KAI_RECORDS
from gpuagent.verdicts.over_share import OverSharePolicy
from gpuagent.verdicts.verdict import Transition, TransitionCounts, Verdicts
from kai.installation import SharingMode

PODS_STALE_SECONDS: Final = 180.0
"""Time without contact after which the pods count as unknown.

A silent watch is renewed after 150 s, and the API server has 10 s for its answer.
"""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The newest sample, evaluated, at one time: the only input of metrics, API, Events and evictions."""

    snapshot: Snapshot | None = None
    """None before the first sample, and while the last one is stale; no figure is known then."""
    verdicts: Verdicts = field(default_factory=Verdicts)
    changes: tuple[Transition, ...] = ()
    """Flags that this sample raised, cleared or dropped."""
    grace: float | None = None
    """The agent's `--grace`, in seconds; a namespace may set its own."""
    transitions: TransitionCounts = field(default_factory=dict)
    """Flags raised, cleared and dropped since the agent started, with those of this sample."""
    over_share_policies: Mapping[str, OverSharePolicy] = field(default_factory=dict)
    """Over-share policies by pod UID; a pod without a policy is absent."""
    gpu_sharing_mode: SharingMode | None = None
    """KAI's mode; None if the administrator has not stated it."""
    not_evicted: Mapping[str, str] = field(default_factory=dict)
    """Why pods whose namespace requests their eviction now are not evicted, by UID."""
    reservation_uids: frozenset[str] = frozenset()
    """UIDs of the reservation pods of the cluster's own KAI, by their namespace. Tenants' pods with the
    labels of a reservation pod are not included."""
    good_at: float | None = None
    """End of the last sample for which the driver responded, in monotonic seconds; None before the first."""
    good_wall_time: float | None = None
    """Unix time of the same moment."""
    history: History | None = None
    """The past up to this sample or a later one; None without a record."""
    problems: tuple[Problem, ...] = ()
    attribution_ok: bool | None = None
    """None before the first sample."""
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Number of failed driver calls by (call, error). The counts stay when the snapshot is gone."""
    driver_version: str = ""
    lost_gpus: tuple[LostGpu, ...] = ()
    """GPUs that did not respond in the newest sample, even if that sample is stale."""

    @property
    def sampled(self) -> Snapshot:
        """The snapshot of an evaluation that a sample has just caused."""
        if self.snapshot is None:
            raise ValueError("no sample")
        return self.snapshot

    def at(self, now: float, *, started_at: float, interval: float, pods_silent_for: float) -> "Evaluation":
        """Return the evaluation of the newest sample as it stands at a time; all arguments are in seconds.

        `pods_silent_for` is the time since the source of pods was known to be up to date.
        """
        snapshot, good_at = self.snapshot, self.good_at
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
        if snapshot is None and not is_stale:
            return replace(self, problems=tuple(problems.values()))
        present = {account.gpu.uuid for account in snapshot.gpus} if snapshot else set()
        is_suspended = Suspension.of(problems.values(), present).covers_all
        nothing_is_known = Suspension.of(problems.values(), present, ignored=LEAVES_LOWER_BOUNDS).covers_all
        verdicts = self.verdicts
        if nothing_is_known:
            are_stale = (Cause.PODS_STALE, "") in problems
            kept = {
                key: verdict
                for key, verdict in verdicts.by_key.items()
                if key.reason in FROM_KAI_RECORDS and not are_stale
            }
            verdicts = replace(verdicts, by_key=kept)
        return replace(
            self,
            snapshot=None if is_stale else snapshot,
            verdicts=Verdicts() if is_stale else verdicts,
            problems=tuple(problems.values()),
            attribution_ok=not is_suspended,
            errors=snapshot.errors if snapshot else {},
            driver_version=snapshot.driver_version if snapshot else "",
            lost_gpus=snapshot.lost_gpus if snapshot else (),
        )


def pods_stale(seconds: float) -> Problem:
    """Return the problem of a source of pods that is silent for some seconds; infinite: since the start."""
    since = "yet" if math.isinf(seconds) else f"for {seconds:.0f} s"
    return Problem(Cause.PODS_STALE, "", f"no contact with the source of pods {since}")
