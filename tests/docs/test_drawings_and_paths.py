"""Paths and drawings in the introductory documents exist, and every page is in the index."""

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


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_a_drawing_has_a_title_and_colours_for_a_dark_page(drawing: Path) -> None:
    root = ElementTree.parse(drawing).getroot()
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")
    assert "prefers-color-scheme: dark" in (root.findtext(f"{SVG}style") or "")
    assert root.find(f"{SVG}rect[@class='sheet']") is not None


def test_the_readme_links_every_page_of_the_documentation() -> None:
    text = (ROOT / "README.md").read_text()
    folders = (ROOT / "docs", *(ROOT / "deploy" / name for name in ("kai", "kind", "vcluster")))
    pages = {str(page.relative_to(ROOT)) for folder in folders for page in folder.rglob("*.md")}
    assert {page for page in pages if f"]({page})" not in text} == set()
