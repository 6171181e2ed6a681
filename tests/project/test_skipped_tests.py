"""The end of a run says in a few lines why tests were skipped."""

from tests.support.markers import skips_by_reason


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
