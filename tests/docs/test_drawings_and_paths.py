"""Paths and drawings in the introductory documents exist, and the README begins with what a reader types."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DRAWINGS = sorted((ROOT / "docs" / "images").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
_SOURCE = re.compile(
    r"(?:webhook|gpuagent|kai|kube|certs|service|deploy|examples|tests|docs|benchmarks)/[\w./-]*"
)


def code_of(drawing: Path) -> list[str]:
    """The texts of a drawing that are set as code."""
    root = ElementTree.parse(drawing).getroot()
    return [text.text or "" for text in root.iter(f"{SVG}text") if text.get("class") == "code"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_source_file_that_a_page_names_exists(page: Path) -> None:
    named = [name for code in re.findall(r"`([^`\n]+)`", page.read_text()) for name in _SOURCE.findall(code)]
    missing = [name for name in named if not (ROOT / name.rstrip(".")).exists()]
    assert missing == []


def test_every_table_of_tests_that_the_guide_for_contributors_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::([A-Z_]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert named
    for file, table in named:
        assert re.search(rf"^{table}\b.* = ", (ROOT / file).read_text(), flags=re.MULTILINE), (file, table)


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_every_source_file_in_a_drawing_exists(drawing: Path) -> None:
    named = [name for code in code_of(drawing) for name in _SOURCE.findall(code)]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_there_are_drawings_with_source_files() -> None:
    assert {drawing.name for drawing in DRAWINGS} == {"overview.svg", "pod.svg", "process.svg"}
    named = {name for drawing in DRAWINGS for code in code_of(drawing) for name in _SOURCE.findall(code)}
    assert {"webhook/policy/decide.py", "gpuagent/ledger/balance.py"} <= named


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_a_drawing_has_a_title_and_colours_for_a_dark_page(drawing: Path) -> None:
    root = ElementTree.parse(drawing).getroot()
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")
    assert "prefers-color-scheme: dark" in (root.findtext(f"{SVG}style") or "")
    assert root.find(f"{SVG}rect[@class='sheet']") is not None


def test_the_readme_begins_with_the_picture_and_the_two_commands_and_fits_a_screen_or_two() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    head = "\n".join(lines[:30])
    assert [
        text for text in ("](docs/images/overview.svg)", "\n$ make demo", "\n$ make test") if text not in head
    ] == []
    assert len(lines) <= 110
