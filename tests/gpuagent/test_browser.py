"""The page in a real browser: its policy blocks nothing of its own, and it renews itself."""

import asyncio
import io
import shutil
import time
from pathlib import Path

import pytest

from gpuagent.report.http import Port
from gpuagent.report.metrics import Metrics
from gpuagent.status import Status
from service.address import Address
from service.log import JsonLog
from tests.gpuagent.nodes import GIB, claim, gpu, in_pod, sample, snapshot_of

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="NOT VERIFIED: Chromium is needed (apt-get install chromium)"
)


async def seen_by_the_browser(url: str, folder: Path) -> tuple[str, str]:
    """The page's document some seconds after it was opened, and what the browser complained about."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}",
        "--enable-logging=stderr", "--virtual-time-budget=6000", "--dump-dom", url,
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
    asked = 0

    def status() -> Status:
        nonlocal asked
        asked += 1
        taken = sample(gpu((1, GIB)), origins={1: in_pod("a-pod")})
        snapshot = snapshot_of(taken, claim("a-pod", GIB, queue=f"asked-{asked}"))
        return Status(snapshot=snapshot, attribution_ok=True, good_wall_time=time.time())

    metrics = Metrics(status, node="node-1", is_simulated=True)
    port = Port(
        status=status, sickness=str, metrics=metrics, node="node-1", is_simulated=True,
        log=JsonLog(io.BytesIO()), interval=1.0,
    )  # fmt: skip
    address = await port.start(Address("127.0.0.1", 0))
    try:
        document, complaints = await seen_by_the_browser(f"http://{address}/", tmp_path)
        assert "a-pod" in document
        assert asked > 2
        assert "asked-1<" not in document
        assert "Content Security Policy" not in complaints
        assert "Uncaught" not in complaints
    finally:
        await port.stop()
