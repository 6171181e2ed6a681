"""`kaishare doctor`: the repeated rounds of `--wait`, their end and their report."""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from console.cli import parser
from console.doctor import command
from console.doctor.check_results import CheckResult, ok, problem
from console.doctor.command import run
from kube.access import Access

ROOT = Path(__file__).parents[3]
Rounds = Callable[..., list[int]]


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    """Make each round return the next list of findings; return the number of each round's pause."""

    class Anyone:
        server = "https://cluster"

    async def access(_: argparse.Namespace) -> Anyone:
        return Anyone()

    def answer(*results: list[CheckResult]) -> list[int]:
        remaining = list(results)
        pauses: list[int] = []

        async def examine(_access: Access, _arguments: argparse.Namespace) -> list[CheckResult]:
            return remaining.pop(0) if len(remaining) > 1 else remaining[0]

        async def sleep(_seconds: float) -> None:
            pauses.append(len(remaining))

        monkeypatch.setattr(command, "examine", examine)
        monkeypatch.setattr(command, "pod_or_cluster_access", access)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        return pauses

    return answer


def arguments(*options: str) -> argparse.Namespace:
    return parser().parse_args(["doctor", *options])


BAD, GOOD = problem("none", check="agents"), ok("all", check="agents")


def test_without_wait_there_is_one_round_and_wait_ends_with_its_time(
    rounds: Rounds, capsys: pytest.CaptureFixture[str]
) -> None:
    pauses = rounds([BAD], [GOOD])
    assert run(arguments()) == 1
    assert pauses == []
    assert capsys.readouterr().err == ""
    pauses = rounds([BAD])
    assert run(arguments("--wait", "50ms")) == 1
    assert pauses


def test_wait_ends_with_the_first_round_without_a_problem(
    rounds: Rounds, capsys: pytest.CaptureFixture[str]
) -> None:
    other = problem("none", check="queues")
    pauses = rounds([BAD], [BAD], [BAD, other], [GOOD], [BAD])
    assert run(arguments("--wait", "1h")) == 0
    assert len(pauses) == 3
    written = capsys.readouterr()
    assert (
        written.err == "kaishare: waiting: 1 problem: agents\nkaishare: waiting: 2 problems: agents, queues\n"
    )
    assert written.out == "ok  agents  all\nno problem, 0 unknown, 1 ok\n", "only the last round is reported"


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_closed_pipe_does_not_change_the_exit_status(output: str, tmp_path: Path) -> None:
    """`kaishare doctor | head`, where the API server cannot be reached."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(json.dumps(config))
    reading, writing = os.pipe()
    os.close(reading)
    command = ["doctor", "--kubeconfig", str(tmp_path / "config"), "-o", output]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "console", *command],
            cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
