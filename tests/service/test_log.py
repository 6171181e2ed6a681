"""A log that a hostile client cannot flood."""

import io
import json

import pytest

from service.log import BURST, DEBUG, ERROR, LEVELS, WARNING, JsonLog, LimitedLog


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
