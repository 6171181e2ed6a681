"""Lines stay whole and in order, losses are counted, and reports of libraries and of the interpreter are lines."""

import gc
import json
import logging
import os
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.log import BURST, LINES_PER_SECOND, JsonLog
from service.log_writer import LibraryLog, LogWriter, capture_libraries
from tests.support.standard_streams import PATIENCE_SECONDS, Lines, Reader, fill, pipe


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
        for thread in threads:
            thread.join()
        reader = Reader(reading)  # by now the pipe is full
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


ROOT = Path(__file__).parents[2]


@pytest.fixture
def restored_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers = root.handlers[:]
    yield
    root.handlers[:] = handlers


@pytest.mark.usefixtures("restored_root_logger")
def test_warnings_and_errors_of_libraries_are_lines() -> None:
    stream = Lines()
    capture_libraries(JsonLog(stream))
    logging.getLogger("some.library").warning("careful: %s", "x")
    logging.getLogger("some.library").info("never mind")
    logging.getLogger("some.library").error("failed", exc_info=ValueError("broken"))
    first, second = stream.decoded
    assert (first["message"], first["level"], first["logger"]) == ("careful: x", "warning", "some.library")
    assert "ValueError: broken" in second["traceback"]


class Repeating:
    """A library's logger in front of the handler, and a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stream = Lines()
        self.handler = LibraryLog(JsonLog(self.stream), clock=lambda: self.now)

    def log(self, template: Any, *arguments: object, name: str = "asyncio") -> None:
        self.handler.handle(logging.LogRecord(name, logging.ERROR, "", 0, template, arguments, None))

    def messages(self) -> list[str]:
        return [line["message"] for line in self.stream.decoded]


@pytest.fixture
def repeating() -> Repeating:
    return Repeating()


def test_a_message_that_repeats_is_suppressed_and_counted_for_its_library(repeating: Repeating) -> None:
    for number in range(1000):
        repeating.log("peer %s is slow", number)
    repeating.log("another message", name="py.warnings")
    assert len(repeating.messages()) == BURST + 1
    assert repeating.messages()[-1] == "another message"
    repeating.now = 1 / LINES_PER_SECOND
    repeating.log("peer %s is slow", 1000)
    line = repeating.stream.decoded[-1]
    assert (line["message"], line["suppressed"]) == ("peer 1000 is slow", 1000 - BURST)


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("template", "arguments", "written"),
    [
        ("%d of %d", (1,), "%d of %d (TypeError in its arguments)"),
        ("%s", (Unprintable(),), "%s (RuntimeError in its arguments)"),
        (Unprintable(), (), "Unprintable (RuntimeError in its arguments)"),
    ],
)
def test_a_record_that_cannot_be_formatted_is_a_line(
    repeating: Repeating, template: Any, arguments: tuple[object, ...], written: str
) -> None:
    repeating.log(template, *arguments)
    assert repeating.messages() == [written]


PROGRAM = """
import asyncio, gc, logging, sys, threading, warnings
from service.log_writer import standard_error_log

class Broken:
    def __del__(self):
        raise ValueError("in a destructor")

def fail():
    raise ValueError("in a thread")

async def failing_task():
    raise ValueError("in a task")

async def forget():
    asyncio.get_running_loop().slow_callback_duration = 60
    task = asyncio.create_task(failing_task())
    await asyncio.sleep(0)
    del task
    gc.collect()

with standard_error_log() as log:
    log("first")
    warnings.warn("careful")
    Broken()
    thread = threading.Thread(target=fail, name="some thread")
    thread.start()
    thread.join()
    asyncio.run(forget())
    log("last")
"""


def test_each_report_of_the_interpreter_is_a_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, timeout=60, check=True,
        env=os.environ | {"PYTHONWARNINGS": "default"},
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    first, warning, destructor, thread, task, last = lines
    assert (first["message"], last["message"]) == ("first", "last")
    assert (warning["logger"], warning["level"]) == ("py.warnings", "warning")
    assert "careful" in warning["message"]
    assert "ValueError: in a destructor" in destructor["traceback"]
    assert destructor["message"] == "exception ignored"
    assert "Broken.__del__" in destructor["where"]
    assert (thread["thread"], "ValueError: in a thread" in thread["traceback"]) == ("some thread", True)
    assert (task["logger"], "ValueError: in a task" in task["traceback"]) == ("asyncio", True)
