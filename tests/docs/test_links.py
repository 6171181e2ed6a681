"""Links, paths and drawings of the documentation, and pages that the code names, lead to files and headings."""

import re
from collections import Counter
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.project.sources import PACKAGES
from tests.support.doc_blocks import ROOT, pages

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_NAMED = re.compile(r"\b((?:docs|deploy|examples)/[\w./-]+\.md)(?:#([\w-]+))?")
_SOURCES = (
    *("*.py", "*.yaml", "*.yml", "*.toml", "*.json", "*.libsonnet", "*.jsonnet", "*.html", "*.js", "*.css"),
    *("*.tpl", "*.tmpl", "*.txt", "*.sh", "*.svg"),
)
_FENCED = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub builds them; a repeated heading gets a number."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    counts: Counter[str] = Counter()
    slugs = set()
    for heading in _HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        slugs.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
        counts[slug] += 1
    return frozenset(slugs)


def sources() -> list[Path]:
    folders = (*PACKAGES, ".github", "deploy", "docs", "examples", "benchmarks", "requirements", "tests")
    files = [file for folder in folders for pattern in _SOURCES for file in (ROOT / folder).rglob(pattern)]
    others = ("Makefile", "Dockerfile.agent", "Dockerfile.webhook", "mkdocs.yml", "pyproject.toml", ".ci/run")
    return [*(ROOT / name for name in others), *sorted(files)]


@pytest.mark.parametrize(
    "page", [*pages(), ROOT / "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    lost = []
    for link in _LINK.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def test_every_page_that_the_code_names_exists_with_its_section() -> None:
    named = {
        (file, page, anchor)
        for file in sources()
        for page, anchor in _NAMED.findall(file.read_text(encoding="utf-8"))
    }
    assert len({page for _, page, _ in named}) > 10
    lost = [
        f"{file.relative_to(ROOT)}: {page}#{anchor}"
        for file, page, anchor in sorted(named)
        if not (ROOT / page).exists() or (anchor.islower() and anchor not in anchors(ROOT / page))
    ]
    assert lost == []


DRAWINGS = sorted((ROOT / "docs" / "images").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"
_CODE = re.compile(
    r"(?:webhook|gpuagent|kai|kube|certs|service|deploy|examples|tests|docs|benchmarks)/[\w./-]*"
)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_source_file_that_a_page_names_exists(page: Path) -> None:
    named = [name for code in re.findall(r"`([^`\n]+)`", page.read_text()) for name in _CODE.findall(code)]
    assert [name for name in named if not (ROOT / name.rstrip(".")).exists()] == []


def test_every_table_of_tests_that_the_guide_for_contributors_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::([A-Z_]+)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert named
    for file, table in named:
        assert re.search(rf"^{table}\b.* = ", (ROOT / file).read_text(), flags=re.MULTILINE), (file, table)


@pytest.mark.parametrize("drawing", DRAWINGS, ids=lambda drawing: drawing.name)
def test_a_drawing_names_source_files_that_exist_and_has_a_title_and_dark_colours(drawing: Path) -> None:
    root = ElementTree.parse(drawing).getroot()
    codes = [text.text or "" for text in root.iter(f"{SVG}text") if text.get("class") == "code"]
    named = [name for code in codes for name in _CODE.findall(code)]
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc")
    assert "prefers-color-scheme: dark" in (root.findtext(f"{SVG}style") or "")
    assert root.find(f"{SVG}rect[@class='sheet']") is not None
