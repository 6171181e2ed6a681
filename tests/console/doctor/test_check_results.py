"""Output of a doctor: a line for each result as text, and JSON."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.doctor.check_results import (
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
from service.text import width

FINDINGS = [
    ok("version 580", check="driver"),
    problem("there is no /dev/nvidiactl", "set runtimeClassName: nvidia", check="device files"),
    unknown("not visible", check="container toolkit"),
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
    linked = replace(FINDINGS[1], docs="docs/doctor.md#runtimeclass")
    assert as_text([linked]).splitlines()[1:3] == [
        "                       -> set runtimeClassName: nvidia",
        "                       see docs/doctor.md#runtimeclass",
    ]
    assert json.loads(as_json([linked], {}))["findings"][0]["docs"] == "docs/doctor.md#runtimeclass"
    assert "docs" not in json.loads(as_json(FINDINGS, {}))["findings"][0]


def test_states_are_coloured_and_nothing_else() -> None:
    lines = as_text(FINDINGS, colour=True).splitlines()
    assert lines[0] == as_text(FINDINGS).splitlines()[0], "a check without objections has no colour"
    assert lines[1] == "\033[31mproblem\033[0m  device files       there is no /dev/nvidiactl"


def test_warnings_are_counted_where_there_are_any() -> None:
    text = as_text([*FINDINGS, warning("b", check="a"), warning("c", check="a")])
    assert text.endswith("1 problem, 2 warnings, 1 unknown, 1 ok\n")


@pytest.mark.parametrize(
    ("findings", "status"),
    [
        ([], 0),
        ([ok("b", check="a")], 0),
        ([warning("b", check="a"), unknown("b", check="a")], 0),
        (FINDINGS, 1),
    ],
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


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_lines_break_between_words(columns: int) -> None:
    long = problem("what was seen is long " * 10, "what to do is longer " * 20, check="a check")
    lines = as_text([long], columns=columns).splitlines()
    assert max(map(len, lines)) <= columns
    assert " ".join(" ".join(lines).split()).startswith("problem a check what was seen is long what")
    assert len(lines) > 5


def test_a_long_name_or_path_stays_whole_on_a_line_with_less_indentation() -> None:
    path = f"/var/lib/{'p' * 50}/config.yaml"
    lines = as_text(
        [problem(f"no such file: {path} is missing", f"create {path}", check="device files")]
    ).splitlines()
    assert lines[0] == "problem  device files  no such file:"
    assert lines[1].strip() == path
    assert lines[2] == "                       is missing"
    assert [line.strip() for line in lines[3:5]] == ["-> create", path]
    assert {len(lines[1]), len(lines[4])} == {80}


def test_a_word_longer_than_a_line_is_shortened_in_its_middle_and_whole_in_json() -> None:
    name = "n" * 90 + "-tail"
    lost = problem(f"pod {name} is lost", check="pods")
    (line,) = (line for line in as_text([lost]).splitlines() if "…" in line)
    assert len(line.strip()) == 80
    assert line.endswith("-tail")
    assert name in as_json([lost], {})


TEXT = st.text(max_size=300)


@given(
    st.lists(st.builds(CheckResult, st.sampled_from(State), TEXT, TEXT, TEXT, TEXT), max_size=5),
    st.integers(min_value=40, max_value=200),
)
def test_no_name_acts_on_the_terminal_and_every_line_fits(findings: list[CheckResult], columns: int) -> None:
    text = as_text(findings, columns=columns)
    lines = text.split("\n")
    assert all(line.isprintable() for line in lines)
    assert max(map(width, lines)) <= columns
    states = [line.split()[0] for line in as_text(findings, columns=columns).splitlines() if line[:1] > " "]
    assert len(states) >= len(findings) + 1
    assert as_json(findings, {"node": "\x1b"}).isascii()


def test_a_report_is_written_in_the_format_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert write_report(FINDINGS, output="text", about={"node": "n1"}) == 1
    assert capsys.readouterr().out == as_text(FINDINGS)
    assert write_report([ok("b", check="a")], output="json", about={"node": "n1"}) == 0
    assert capsys.readouterr().out == as_json([ok("b", check="a")], {"node": "n1"})
