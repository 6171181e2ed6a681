"""What the product answers is what was recorded; `python -m tests.golden --write` records it again."""

import pytest

from tests.golden import records
from tests.golden.__main__ import GROUPS, MOST_SHOWN, compared, missing
from tests.support.markers import nightly

DAILY = {"agent", "commands", "doctor", "evictions", "explain"}
"""Groups of a few seconds: what the commands and the agent print, as users see it."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("group", [group if group in DAILY else nightly(group) for group in GROUPS])
def test_every_answer_is_as_recorded(group: str) -> None:
    if lack := missing(group):
        pytest.skip(lack)
    differing = compared(group)
    assert not differing, "\n\n".join([f"{len(differing)} cases differ", *differing[:MOST_SHOWN]])


def test_a_difference_names_the_case_and_both_answers() -> None:
    before = {"same": [1], "text": ["a", "b"], "gone": 1}
    after = {"same": (1,), "text": ["a", "c"], "new": "x"}
    assert list(records.differences(before, after)) == [
        "text\n  -b\n  +c",
        'gone\n  - 1\n  + "(no such case)"',
        'new\n  - "(no such case)"\n  + "x"',
    ]


def test_records_are_small() -> None:
    sizes = [path.stat().st_size for path in records.RECORDS.iterdir()]
    assert max(sizes) < 500_000
    assert sum(sizes) < 3_000_000
