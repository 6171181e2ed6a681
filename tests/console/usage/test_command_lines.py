"""Both commands before a Prometheus that fails, and options of `advise` that need none."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from console.cli import main
from console.usage.records import Usage
from tests.console.usage.test_suggestions import RED, flat
from tests.support.prometheus_standin import prometheus_standin


@pytest.mark.parametrize("command", ["advise", "report"])
async def test_unusable_answer_is_one_line(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/absent")
    async with prometheus_standin(web.Response(status=403, text="no org id\n\x1b[31mred")) as standin:
        url = f"{standin.url}/prefix"
        words = [command, "--prometheus", f"{url}/", "--header", "X-Scope-OrgID=team-a"]
        assert await asyncio.to_thread(main, words) == 2
        assert all(path.startswith("/prefix/api/v1/query") for path in standin.paths)
        assert {headers["X-Scope-OrgID"] for headers in standin.headers} == {"team-a"}
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert f" {url}: 403 Forbidden: no org id \ufffd[31mred; check --token-file, --header" in line


@pytest.mark.parametrize(
    ("words", "environment", "context"),
    [
        ([], "", ""),
        (["--context", "prod"], "", " --context=prod"),
        (["--kubeconfig", "/other/config"], "KUBECONFIG=/other/config ", ""),
        (["--kubeconfig", "/home/config"], "", ""),
    ],
)
def test_commands_come_with_their_notes_on_standard_error(
    words: list[str], environment: str, context: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    constant = flat(0.3)
    constant = replace(constant, names=constant.names._replace(**RED))

    async def usage(*_: Any, **__: Any) -> Usage:
        return Usage((constant,))

    monkeypatch.setattr("console.usage.advise.read_usage", usage)
    monkeypatch.setenv("KUBECONFIG", "/home/config")
    assert main(["advise", "--prometheus", "http://127.0.0.1:1", "-o", "kubectl", *words]) == 0
    captured = capsys.readouterr()
    command = "kubectl label namespace default size.kaishare.dev/small=0.18 --overwrite"
    assert captured.out == f"{environment}vcluster connect red --namespace team{context} -- {command}\n"
    notes = " ".join(captured.err.split())
    assert "team/red/default small 0.50: 1 pod of 1 held a constant amount" in notes
    assert "team/red/default small 0.50: labels and caps inside the vCluster are not known here" in notes


NO_TIMES = ("0001-01-02", "1999-12-31", "9999-12-31T23:59:59", "soon")
REPORT, ADVISE = "report --price T4=1", "advise --prometheus http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        *((f"{ADVISE} --until {text}", f'"{text}" is not a time; allowed: the years 2000 to 2100') for text in NO_TIMES),
        (f"{ADVISE} --by workload -o kubectl", "-o kubectl needs --by size"),
        ("report --price T4", "is not a price; allowed: MODEL=PRICE"),
        ("report --price =cmd()=1", "is not a price"),
        ("report --price T4=-1", "is not a price"),
        (f"{REPORT} --currency =EUR", "is not a currency"),
        ("report --currency EUR", "--currency needs --price"),
        (f"{REPORT} --price T4=2", "is given more than once"),
        ("report --by pod", "invalid choice"),
        ("report", "give either --prometheus URL or --service"),
    ],
)  # fmt: skip
def test_unusable_options_are_one_line(words: str, problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert problem in capsys.readouterr().err.strip().splitlines()[-1]
