"""Markers select tests by what they need: `pytest -m "not cluster and not slow"`."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.markers import BY_PLACE, marker_of

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
    assert [place for place in BY_PLACE if not (TESTS / place).exists()] == []


def test_pytest_deselects_by_marker() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m"]
    selected = [TESTS / "gpu", TESTS / "deploy" / "test_images.py", TESTS / "project" / "test_markers.py"]
    collect = subprocess.run(
        [*command, "not gpu and not slow", *selected],
        capture_output=True,
        text=True,
        check=True,
        cwd=TESTS.parent,
    )
    files = {line.partition("::")[0] for line in collect.stdout.splitlines() if "::" in line}
    assert files == {"tests/project/test_markers.py"}
