"""Rows and totals of a report, with coverage and cost, as a table, JSON, CSV and one HTML page. Pure."""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from console.text_table import shown_widths, table_lines
from console.usage.page import render
from console.usage.pod_use import LEAST_KNOWN, are_names
from service.command import DEFAULT_COLUMNS
from service.names import is_gpu_model
from service.text import counted, fold, listed, one_line

FIGURES: Final = (
    "promised", "whole", "used", "used_known", "active", "active_known", "idle", "over", "expected",
)  # fmt: skip
"""Hours of each row: `whole` is promised if each pod had whole GPUs, `expected` the time between the first
and the last value of each pod, and `…_known` the part of it with a figure."""

LABELS: Final[Mapping[str, Sequence[str]]] = {
    "namespace": ("namespace", "vcluster", "virtual_namespace"),
    "queue": ("queue", "vcluster"),
    "workload": ("namespace", "vcluster", "virtual_namespace", "workload_kind", "workload"),
    "size": ("size",),
    "node": ("node",),
}
"""The labels of each grouping. A workload's name says nothing without its namespace. Where KAI runs inside a
vCluster, a queue's name says nothing without the vCluster."""

_KEYS: Final = {"virtual_namespace": "virtualNamespace", "workload_kind": "workloadKind"}
"""Names of labels in JSON and CSV that differ."""
_HEADINGS: Final = {"virtual_namespace": "in vcluster", "workload_kind": "kind"}
_COVERAGE: Final = {
    "promised": "", "used": "", "active": "activeCoverage", "idle": "activeCoverage", "over": "", "saved": "",
    "coverage": "coverage", "cost": "",
}  # fmt: skip
"""The figures of the table, and the coverage by which each is marked."""
_OF_VCLUSTERS: Final = ("vcluster", "virtual_namespace")
_NONE: Final = "-"
_MARK: Final = "!"  # beside figures that were known in less than 90 % of the time
_LEAST: Final = 8  # smallest width of a column of names

Hours = Mapping[str, float | None]
"""Figures by their names in JSON and CSV; None is unknown.

GPU-hours, as KAI charges them, but `over` in hours of pods; `saved` is what the same pods would have taken
more with whole GPUs; `coverage` and `activeCoverage` are the parts of the time in which the use and the
utilisation were known.
"""


