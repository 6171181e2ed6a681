"""The page in a real browser: its policy blocks nothing of its own, and it renews itself."""

import asyncio
import io
import shutil
import time
from pathlib import Path

import pytest

from gpuagent.server.metrics import Metrics
from gpuagent.server.server import HttpServer
from gpuagent.status import Status
from service.http.listeners import Address
from service.log import JsonLog
from tests.support.samples import GIB, gpu, in_pod, pod_share, sample, snapshot_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="NOT VERIFIED: Chromium is needed (apt-get install chromium)"
)


async def seen_by_the_browser(url: str, folder: Path, *options: str) -> tuple[str, str]:
    """The page's document some seconds after it was opened, and what the browser complained about."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}",
        "--enable-logging=stderr", "--virtual-time-budget=6000", "--dump-dom", *options, url,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, errors = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return out.decode(), errors.decode(errors="replace")


async def test_the_page_renews_itself_and_breaks_no_policy(tmp_path: Path) -> None:
    requests = 0

    def status() -> Status:
        nonlocal requests
        requests += 1
        taken = sample(gpu((1, GIB)), origins={1: in_pod("a-pod")})
        snapshot = snapshot_of(taken, pod_share("a-pod", GIB, queue=f"asked-{requests}"))
        return Status(snapshot=snapshot, attribution_ok=True, good_wall_time=time.time())

    metrics = Metrics(status, node="node-1", is_simulated=True)
    port = HttpServer(
        status=status, unhealthy_reason=str, metrics=metrics, node="node-1", is_simulated=True,
        log=JsonLog(io.BytesIO()), interval=1.0,
    )  # fmt: skip
    address = await port.start(Address("127.0.0.1", 0))
    try:
        document, complaints = await seen_by_the_browser(f"http://{address}/", tmp_path)
        assert "a-pod" in document
        assert requests > 2
        assert "asked-1<" not in document
        assert "Content Security Policy" not in complaints
        assert "Uncaught" not in complaints
    finally:
        await port.stop()


REBOUND = """<!doctype html><p>{}</p><script>
const asked = {{headers: {{"X-Forwarded-For": "10.0.0.1"}}}};
Promise.all(["/api/v1/shares", "/metrics", "/"].map(path => fetch(path, asked).then(answer => answer.status)))
    .then(statuses => document.querySelector("p").textContent = "seen " + statuses.join(" "));
</script>"""


async def test_a_page_whose_name_is_rebound_to_localhost_reads_nothing(tmp_path: Path) -> None:
    """The name resolves to the page's own server first, and then to the forwarded port, as for DNS rebinding.

    Chromium maps the name once, so a server in front hands out the page and passes everything else on.
    """
    status = Status(snapshot=None, attribution_ok=None)
    metrics = Metrics(lambda: status, node="node-1", is_simulated=True)
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
        finally:
            writer.close()

    front = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    try:
        number = front.sockets[0].getsockname()[1]
        rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"
        document, _ = await seen_by_the_browser(f"http://evil.example:{number}/attack", tmp_path, rules)
        assert "seen 421 421 421" in document
        forged = [head for head in heads if b"X-Forwarded-For: 10.0.0.1" in head]
        assert len(forged) >= 3, "a page may add the header to its own requests"
        assert all(b"Accept-Language" in head and b"Host: evil.example" in head for head in forged)
    finally:
        front.close()
        await port.stop()
