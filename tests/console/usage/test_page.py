"""The pages of `advise` and `report`, in Chromium and as text."""

import re
from array import array
from pathlib import Path
from typing import Any

import pytest

from console.usage.advice import KnownNamespace
from console.usage.advise import as_html
from console.usage.pod_use import Peaks, PodUse, Window
from console.usage.report import FIGURES, Report, build_report, row_labels
from console.usage.report import as_html as as_report_page
from console.usage.suggestions import Strategy
from tests.console.usage.test_report import H100, T4, report
from tests.console.usage.test_suggestions import pod
from tests.support.browser import CHROMIUM, Browser
from webhook.policy.labels import PolicyMetadata

GIB = 1 << 30
END = 1_767_225_600.0
WINDOW = Window(start=END - 14 * 86400, end=END)


def use(uid: str, *, gap: bool = False, **names: Any) -> PodUse:
    """Return a pod's use that rises and falls every day."""
    hours = [hour for hour in range(336) if not (gap and 100 < hour < 160)]
    peaks = [(14 + 6 * abs(12 - hour % 24) / 12) * GIB for hour in hours]
    seconds = len(hours) * 3600.0
    return pod(
        uid, **names, seconds=seconds, known_seconds=seconds, expected_seconds=END - WINDOW.start, first=WINDOW.start,
        last=END, quantile_bytes=19.5 * GIB, low_bytes=14.0 * GIB,
        peaks=Peaks(array("d", (WINDOW.start + 3600 * (hour + 1) for hour in hours)), array("d", peaks)),
    )  # fmt: skip


def advice_page() -> str:
    labels = {
        "kai.scheduler/queue": "team", "size.kaishare.dev/small": "0.5", "size.kaishare.dev/serve": "0.25",
    }  # fmt: skip
    metadata = PolicyMetadata(labels)
    uses = [
        use("a"), use("b", gap=True), use("c", size="serve", share="0.25"), use("d", size="", share="0.1"),
    ]  # fmt: skip
    advice = Strategy().advise(uses, {"team": KnownNamespace(metadata, metadata.policy("team"))})
    return as_html(advice, Strategy(), WINDOW)


def elements(page: str) -> list[tuple[str, str]]:
    """Return the names of all elements, and their attributes as text; all other texts are escaped."""
    return re.findall(r"<(\w+)\b([^<>]*)>", page)


def test_each_row_has_a_picture_that_a_gap_interrupts() -> None:
    page = advice_page()
    assert page.count("<svg ") == 3
    areas = [attributes for name, attributes in elements(page) if name == "path"]
    assert len(areas) == 3  # the other pod of the size has values in the gap
    assert all(re.fullmatch(r' d="M[^"]*Z"', area) for area in areas)
    alone = as_html(Strategy().advise([use("b", gap=True)], None), Strategy(), WINDOW)
    assert alone.count("<path ") == 2


def test_every_text_is_escaped_also_in_a_page_without_rows() -> None:
    advice = Strategy().advise([], {}, dropped=2, remarks=['<script>alert(1)</script> & "quotes"'])
    page = as_html(advice, Strategy(), WINDOW)
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;quotes&quot;" in page
    assert "Dropped: 2 pods" in page
    assert page.endswith("</html>\n")


def wide_report() -> Report:
    """Return a report with the longest names, of a workload in a vCluster."""
    names = {
        "namespace": "vcluster-of-the-team-for-inference", "vcluster": "inference-of-team-vision",
        "virtual_namespace": "production-inference-services", "workload_kind": "StatefulSet",
        "workload": "a" * 200, "model": H100,
    }  # fmt: skip
    sums = {figure: [(names, 100_000.0)] for figure in FIGURES}
    return build_report(sums, row_labels(["workload"]), prices={H100: 2.5}, currency="EUR")


PAGES = {
    "advice": advice_page,
    "report": lambda: as_report_page(
        report("namespace", "workload", prices={T4: 2.0}, period="1 May to 1 June")
    ),
    "wide report": lambda: as_report_page(wide_report()),
}
OUTSIDE = (
    "[...document.querySelectorAll('td')].filter(cell => cell.getBoundingClientRect().right > innerWidth)"
)
FIGURE = "document.querySelector('.figure[data-name=promised]')"


@pytest.mark.parametrize("name", PAGES)
def test_page_loads_nothing(name: str) -> None:
    text = PAGES[name]()
    assert {"script", "link", "img", "iframe", "object", "use"}.isdisjoint(dict(elements(text)))
    assert not any(re.search(r"\s(src|href|style|on\w+)=", attributes) for _, attributes in elements(text))
    assert not any(word in text for word in ("url(", "@import", "{{", "}}"))
    assert "default-src 'none'" in text
    assert text.endswith("</html>\n")


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="NOT VERIFIED: Chromium is not installed")
async def test_pages_in_chromium(tmp_path: Path) -> None:
    """On a telephone and on a screen all is inside the window; between them a wide table scrolls."""
    async with Browser.started(tmp_path / "profile") as browser:
        for name, page in PAGES.items():
            file = tmp_path / f"{name}.html"
            file.write_text(page())
            for width in (390, 1000, 1440):
                for is_dark in (False, True):
                    await browser.show(width, is_dark=is_dark)
                    await browser.open(file.as_uri())
                    assert await browser.evaluate("document.documentElement.scrollWidth") <= width
                    paper = await browser.evaluate("getComputedStyle(document.body).backgroundColor")
                    assert paper == ("rgb(19, 20, 24)" if is_dark else "rgb(255, 255, 255)")
                    (tmp_path / f"{name}-{width}-{is_dark}.png").write_bytes(await browser.picture())
                    if name == "advice":
                        areas = "[...document.querySelectorAll('svg path')].map(area => area.getBoundingClientRect().width)"
                        widths = await browser.evaluate(areas)
                        assert len(widths) == 3
                        assert min(widths) > 200
                        continue
                    assert width == 1000 or await browser.evaluate(f"{OUTSIDE}.length") == 0
                    named = await browser.evaluate(f"getComputedStyle({FIGURE}, '::before').content")
                    assert named == ("none" if width > 960 else '"promised "')
        assert not browser.complaints
