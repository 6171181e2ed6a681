"""The built site in Chromium: no page is wider than its window, and no script or picture is missing."""

import asyncio
import functools
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import CHROMIUM, Browser
from tests.support.doc_blocks import ROOT

SITE = ROOT / ".site" / "html"
OVERFLOWS = """(() => {
  const scrolls = (element) => ["auto", "scroll", "hidden"].includes(getComputedStyle(element).overflowX);
  const isKept = (element) => {
    for (let above = element.parentElement; above && above !== document.body; above = above.parentElement)
      if (scrolls(above)) return true;
    return false;
  };
  const wide = [...document.querySelectorAll(".md-content *")]
    .filter((element) => element.getBoundingClientRect().right > innerWidth + 1 && !isKept(element))
    .map((element) => `${element.tagName}: ${element.textContent.slice(0, 40)}`);
  const lost = [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src);
  return JSON.stringify({wide: wide.slice(0, 3), lost, width: document.documentElement.scrollWidth});
})()"""

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    if not (SITE / "index.html").is_file():
        pytest.skip("NOT VERIFIED: .site/html does not exist; run make site first")
    if CHROMIUM is None:
        pytest.skip("NOT VERIFIED: there is no Chromium")
    handler = functools.partial(QuietHandler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("width", [390, 1280])
async def test_no_page_is_wider_than_its_window(width: int, address: str, tmp_path: Path) -> None:
    pages = sorted(page.parent.relative_to(SITE) for page in SITE.rglob("index.html"))
    assert len(pages) > 30
    problems = {}
    async with Browser.started(tmp_path) as browser:
        await browser.show(width, is_dark=width == 390)
        for page in pages:
            browser.complaints.clear()
            await browser.open(address + ("" if page == Path() else f"{page}/"))
            await asyncio.sleep(0.1)
            look = json.loads(await browser.evaluate(OVERFLOWS))
            if look["wide"] or look["lost"] or look["width"] > width or browser.complaints:
                problems[str(page)] = (look, list(browser.complaints))
    assert problems == {}
