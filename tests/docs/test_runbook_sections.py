"""The runbooks' texts on the agent's page: generated from docs/runbooks.md, and without anything that acts."""

import re

import pytest

from docs.runbook_sections import files, html
from gpuagent.server.page.page_links import FOLDER, SECTIONS, runbook_texts
from tests.support.html_tree import HtmlTree

ALLOWED = {"code", "em", "li", "ol", "p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"}


def test_the_texts_are_those_of_the_runbooks() -> None:
    texts = files()
    assert {file: file.read_text(encoding="utf-8") for file in FOLDER.iterdir()} == texts, "run `make docs`"
    assert runbook_texts() == {file.stem: text for file, text in texts.items()}


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_a_text_has_elements_without_attributes_and_its_parts(name: str) -> None:
    tree = HtmlTree(runbook_texts()[name])
    assert tree.tags <= ALLOWED
    assert tree.attributes == set()
    titles = [element.text for element in tree.root.all("strong")]
    assert titles == ["Meaning.", "Impact.", "Diagnosis.", "Mitigation.", "Ignore when."]
    assert not re.search(r"\]\(|<!--|^#", tree.text), "no Markdown is left"


def test_markup_links_and_pictures_do_not_survive() -> None:
    text = html(
        "<script>alert(1)</script>\n\n[a](javascript:x) <img src=x> [b](https://example.com 't')\n\n"
        "```console\n$ echo '<b>'\n```\n"
    )
    tree = HtmlTree(text)
    assert tree.tags <= ALLOWED
    assert tree.attributes == set()
    assert "<script>alert(1)</script>" in tree.text
    assert "echo '<b>'" in tree.text
    assert "[a](javascript:x) <img src=x> b" in tree.text, "text, no element"
    assert "example.com" not in text


def test_a_section_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("docs.runbook_sections.SECTIONS", frozenset({"KaishareNothing"}))
    with pytest.raises(KeyError):
        files()
