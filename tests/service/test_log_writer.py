"""The writer: lines stay whole and in order, callers never wait, and losses are counted and told."""

import gc
import json
import os
import select
import threading
from pathlib import Path
from typing import Any

import pytest

from service.log_writer import LogWriter
from tests.support.standard_streams import PATIENCE_SECONDS, Reader, fill, pipe


@pytest.mark.parametrize("bounds", [{"queue_lines": 10}, {"queue_bytes": 80}], ids=["lines", "bytes"])
def test_lines_beyond_the_bounds_are_dropped_and_counted(bounds: dict[str, int]) -> None:
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
        lines = reader.rest().splitlines()
    assert [line for line in lines if not line.startswith(b"{")] == [b"%07d" % n for n in range(10)]
    notices = [json.loads(line) for line in lines if line.startswith(b"{")]
    assert [(line["message"], line["count"]) for line in notices] == [("log lines lost", 15)]


def test_a_write_that_hangs_delays_neither_a_caller_nor_the_end() -> None:
    with pipe() as (reading, writing):
        fill(writing)
        writer = LogWriter(writing, queue_lines=10)
        for _ in range(1000):
            writer.write(b"line\n")
        assert writer.lines_lost == 990
        assert not writer.close(0.05)
        writer.write(b"late\n")
        assert writer.lines_lost == 991
        os.close(reading)  # ends the write
        writer._thread.join(PATIENCE_SECONDS)
    assert writer.lines_lost == 1001


@pytest.mark.parametrize("is_blocking", [True, False])
def test_lines_of_several_threads_stay_whole_and_in_order(is_blocking: bool) -> None:
    """The mode belongs to the open file, which another process may have changed."""
    with pipe() as (reading, writing):
        os.set_blocking(writing, is_blocking)
        writer = LogWriter(writing)
        for number in range(3):
            writer.write(b"%d\n" % number)
            select.select([reading], [], [], PATIENCE_SECONDS)
            assert os.read(reading, 100) == b"%d\n" % number, "a line does not wait for another one"

        def many(thread: int) -> None:
            for number in range(1200):
                writer.write(b"%02d%029d\n" % (thread, number))

        threads = [threading.Thread(target=many, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        reader = Reader(reading)
        for thread in threads:
            thread.join()
        assert writer.close(PATIENCE_SECONDS)
        os.close(writing)
        lines = reader.rest().splitlines()
    for number in range(4):
        own = [line for line in lines if line.startswith(b"%02d" % number)]
        assert own == [b"%02d%029d" % (number, line) for line in range(1200)]
    assert writer.lines_lost == 0


class Descriptor:
    """Stands in for `os.write`: takes as many bytes as it is told, and then refuses."""

    def __init__(self) -> None:
        self.room = 0
        self.data = b""
        self.calls = threading.Semaphore(0)

    def write(self, _descriptor: int, data: memoryview) -> int:
        taken = bytes(data[: self.room])
        self.data += taken
        self.room -= len(taken)
        self.calls.release()
        if not taken:
            raise OSError(28, "No space left on device")
        return len(taken)


def test_after_a_partial_line_the_next_line_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Descriptor()
    monkeypatch.setattr(os, "write", disk.write)
    writer = LogWriter(99)
    disk.room = 6
    writer.write(b"first line\n")
    assert disk.calls.acquire(timeout=PATIENCE_SECONDS)
    assert disk.calls.acquire(timeout=PATIENCE_SECONDS)
    disk.room = 1_000_000
    writer.write(b"second line\n")
    assert writer.close(PATIENCE_SECONDS)
    torn, notice, line = disk.data.splitlines()
    assert (torn, line) == (b"first ", b"second line")
    assert (json.loads(notice)["message"], json.loads(notice)["count"]) == ("log lines lost", 1)
    assert writer.lines_lost == 1


@pytest.mark.parametrize("room", range(0, 36, 3))
def test_each_line_is_written_whole_or_counted(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    disk = Descriptor()
    monkeypatch.setattr(os, "write", disk.write)
    writer = LogWriter(99)
    disk.room = room
    for number in range(4):
        writer.write(b"%08d\n" % number)
    assert writer.close(PATIENCE_SECONDS)
    assert disk.data.count(b"\n") + writer.lines_lost == 4


@pytest.mark.parametrize("refusal", ["reader gone", "disk full", "closed", "read-only"])
def test_a_descriptor_that_refuses_loses_lines_and_nothing_else(tmp_path: Path, refusal: str) -> None:
    with pipe() as (reading, writing):
        if refusal == "reader gone":
            os.close(reading)
        elif refusal == "disk full":
            os.dup2(os.open("/dev/full", os.O_WRONLY), writing)
        elif refusal == "closed":
            os.close(writing)
        else:
            os.dup2(os.open(os.devnull, os.O_RDONLY), writing)
        writer = LogWriter(writing)
        for _ in range(10):
            writer.write(b"line\n")
        assert writer.close(PATIENCE_SECONDS)
    assert writer.lines_lost == 10


class Tied:
    """Part of a reference cycle; its destructor logs."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._self = self

    def __del__(self) -> None:
        self._writer.write(b"destructor\n")


class CollectingLock:
    """Collects garbage while the lock is held, as an allocation there may do."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.acquire()
        gc.collect()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_destructor_may_log_while_a_line_is_being_queued() -> None:
    with pipe() as (reading, writing):
        reader, writer = Reader(reading), LogWriter(writing)
        writer._lock = CollectingLock(writer._lock)  # type: ignore[assignment]
        Tied(writer)
        writer.write(b"line\n")
        assert writer.close(PATIENCE_SECONDS)
        os.close(writing)
        assert sorted(reader.rest().splitlines()) == [b"destructor", b"line"]
