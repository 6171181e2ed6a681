"""The page in a real browser: its policy, its reload, its width on every screen, and axe's findings."""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from gpuagent.evaluation.history import History
from gpuagent.evaluation.status import Status
from gpuagent.gpus.gpu_reading import LostGpu
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.problems import Cause, Problem
from gpuagent.server.agent_server import HttpServer
from gpuagent.server.exposition import Metrics
from gpuagent.verdicts.flagging import Judge
from service.http.limits import Address
from service.log import JsonLog
from tests.support.browser import CHROMIUM, Browser
from tests.support.samples import GIB, A, B, gpu, in_pod, pod, pod_share, sample, snapshot_of, with_limit

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="NOT VERIFIED: Chromium is needed (apt-get install chromium)"
    ),
    pytest.mark.asyncio(loop_scope="module"),
]

LONG = "a-pod-with-a-name-as-long-as-kubernetes-permits-" + "x" * 205
WIDTHS = (390, 768, 1215, 1217, 1280, 1440, 1920)
SCHEMES = pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    folder = tmp_path_factory.mktemp("browser")
    async with Browser.started(folder, "--host-resolver-rules=MAP evil.example 127.0.0.1") as browser:
        yield browser


class Node:
    """An agent's server over a status that a test sets."""

    def __init__(self) -> None:
        self.requests = 0
        self.port = HttpServer(
            status=self.next_status,
            unhealthy_reason=str,
            metrics=Metrics(node="node-1", is_simulated=True),
            node="node-1",
            is_simulated=True,
            log=JsonLog(io.BytesIO()),
            interval=1.0,
        )

    def next_status(self) -> Status:
        self.requests += 1
        return incident(self.requests)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    node = Node()
    address = await node.port.start(Address("127.0.0.1", 0))
    yield f"http://{address}/"
    await node.port.stop()


def incident(number: int) -> Status:
    """Return a node with everything that the page can show, with another queue at each call."""
    judge, history = Judge(grace=60, interval=60, longest_gap=1000), History(interval=5)
    for at in (number + 0.0, number + 15.0, number + 45.0, number + 90.0):
        snapshot = _sampled(number, at)
        verdicts, _ = judge.judge(snapshot)
        history.record(snapshot, verdicts)
    return Status(
        snapshot=snapshot,
        verdicts=verdicts,
        problems=(Problem(Cause.NVML, B, "GpuIsLost"), Problem(Cause.MEMORY_UNKNOWN, A, "unknown " * 40)),
        attribution_ok=True,
        good_wall_time=time.time(),
        lost_gpus=snapshot.lost_gpus,
        history=history,
        driver_version="580.65.06",
    )


def _sampled(number: int, at: float) -> Snapshot:
    names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "long"]
    used = {index: (2 * GIB if index > 1 else 9 * GIB) for index in range(1, len(names) + 1)}
    shares = [pod_share(name, 3 * GIB, queue=f"queue-{number}", groups=("fde0f5a5",)) for name in names]
    long = pod("long", name=LONG, namespace="n" * 63, uid=shares[-1].pod.uid)
    shares[-1] = replace(shares[-1], pod=long)
    lost = pod_share("lost", GIB, gpus=(B,))
    shares[1] = with_limit(pod_share(names[1]), GIB)
    shares[2] = with_limit(shares[2], GIB)
    busy = gpu(*used.items(), uuid=A, total_bytes=28 * GIB)
    origins = {index: in_pod(name) for index, name in enumerate(names, 1)}
    snapshot = snapshot_of(sample(busy, origins=origins, at=at), *shares, lost)
    return replace(snapshot, lost_gpus=(LostGpu(1, B, "NVIDIA A10"),), labelled_gpus=3)


@SCHEMES
async def test_the_page_overflows_no_screen(browser: Browser, url: str, is_dark: bool) -> None:
    overflows = {}
    for width in WIDTHS:
        await browser.show(width, is_dark=is_dark)
        await browser.open(url)
        needed = await browser.evaluate("document.documentElement.scrollWidth")
        outside = await browser.evaluate(
            """globalThis.textOf = each => {
              const range = document.createRange();
              range.selectNodeContents(each);
              return range.getBoundingClientRect();
            };
            [...document.querySelectorAll("#page *")].filter(each => !each.closest("svg, thead, .aside")
            && (each.getBoundingClientRect().right > document.documentElement.clientWidth + 1))
            .concat([...document.querySelectorAll("th, td")].filter(each => !each.closest(".aside")
            && getComputedStyle(each.closest("table").tHead).position !== "absolute"
            && (each.scrollWidth > each.clientWidth + 1 || textOf(each).left < each.getBoundingClientRect().left - 1)))
            .map(each => each.outerHTML.slice(0, 100))"""
        )
        if needed > width or outside:
            overflows[width] = (needed, outside)
    assert overflows == {}


@SCHEMES
@pytest.mark.parametrize("width", [390, 1440])
async def test_axe_has_no_findings(browser: Browser, url: str, width: int, is_dark: bool) -> None:
    await browser.show(width, is_dark=is_dark)
    await browser.open(url)
    await browser.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    assert await browser.axe_violations() == []


async def test_the_page_renews_itself_and_breaks_no_policy(browser: Browser, url: str) -> None:
    browser.complaints.clear()
    await browser.show(1440)
    await browser.open(url)
    first = await browser.evaluate(QUEUE)
    await browser.until(f"{QUEUE} !== {json.dumps(first)}")
    assert list(browser.complaints) == []


QUEUE = "document.querySelector('tbody th.pod small').textContent"


