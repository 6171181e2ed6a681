"""No pod is lost while the webhook is replaced, its CA rotates or its default mode is switched.

A crash loses only the reviews in flight.

`python -m benchmarks.rollout` is the same with 10,000 pods, a longer drain and a slower balancer.
"""

from pathlib import Path

import pytest

from benchmarks.rollout import Phase, Plan, prepared, problems
from tests.support.control_plane import ControlPlane

PLAN = Plan(creations=100, rate=25, drain="500ms", lag=0.3)


@pytest.mark.slow
async def test_one_hundred_pods(plane: ControlPlane, tmp_path: Path) -> None:
    async with prepared(plane, tmp_path, PLAN) as rollout:
        phases = await rollout.run()
    assert [problems(phase) for phase in phases] == [[], [], [], []]
    replaced, rotated, killed, switched = phases
    assert replaced.events >= 2, "both replicas"
    assert rotated.events >= 1
    assert killed.events == 1
    assert switched.events >= 2, "from default to observe, and back"
    assert sum(len(phase.milliseconds) for phase in phases) >= PLAN.creations


@pytest.mark.parametrize(
    ("phase", "problem"),
    [
        (Phase(title="A: …"), ""),
        (Phase(title="A: …", missing=1), "not in etcd"),
        (Phase(title="B: …", unmutated=1, failed_open=1, lost_connections=1), "1 pods unmutated"),
        (Phase(title="B: …", failed=["500"]), "1 creations failed: 500"),
        (Phase(title="C: …", unmutated=2, failed_open=2, lost_connections=2), ""),
        (Phase(title="C: …", unmutated=2, failed_open=2, lost_connections=1), "1 connections lost"),
        (
            Phase(title="C: …", unmutated=1, failed_open=2, lost_connections=2),
            "API server counts 2",
        ),
        (Phase(title="D: …", observes=True, creations=9, unmutated=4), ""),
        (Phase(title="D: …", observes=True, creations=9), "one mode only"),
        (Phase(title="D: …", observes=True, creations=9, unmutated=4, failed_open=1), "no answer for 1"),
        (Phase(title="D: …", observes=True, creations=9, unmutated=4, partly_mutated=1), "a part of the"),
        (Phase(title="D: …", observes=True, creations=9, unmutated=4, missing=1), "not in etcd"),
    ],
)
def test_a_phase_with_lost_pods_is_a_problem(phase: Phase, problem: str) -> None:
    lines = problems(phase)
    assert problem in "".join(lines)
    assert bool(lines) is bool(problem)
