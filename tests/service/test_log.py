"""The log: whole lines, from wherever they come, and none lost without a word."""

import asyncio
import io
import json
import logging
import os
import threading
from typing import Any

import pytest

from service.log import JsonLog, capture_libraries


def lines(stream: io.BytesIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_lines_of_one_turn_go_out_at_its_end() -> None:
    stream = io.BytesIO()
    log = JsonLog(stream)
    log("one", number=1)
    log("two", "warning")
    assert stream.getvalue() == b""
    await asyncio.sleep(0)
    assert [(line["message"], line["level"]) for line in lines(stream)] == [
        ("one", "info"),
        ("two", "warning"),
    ]


async def test_threads_and_a_loop_lose_nothing_between_them() -> None:
    stream = io.BytesIO()
    log = JsonLog(stream)

    def many(name: str) -> None:
        for number in range(500):
            log(name, number=number)

    threads = [threading.Thread(target=many, args=(f"thread {n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for number in range(500):
        log("loop", number=number)
        await asyncio.sleep(0)
    for thread in threads:
        await asyncio.to_thread(thread.join)
    await asyncio.sleep(0)
    found = lines(stream)
    for name in ("loop", "thread 0", "thread 1", "thread 2"):
        assert [line["number"] for line in found if line["message"] == name] == list(range(500))


def test_what_cannot_be_written_is_counted_and_said_later() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as broken:
        log = JsonLog(broken)  # type: ignore[arg-type]
        log("one")
        log("two")
        log._stream = io.BytesIO()
        log("three")
    found = lines(log._stream)
    assert [(line["message"], line.get("count")) for line in found] == [
        ("log lines lost", 2),
        ("three", None),
    ]


@pytest.fixture
def restored_root_logger() -> Any:
    root = logging.getLogger()
    handlers = root.handlers[:]
    yield root
    root.handlers[:] = handlers


def test_libraries_log_down_the_same_stream(restored_root_logger: logging.Logger) -> None:
    stream = io.BytesIO()
    capture_libraries(JsonLog(stream))
    logging.getLogger("some.library").warning("careful: %s", "x")
    logging.getLogger("some.library").info("never mind")
    logging.getLogger("some.library").error("failed", exc_info=ValueError("broken"))
    first, second = lines(stream)
    assert (first["message"], first["level"], first["logger"]) == ("careful: x", "warning", "some.library")
    assert "ValueError: broken" in second["traceback"]
