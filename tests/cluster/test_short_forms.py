"""Benchmarks and comparisons in their short forms, as the comment before each says."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.night import HOUR, night
from benchmarks.rollout import Plan, prepared, problems
from benchmarks.soak import Plan as SoakPlan
from benchmarks.soak import soak
from kube.client import KubeClient
from tests.comparisons.admission_forms import compare_forms
from tests.faults.api_server import CASES, SHORT, run_cases, two_api_servers
from tests.support import tls_connections
from tests.support.control_plane import ControlPlane, control_plane
from tests.support.control_plane_fixtures import needed_assets
from tests.support.markers import scaled

# No pod is lost while the webhook is replaced, its CA rotates or its default mode is switched; a crash loses only the
# reviews in flight: `python -m benchmarks.rollout`.

PLAN = Plan(creations=100, rate=25, drain="500ms", lag=0.3)


@pytest.mark.nightly  # tests/node, test_upgrade, test_certificates and test_drain hold each part of it daily
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


# An hour of bad luck, each minute of it two seconds: `python -m benchmarks.night`.


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_an_hour_of_bad_luck(tmp_path: Path) -> None:
    (folder := tmp_path / "night").mkdir()
    with control_plane(needed_assets(), tmp_path) as plane:
        run = await night(plane, folder, 2.0, 1)
    assert run.wrong == []
    assert len(run.minutes) == HOUR


# Webhook and agent in use for a while: `python -m benchmarks.soak --minutes 60`.

SOAK = SoakPlan(minutes=0.25, speed=40, rotate_seconds=4, pods=4, growth=8, is_forked=True)


@pytest.mark.slow
async def test_fifteen_seconds_in_use(plane: ControlPlane, tmp_path: Path) -> None:
    ledger, report = await soak(plane, tmp_path, SOAK)
    await tls_connections.until_ended()
    assert ledger.wrong == [], "\n".join([*ledger.wrong, *report])
    done = ledger.done
    seldom = min(done[name] for name in ("raised", "mutate", "validate-namespaces", "pages", "rotations"))
    assert seldom > 0, "\n".join(report)


# The webhook and the admission policies do the same: the short form of tests/comparisons/admission_forms.py.

PODS = int(os.environ.get("KAISHARE_GENERATED_PODS", scaled(25)))
"""Number of generated pods; a larger one takes longer and finds more."""


@pytest.mark.kubernetes(1, 36)
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_pods_are_the_same_under_both_forms(own_plane: ControlPlane, tmp_path: Path) -> None:
    async with KubeClient(own_plane.access()) as client:
        sizes = {"clusters": 2, "namespaces": 20, "pods": PODS, "directed_pods": 3 * PODS}
        tally = await compare_forms(own_plane, client, tmp_path, number=15, **sizes)
    assert not tally.unexpected, "\n\n".join(tally.unexpected[:3])
    assert tally.results["equal"] > PODS
    assert tally.results["denied by both"] > PODS / 20
    assert tally.results["different as listed"] < tally.results["equal"] / 4
    assert {"whole-gpu-converted", "own-share", "several-gpus", "size-unknown"} <= tally.reasons.keys()


# The webhook and the agent while two API servers have faults: the short form of tests/faults/api_server.py.


@pytest.fixture(scope="module")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, ControlPlane]]:
    needed_assets()
    with two_api_servers(tmp_path_factory.mktemp("two-api-servers")) as servers:
        yield servers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "seconds"),
    [
        pytest.param(SHORT, 3.0, id="short"),
        pytest.param([*CASES], 8.0, id="all", marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
    ],
)
async def test_no_fault_loses_a_change_makes_a_storm_or_flags_an_innocent_pod(
    planes: tuple[ControlPlane, ControlPlane], tmp_path: Path, names: list[str], seconds: float
) -> None:
    all_figures = [figures async for figures in run_cases(*planes, tmp_path, names, seconds)]
    assert [figures.wrong for figures in all_figures] == [[]] * len(names)
    assert all(figures.scrapes and figures.reviews for figures in all_figures)
    await tls_connections.until_ended()
