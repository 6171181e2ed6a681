"""Fixture: `explain` as a command with a text on standard input; pods as users write them."""

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from console.cli import main
from tests.support.pods import pod


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


def bare(*containers: dict[str, Any], name: str = "case", **fields: Any) -> dict[str, Any]:
    """Return a pod as users write it: without namespace and scheduler."""
    document = pod(*containers, metadata={"name": name}, **fields)
    del document["metadata"]["namespace"]
    if "schedulerName" not in fields:
        del document["spec"]["schedulerName"]
    return document


def manifest(*documents: object) -> str:
    return yaml.safe_dump_all(documents)
