"""Fixture: `explain` as a command with a text on standard input."""

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from console.cli import main


@dataclass(frozen=True)
class Result:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_explain(text: str | bytes, *arguments: str) -> Result:
        content = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr("console.explain.command.columns_of", lambda _: 1000)  # a line for each sentence
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        files = () if "-f" in arguments else ("-f", "-")
        status = main(["explain", *files, *arguments])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run_explain
