"""The site of the documentation: it has every page, in an order, and links that suit it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.site_links import OTHER_PAGES, llms_text, repository_path, rewrite, site_path
from tests.support.doc_blocks import ROOT, blocks_of, pages

REPOSITORY = "https://git.example.com/kaishare"
_ITEM = re.compile(r" {0,3}(?:[-*]|\d+\.) ")


class Loader(yaml.SafeLoader):
    """Reads the tags that MkDocs knows as their plain content."""


Loader.add_multi_constructor("!ENV", lambda loader, _suffix, node: loader.construct_sequence(node))
Loader.add_multi_constructor(
    "tag:yaml.org,2002:python/", lambda loader, _suffix, node: loader.construct_mapping(node)
)


def settings() -> dict[str, Any]:
    content: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    return content


def nav_pages(item: Any) -> list[str]:
    if isinstance(item, str):
        return [item]
    children = item if isinstance(item, list) else item.values()
    return [page for child in children for page in nav_pages(child)]


def test_every_page_is_in_the_nav_once() -> None:
    in_nav = nav_pages(settings()["nav"])
    assert len(in_nav) == len(set(in_nav))
    every = {site_path(str(page.relative_to(ROOT))) for page in [*pages(), ROOT / "CHANGELOG.md"]}
    assert set(in_nav) == every


def test_a_page_of_the_site_knows_its_file() -> None:
    in_nav = nav_pages(settings()["nav"])
    assert [page for page in in_nav if not (ROOT / repository_path(page)).exists()] == []
    assert [page for page in in_nav if site_path(repository_path(page)) != page] == []
    assert set(OTHER_PAGES.values()) <= set(in_nav)


@pytest.mark.parametrize(
    ("in_folders", "laptop"), [(True, "start/laptop/index.html"), (False, "start/laptop.html")]
)
def test_llms_txt_has_the_sections_and_pages_of_the_nav(in_folders: bool, laptop: str) -> None:
    content = settings()
    lines = llms_text({**content, "use_directory_urls": in_folders}).splitlines()
    assert lines[0] == "# kaishare"
    assert [line.removeprefix("## ") for line in lines if line.startswith("## ")] == [
        name for section in content["nav"] for name in section
    ]
    assert sum(line.startswith("- [") for line in lines) == len(nav_pages(content["nav"]))
    assert {"- [Overview](index.html)", f"- [On a laptop]({laptop})"} <= set(lines)


def test_the_site_loads_nothing_from_other_hosts() -> None:
    content = settings()
    assert content["theme"]["font"] is False
    assert "repo_url" not in content, "the theme asks the host of the repository for its stars"
    assert content["extra"]["polyfills"] == ["iframe-worker.js"], "the plugin offline loads one from a host"
    files = [*content["extra_css"], *content["extra"]["polyfills"]]
    assert [file for file in files if not (ROOT / "docs" / file).is_file()] == []


@pytest.mark.parametrize(
    ("source", "link", "target"),
    [
        ("docs/install.md", "guard.md#install", "guard.md#install"),
        ("docs/start/laptop.md", "../install.md", "../install.md"),
        ("docs/install.md", "#images", "#images"),
        ("docs/install.md", "https://example.com/a.md", "https://example.com/a.md"),
        ("docs/install.md", "images/page.png", "images/page.png"),
        ("docs/install.md", "shares.schema.json", "shares.schema.json"),
        ("docs/install.md", "../README.md", "index.md"),
        ("docs/start/laptop.md", "../../deploy/kai/README.md#queues", "../kai.md#queues"),
        ("deploy/kai/README.md", "../../docs/install.md", "install.md"),
        ("README.md", "docs/images/overview.svg", "images/overview.svg"),
        ("docs/install.md", "../deploy/helm/kaishare", f"{REPOSITORY}/tree/main/deploy/helm/kaishare"),
        ("docs/install.md", "../deploy/kai/queues.yaml", f"{REPOSITORY}/blob/main/deploy/kai/queues.yaml"),
        ("deploy/kai/README.md", "queues.yaml", f"{REPOSITORY}/blob/main/deploy/kai/queues.yaml"),
        ("README.md", "webhook/policy/decide.py", f"{REPOSITORY}/blob/main/webhook/policy/decide.py"),
    ],
)
def test_a_link_suits_the_site(source: str, link: str, target: str) -> None:
    assert rewrite(f"See [it]({link}).\n", source, REPOSITORY) == f"See [it]({target}).\n"


def test_a_file_as_the_text_of_a_link_becomes_the_title_of_its_page() -> None:
    page = "See [docs/policy.md](docs/policy.md#under-enforce), [a.md and more](docs/api.md).\n"
    expected = "See [Policy](policy.md#under-enforce), [a.md and more](api.md).\n"
    assert rewrite(page, "README.md", REPOSITORY) == expected


def test_blocks_keep_their_text_and_lose_their_marks() -> None:
    page = "Text:\n<!-- run -->\n```console\n$ echo '[a](../x.py)'\n<!-- run -->\n```\n\n- a\n  - b\n"
    expected = "Text:\n\n```console\n$ echo '[a](../x.py)'\n<!-- run -->\n```\n\n- a\n    - b\n"
    assert rewrite(page, "docs/install.md", REPOSITORY) == expected


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_reads_the_same_on_github_and_on_the_site(page: Path) -> None:
    """Python-Markdown needs a blank line before a list and four blanks before a block in one; `#1` is a heading."""
    lines = page.read_text(encoding="utf-8").splitlines()
    blocks = list(blocks_of(page))
    inside = {
        number for block in blocks for number in range(block.line, block.line + block.text.count("\n") + 3)
    }
    short = [block.line for block in blocks if 0 < len(re.match(" *", lines[block.line - 1])[0]) < 4]  # type: ignore[index]
    assert [
        number for number, line in enumerate(lines, 1) if re.match(r"#+[^#\s]", line) and number not in inside
    ] == []
    assert short == [], "lines with a block in a list that is indented by less than four blanks"
    in_list = False
    joined = []
    for number, line in enumerate(lines, start=1):
        if number in inside or not line.strip():
            in_list = False
        elif _ITEM.match(line):
            if not in_list and number > 1 and lines[number - 2].strip() and (number - 1) not in inside:
                joined.append(number)
            in_list = True
    assert joined == [], "lines with a list that has no blank line before it"
