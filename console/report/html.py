"""Formats a report as one self-contained HTML page. Pure functions."""

from collections.abc import Iterator
from html import escape

from console.html_page import as_page
from console.report.rows import Report
from console.report.text import MARK, cells_of, headings, remarks

_STYLE = """
div { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: .3rem .5rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
td { overflow-wrap: anywhere; }
.figure { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.marked { font-weight: bold; color: var(--share); }
.total td { font-weight: bold; }
@media (max-width: 60rem) {
  thead { display: none; }
  tr { display: flex; flex-wrap: wrap; padding: .5rem 0; border-bottom: 1px solid var(--line); }
  td, .figure { border: 0; padding: .1rem 1rem .1rem 0; text-align: left; }
  td:empty { display: none; }
  td::before { content: attr(data-name) " "; color: var(--faint); font-weight: normal; }
  .total td:first-child::before { content: none; }
}
"""


def as_html(report: Report, period: str) -> str:
    """Format the report as a page.

    Args:
        report: the report.
        period: the time that it covers, as text.
    """
    return "".join(as_page("GPU-hours", _STYLE, _body(report, period)))


def _body(report: Report, period: str) -> Iterator[str]:
    names, figures = headings(report)
    yield f'<h1>GPU-hours</h1>\n<p class="faint">{escape(period)}</p>\n'
    yield '<div role="region" aria-label="GPU-hours" tabindex="0"><table>\n<thead><tr>'
    yield from (f'<th scope="col">{escape(name)}</th>' for name in names)
    yield from (f'<th scope="col" class="figure">{escape(name)}</th>' for name in figures)
    yield "</tr></thead>\n<tbody>\n"
    for number, (own, values) in enumerate(cells_of(report)):
        yield "<tr>" if number < len(report.rows) else '<tr class="total">'
        yield from map(_cell, names, own)
        yield from map(_figure, figures, values)
        yield "</tr>\n"
    yield "</tbody>\n</table></div>\n"
    yield from (f"<p>{escape(sentence)}</p>\n" for sentence in remarks(report))


def _cell(name: str, value: str, kind: str = "") -> str:
    return f'<td{kind} data-name="{escape(name)}">{escape(value)}</td>'


def _figure(name: str, value: str) -> str:
    return _cell(name, value, f' class="figure{" marked" if value.endswith(MARK) else ""}"')
