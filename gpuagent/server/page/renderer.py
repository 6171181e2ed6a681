"""Renders the page by the templates beside this module, once for each evaluation.

Jinja2 escapes every value, and the headers forbid inline styles and scripts.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gpuagent.evaluation.status import Status
from gpuagent.server.api import response_of
from gpuagent.server.exposition import Key, content_key
from gpuagent.server.page import drawings
from gpuagent.server.page.drawings import SHARE_AT
from gpuagent.server.page.page_links import NO_LINKS, PageLinks, runbook_texts
from gpuagent.server.page.page_top import PageTop, flag_count, page_top, risk_count
from gpuagent.server.page.sections import COLOURS, Context, SectionOutline, anchor, clock_time, gpu_sections
from gpuagent.table.gpu_rows import LONGEST_NAME, plain
from service.http.page_server import Page, SharedText
from service.tasks import LoopYield
from service.text import counted
from service.units import duration
from service.version import version

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
STATIC: Final = Path(__file__).parent / "static"
"""Folder of `page.css` and `page.js`."""
_TEMPLATES: Final = Path(__file__).parent / "templates"

_HTML: Final = {**HEADERS, "Content-Type": "text/html; charset=utf-8"}
_PLACE: Final = "\0"
"""Stands for the content in the page around it. No text contains it, since it is not printable."""


class PageRenderer:
    """Renders the page. Not thread-safe: use it in the event loop.

    The content is rendered once for each evaluation and shared by all viewers, also those that ask at the
    same time. The page around it is rendered once for each second of its age. Sections are rendered one after
    the other, so that the rows of one GPU are in memory at a time.
    """

    def __init__(
        self, *, node: str, is_simulated: bool, interval: float, links: PageLinks = NO_LINKS
    ) -> None:
        """Compile the templates, if this is the first renderer; `interval` is the seconds between reloads."""
        environment = _environment()
        self._page_template = environment.get_template("page.html")
        self._top_template = environment.get_template("top.html")
        self._gpu_template = environment.get_template("gpu.html")
        self._runbooks_template = environment.get_template("runbooks.html")
        self._key = environment.get_template("key.html").render().encode()
        self._links = links
        self._runbook_texts = {} if links.runbooks else runbook_texts()
        self._other_nodes = links.other_nodes(node)
        self._node = plain(node, LONGEST_NAME)
        self._is_simulated = is_simulated
        self._interval = max(interval, 1.0)
        self._content: tuple[Key, SharedText] | None = None
        self._page: tuple[Key, Page] | None = None
        self._lock = asyncio.Lock()
        """Held while the content is rendered; concurrent viewers wait for it."""

    async def page(self, status: Callable[[], Status], *, now: Callable[[], float]) -> Page:
        """Return the page; other tasks run while it is rendered.

        Args:
            status: returns the current status. It is called after the wait for another viewer's rendering.
            now: returns Unix seconds.
        """
        async with self._lock:
            current = status()
            loop_yield = LoopYield()
            for _ in self._steps(current):
                await loop_yield.maybe_yield()
            return self._page_at(current, now())

    def render(self, status: Status, *, now: float) -> Page:
        """Return the page at a Unix time, without a pause."""
        for _ in self._steps(status):
            pass
        return self._page_at(status, now)

    def _steps(self, status: Status) -> Iterator[None]:
        """Render the content step by step, unless this evaluation has been rendered."""
        key = content_key(status)
        if self._content is not None and self._content[0] == key:
            return
        self._content = self._page = None
        response = response_of(status, node=self._node, is_simulated=self._is_simulated)
        yield
        context = Context(status, response)
        yield
        outlines: list[SectionOutline] = []
        sections: list[bytes] = []
        for section in gpu_sections(context):
            yield
            if section is None:
                continue
            outlines.append(section.outline)
            pieces = bytearray()
            for piece in self._gpu_template.generate(gpu=section):
                pieces += _encoded(piece)
                yield
            sections.append(bytes(pieces))
        top = page_top(context, outlines, self._links)
        sections.append(_encoded(self._runbooks(top)))
        self._content = key, SharedText(_encoded(self._top_template.render(top=top)), *sections, self._key)

    def _runbooks(self, top: PageTop) -> str:
        """Return the texts of the runbooks that the top names; empty if they have an address."""
        texts = [(name, anchor("runbook", name), self._runbook_texts.get(name)) for name in top.runbooks]
        sections = [section for section in texts if section[2]]
        return self._runbooks_template.render(sections=sections) if sections else ""

    def _page_at(self, status: Status, now: float) -> Page:
        """Return the page with the rendered content."""
        sample_key, content = self._content or ((), SharedText())
        sampled_at = status.good_wall_time
        age = 0 if sampled_at is None else int(max(now - sampled_at, 0))
        key = (sample_key, age)
        if self._page is not None and self._page[0] == key:
            return self._page[1]
        text = self._page_template.render(
            node=self._node,
            other_nodes=self._other_nodes,
            runbooks=self._links.runbooks,
            is_simulated=self._is_simulated,
            interval=f"{self._interval:g}",
            age=age,
            age_text="no sample yet" if sampled_at is None else f"as of {duration(age)} ago",
            sampled_at="" if sampled_at is None else clock_time(sampled_at, now),
            title=_title(status, self._node),
            risks=f"{counted(risk_count(status), 'GPU')} at risk" if risk_count(status) else "",
            flags=None if status.snapshot is None else counted(flag_count(status), "flag"),
            has_flags=bool(flag_count(status)),
            driver=plain(status.driver_version),
            version=version(),
            content=_PLACE,
        )
        before, _, after = text.partition(_PLACE)
        page = Page(body=content, before=_encoded(before), after=_encoded(after), headers=_HTML)
        self._page = key, page
        return page


@cache
def _environment() -> Environment:
    """Return the compiled templates."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals |= {
        "share_at": f"{SHARE_AT:.2f}%",
        "past": drawings,
        "colours": COLOURS,
    }
    for name in environment.list_templates():
        environment.get_template(name)  # an included template would be compiled for the first viewer
    return environment


def _encoded(text: str) -> bytes:
    return text.encode(errors="replace")


def _title(status: Status, node: str) -> str:
    if status.snapshot is None:
        return f"{node}: no figures"
    risks, flags = risk_count(status), counted(flag_count(status), "flag")
    return f"{node}: {counted(risks, 'GPU')} at risk, {flags}" if risks else f"{node}: {flags}"
