"""Markers select tests by what they need: `pytest -m "not cluster and not slow"`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.helm_chart import CHART, OLDEST_KUBERNETES, ROOT
from tests.support.markers import (
    BY_PLACE,
    ON_THE_OLDEST,
    is_deselected,
    marker_of,
    nightly,
    runs_on_the_oldest,
    sampled,
    skips_by_reason,
)

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("file", "marker"),
    [
        ("cluster/test_guard.py", "cluster"),
        ("gpu/test_real_gpu.py", "gpu"),
        ("gpuagent/server/test_browser.py", "browser"),
        ("gpuagent/server/test_page.py", None),
        ("project/test_markers.py", None),
    ],
)
def test_the_place_of_a_test_implies_its_marker(file: str, marker: str | None) -> None:
    assert (TESTS / file).exists()
    assert marker_of(TESTS / file) == marker


def test_every_marked_place_exists() -> None:
    assert [place for place in (*BY_PLACE, *ON_THE_OLDEST) if not (TESTS / place).exists()] == []


def test_the_oldest_kubernetes_is_one_release_in_the_whole_repository() -> None:
    (makefile,) = re.findall(r"^OLDEST_KUBERNETES := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    (row,) = workflow["jobs"]["test"]["strategy"]["matrix"]["include"]
    assert about["kubeVersion"] == f">={makefile}.0-0"
    assert f"{makefile}.0" == OLDEST_KUBERNETES
    assert row["kubernetes"].startswith(f"v{makefile}.")
    assert row["target"] == "test-oldest"
    assert runs_on_the_oldest(TESTS / "cluster" / "test_chart.py")
    assert not runs_on_the_oldest(TESTS / "cluster" / "test_rollout.py")


@pytest.mark.parametrize(("expression", "is_left_out"), [("", True), ("slow", True), ("nightly", False)])
def test_nightly_tests_run_only_if_they_are_named(
    request: pytest.FixtureRequest, expression: str, is_left_out: bool
) -> None:
    assert not is_deselected(request.node, expression)
    request.node.add_marker(pytest.mark.nightly)
    assert is_deselected(request.node, expression) is is_left_out


def test_tests_on_a_real_node_run_only_if_they_are_named(request: pytest.FixtureRequest) -> None:
    request.node.add_marker(pytest.mark.node)
    assert is_deselected(request.node, "nightly or not nightly")
    assert not is_deselected(request.node, "node")


def test_a_sample_of_a_table_leaves_its_other_rows_to_the_nightly_run() -> None:
    rows = sampled([("a", 1), ("b", 2), ("c", 3), "d"], 3)
    assert rows == [("a", 1), nightly(("b", 2)), nightly(("c", 3)), "d"]


def test_skips_are_told_in_ten_lines_at_most() -> None:
    assert skips_by_reason([]) == []
    assert skips_by_reason(["needs b", "needs a", "needs\n a"]) == [
        "2 skipped: needs a",
        "1 skipped: needs b",
    ]
    many = [f"reason {number}" for number in range(12) for _ in range(12 - number)]
    lines = skips_by_reason(many)
    assert len(lines) == 10
    assert lines[8:] == ["4 skipped: reason 8", "6 skipped for 3 other reasons (pytest -rs)"]


def test_pytest_deselects_by_marker() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m"]
    selected = [
        "gpu",
        "deploy/test_images.py",
        "project/test_markers.py",
    ]
    collect = subprocess.run(
        [*command, "not gpu and not slow", *(TESTS / path for path in selected)],
        capture_output=True,
        text=True,
        check=True,
        cwd=TESTS.parent,
    )
    files = {line.partition("::")[0] for line in collect.stdout.splitlines() if "::" in line}
    assert files == {"tests/project/test_markers.py"}
