"""The scenario behind the picture of the page, from the simulated driver to the page."""

from collections.abc import Iterator
from io import BytesIO

import pytest

from gpuagent.pods.file_pods import FilePods
from service.log import JsonLog
from tests.support.driver_chain import Chain
from tests.support.html_tree import Element, HtmlTree
from tests.support.scenarios import SCENARIOS
from tests.support.scenarios.loading import load_scenario
from tests.support.scenarios.source import ScenarioGpus

SCENARIO = SCENARIOS / "incident.yaml"


@pytest.fixture
def chain(clock) -> Iterator[Chain]:
    source = ScenarioGpus(scenario=load_scenario(SCENARIO), clock=clock)
    pods = FilePods(
        path=source.pods_file,
        node=source.node,
        reservation_namespace="kai-resource-reservation",
        log=JsonLog(BytesIO()),
    )
    chain = Chain(source=source, proc_root=source.proc_root, inventory=pods.inventory, clock=clock)
    yield chain
    source.close()


def sections(chain: Chain) -> dict[str, Element]:
    """Return the page's section of each GPU by its title."""
    tree = HtmlTree(chain.page)
    return {section.first("h2").text: section for section in tree.root.all("section", "gpu")}


def test_the_incident_shows_flags_a_lost_gpu_and_a_gpu_promised_more_than_it_has(chain: Chain, clock) -> None:
    began = clock.now
    for second in range(0, 211, 5):
        clock.now = began + second
        chain.sample()
    pages = sections(chain)
    assert list(pages) == ["GPU 0", "GPU 1", "GPU 2", "GPU 3"]
    flagged = pages["GPU 0"].all("tr", "flagged")
    assert [row.first("th").text.split()[0] for row in flagged] == [
        "segment-1",
        "train-resnet-6b7f9d5c44-x2x7k",
    ]
    assert "within slack" in pages["GPU 0"].text
    assert "51.7 GiB are promised, 6.7 GiB more than its 45.0 GiB." in pages["GPU 1"].text
    assert "GPU 3 was lost at" in pages["GPU 3"].text
    assert "peak 15.0 GiB" in pages["GPU 3"].first("td", "used").text
    whisper = next(row for row in pages["GPU 1"].all("tr") if "whisper" in row.text)
    assert "unknown for" in whisper.first("svg", "trend").attributes["aria-label"]
    assert whisper.first("path", "line").attributes["d"].count("M") == 2, "its memory was unknown for a time"


def test_an_agent_that_starts_after_the_loss_knows_the_index_and_says_what_is_unknown(
    chain: Chain, clock
) -> None:
    clock.now += 205
    chain.sample()
    pages = sections(chain)
    assert list(pages) == ["GPU 0", "GPU 1", "GPU 2", "GPU 3", "Pods without a known GPU"]
    assert "GPU 3 does not respond" in pages["GPU 3"].text
    assert "Its UUID is unknown" in pages["GPU 3"].text
    assert "diarize" in pages["Pods without a known GPU"].text
    assert "has not responded since the agent started" in pages["Pods without a known GPU"].text
