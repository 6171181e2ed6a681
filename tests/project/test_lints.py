"""Each check of `python -m tests.project.lints` finds a violation in every package, and in the page's script."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.project import class_names, language, regular_expressions
from tests.project.sources import PACKAGES

SCRIPT = "service/page/page.js"
FOLDERS = (*PACKAGES, "deploy", "docs", "examples")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with the exceptions of the lints, and without a violation."""
    shared = "".join(f"class {name}: ...\n" for name in class_names.SHARED)
    files = {f"{folder}/a.py": "" for folder in FOLDERS} | {
        "kai/b.py": shared,
        "kube/b.py": shared,
        SCRIPT: "",
    }
    for file, pattern in regular_expressions.BOUNDED:
        files[file] = f"import re\n_P = re.compile({pattern!r}, re.DOTALL)\n_P.sub('', t)\n"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


CHECKS: tuple[tuple[Callable[[Path], Iterator[str]], str, str], ...] = (
    (regular_expressions.problems, "import re\ndef f(t): return re.search(r'a*$', t)\n", "is not linear"),
    (class_names.problems, "class Twice: ...\n", "class Twice is defined in "),
    (lambda root: map(str, language.repository_findings(root)), "# It begins anew.\n", "'anew'"),
)


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(("check", "source", "problem"), CHECKS, ids=["expressions", "names", "language"])
def test_a_violation_in_each_package_is_found(
    root: Path, check: Callable[[Path], Iterator[str]], source: str, problem: str, package: str
) -> None:
    assert list(check(root)) == []
    (root / package / "a.py").write_text(source, encoding="utf-8")
    (root / package / "c.py").write_text(source, encoding="utf-8")
    lines = list(check(root))
    assert lines
    assert all(problem in line and f"{package}/" in line for line in lines)


def test_a_regular_expression_of_the_page_is_found(root: Path) -> None:
    (root / SCRIPT).write_text("x.replace(/a/, b)\n", encoding="utf-8")
    assert list(regular_expressions.problems(root)) == [f"{SCRIPT}:1: a regular expression in JavaScript"]


def test_an_exception_that_nothing_needs_is_a_problem(root: Path) -> None:
    (root / "kai" / "b.py").write_text("")
    assert list(class_names.problems(root)) == [
        f"class_names.py: remove {name} from SHARED" for name in class_names.SHARED
    ]


@pytest.mark.parametrize("check", [regular_expressions.problems, class_names.problems])
def test_a_check_without_files_fails(root: Path, check: Callable[[Path], Iterator[str]]) -> None:
    for file in (root / "console").iterdir():
        file.unlink()
    with pytest.raises(FileNotFoundError, match="no file matches console"):
        list(check(root))


def test_only_public_classes_of_the_top_level_count() -> None:
    source = "class A:\n    class B: ...\nclass _C: ...\ndef f():\n    class D: ...\n"
    assert list(class_names._public_classes(source)) == ["A"]
