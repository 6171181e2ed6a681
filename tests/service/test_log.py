"""A log that a hostile client cannot flood."""

import io
import json

from service.log import BURST, WARNING, JsonLog, LimitedLog


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
