"""`kaishare doctor`: the repeated rounds of `--wait`, their end and their report."""

import argparse
import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from console.cli import parser
from console.doctor import command
from console.doctor.check_results import CheckResult, ok, problem
from console.doctor.cluster_state import DoctorOptions
from console.doctor.command import run
from kube.access import Access

Rounds = Callable[..., list[int]]


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    """Make each round return the next list of findings; return the number of each round's pause."""

    async def access(_: argparse.Namespace) -> SimpleNamespace:
        return SimpleNamespace(server="https://cluster")

    def answer(*results: list[CheckResult]) -> list[int]:
        remaining, pauses = list(results), []

        async def examine(_access: Access, _options: DoctorOptions) -> list[CheckResult]:
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


def test_without_wait_there_is_one_round(rounds: Rounds, capsys: pytest.CaptureFixture[str]) -> None:
    pauses = rounds([BAD], [GOOD])
    assert run(arguments()) == 1
    assert pauses == []
    assert capsys.readouterr().err == ""
    pauses = rounds([BAD])
    assert run(arguments("--wait", "50ms")) == 1
    assert pauses


def test_wait_ends_with_a_round_without_a_problem(rounds: Rounds, capsys: pytest.CaptureFixture[str]) -> None:
    other = problem("none", check="queues")
    pauses = rounds([BAD], [BAD], [BAD, other], [GOOD], [BAD])
    assert run(arguments("--wait", "1h")) == 0
    assert len(pauses) == 3
    written = capsys.readouterr()
    assert (
        written.err == "kaishare: waiting: 1 problem: agents\nkaishare: waiting: 2 problems: agents, queues\n"
    )
    assert written.out == "ok  agents  all\nno problem, 0 unknown, 1 ok\n", "only the last round is reported"
