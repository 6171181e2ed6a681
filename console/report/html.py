"""Formats a report as one self-contained HTML page. Pure functions."""

from collections.abc import Iterator
from html import escape

from console.report.rows import Report
from console.report.text import MARK, cells_of, headings, remarks

_HEAD = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>GPU-hours</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem; }
div { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: 0.3rem 0.5rem; white-space: nowrap; border-bottom: 1px solid #8886; }
th { text-align: left; }
.figure { text-align: right; font-variant-numeric: tabular-nums; }
.marked { font-weight: bold; }
tr.total td { font-weight: bold; }
</style>
</head>
<body>
<h1>GPU-hours</h1>
"""


def as_html(report: Report, period: str) -> str:
    """Format the report as a page.

    Args:
        report: the report.
        period: the time that it covers, as text.
    """
    return "".join(_lines(report, period))


def _lines(report: Report, period: str) -> Iterator[str]:
    names, figures = headings(report)
    yield _HEAD
    yield f"<p>{escape(period)}</p>\n<div><table>\n<thead><tr>"
    yield from (f'<th scope="col">{escape(name)}</th>' for name in names)
    yield from (f'<th scope="col" class="figure">{escape(name)}</th>' for name in figures)
    yield "</tr></thead>\n<tbody>\n"
    for number, (own, values) in enumerate(cells_of(report)):
        yield "<tr>" if number < len(report.rows) else '<tr class="total">'
        yield from (f"<td>{escape(cell)}</td>" for cell in own)
        for value in values:
            marked = " marked" if value.endswith(MARK) else ""
            yield f'<td class="figure{marked}">{escape(value)}</td>'
        yield "</tr>\n"
    yield "</tbody>\n</table></div>\n"
    yield from (f"<p>{escape(sentence)}</p>\n" for sentence in remarks(report))
    yield "</body>\n</html>\n"
