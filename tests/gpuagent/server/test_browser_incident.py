"""The page of an incident in a real browser: the first screen and the folds."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpuagent.first_acts import FOR_FLAG, FOR_GPU_AT_RISK
from gpuagent.pods.file_pods import FilePods
from gpuagent.server.agent_server import HttpServer
from gpuagent.server.exposition import Metrics
from gpuagent.simulation.scenario_loading import load_scenario
from gpuagent.simulation.simulated_node import SimulatedGpus
from service.http.limits import Address
from service.log import JsonLog
from tests.support.browser import CHROMIUM, Browser
from tests.support.driver_chain import Chain

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="NOT VERIFIED: Chromium is needed (apt-get install chromium)"
    ),
    pytest.mark.asyncio(loop_scope="module"),
]

SCENARIO = Path(__file__).parents[3] / "examples" / "agent" / "incident.yaml"
SCHEMES = pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])


def incident(seconds: int) -> Chain:
    """Return the node of the example some seconds after its start, with a sample every 5 s."""
    now = 1_800_000_000.0
    source = SimulatedGpus(scenario=load_scenario(SCENARIO), clock=lambda: now)
    pods = FilePods(
        path=source.pods_file,
        node=source.node,
        reservation_namespace="kai-resource-reservation",
        log=JsonLog(io.BytesIO()),
    )
    chain = Chain(source=source, proc_root=source.proc_root, inventory=pods.inventory, clock=lambda: now)
    for _ in range(0, seconds, 5):
        now += 5
        chain.sample()
    source.close()
    return chain


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    async with Browser.started(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    chain = incident(110)
    port = HttpServer(
        status=chain.books.status,
        unhealthy_reason=str,
        metrics=Metrics(node="gpu-node-7", is_simulated=True),
        node="gpu-node-7",
        is_simulated=True,
        log=JsonLog(io.BytesIO()),
        interval=1.0,
    )
    address = await port.start(Address("127.0.0.1", 0))
    yield f"http://{address}/"
    await port.stop()


@SCHEMES
async def test_culprit_victims_and_remedy_are_on_the_first_screen(
    browser: Browser, url: str, is_dark: bool
) -> None:
    await browser.show(1280, 800, is_dark=is_dark)
    await browser.open(url)
    visible = await browser.evaluate(
        "[...document.querySelectorAll('.risks p, .flags p, .flags code, .gpus a')]"
        ".filter(each => each.getBoundingClientRect().bottom <= 800).map(each => each.innerText).join('\\n')"
    )
    assert "GPU 1 is at risk" in visible
    assert "Above the share: team-vision/train-resnet-6b7f9d5c44-x2x7k by 4.0 GiB" in visible
    assert "Can fail next: team-science/notebook-ben" in visible
    assert f"First: {FOR_GPU_AT_RISK.text}" in visible
    assert f"First: {FOR_FLAG['over-share'].text}" in visible
    assert "kaishare why -n team-vision train-resnet-6b7f9d5c44-x2x7k" in visible
    assert await browser.evaluate("document.querySelector('.gpus').getBoundingClientRect().bottom") < 800


async def test_a_phrase_below_a_pods_name_does_not_wrap_at_1280(browser: Browser, url: str) -> None:
    await browser.show(1280, 800)
    await browser.open(url)
    heights = await browser.evaluate(
        "[...document.querySelectorAll('th.pod small span')].map(each => each.getBoundingClientRect().height)"
    )
    assert len(heights) >= 20
    assert max(heights) < 1.9 * min(heights)


@SCHEMES
@pytest.mark.parametrize("width", [390, 1280, 1920])
async def test_axe_has_no_findings(browser: Browser, url: str, width: int, is_dark: bool) -> None:
    await browser.show(width, is_dark=is_dark)
    await browser.open(url)
    await browser.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    assert await browser.axe_violations() == []


@pytest.mark.parametrize("has_scripts", [True, False])
async def test_the_links_of_key_and_runbooks_open_their_folds(
    browser: Browser, url: str, has_scripts: bool
) -> None:
    await browser.show(1280, 800)
    await browser.allow_scripts(allowed=has_scripts)
    try:
        for link in ("header nav a[href='#key']", ".flags .runbook"):
            await browser.open(url)
            target = f"document.querySelector(document.querySelector({json.dumps(link)}).hash)"
            assert await browser.evaluate(f"{target}.closest('details').open") is False
            await browser.evaluate(f"document.querySelector({json.dumps(link)}).click()")
            opened = f"{target}.closest('details').open && {target}.getBoundingClientRect().top < 800"
            for _ in range(100):  # the page has no timers without scripts
                if await browser.evaluate(opened):
                    break
                await asyncio.sleep(0.05)
            else:
                pytest.fail(f"{link} opens no fold")
    finally:
        await browser.allow_scripts(allowed=True)
