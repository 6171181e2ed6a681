"""The language of the repository: no forbidden phrase or name outside of the folders that still have a debt.

`forbidden_phrases.py` has the tables with the replacements. `language_debt.json` lists the folders and files that
may still have findings, each with an upper bound that must not grow. To see the findings, and to lower the bounds
after mending some:

    python -m tests.project.language FOLDER
    python -m tests.project.language --update

An entry without findings disappears from the list, and its folder is then held to zero. `--update --raise` also
raises bounds, which is needed only after adding a phrase or an entry.
"""

from collections import Counter

import pytest

from tests.project.forbidden_phrases import NAMES, PHRASES
from tests.project.language import (
    ROOT,
    count_by_debt,
    debt_of,
    files,
    findings_in,
    load_debt,
    lowered,
    repository_findings,
)

BOUNDS = load_debt()


@pytest.fixture(scope="module")
def findings():
    return repository_findings()


def test_no_folder_without_a_debt_has_a_finding(findings) -> None:
    free = [finding for finding in findings if debt_of(finding.file, BOUNDS) is None]
    assert not free, "\n".join(map(str, free))


@pytest.mark.parametrize("entry", BOUNDS)
def test_no_debt_grows(findings, entry: str) -> None:
    count = count_by_debt(findings, BOUNDS)[entry]
    assert count <= BOUNDS[entry], f"{entry} has {count} findings: python -m tests.project.language {entry}"


def test_every_debt_is_of_an_existing_folder_or_file() -> None:
    assert [entry for entry in BOUNDS if not (ROOT / entry).exists()] == []


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
        "deploy/dashboard/kaishare.json",
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


def test_the_longest_entry_covers_a_file() -> None:
    bounds = {"tests": 5, "tests/kube": 3, "README.md": 1}
    assert debt_of("tests/kube/test_watch.py", bounds) == "tests/kube"
    assert debt_of("tests/kube_other.py", bounds) == "tests"
    assert debt_of("README.md", bounds) == "README.md"
    assert debt_of("kube/watch.py", bounds) is None


def test_an_update_lowers_bounds_and_drops_empty_entries() -> None:
    bounds, counts = {"docs": 5, "kube": 3, "webhook": 2}, Counter({"docs": 4, "webhook": 6})
    assert lowered(bounds, counts, may_raise=False) == {"docs": 4, "webhook": 2}
    assert lowered(bounds, counts, may_raise=True) == {"docs": 4, "webhook": 6}


def test_every_entry_has_a_replacement() -> None:
    assert all(instead.strip() for instead in (PHRASES | NAMES).values())
