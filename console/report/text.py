"""Formats a report: as a table for a terminal, JSON, CSV, and one self-contained HTML page. Pure."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

from console.html_page import as_page
from console.report.report_rows import Hours, Report
from console.text_table import column_widths, natural_widths, table_lines
from service.command import DEFAULT_COLUMNS
from service.text import counted, fold, listed, one_line

FIGURES: Final = ("promised", "used", "active", "idle", "over", "saved", "coverage", "activeCoverage", "cost")
_NAMES: Final = {"virtual_namespace": "virtualNamespace", "workload_kind": "workloadKind"}
_ATTRIBUTES: Final = {"activeCoverage": "active_coverage"}
_ACTS_IN_A_SPREADSHEET: Final = ("=", "+", "-", "@", "\t", "\r")


def as_json(report: Report) -> str:
    """Format the report as a JSON document in ASCII; unknown values are null."""
    document = {
        "rows": [
            {**_written(row.names), "model": row.model or None, **figures(row.hours)} for row in report.rows
        ],
        "totals": {
            **figures(report.total),
            "models": [{"model": model or None, **figures(hours)} for model, hours in report.models.items()],
        },
        "currency": report.currency or None,
        "unpriced": list(report.unpriced),
        "dropped": report.dropped,
        "remarks": list(report.remarks),
    }
    return json.dumps(document, indent=2) + "\n"


def as_csv(report: Report) -> str:
    """Format the rows as CSV, without totals; unknown values are empty cells.

    No cell acts as a formula in a spreadsheet: every name has the syntax of its kind.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*(_NAMES.get(label, label) for label in report.labels), "model", *FIGURES, "currency"])
    for row in report.rows:
        words = [*row.names.values(), row.model, report.currency]
        if any(word.startswith(_ACTS_IN_A_SPREADSHEET) for word in words):
            raise ValueError("a name has not been checked")
        writer.writerow([*words[:-1], *figures(row.hours).values(), words[-1]])
    return stream.getvalue()


def _written(names: Mapping[str, str]) -> dict[str, str | None]:
    return {_NAMES.get(label, label): name or None for label, name in names.items()}


def figures(hours: Hours) -> dict[str, float | None]:
    """Return the figures by their names in JSON and CSV, rounded."""
    values = {name: getattr(hours, _ATTRIBUTES.get(name, name)) for name in FIGURES}
    return {name: None if value is None else round(value, 4) for name, value in values.items()}


NONE: Final = "-"
MARK: Final = "!"
"""Beside figures that were known in less than 90 % of the time."""

_HEADINGS: Final = {"virtual_namespace": "in vcluster", "workload_kind": "kind"}
_OF_VCLUSTERS: Final = ("vcluster", "virtual_namespace")
_LEAST: Final = 8
"""Smallest width of a column of names."""


def headings(report: Report) -> tuple[list[str], list[str]]:
    """Return the headings of names and of figures."""
    names = [_HEADINGS.get(label, label) for label in _shown(report)]
    figures = ["promised", "used", "active", "idle", "over", "saved", "known"]
    if report.total.cost is not None:
        figures.append(f"cost {report.currency}".rstrip())
    return [*names, "model"], figures


def _shown(report: Report) -> list[str]:
    """Return the labels that are columns: those of vClusters only if there is one."""
    used = {label for row in report.rows for label, name in row.names.items() if name}
    return [label for label in report.labels if label not in _OF_VCLUSTERS or label in used]


def figure_cells(report: Report, hours: Hours) -> list[str]:
    """Return the cells of figures: hours, the known part of the time, and the cost if there are prices."""
    of_activity = "" if hours.is_active_covered else MARK
    values = (
        (hours.promised, ""), (hours.used, ""), (hours.active, of_activity), (hours.idle, of_activity),
        (hours.over, ""), (hours.saved, ""),
    )  # fmt: skip
    cells = [NONE if value is None else f"{value:.1f}{mark}" for value, mark in values]
    mark = "" if hours.is_covered else MARK
    cells.append(NONE + mark if hours.coverage is None else f"{int(hours.coverage * 100)}%{mark}")
    if report.total.cost is not None:
        cells.append(NONE if hours.cost is None else f"{hours.cost:.2f}")
    return cells


def cells_of(report: Report) -> Iterator[tuple[list[str], list[str]]]:
    """Yield names and figures of the rows, of each model if there are several, and of all."""
    labels = _shown(report)
    for row in report.rows:
        names = [row.names.get(label) or NONE for label in labels]
        yield [*names, row.model or NONE], figure_cells(report, row.hours)
    begin = ["total", *[""] * (len(labels) - 1)]
    if len(report.models) > 1:
        for model, hours in report.models.items():
            yield [*begin, model or NONE], figure_cells(report, hours)
    yield [*begin, ""], figure_cells(report, report.total)


def as_text(report: Report, *, columns: int = DEFAULT_COLUMNS) -> Iterator[str]:
    """Yield the lines of the table and the remarks.

    Args:
        report: the report.
        columns: largest width of a line.
    """
    names, figures = headings(report)
    rows: list[Sequence[str]] = [[heading.upper() for heading in (*names, *figures)]]
    rows += [[*own, *values] for own, values in cells_of(report)]
    least = [_LEAST] * len(names) + [0] * len(figures)
    widths = column_widths(rows, columns, least) or natural_widths(rows)
    yield from table_lines(rows, widths)
    yield ""
    for sentence in remarks(report):
        yield from fold(one_line(sentence, 1000), columns)


def remarks(report: Report) -> Iterator[str]:
    """Yield the sentences about the whole report."""
    yield "GPU-hours; over in hours of pods. known: part of the time in which the use was known."
    if any(cell.endswith(MARK) for _, cells in cells_of(report) for cell in cells):
        yield (
            f"{MARK} the use, or beside active and idle the utilisation, was known in less than 90 % of the"
            " time: the hours are too few, and are not scaled up."
        )
    yield from caveats(report)


def caveats(report: Report) -> Iterator[str]:
    """Yield the sentences on what the figures leave out, and how they were read."""
    if report.unpriced:
        yield f"No price for {listed(report.unpriced)}: the cost leaves these out."
    yield from report.remarks
    if report.dropped:
        yield (
            f"Dropped: {counted(report.dropped, 'row')} with names that no Kubernetes object can have, and"
            f" {report.dropped_promised:.1f} GPU-hours promised. The totals contain them."
        )


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
