"""Output of a doctor: a line for each result as text, and JSON."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.doctor.check_results import (
    CheckResult,
    State,
    as_json,
    as_text,
    ok,
    problem,
    unknown,
    warning,
    write_report,
)
from service.text import width

FINDINGS = [
    ok("version 580", check="driver"),
    problem("there is no /dev/nvidiactl", "set runtimeClassName: nvidia", "device files", "docs/doctor.md#agents"),
    warning("old", check="driver"),
    unknown("not visible", check="container toolkit"),
]  # fmt: skip
TEXT_OF_FINDINGS = """\
ok       driver             version 580
{red}problem{end}  device files       there is no /dev/nvidiactl
                            -> set runtimeClassName: nvidia
                            see kaishare help agents
{yellow}warning{end}  driver             old
{dim}unknown{end}  container toolkit  not visible
1 problem, 1 warning, 1 unknown, 1 ok
"""
PLAIN = TEXT_OF_FINDINGS.format(red="", yellow="", dim="", end="")


def test_each_result_is_a_line_with_advice_and_docs_below_and_only_states_have_a_colour() -> None:
    assert as_text(FINDINGS) == PLAIN
    colours = {"red": "\033[31m", "yellow": "\033[33m", "dim": "\033[2m", "end": "\033[0m"}
    assert as_text(FINDINGS, colour=True) == TEXT_OF_FINDINGS.format(**colours)


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


def test_a_report_has_its_format_and_fails_for_problems_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert write_report(FINDINGS, output="text", about={"node": "n1"}) == 1
    assert capsys.readouterr().out == PLAIN
    for findings in ([], [ok("b")], FINDINGS[2:]):
        assert write_report(findings, output="json", about={"node": "n1"}) == 0
        assert capsys.readouterr().out == as_json(findings, {"node": "n1"})
