"""A log that a hostile client cannot flood, and reports of a state that lasts."""

import io
import json

import pytest

from service.log import (
    BURST,
    DEBUG,
    ERROR,
    LEVELS,
    MOST_NEW_LINES,
    WARNING,
    FirstLines,
    JsonLog,
    LimitedLog,
    NewLines,
    OngoingProblem,
    problem_logger,
)


def test_lines_above_the_rate_are_counted_in_the_next_one() -> None:
    stream, now = io.BytesIO(), [100.0]
    log = LimitedLog(JsonLog(stream), clock=lambda: now[0])
    for number in range(BURST + 30):
        log("bad request", WARNING, number=number)
    now[0] += 1
    log.failure("connection failed", ValueError("x"))
    now[0] += 1
    log("bad request")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line.get("number") for line in lines[:BURST]] == list(range(BURST))
    assert [(line["message"], line.get("suppressed")) for line in lines[BURST:]] == [
        ("connection failed", 30),
        ("bad request", None),
    ]
    assert "ValueError: x" in lines[BURST]["traceback"]


@pytest.mark.parametrize(("least", "written"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_less_severe_lines_are_not_written(least: str, written: int) -> None:
    stream = io.BytesIO()
    log = JsonLog(stream, least=least)
    for level in LEVELS:
        log("happened", level)
    assert [json.loads(line)["level"] for line in stream.getvalue().splitlines()] == list(LEVELS[-written:])


def test_a_line_below_the_level_takes_nothing_from_the_limit() -> None:
    stream = io.BytesIO()
    log = LimitedLog(JsonLog(stream), clock=lambda: 0.0)
    for _ in range(100):
        log("request answered", DEBUG)
    log("failed", ERROR)
    (line,) = stream.getvalue().splitlines()
    assert "suppressed" not in json.loads(line)


def test_a_problem_is_reported_when_it_begins_and_changes_and_once_when_it_is_over() -> None:
    reports: list[str] = []
    problem = OngoingProblem(reports.append)
    for line in ("", "a", "a", "b", "", "", "b"):
        problem.update(line)
        assert problem.line == line
    for line, kind in (("after 1 s", 403), ("after 2 s", 403), ("lost", 500), ("", None), ("lost", 500)):
        problem.update(line, kind=kind) if kind else problem.update(line)
        assert problem.line == line, "a problem of the same kind is reported once while its line varies"
    assert reports == ["a", "b", "", "b", "after 1 s", "lost", "", "lost"]


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
    many = [f"{number:03}" for number in range(MOST_NEW_LINES + 5)]
    rounds = ((["b", "a"], ["b", "a"], 0), (["a", "b", "c"], ["c"], 0), ([], [], 0), (["a"], ["a"], 0),
              (many, many[:MOST_NEW_LINES], 5), (many, [], 0))  # fmt: skip
    for given, new, more in rounds:
        assert lines.update(given) == (new, more)


def test_the_first_lines_are_logged_once_and_later_ones_not_at_all() -> None:
    lines = FirstLines()
    assert [lines.add(str(number // 2)) for number in range(2 * MOST_NEW_LINES)] == [
        True,
        False,
    ] * MOST_NEW_LINES
    assert not lines.add("one more")
