"""`kaishare doctor`: a cluster without agents; the repeated rounds of `--wait`, their end and their report."""

import argparse
import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from console.agents import parse_agent_options
from console.cli import parser
from console.doctor import command
from console.doctor.api_reader import ApiReader
from console.doctor.check_results import CheckResult, ok, problem
from console.doctor.cluster_state import Cluster
from console.doctor.command import run
from console.doctor.gpu_nodes import read_node
from kube.access import Access
from kube.client import KubeClient
from tests.support.api_server import ApiServer, lists
from tests.support.cluster_facts import alone, but, by_policies, of_kai, result_lines, whole

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


BAD, GOOD = problem("agents", "none"), ok("agents", "all")


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (alone(by_policies()), "problem: agents: no agent found in namespace kaishare-agent"),
        (but(), "problem: agents: no agent found in namespace kaishare-agent"),
        (but(mutating=whole(of_kai()), validating=whole()), ""),
    ],
)
async def test_gpu_nodes_without_an_agent_are_a_problem_where_kaishare_decides(
    server: ApiServer, client: KubeClient, cluster: Cluster, expected: str
) -> None:
    server.refusals = {"/namespaces/kaishare-agent/": lists()}
    node = {"metadata": {"name": "n1"}, "status": {"capacity": {"nvidia.com/gpu": "2"}}}
    cluster = replace(cluster, nodes=whole(read_node(json.dumps(node).encode(), None)))
    options = parse_agent_options(parser().parse_args(["doctor"]))
    findings = await command._agent_findings(ApiReader(client), cluster, options)
    (line,) = [line for line in result_lines(findings) if ": agents: " in line] or [""]
    assert line.startswith(expected)
    assert bool(line) is bool(expected)


def test_without_wait_there_is_one_round(rounds: Rounds, capsys: pytest.CaptureFixture[str]) -> None:
    pauses = rounds([BAD], [GOOD])
    assert run(arguments()) == 1
    assert pauses == []
    assert capsys.readouterr().err == ""


def test_wait_ends_with_the_first_round_without_a_problem(
    rounds: Rounds, capsys: pytest.CaptureFixture[str]
) -> None:
    other = problem("queues", "none")
    pauses = rounds([BAD], [BAD], [BAD, other], [GOOD], [BAD])
    assert run(arguments("--wait", "1h")) == 0
    assert len(pauses) == 3
    written = capsys.readouterr()
    assert (
        written.err == "kaishare: waiting: 1 problem: agents\nkaishare: waiting: 2 problems: agents, queues\n"
    )
    assert written.out == "ok  agents  all\nno problem, 0 unknown, 1 ok\n", "only the last round is reported"


def test_wait_ends_with_its_time(rounds: Rounds) -> None:
    pauses = rounds([BAD])
    assert run(arguments("--wait", "50ms")) == 1
    assert pauses
