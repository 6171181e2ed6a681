"""The check of the language finds forbidden phrases and names; `make lint` runs it over the repository."""

import pytest

from tests.project.forbidden_phrases import NAMES, PHRASES
from tests.project.language import LanguageFinding, files, findings_in, main
from tests.project.sources import ROOT


def test_the_command_selects_by_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [LanguageFinding(file, 1, "anew", "again") for file in ("kube/a.py", "kube_other.py", "README.md")]
    monkeypatch.setattr("tests.project.language.repository_findings", lambda: made)
    assert main(["kube", "README.md"]) == 1
    assert capsys.readouterr().out.splitlines() == [str(made[0]), str(made[2])]
    assert main(["docs"]) == 0
    assert main([]) == 1


def test_every_kind_of_file_is_checked() -> None:
    names = {str(path.relative_to(ROOT)) for path in files()}
    assert {
        "Makefile",
        "Dockerfile.agent",
        "README.md",
        "docs/policy.md",
        "webhook/cli.py",
        "tests/project/language.py",
        "deploy/helm/kaishare/values.yaml",
        "deploy/helm/kaishare/templates/NOTES.txt",
        "deploy/helm/kaishare/templates/_helpers.tpl",
        "deploy/helm/kaishare/files/dashboards/fleet.json",
        "deploy/images/install.sh",
    } <= names
    assert names.isdisjoint({"CHANGELOG.md", "tests/project/forbidden_phrases.py"})


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("a.py", '"""Keeps nobody\nout."""\n', [(1, "nobody")]),
        ("a.py", "x = 1\n# Waits for\n# want of a right.\n", [(2, "for want of")]),
        (
            "a.py",
            "x = f'it is the ordinary end of {x}'\ny = 'begins anew'\n",
            [(1, "the ordinary end"), (2, "anew")],
        ),
        ("a.py", "def test_a_call_holds_up_nobody() -> None: ...\n", [(1, "nobody")]),
        ("a.py", "def holds_up_nobody() -> None: ...\n", []),
        ("a.py", "found = Wish(one)\n", [(1, "Wish"), (1, "found"), (1, "one")]),
        ("a.py", "text = 'one Wish was found'\n", []),
        ("a.yaml", "# The pods of\n# somebody else\nkey: Whoever\n", [(2, "somebody"), (3, "Whoever")]),
        ("a.md", "Each of\nyours is a one-liner, not a he-man.\n", [(1, "of yours")]),
    ],
)
def test_findings_of_a_text(file: str, text: str, expected: list[tuple[int, str]]) -> None:
    assert [(finding.line, finding.text) for finding in findings_in(file, text)] == expected


def test_a_finding_names_its_place_and_the_replacement() -> None:
    (finding,) = findings_in("a.md", "It begins anew.\n")
    assert str(finding) == "a.md:1: 'anew'; instead: again; restart"


def test_every_entry_has_a_replacement() -> None:
    assert all(instead.strip() for instead in (PHRASES | NAMES).values())
