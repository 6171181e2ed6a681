"""Reports of a state that lasts."""

import io
import json

from service.log import MOST_NEW_LINES, FirstLines, JsonLog, NewLines, OngoingProblem, problem_logger


def test_a_problem_is_reported_when_it_begins_and_changes_and_once_when_it_is_over() -> None:
    reports: list[str] = []
    problem = OngoingProblem(reports.append)
    for line in ("", "a", "a", "b", "", "", "b"):
        problem.update(line)
        assert problem.line == line
    assert reports == ["a", "b", "", "b"]


def test_a_problem_of_the_same_kind_is_reported_once_while_its_line_varies() -> None:
    reports: list[str] = []
    problem = OngoingProblem(reports.append)
    problem.update("refused after 1 s", kind=403)
    problem.update("refused after 2 s", kind=403)
    assert problem.line == "refused after 2 s"
    problem.update("lost", kind=500)
    problem.update("")
    problem.update("lost", kind=500)
    assert reports == ["refused after 1 s", "lost", "", "lost"]


def test_the_log_has_the_fields_in_both_messages_and_the_problem_in_the_first() -> None:
    stream = io.BytesIO()
    report = problem_logger(JsonLog(stream), "began", "over", field="problem", resource="pods")
    report("refused")
    report("")
    began, over = (json.loads(line) for line in stream.getvalue().splitlines())
    assert {
        "level": "warning",
        "message": "began",
        "resource": "pods",
        "problem": "refused",
    }.items() <= began.items()
    assert {"level": "info", "message": "over", "resource": "pods"}.items() <= over.items()
    assert "problem" not in over


def test_a_line_is_new_when_the_round_before_did_not_have_it() -> None:
    lines = NewLines()
    assert lines.update(["b", "a"]) == (["b", "a"], 0)
    assert lines.update(["a", "b", "c"]) == (["c"], 0)
    assert lines.update([]) == ([], 0)
    assert lines.update(["a"]) == (["a"], 0)


def test_lines_beyond_the_limit_are_counted_once() -> None:
    lines = NewLines()
    many = [f"{number:03}" for number in range(MOST_NEW_LINES + 5)]
    assert lines.update(many) == (many[:MOST_NEW_LINES], 5)
    assert lines.update(many) == ([], 0)


def test_the_first_lines_are_logged_once_and_later_ones_not_at_all() -> None:
    lines = FirstLines()
    assert [lines.add(str(number // 2)) for number in range(2 * MOST_NEW_LINES)] == [
        True,
        False,
    ] * MOST_NEW_LINES
    assert not lines.add("one more")
