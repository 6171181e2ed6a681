"""The agent's page in a real browser: an incident, hostile names, its policy, every screen, and axe's findings."""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import pytest_asyncio

from gpuagent.evaluation.history import History
from gpuagent.evaluation.status import Evaluation
from gpuagent.first_acts import FOR_FLAG, FOR_GPU_AT_RISK, FOR_OVERPROMISED_GPU
from gpuagent.gpus.gpu_reading import LostGpu
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.pods.file_pods import FilePods
from gpuagent.problems import Cause, Problem
from gpuagent.server.agent_server import HttpServer
from gpuagent.server.api import NO_LINKS, PageLinks
from gpuagent.server.exposition import Metrics
from gpuagent.verdicts.flagging import Judge
from service.http.limits import Address
from service.log import JsonLog
from tests.support.browser import CHROMIUM, Browser
from tests.support.driver_chain import Chain
from tests.support.markers import nightly
from tests.support.samples import GIB, A, B, gpu, in_pod, pod, pod_share, sample, snapshot_of, with_limit
from tests.support.scenarios import SCENARIOS
from tests.support.scenarios.loading import load_scenario
from tests.support.scenarios.source import ScenarioGpus

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="NOT VERIFIED: Chromium is needed (apt-get install chromium)"),
    pytest.mark.asyncio(loop_scope="module"),
]  # fmt: skip

LONG = "a-pod-with-a-name-as-long-as-kubernetes-permits-" + "x" * 205
SCENARIO = SCENARIOS / "incident.yaml"
SCHEMES = pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    folder = tmp_path_factory.mktemp("browser")
    async with Browser.started(folder, "--host-resolver-rules=MAP evil.example 127.0.0.1") as browser:
        yield browser


@asynccontextmanager
async def served(status: Callable[[], Evaluation], links: PageLinks = NO_LINKS) -> AsyncIterator[Address]:
    """An agent's server over the status that a function returns."""
    port = HttpServer(
        status=status, unhealthy_reason=str, metrics=Metrics(node="node-1", is_simulated=True),
        node="node-1", is_simulated=True, log=JsonLog(io.BytesIO()), page_links=links,
    )  # fmt: skip
    address = await port.start(Address("127.0.0.1", 0))
    try:
        yield address
    finally:
        await port.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    numbers = count(1)
    async with served(lambda: incident(next(numbers))) as address:
        yield f"http://{address}/"


