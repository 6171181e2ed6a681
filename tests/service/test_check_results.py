"""Output of a doctor: a line for each result as text, and JSON."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.check_results import (
    CheckResult,
    State,
    as_json,
    as_text,
    exit_status,
    ok,
    problem,
    unknown,
    warning,
    write_report,
)

FINDINGS = [
    ok("driver", "version 580"),
    problem("device files", "there is no /dev/nvidiactl", "set runtimeClassName: nvidia"),
    unknown("container toolkit", "not visible"),
]


def test_each_result_is_a_line_with_its_advice_below() -> None:
    assert as_text(FINDINGS) == (
        "ok       driver             version 580\n"
        "problem  device files       there is no /dev/nvidiactl\n"
        "                            -> set runtimeClassName: nvidia\n"
        "unknown  container toolkit  not visible\n"
        "1 problem, 1 unknown, 1 ok\n"
    )


def test_the_place_in_the_documentation_follows_the_advice() -> None:
    linked = replace(FINDINGS[1], docs="docs/doctor.md#device-files")
    assert as_text([linked]).splitlines()[1:3] == [
        "                       -> set runtimeClassName: nvidia",
        "                       see docs/doctor.md#device-files",
    ]
    assert json.loads(as_json([linked], {}))["findings"][0]["docs"] == "docs/doctor.md#device-files"
    assert "docs" not in json.loads(as_json(FINDINGS, {}))["findings"][0]


def test_states_are_coloured_and_nothing_else() -> None:
    lines = as_text(FINDINGS, colour=True).splitlines()
    assert lines[0] == as_text(FINDINGS).splitlines()[0], "a check without objections has no colour"
    assert lines[1] == "\033[31mproblem\033[0m  device files       there is no /dev/nvidiactl"


def test_warnings_are_counted_where_there_are_any() -> None:
    text = as_text([*FINDINGS, warning("a", "b"), warning("a", "c")], heading="made up")
    assert text.startswith("made up\n")
    assert text.endswith("1 problem, 2 warnings, 1 unknown, 1 ok\n")


@pytest.mark.parametrize(
    ("findings", "status"),
    [([], 0), ([ok("a", "b")], 0), ([warning("a", "b"), unknown("a", "b")], 0), (FINDINGS, 1)],
)
def test_the_exit_status_is_1_if_there_is_a_problem(findings: list[CheckResult], status: int) -> None:
    assert exit_status(findings) == status


def test_json_has_every_field() -> None:
    document = json.loads(as_json(FINDINGS, {"node": None}))
    assert (document["node"], document["problems"], document["unknown"]) == (None, 1, 1)
    assert document["findings"][1] == {
        "check": "device files",
        "state": "problem",
        "what": "there is no /dev/nvidiactl",
        "advice": "set runtimeClassName: nvidia",
    }


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_terminal_breaks_lines_between_words(columns: int) -> None:
    long = problem("a check", "what was seen is long " * 10, "what to do is longer " * 20)
    lines = as_text([long], columns=columns).splitlines()
    assert max(map(len, lines)) <= max(columns, 20 + 40)
    assert " ".join(" ".join(lines).split()).startswith("problem a check what was seen is long what")
    assert len(lines) > 5


TEXT = st.text(max_size=60)


@given(
    st.lists(st.builds(CheckResult, st.sampled_from(State), TEXT, TEXT, TEXT), max_size=5),
    st.sampled_from([None, 40, 80]),
)
def test_no_name_acts_on_the_terminal(findings: list[CheckResult], columns: int | None) -> None:
    text = as_text(findings, columns=columns)
    assert all(line.isprintable() for line in text.split("\n"))
    if columns is None:
        assert text.count("\n") == len(findings) + sum(bool(finding.advice) for finding in findings) + 1
    assert as_json(findings, {"node": "\x1b"}).isascii()


def test_a_report_is_written_in_the_format_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert write_report(FINDINGS, output="text", about={"node": "n1"}, heading="made up") == 1
    assert capsys.readouterr().out == as_text(FINDINGS, heading="made up")
    assert write_report([ok("a", "b")], output="json", about={"node": "n1"}, heading="made up") == 0
    assert capsys.readouterr().out == as_json([ok("a", "b")], {"node": "n1"})
