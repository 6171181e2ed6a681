"""Formats a report as a table for a terminal. Pure functions."""

from collections.abc import Iterator, Sequence
from typing import Final

from console.report.rows import Hours, Report
from service.command import DEFAULT_COLUMNS
from service.text import counted, fold, listed, one_line
from service.text_table import column_widths, natural_widths, table_lines

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