async def test_the_title_of_old_figures_says_so(browser: Browser, url: str) -> None:
    await browser.show(1280)
    await browser.open(url)
    await browser.send("Network.enable")
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    await browser.send("Network.emulateNetworkConditions", offline=True, **offline)
    try:
        await browser.until("document.title.startsWith('OLD: node-1: ')")
    finally:
        await browser.send("Network.emulateNetworkConditions", offline=False, **offline)
    await browser.until("document.title.startsWith('node-1: ')")
    browser.complaints.clear()


async def test_a_reload_keeps_focus_scroll_and_open_details(browser: Browser, url: str) -> None:
    await browser.show(1440, 500)
    await browser.open(url)
    before = await browser.evaluate(
        """(() => {
          const details = document.querySelector("details");
          details.open = true;
          const link = document.querySelector(".flags a");
          location.hash = link.getAttribute("href");
          const summary = details.querySelector("summary");
          summary.focus();
          window.scrollTo(0, 80);
          document.getElementById("page").dataset.old = "yes";
          return [details.id, window.scrollY, link.hash];
        })()"""
    )
    await browser.until("document.getElementById('page').dataset.old === undefined")
    after = await browser.evaluate(
        """[document.activeElement.closest("details")?.id, window.scrollY, document.activeElement.localName,
        document.querySelector("details").open, "#" + document.querySelector("tr.target")?.id]"""
    )
    assert after == [before[0], before[1], "summary", True, before[2]]


async def test_the_page_is_complete_without_javascript(browser: Browser, url: str) -> None:
    await browser.show(1440)
    await browser.allow_scripts(allowed=False)
    try:
        await browser.open(url)
        text = str(await browser.evaluate("document.body.innerText"))
    finally:
        await browser.allow_scripts(allowed=True)
    assert "over-share" in text
    assert "GPU 1 was lost" in text
    assert "as of" in text


async def test_flags_rows_and_details_are_reached_by_the_keyboard(browser: Browser, url: str) -> None:
    await browser.show(1440)
    await browser.open(url)
    reached = []
    for _ in range(9):
        await press(browser, "Tab")
        reached.append(
            await browser.evaluate(
                "document.activeElement.getAttribute('href') ?? document.activeElement.localName"
            )
        )
    assert reached[:5] == ["#risks", "#flags", "metrics", "api/v1/shares", "#key"]
    gpu, row = (f"document.getElementById({json.dumps(each.removeprefix('#'))})" for each in reached[5:7])
    assert await browser.evaluate(f"{gpu}.localName") == "section"
    assert await browser.evaluate(f"[{row}.localName, {row}.querySelectorAll('th.pod').length]") == ["tr", 1]
    await browser.evaluate("document.querySelector('.flags .runbook').focus()")
    await press(browser, "Tab")
    assert await browser.evaluate("document.activeElement.localName") == "summary"
    outline = await browser.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    await browser.evaluate("document.querySelector('.flags summary').focus()")
    await press(browser, "Enter")
    assert await browser.evaluate("document.querySelector('.flags details').open") is True


async def press(browser: Browser, key: str) -> None:
    code = {"Tab": 9, "Enter": 13}[key]
    text = {"text": "\r"} if key == "Enter" else {}
    common: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
    await browser.send("Input.dispatchKeyEvent", type="keyDown", **common, **text)
    await browser.send("Input.dispatchKeyEvent", type="keyUp", **common)


REBOUND = """<!doctype html><p>{}</p><script>
const asked = {{headers: {{"X-Forwarded-For": "10.0.0.1"}}}};
Promise.all(["/api/v1/shares", "/metrics", "/"].map(path => fetch(path, asked).then(answer => answer.status)))
    .then(statuses => document.querySelector("p").textContent = "seen " + statuses.join(" "));
</script>"""


async def test_a_page_whose_name_is_rebound_to_localhost_reads_nothing(browser: Browser) -> None:
    """The name resolves to the page's own server first, and then to the forwarded port, as for DNS rebinding.

    Chromium maps the name once, so a server in front hands out the page and passes everything else on.
    """
    status = Status(snapshot=None, attribution_ok=None)
    metrics = Metrics(node="node-1", is_simulated=True)
    port = HttpServer(
        status=lambda: status, unhealthy_reason=str, metrics=metrics, node="node-1", is_simulated=True,
        log=JsonLog(io.BytesIO()),
    )  # fmt: skip
    agent = await port.start(Address("127.0.0.1", 0))
    heads: list[bytes] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET /attack "):
                page = REBOUND.format("nothing").encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n")
                writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(page), page))
            else:
                heads.append(head)
                behind, to_agent = await asyncio.open_connection(agent.host, agent.port)
                to_agent.write(head.replace(b"Connection: keep-alive", b"Connection: close"))
                writer.write(await behind.read())
                to_agent.close()
            await writer.drain()
        except asyncio.IncompleteReadError:
            pass  # the browser opened a connection ahead of need
        finally:
            writer.close()

    front = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    try:
        number = front.sockets[0].getsockname()[1]
        await browser.open(f"http://evil.example:{number}/attack")
        await browser.until("document.querySelector('p').textContent.startsWith('seen')")
        assert await browser.evaluate("document.querySelector('p').textContent") == "seen 421 421 421"
        forged = [head for head in heads if b"X-Forwarded-For: 10.0.0.1" in head]
        assert len(forged) >= 3, "a page may add the header to its own requests"
        assert all(b"Accept-Language" in head and b"Host: evil.example" in head for head in forged)
    finally:
        await browser.open("about:blank")
        front.close()
        await port.stop()
