"""The writer: lines stay whole and in order, callers never wait, and losses are counted and told."""

import fcntl
import gc
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from service.log import JsonLog
from service.log_writer import LogWriter
from tests.service.logs import PATIENCE_SECONDS, Reader, pipe


def lines_of(data: bytes) -> list[dict[str, Any]]:
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def fill(descriptor: int) -> int:
    """Fill a pipe to its last byte; return how many bytes that took."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    filled = 0
    for size in (65536, 4096, 1):
        while True:
            try:
                filled += os.write(descriptor, b"\n" * size)
            except BlockingIOError:
                break
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    return filled


def test_lines_of_several_threads_stay_whole_and_in_order() -> None:
    with pipe() as (reading, writing):
        reader, writer = Reader(reading), LogWriter(writing)
        log = JsonLog(writer)

        def many(name: str) -> None:
            for number in range(500):
                log(name, number=number)

        names = [f"thread {number}" for number in range(4)]
        threads = [threading.Thread(target=many, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert writer.close(PATIENCE_SECONDS)
        os.close(writing)
        found = lines_of(reader.rest())
    for name in names:
        assert [line["number"] for line in found if line["message"] == name] == list(range(500))
    assert writer.lines_lost == 0


def test_a_line_comes_out_without_another_one_behind_it() -> None:
    with pipe() as (reading, writing):
        writer = LogWriter(writing)
        for number in range(3):
            writer.write(b"%d\n" % number)
            assert os.read(reading, 100) == b"%d\n" % number
        assert writer.close(PATIENCE_SECONDS)


@pytest.mark.parametrize("bounds", [{"queue_lines": 10}, {"queue_bytes": 80}], ids=["lines", "bytes"])
def test_lines_beyond_the_bounds_are_dropped_and_told(bounds: dict[str, int]) -> None:
    """The pipe is full, so that ten lines of eight bytes stay in the queue."""
    with pipe() as (reading, writing):
        filled = fill(writing)
        writer = LogWriter(writing, **bounds)
        for number in range(25):
            writer.write(b"%07d\n" % number)
        assert writer.lines_lost == 15
        assert os.read(reading, filled) == b"\n" * filled
        reader = Reader(reading)
        assert writer.close(PATIENCE_SECONDS)
        os.close(writing)
        *_, notice, last = reader.rest().splitlines()
    # The first line may be in the write that hung, before anything was lost.
    found = [line for line in (*_, notice, last) if b"lost" not in line]
    assert found == [b"%07d" % number for number in range(10)]
    told = [json.loads(line) for line in (*_, notice, last) if b"lost" in line]
    assert [(line["message"], line["count"]) for line in told] in ([("log lines lost", 15)], [])