def incident(number: int) -> Evaluation:
    """Return a node with everything that the page can show, with another queue at each call."""
    judge, history = Judge(grace=60, interval=60, longest_gap=1000), History(interval=5)
    for at in (number + 0.0, number + 15.0, number + 45.0, number + 90.0):
        snapshot = _sampled(number, at)
        verdicts, _ = judge.judge(snapshot)
        history.record(snapshot)
    return Evaluation(
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
    missing = Problem(Cause.GPU_MISSING, "", "the node's label nvidia.com/gpu.count says 3")
    return replace(snapshot, lost_gpus=(LostGpu(1, B, "NVIDIA A10"),), problems=(missing,))


def node_in_trouble(seconds: int) -> Chain:
    """Return the node of the example some seconds after its start, with a sample every 5 s."""
    now = 1_800_000_000.0
    source = ScenarioGpus(scenario=load_scenario(SCENARIO), clock=lambda: now)
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
async def in_trouble() -> AsyncIterator[str]:
    """The address of the page of the example's incident."""
    status = replace(node_in_trouble(150).books.status(), good_wall_time=time.time())
    links = PageLinks(runbooks="https://git.example.com/k/", fleet="https://g.example.com/d?var-node={node}")
    async with served(lambda: status, links) as address:
        yield f"http://{address}/"


async def show(browser: Browser, url: str, **screen: Any) -> None:
    """Open the page and wait for its figures."""
    await browser.show(**{"width": 1280, "height": 800, **screen})
    await browser.open("about:blank")
    await browser.open(url)
    await browser.until("document.querySelector('#rows tr')")


async def open_pod(browser: Browser, name: str) -> None:
    """Click on the row of a pod, and wait for its figures and its course."""
    row = f"[...document.querySelectorAll('#rows tr')].find(row => row.textContent.includes({json.dumps(name)}))"
    await browser.evaluate(f"{row}.click()")
    await browser.until("document.querySelector('dialog[open] figure')")


@SCHEMES
async def test_the_first_screen_explains_incidents(browser: Browser, in_trouble: str, is_dark: bool) -> None:
    await show(browser, in_trouble, is_dark=is_dark)
    visible = str(
        await browser.evaluate(
            """[...document.querySelectorAll("header *, #troubles *, #gpus h3")]
            .filter(each => each.getBoundingClientRect().bottom < 800).map(each => each.textContent).join("\\n")"""
        )
    )
    assert "simulated" in visible
    assert "2 GPUs at risk" in visible
    assert "Caused by team-vision/train-resnet-6b7f9d5c44-x2x7k (6.0 GiB above its share)" in visible
    assert "At risk: team-science/notebook-ben" in visible
    assert f"First: {FOR_GPU_AT_RISK.text}" in visible
    assert f"First: {FOR_OVERPROMISED_GPU.text}" in visible, "no pod is above its share there"
    assert f"First: {FOR_FLAG['over-share'].text}" in visible
    assert "kaishare why -n team-vision train-resnet-6b7f9d5c44-x2x7k" in visible
    assert "GPU 3" in visible
    runbook = "document.querySelector('#troubles .act a').href"
    assert (
        await browser.evaluate(runbook)
        == "https://git.example.com/k/docs/runbooks.md#kaisharegpuoverpromised"
    )
    assert "var-node=node-1" in await browser.evaluate("document.querySelector('#links a').href")


async def test_a_click_shows_a_pods_course_and_esc_closes_it(browser: Browser, in_trouble: str) -> None:
    await show(browser, in_trouble)
    await open_pod(browser, "train-resnet")
    text = str(await browser.evaluate("document.querySelector('dialog[open]').innerText"))
    assert f"First: {FOR_FLAG['over-share'].text}" in text
    assert "Peak 24.0 GiB in the last 15 min, share 18.0 GiB." in text
    assert "18.0 GiB (bind-request)" in text
    assert "gpu-fraction 0.4" in text
    assert (await browser.evaluate("document.querySelector('path.used').getAttribute('d')")).count("L") >= 3
    await press(browser, "Escape")
    await browser.until("!document.querySelector('dialog[open]') && location.hash === ''")
    await browser.evaluate("history.back()")
    await browser.until("document.querySelector('dialog[open]')")


async def test_the_keyboard_reaches_the_filter_and_every_pod(browser: Browser, in_trouble: str) -> None:
    await show(browser, in_trouble)
    await press(browser, "/")
    assert await browser.evaluate("document.activeElement.id") == "filter"
    await browser.send("Input.insertText", text="TEAM-LLM qwen-small")
    await browser.until("document.querySelectorAll('#rows tr').length === 1")
    await press(browser, "Tab")
    assert "qwen-small" in await browser.evaluate("document.activeElement.textContent")
    assert await browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    await press(browser, "Enter")
    await browser.until("document.querySelector('dialog[open]')")
    assert await browser.evaluate("document.querySelector('dialog').contains(document.activeElement)")
    await press(browser, "Escape")


@SCHEMES
@pytest.mark.parametrize("width", [390, nightly(1280), 1920])
async def test_axe_has_no_findings_and_nothing_overflows(
    browser: Browser, url: str, in_trouble: str, width: int, is_dark: bool
) -> None:
    for address, name in ((url, "a-pod-with"), (in_trouble, "train-resnet")):
        await show(browser, address, width=width, is_dark=is_dark)
        assert await browser.evaluate("document.documentElement.scrollWidth") <= width
        assert await browser.axe_violations() == []
        await open_pod(browser, name)
        assert await browser.axe_violations() == []
        dialog = "document.querySelector('dialog')"
        assert await browser.evaluate(f"{dialog}.scrollWidth <= {dialog}.clientWidth")


async def test_the_page_renews_itself_and_breaks_no_policy(browser: Browser, url: str) -> None:
    browser.complaints.clear()
    await show(browser, url, width=1440)
    queue = "document.querySelector('#rows td:nth-child(5)').textContent"
    first = await browser.evaluate(queue)
    await browser.evaluate("document.querySelector('#rows a').focus()")
    await browser.until(f"{queue} !== {json.dumps(first)}")
    assert await browser.evaluate("document.activeElement.closest('#rows') !== null"), "the focus stays"
    assert list(browser.complaints) == []


async def test_the_title_of_old_figures_says_so(browser: Browser, url: str) -> None:
    await show(browser, url)
    await browser.send("Network.enable")
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    await browser.send("Network.emulateNetworkConditions", offline=True, **offline)
    try:
        await browser.until("document.title.startsWith('OLD: node-1: ')")
        assert await browser.evaluate("document.querySelector('#banner').innerText.startsWith('No answer: ')")
        assert await browser.evaluate("document.querySelectorAll('#rows tr').length") > 5, "figures stay"
    finally:
        await browser.send("Network.emulateNetworkConditions", offline=False, **offline)
    await browser.until("document.title.startsWith('node-1: ')")
    browser.complaints.clear()


async def test_without_javascript_the_page_names_the_command(browser: Browser, url: str) -> None:
    await browser.allow_scripts(allowed=False)
    try:
        await browser.open(url)
        text = str(await browser.evaluate("document.body.innerText"))
    finally:
        await browser.allow_scripts(allowed=True)
    assert "This page needs JavaScript. In a terminal, type kaishare top." in text


HOSTILE = [
    "<img src=x onerror=alert(1)>", "</td><script>alert(1)</script>", "\u202egnp.exe", "a\x00\x1b[31m\u200bb", "__proto__",
    "constructor", "z\u0336" * 300, "javascript:alert(1)", "\U0001f469\u200d\U0001f4bb", "x" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
async def test_no_text_is_markup_and_no_character_acts(browser: Browser, in_trouble: str, text: str) -> None:
    """Every text of a document is replaced."""
    await show(browser, in_trouble)
    browser.complaints.clear()
    script = f"""(async () => {{
      const [model, view] = [await import("./model.js"), await import("./view.js")];
      const spoiled = (value, key) => Array.isArray(value) ? value.map(each => spoiled(each, key))
        : value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([name, each]) => [name, spoiled(each, name)]))
        : typeof value === "string" && !["uid", "gpuUuid", "uuid", "gpuUuids"].includes(key) ? {json.dumps(text)} : value;
      const answer = spoiled(await (await fetch("api/v1/shares")).json());
      const node = model.readNode({{ node: answer.node, answer, failure: {json.dumps(text)}, firstAct: {json.dumps(text)} }}, 0);
      const troubles = model.troublesOf([node, {{ ...node, name: "b" }}]);
      const row = node.rows[0];
      document.querySelector("main").replaceChildren(...troubles.map(each => view.troubleItem(each, true, {json.dumps(text)})),
        ...node.gpus.map(view.gpuCard), view.nodeCard(node), view.podRow(row, true), ...view.podDetails([row], null, {json.dumps(text)}, true));
      const links = [...document.querySelectorAll("main a")].map(each => each.getAttribute("href")[0]);
      return [document.querySelectorAll("main img, main script").length, [...new Set(links)].join(), document.querySelector("main").textContent];
    }})()"""
    markup, links, page = await browser.evaluate(script)
    assert (markup, links) == (0, "#")
    assert all(char.isprintable() and (ord(char) < 0x250 or char in "…\ufffd") for char in page)
    assert ("kaishare why" in page) is (text == "constructor"), "the command is for a shell"
    assert list(browser.complaints) == []


async def press(browser: Browser, key: str) -> None:
    code = {"Tab": 9, "Enter": 13, "Escape": 27, "/": 191}[key]
    text = {"text": {"Enter": "\r"}.get(key, key)} if key in ("Enter", "/") else {}
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
    status = Evaluation(snapshot=None, attribution_ok=None)
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

    async with served(lambda: status) as agent, await asyncio.start_server(pass_on, "127.0.0.1", 0) as front:
        number = front.sockets[0].getsockname()[1]
        await browser.open(f"http://evil.example:{number}/attack")
        await browser.until("document.querySelector('p').textContent.startsWith('seen')")
        assert await browser.evaluate("document.querySelector('p').textContent") == "seen 421 421 421"
        forged = [head for head in heads if b"X-Forwarded-For: 10.0.0.1" in head]
        assert len(forged) >= 3, "a page may add the header to its own requests"
        assert all(b"Accept-Language" in head and b"Host: evil.example" in head for head in forged)
        await browser.open("about:blank")
