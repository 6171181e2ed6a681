"""Evaluation at one time: no stale figures, and a reason for each missing figure."""

from dataclasses import replace

import pytest

from gpuagent.evaluation.status import Evaluation
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.problems import Cause, Problem
from gpuagent.verdicts.flagging import Judge
from tests.support.samples import GIB, A, B, gpu, in_pod, pod_share, sample, snapshot_of, uid_of

INTERVAL = 5.0


def evaluated(snapshot: Snapshot, *, good_at: float | None = None) -> Evaluation:
    verdicts, _ = Judge(grace=10, interval=10, longest_gap=15).judge(snapshot)
    good_at = snapshot.taken_at if snapshot.is_good else good_at
    wall = None if good_at is None else 1_800_000_000.0 + good_at
    return Evaluation(snapshot=snapshot, verdicts=verdicts, good_at=good_at, good_wall_time=wall)


def node(*problems: Problem, at: float = 10.0) -> Snapshot:
    taken = sample(gpu((1, GIB)), gpu(uuid=B), origins={1: in_pod("train")}, at=at, problems=problems)
    return snapshot_of(taken, pod_share("train", GIB), pod_share("serve", GIB, gpus=(B,)))


def status(now: float, evaluation: Evaluation | None, *, silent: float = 0.0) -> Evaluation:
    return (evaluation or Evaluation()).at(now, started_at=0.0, interval=INTERVAL, pods_silent_for=silent)


def causes(status_now: Evaluation) -> list[tuple[str, str]]:
    return [(problem.cause, problem.gpu_uuid) for problem in status_now.problems]


NO_DRIVER = Problem(Cause.NVML, "", "the driver is not loaded")


def test_before_the_first_sample_nothing_is_known() -> None:
    status_now = status(1.0, None)
    assert (status_now.snapshot, status_now.attribution_ok, status_now.good_wall_time) == (None, None, None)
    assert causes(status_now) == []


def test_a_missing_first_sample_becomes_a_problem() -> None:
    status_now = status(22.6, None)
    assert causes(status_now) == [("sample-stale", "")]
    assert status_now.attribution_ok is False


@pytest.mark.parametrize(("now", "is_stale"), [(10.0, False), (32.5, False), (32.6, True), (9.0, False)])
def test_a_sample_is_stale_after_2_5_intervals_and_2_deadlines(now: float, is_stale: bool) -> None:
    status_now = status(now, evaluated(node()))
    assert (status_now.snapshot is None) is is_stale
    assert bool(status_now.verdicts.by_key) is not is_stale
    assert bool(status_now.verdicts.over_seconds) is not is_stale
    assert causes(status_now) == ([("sample-stale", "")] if is_stale else [])
    assert status_now.attribution_ok is not is_stale
    assert status_now.good_wall_time == 1_800_000_010.0


@pytest.mark.parametrize(
    ("problems", "ok", "records"),
    [
        ([], True, True),
        ([Problem(Cause.TRUNCATED, A)], True, True),
        ([Problem(Cause.TRUNCATED, A), Problem(Cause.GARBAGE, B)], False, True),
        ([Problem(Cause.MEMORY_UNKNOWN, A), Problem(Cause.MEMORY_UNKNOWN, B)], True, True),
        ([Problem(Cause.MEMORY_UNKNOWN, A), Problem(Cause.TRUNCATED, B)], True, True),
        ([Problem(Cause.PID_NAMESPACE)], False, True),
        ([Problem(Cause.PODS_STALE)], False, False),
        ([Problem(Cause.NVML, "GPU-lost")], True, True),
        ([NO_DRIVER], False, False),
    ],
)
def test_problems_affect_attribution_and_verdicts(problems: list[Problem], ok: bool, records: bool) -> None:
    snapshot = node(*problems)
    if NO_DRIVER in problems:
        snapshot = snapshot_of(sample(at=10, problems=problems))
    status_now = status(10.0, evaluated(snapshot))
    assert status_now.attribution_ok is ok
    reasons = {key.reason for key in status_now.verdicts.by_key}
    assert ("over-share" in reasons) is ok
    assert ("no-reservation" in reasons) is records, "stale pods or a lost GPU alone hide one on records"


def test_without_a_driver_the_last_good_sample_is_remembered_and_no_figure() -> None:
    status_now = status(30.0, evaluated(snapshot_of(sample(at=30, problems=[NO_DRIVER])), good_at=4.0))
    assert status_now.snapshot is None
    assert causes(status_now) == [("nvml", ""), ("sample-stale", "")]
    assert status_now.good_wall_time == 1_800_000_004.0


@pytest.mark.parametrize(("silent", "is_stale"), [(180.0, False), (180.1, True), (float("inf"), True)])
def test_pods_are_stale_after_three_minutes_and_figures_stay(silent: float, is_stale: bool) -> None:
    status_now = status(10.0, evaluated(node()), silent=silent)
    assert causes(status_now) == ([("pods-stale", "")] if is_stale else [])
    assert status_now.attribution_ok is not is_stale
    assert bool(status_now.verdicts.by_key) is not is_stale
    assert status_now.snapshot is not None
    assert status_now.verdicts.over_seconds[uid_of("train"), A] == 0.0


def test_a_cause_is_one_problem_for_each_gpu() -> None:
    twice = replace(node(), problems=(Problem(Cause.NVML, A, "lost"), Problem(Cause.NVML, A, "timeout")))
    assert [p.detail for p in status(10.0, evaluated(twice)).problems] == ["lost"]
