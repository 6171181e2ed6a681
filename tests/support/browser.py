"""A headless Chromium under test, driven by the DevTools protocol over a websocket."""

import asyncio
import base64
import importlib.util
import itertools
import json
import os
import shutil
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_START_SECONDS = 60.0
_ANSWER_SECONDS = 60.0


class Browser:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.complaints: deque[str] = deque(maxlen=1000)
        """What the browser logged: errors of scripts, and violations of the content security policy."""

    @classmethod
    @asynccontextmanager
    async def started(cls, folder: Path, *options: str) -> AsyncIterator[Self]:
        assert CHROMIUM is not None
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--no-first-run", "--disable-extensions", "--disable-background-networking",
            "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={folder}", *options, "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            port = await _port(folder / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as response:
                    targets = await response.json()
                url = next(each["webSocketDebuggerUrl"] for each in targets if each["type"] == "page")
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    browser = cls(socket)
                    reading = asyncio.create_task(browser._read())
                    try:
                        for domain in ("Page", "Runtime", "Log"):
                            await browser.send(f"{domain}.enable")
                        yield browser
                    finally:
                        reading.cancel()
        finally:
            process.kill()
            await process.wait()

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        return await asyncio.wait_for(answer, _ANSWER_SECONDS)

    async def show(self, width: int, height: int = 900, *, is_dark: bool = False) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def open(self, url: str) -> None:
        self._loaded.clear()
        await self.send("Page.navigate", url=url)
        await asyncio.wait_for(self._loaded.wait(), _ANSWER_SECONDS)

    async def allow_scripts(self, *, allowed: bool) -> None:
        """Allow or forbid the page's scripts from the next page on."""
        await self.send("Emulation.setScriptExecutionDisabled", value=not allowed)

    async def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page; promises are awaited."""
        result = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, script: str, seconds: float = 20.0) -> None:
        look = (
            f"const timer = setInterval(() => {{ if ({script}) {{ clearInterval(timer); resolve(); }} }}, 50)"
        )
        await asyncio.wait_for(self.evaluate(f"new Promise((resolve) => {{ {look} }})"), seconds)

    async def axe_violations(self) -> list[Any]:
        """Return axe's findings on the page: rule and elements of each."""
        await self.evaluate(f"{_axe()}; 0")
        result = json.loads(
            await self.evaluate(
                "axe.run().then(result => JSON.stringify({passes: result.passes.length,"
                " violations: result.violations.map(each => [each.id, each.nodes.map(node => node.html)])}))"
            )
        )
        assert result["passes"] > 20
        violations: list[Any] = result["violations"]
        return violations

    async def picture(self) -> bytes:
        result = await self.send("Page.captureScreenshot", format="png")
        return base64.b64decode(result["data"])

    async def _read(self) -> None:
        async for message in self._socket:
            document = message.json()
            if "id" in document:
                answer = self._answers.pop(document["id"])
                if answer.done():
                    continue
                if "error" in document:
                    answer.set_exception(AssertionError(document["error"]))
                else:
                    answer.set_result(document["result"])
            elif document["method"] == "Page.loadEventFired":
                self._loaded.set()
            elif document["method"] in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.complaints.append(str(document["params"]))


def _axe() -> str:
    """Return axe-core: the file named by $AXE_CORE, or that of the package axe-core-python."""
    path = os.environ.get("AXE_CORE")
    if not path:
        package = importlib.util.find_spec("axe_core_python")
        if package is None or package.origin is None:
            pytest.skip(
                "NOT VERIFIED: axe-core is needed (pip install axe-core-python, or AXE_CORE=axe.min.js)"
            )
        path = str(Path(package.origin).with_name("axe.min.js"))
    return Path(path).read_text(encoding="utf-8")


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(_START_SECONDS):
        while True:
            assert process.returncode is None, f"Chromium ended with {process.returncode}"
            with suppress(FileNotFoundError, ValueError, IndexError):
                return _first_number(file)
            await asyncio.sleep(0.05)


def _first_number(file: Path) -> int:
    return int(file.read_text().splitlines()[0])