class ReportRow(NamedTuple):
    """The hours of a group of pods on one model of card."""

    names: Mapping[str, str]  # by label; an absent label is empty
    model: str
    hours: Hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole report."""

    labels: Sequence[str]  # labels of a row, without the model
    rows: Sequence[ReportRow]
    models: Mapping[str, Hours]  # totals by model of card
    total: Hours
    dropped: int
    """Rows with names that no object can have. The totals contain them."""
    dropped_promised: float  # GPU-hours promised of these rows
    unpriced: Sequence[str]  # models without a price, if there are prices
    currency: str = ""
    remarks: Sequence[str] = ()


def row_labels(groupings: Iterable[str]) -> tuple[str, ...]:
    """Return the labels of a row for values of `--by`, each once, without the model."""
    return tuple(dict.fromkeys(label for grouping in groupings for label in LABELS[grouping]))


def build_report(
    sums: Mapping[str, Iterable[tuple[Mapping[str, str], float]]],
    labels: Sequence[str],
    *,
    prices: Mapping[str, float],
    currency: str = "",
    remarks: Sequence[str] = (),
) -> Report:
    """Build the report.

    `sums` has for each of `FIGURES` the hours by labels of a row, in any number of parts that are added. The
    prices are of a promised GPU-hour, by model.
    """
    every = (*labels, "model")
    figures: defaultdict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for figure in FIGURES:
        for names, hours in sums.get(figure, ()):
            own = figures[tuple(names.get(label, "") for label in every)]
            own[figure] = own.get(figure, 0.0) + hours
    rows: list[ReportRow] = []
    dropped: list[float] = []
    of_models: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    for key, own in figures.items():
        names = dict(zip(every, key, strict=True))
        of_models[key[-1] if is_gpu_model(key[-1]) else ""].append(own)
        if are_names(names):
            model = names.pop("model")
            rows.append(ReportRow(names, model, _hours([own], prices.get(model))))
        else:
            dropped.append(own.get("promised", 0.0))
    models = {model: _hours(of_models[model], prices.get(model)) for model in sorted(of_models)}
    costs = [hours["cost"] for hours in models.values() if hours["cost"] is not None]
    return Report(
        labels=labels,
        rows=sorted(rows, key=lambda row: (-(row.hours["promised"] or 0.0), *row.names.values(), row.model)),
        models=models,
        total={**_hours(figures.values(), None), "cost": sum(costs) if costs else None},
        dropped=len(dropped),
        dropped_promised=sum(dropped),
        unpriced=[m for m, hours in models.items() if prices and hours["promised"] and m not in prices],
        currency=currency,
        remarks=remarks,
    )


def _hours(groups: Iterable[Mapping[str, float]], price: float | None) -> Hours:
    sums: dict[str, float] = {}
    for group in groups:
        for figure, hours in group.items():
            sums[figure] = sums.get(figure, 0.0) + hours
    promised, whole, expected = sums.get("promised"), sums.get("whole"), sums.get("expected", 0.0)
    coverage, active_coverage = (
        min(sums.get(figure, 0.0) / expected, 1.0) if expected > 0 else None
        for figure in ("used_known", "active_known")
    )
    return {
        **{figure: sums.get(figure) for figure in ("promised", "used", "active", "idle", "over")},
        "saved": None if promised is None or whole is None else max(whole - promised, 0.0),
        "coverage": coverage,
        "activeCoverage": active_coverage,
        "cost": None if price is None or promised is None else price * promised,
    }


def _rounded(hours: Hours) -> Hours:
    return {name: None if value is None else round(value, 4) for name, value in hours.items()}


def as_json(report: Report) -> str:
    """Format the report as a JSON document in ASCII; unknown values are null."""
    document = {
        "rows": [
            {
                **{_KEYS.get(label, label): name or None for label, name in row.names.items()},
                "model": row.model or None,
                **_rounded(row.hours),
            }
            for row in report.rows
        ],
        "totals": {
            **_rounded(report.total),
            "models": [{"model": model or None, **_rounded(own)} for model, own in report.models.items()],
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
    writer.writerow(
        [*(_KEYS.get(label, label) for label in report.labels), "model", *report.total, "currency"]
    )
    for row in report.rows:
        words = [*row.names.values(), row.model, report.currency]
        writer.writerow([*words[:-1], *_rounded(row.hours).values(), words[-1]])
    return stream.getvalue()


class _Table(NamedTuple):
    """The table of text and HTML: names, then figures."""

    names: Sequence[str]  # headings
    figures: Sequence[str]
    rows: Sequence[Sequence[str]]  # the rows, the models if several, and all


def _table(report: Report) -> _Table:
    """Return the table; the columns of vClusters are left out if there is none, and the cost."""
    used = {label for row in report.rows for label, name in row.names.items() if name}
    labels = [label for label in report.labels if label not in _OF_VCLUSTERS or label in used]
    figures = [figure for figure in _COVERAGE if figure != "cost" or report.total["cost"] is not None]

    def cell(figure: str, hours: Hours) -> str:
        value, mark = hours[figure], ""
        if (coverage := _COVERAGE[figure]) and (hours[coverage] or 0.0) < LEAST_KNOWN:
            mark = _MARK
        if figure == "coverage":
            return (_NONE if value is None else f"{int(value * 100 + 1e-6)}%") + mark
        return _NONE if value is None else f"{value:.2f}" if figure == "cost" else f"{value:.1f}{mark}"

    begin = ["total", *[""] * (len(labels) - 1)]
    rows = [
        ([*(row.names.get(label) or _NONE for label in labels), row.model or _NONE], row.hours)
        for row in report.rows
    ]
    if len(report.models) > 1:
        rows += [([*begin, model or _NONE], hours) for model, hours in report.models.items()]
    rows.append(([*begin, ""], report.total))
    headings = {"coverage": "known", "cost": f"cost {report.currency}".rstrip()}
    return _Table(
        [*(_HEADINGS.get(label, label) for label in labels), "model"],
        [headings.get(figure, figure) for figure in figures],
        [[*words, *(cell(figure, hours) for figure in figures)] for words, hours in rows],
    )


def as_text(report: Report, *, columns: int = DEFAULT_COLUMNS) -> Iterator[str]:
    """Yield the lines of the table and the remarks; no line is wider than `columns`."""
    table = _table(report)
    rows = [[heading.upper() for heading in (*table.names, *table.figures)], *table.rows]
    least = [_LEAST] * len(table.names) + [0] * len(table.figures)
    yield from table_lines(rows, shown_widths(rows, columns, least))
    yield ""
    for sentence in _remarks(report, table):
        yield from fold(one_line(sentence, 1000), columns)


def _remarks(report: Report, table: _Table) -> Iterator[str]:
    yield "GPU-hours; over in hours of pods. known: part of the time in which the use was known."
    if any(cell.endswith(_MARK) for row in table.rows for cell in row[len(table.names) :]):
        yield (
            f"{_MARK} the use, or beside active and idle the utilisation, was known in less than 90 % of the"
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


def as_html(report: Report, period: str) -> str:
    """Format the report as a page; `period` is the time that it covers, as text."""
    table = _table(report)
    columns = [(name, "") for name in table.names] + [(name, "figure") for name in table.figures]

    def cell(name: str, kind: str, value: str) -> dict[str, str]:
        is_marked = kind and value.endswith(_MARK)
        return {"name": name, "value": value, "kind": f"{kind} marked" if is_marked else kind}

    rows = [
        {
            "kind": "" if number < len(report.rows) else "total",
            "cells": [cell(*column, value) for column, value in zip(columns, row, strict=True)],
        }
        for number, row in enumerate(table.rows)
    ]
    headings = [{"name": name, "kind": kind} for name, kind in columns]
    content = {"headings": headings, "rows": rows}
    return render(title="GPU-hours", about=period, table=[content], remarks=_remarks(report, table))
