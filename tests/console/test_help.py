"""`kaishare help`, and the links of findings: each opens, or names a section that the command prints."""

import re

import pytest

from console.cli import main
from console.help import link
from console.why.explanation import CODES
from gpuagent.first_acts import FOR_FLAG


def test_each_code_of_why_and_each_runbook_has_a_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    known = capsys.readouterr().out.split()
    assert set(CODES) <= set(known)
    assert {act.section.lower() for act in FOR_FLAG.values()} <= set(known)


@pytest.mark.parametrize(
    ("code", "heading"),
    [
        ("queue-over-quota", "### queue-over-quota"),
        ("KaisharePodOverShare", "## KaisharePodOverShare"),
        ("docs/doctor.md#guard", "### guard"),
    ],
)
def test_a_section_is_printed_whole(code: str, heading: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", code]) == 0
    text = capsys.readouterr().out
    assert heading.lower() in text.lower().splitlines()
    assert len(re.findall(rf"(?m)^{'#' * (heading.count('#'))} ", text)) == 1
    assert "](" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["help", "queue-over-qota"], '"queue-over-qota" is no code; the nearest is queue-over-quota'),
        (["explane", "-f", "x"], '"explane" is not a command; the nearest is explain'),
        (["--docs", "https://k.example", "explane"], '"explane" is not a command; the nearest is explain'),
        (["xyzzy"], '"xyzzy" is not a command; see kaishare --help'),
        (["--docs", "k.example", "help"], '"k.example" is not an address; allowed: https://HOST/PATH'),
    ],
)
def test_a_mistyped_word_names_the_nearest(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["kaishare"])
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_link_opens_where_an_address_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAISHARE_DOCS", raising=False)
    assert link("docs/doctor.md#node-labels") == "kaishare help node-labels"
    monkeypatch.setenv("KAISHARE_DOCS", "https://k.example/docs/")
    assert link("docs/doctor.md#node-labels") == "https://k.example/docs/doctor/#node-labels"
