"""Reports of libraries and of the interpreter as lines of the log."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.log import BURST, LINES_PER_SECOND, JsonLog
from service.log_writer import LibraryLog, capture_libraries
from tests.support.standard_streams import Lines

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
