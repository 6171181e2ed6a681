"""Webhook and agent in use for a while: the counters agree with a ledger, and nothing is leaked.

`python -m benchmarks.soak --minutes 60` is the same for longer.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.processes import ProcessState, growth
from benchmarks.soak import Ledger, Plan, Soak, soak
from tests.support import tls_connections
from tests.support.control_plane import ControlPlane

PLAN = Plan(minutes=0.25, speed=40, rotate_seconds=4, pods=4, growth=8, is_forked=True)
HELD = ProcessState(mib=50, threads=3, connections=1, descriptors=10, tasks=12)


@pytest.mark.slow
async def test_fifteen_seconds_in_use(plane: ControlPlane, tmp_path: Path) -> None:
    ledger, report = await soak(plane, tmp_path, PLAN)
    await tls_connections.until_ended()
    assert ledger.wrong == [], "\n".join([*ledger.wrong, *report])
    done = ledger.done
    seldom = min(done[name] for name in ("raised", "mutate", "validate-namespaces", "pages", "rotations"))
    assert seldom > 0, "\n".join(report)


def test_growth_is_that_of_the_line_through_the_points() -> None:
    assert growth([(0, 50.0), (10, 51.0), (20, 52.0)]) == pytest.approx(2)
    assert growth([(0, 50.0), (10, 54.0), (20, 50.0)]) == pytest.approx(0)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, None),
        ({"threads": 9, "descriptors": 14, "tasks": 16}, None),
        ({"threads": 10}, "3 threads at the start, 10 at the end"),
        ({"descriptors": 15}, "10 descriptors at the start, 15 at the end"),
        ({"tasks": 17}, "12 tasks at the start, 17 at the end"),
        ({"mib": 53}, "memory grew by 3.0 MiB"),
    ],
)
def test_a_leak_is_a_problem(changed: dict[str, Any], problem: str | None) -> None:
    end = replace(HELD, **changed)
    middle = replace(HELD, mib=HELD.mib)
    points = {"agent": [(0.0, HELD), (1.0, HELD), (2.0, middle), (3.0, end)]}
    run = SimpleNamespace(plan=Plan(), ledger=Ledger(), points=points)
    Soak.judge_resources(cast(Soak, run), "agent")
    assert len(run.ledger.wrong) == (problem is not None)
    assert problem is None or problem in run.ledger.wrong[0]


def test_another_number_than_the_ledgers_is_a_problem() -> None:
    ledger = Ledger()
    ledger.expect("flags raised", 3, 3)
    ledger.expect("flags cleared", 2, 3)
    assert ledger.wrong == ["flags cleared: 2, and the ledger has 3"]
