"""Markers of tests by their place in the repository, and what `nightly` means."""

from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

from service.json_depth import HAS_FIXED_LIMIT

NIGHTLY: Final = "nightly"
"""The marker of tests that only `make nightly` runs, and Hypothesis's profile in such a run."""

_TESTS: Final = Path(__file__).parents[1]

keeps_deep_values: Final = pytest.mark.skipif(
    HAS_FIXED_LIMIT, reason="Python 3.12 and 3.13 refuse deep JSON, so that its deep values are replaced"
)

BY_PLACE: Final = {
    "cluster": "cluster", "kai_programs": "cluster", "gpu": "gpu", "node": "node",
    "gpuagent/server/test_browser.py": "browser",
}  # fmt: skip
"""Marker by folder or file, relative to tests/."""

OLDEST: Final = "oldest"
"""The marker of tests that `make test-oldest` runs on the oldest supported Kubernetes."""
ON_THE_OLDEST: Final = frozenset(
    f"cluster/test_{name}.py"
    for name in (
        "agent", "chart", "chart_objects", "cluster_pods", "configurations", "console", "few_rights", "guard", "guard_keys",
        "guard_optional", "guard_admits", "guard_rollout", "policies", "self_policy", "webhook",
    )
)  # fmt: skip
"""The files with that marker: chart, guard, webhook configurations, both services and console."""


def runs_on_the_oldest(path: Path) -> bool:
    return path.relative_to(_TESTS).as_posix() in ON_THE_OLDEST


@cache
def marker_of(path: Path) -> str | None:
    relative = path.relative_to(_TESTS)
    places = (relative.as_posix(), *(parent.as_posix() for parent in relative.parents))
    return next((BY_PLACE[place] for place in places if place in BY_PLACE), None)


NODE: Final = "node"
"""The marker of tests on a real node, which `make node` runs: alone, since they need the machine."""


def is_deselected(item: pytest.Item, expression: str) -> bool:
    """Return whether a test is nightly or needs a node, and `-m` does not name that marker."""
    return any(
        marker not in expression and item.get_closest_marker(marker) is not None for marker in (NIGHTLY, NODE)
    )


def scaled(examples: int) -> int:
    """Return a number of generated cases: ten times as many in a nightly run."""
    return examples * 10 if settings.get_current_profile_name() == NIGHTLY else examples


_MOST_REASONS: Final = 10


def skips_by_reason(reasons: Iterable[str]) -> list[str]:
    """Return at most ten lines: how many tests were skipped for each reason, the most frequent one first."""
    counts = Counter(" ".join(reason.split()) for reason in reasons).most_common()
    rows = counts if len(counts) <= _MOST_REASONS else counts[: _MOST_REASONS - 1]
    lines = [f"{count} skipped: {reason}" for reason, count in rows]
    others = counts[len(rows) :]
    if others:
        lines.append(
            f"{sum(count for _, count in others)} skipped for {len(others)} other reasons (pytest -rs)"
        )
    return lines


RowT = TypeVar("RowT")


def sampled(rows: Iterable[RowT], step: int) -> list[RowT | ParameterSet]:
    """Return the rows of a table for `parametrize`; all but every `step`-th one are nightly.
    For tables whose rows take the same way through the code."""
    return [row if index % step == 0 else nightly(row) for index, row in enumerate(rows)]


def nightly(row: object) -> ParameterSet:
    values = row if isinstance(row, tuple) else (row,)
    return pytest.param(*values, marks=pytest.mark.nightly)
