"""Addresses outside of the agent: which are accepted, and where the page links to them."""

import json
import re
from pathlib import Path

import pytest

from gpuagent.server.page import page_links
from gpuagent.server.page.page_links import PageLinks, parse_address, parse_runbooks
from gpuagent.server.page.renderer import PageRenderer
from tests.gpuagent.server.test_page import NOW, Parsed, judged, over_share
from tests.support.page_server import page_text

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "kaishare"
GOOD = ["", "http://x/", "https://git.example.com:8443/kaishare/blob/main/", "https://[::1]/a?b=c#d/"]
BAD = [
    "javascript:alert(1)/", "ftp://x/", "//x/", "/docs/", "x/", "https://", "https:///", "http:// x/", "https://?/",
    "https://x/\n/", "https://x/\x00/", "HTTPS://x/", "data:text/html,x/", "https://x/" + "a" * 3000 + "/",
]  # fmt: skip


@pytest.mark.parametrize("text", GOOD)
def test_addresses_of_the_web_are_accepted(text: str) -> None:
    assert parse_address(text) == parse_runbooks(text) == text


@pytest.mark.parametrize("text", BAD)
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    for parse in (parse_address, parse_runbooks):
        with pytest.raises(ValueError, match="is not an address") as refusal:
            parse(text)
        assert "\n" not in str(refusal.value)


def test_runbooks_end_with_a_slash_as_in_the_chart() -> None:
    with pytest.raises(ValueError, match="does not end with /"):
        parse_runbooks("https://x/docs")


def test_the_chart_accepts_what_the_option_accepts() -> None:
    """A value that only the chart accepts would end every agent with status 2."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))["properties"]
    runbooks = schema["alerts"]["properties"]["runbooks"]
    fleet = schema["agent"]["properties"]["fleetUrl"]
    for text in (*GOOD, *BAD):
        for rule, parse in ((runbooks, parse_runbooks), (fleet, parse_address)):
            is_accepted = len(text) <= rule["maxLength"] and bool(re.search(rule["pattern"], text))
            if "\x00" not in text and not text.endswith("\n/"):
                try:
                    parse(text)
                except ValueError:
                    assert not is_accepted, text
                else:
                    assert is_accepted, text
    assert fleet["maxLength"] == page_links._LONGEST


def page(node: str = "node-1", **addresses: str) -> Parsed:
    renderer = PageRenderer(node=node, is_simulated=False, interval=5, links=PageLinks(**addresses))
    return Parsed(page_text(renderer.render(judged(over_share(0.0), over_share(180.0)), now=NOW)).decode())


def test_a_flag_links_to_its_section_in_the_form_of_the_alerts() -> None:
    seen = page(runbooks="https://git.example.com/kaishare/blob/main/")
    (link,) = seen.root.first("section", "flags").all("a", "runbook")
    assert link.attributes["href"] == (
        "https://git.example.com/kaishare/blob/main/docs/runbooks.md#kaisharepodovershare"
    )
    assert not seen.root.all("section", "runbooks"), "the texts are there, and not on the page"


def test_without_an_address_the_page_has_the_text_of_the_section_once() -> None:
    seen = page()
    (link,) = seen.root.first("section", "flags").all("a", "runbook")
    (fold,) = seen.root.first("section", "runbooks").all("details")
    assert fold.first("summary").text == "KaisharePodOverShare"
    assert fold.first("div").attributes["id"] == link.attributes["href"].removeprefix("#")
    assert "--gpu-memory-utilization" in fold.text


def test_other_nodes_are_linked_with_the_nodes_name_quoted() -> None:
    seen = page(node="a/b&c=1", fleet="https://grafana.example.com/d/x?var-node={node}&x=1")
    address = "https://grafana.example.com/d/x?var-node=a%2Fb%26c%3D1&x=1"
    header = seen.root.first("header")
    assert header.first("h1").first("a").attributes["href"] == address
    assert [link.attributes["href"] for link in header.all("a") if link.text == "other nodes"] == [address]
    assert not page().root.first("h1").all("a")
    assert "other nodes" not in page().text
