"""Rows and totals of a report, with coverage and cost, as a table, JSON, CSV and one HTML page. Pure."""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from console.text_table import column_widths, natural_widths, table_lines
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

_KEYS: Final = {
    "virtual_namespace": "virtualNamespace",
    "workload_kind": "workloadKind",
    "active_coverage": "activeCoverage",
}
"""Names of labels and figures in JSON and CSV that differ."""
_HEADINGS: Final = {"virtual_namespace": "in vcluster", "workload_kind": "kind"}
_OF_VCLUSTERS: Final = ("vcluster", "virtual_namespace")
_NONE: Final = "-"
_MARK: Final = "!"  # beside figures that were known in less than 90 % of the time
_LEAST: Final = 8  # smallest width of a column of names
_ACTS_IN_A_SPREADSHEET: Final = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """Figures in hours; None is unknown."""

    promised: float | None  # GPU-hours, as KAI charges them
    used: float | None
    active: float | None
    idle: float | None
    over: float | None  # hours of pods
    saved: float | None  # GPU-hours that the same pods would have taken more with whole GPUs
    coverage: float | None  # part of the time in which the use was known
    active_coverage: float | None  # part of the time in which the utilisation was known
    cost: float | None = None

    @property
    def document(self) -> dict[str, float | None]:
        """The figures by their names in JSON and CSV, rounded."""
        return {
            _KEYS.get(name, name): None if value is None else round(value, 4)
            for name, value in asdict(self).items()
        }

    @property
    def use_mark(self) -> str:
        """A mark if the use was known in less than 90 % of the time."""
        return "" if (self.coverage or 0.0) >= LEAST_KNOWN else _MARK

    @property
    def activity_mark(self) -> str:
        """A mark if the utilisation was known in less than 90 % of the time; for `active` and `idle`."""
        return "" if (self.active_coverage or 0.0) >= LEAST_KNOWN else _MARK


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRow:
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
            rows.append(ReportRow(names=names, model=model, hours=_hours([own], prices.get(model))))
        else:
            dropped.append(own.get("promised", 0.0))
    models = {model: _hours(of_models[model], prices.get(model)) for model in sorted(of_models)}
    costs = [hours.cost for hours in models.values() if hours.cost is not None]
    return Report(
        labels=labels,
        rows=sorted(rows, key=lambda row: (-(row.hours.promised or 0.0), *row.names.values(), row.model)),
        models=models,
        total=_hours(figures.values(), None, sum(costs) if costs else None),
        dropped=len(dropped),
        dropped_promised=sum(dropped),
        unpriced=[m for m, hours in models.items() if prices and hours.promised and m not in prices],
        currency=currency,
        remarks=remarks,
    )


def _hours(groups: Iterable[Mapping[str, float]], price: float | None, cost: float | None = None) -> Hours:
    groups = list(groups)

    def of(figure: str) -> float | None:
        values = [group[figure] for group in groups if figure in group]
        return sum(values) if values else None

    def part(figure: str) -> float | None:
        expected = of("expected")
        return min((of(figure) or 0.0) / expected, 1.0) if expected and expected > 0 else None

    promised, whole = of("promised"), of("whole")
    return Hours(
        promised=promised,
        used=of("used"),
        active=of("active"),
        idle=of("idle"),
        over=of("over"),
        saved=None if promised is None or whole is None else max(whole - promised, 0.0),
        coverage=part("used_known"),
        active_coverage=part("active_known"),
        cost=cost if price is None or promised is None else price * promised,
    )


def as_json(report: Report) -> str:
    """Format the report as a JSON document in ASCII; unknown values are null."""

    def written(row: ReportRow) -> dict[str, str | None]:
        return {_KEYS.get(label, label): name or None for label, name in row.names.items()}

    document = {
        "rows": [{**written(row), "model": row.model or None, **row.hours.document} for row in report.rows],
        "totals": {
            **report.total.document,
            "models": [{"model": model or None, **hours.document} for model, hours in report.models.items()],
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
    keys = [_KEYS.get(label, label) for label in report.labels]
    writer.writerow([*keys, "model", *report.total.document, "currency"])
    for row in report.rows:
        words = [*row.names.values(), row.model, report.currency]
        if any(word.startswith(_ACTS_IN_A_SPREADSHEET) for word in words):
            raise ValueError("a name has not been checked")
        writer.writerow([*words[:-1], *row.hours.document.values(), words[-1]])
    return stream.getvalue()


def _table(report: Report) -> tuple[list[str], list[str], list[tuple[list[str], list[str]]]]:
    """Return the headings of names and of figures, and both for the rows, the models if several, and all.

    The columns of vClusters are left out if there is none.
    """
    used = {label for row in report.rows for label, name in row.names.items() if name}
    labels = [label for label in report.labels if label not in _OF_VCLUSTERS or label in used]
    figures = ["promised", "used", "active", "idle", "over", "saved", "known"]
    has_cost = report.total.cost is not None
    figures += [f"cost {report.currency}".rstrip()] if has_cost else []

    def cells(hours: Hours) -> list[str]:
        values = (hours.promised, hours.used, hours.active, hours.idle, hours.over, hours.saved)
        marks = ("", "", hours.activity_mark, hours.activity_mark, "", "")
        texts = [
            _NONE if value is None else f"{value:.1f}{mark}"
            for value, mark in zip(values, marks, strict=True)
        ]
        texts.append(
            (_NONE if hours.coverage is None else f"{int(hours.coverage * 100 + 1e-6)}%") + hours.use_mark
        )
        cost = [_NONE if hours.cost is None else f"{hours.cost:.2f}"] if has_cost else []
        return [*texts, *cost]

    rows = [
        ([*(row.names.get(label) or _NONE for label in labels), row.model or _NONE], cells(row.hours))
        for row in report.rows
    ]
    begin = ["total", *[""] * (len(labels) - 1)]
    if len(report.models) > 1:
        rows += [([*begin, model or _NONE], cells(hours)) for model, hours in report.models.items()]
    rows.append(([*begin, ""], cells(report.total)))
    return [*(_HEADINGS.get(label, label) for label in labels), "model"], figures, rows


def as_text(report: Report, *, columns: int = DEFAULT_COLUMNS) -> Iterator[str]:
    """Yield the lines of the table and the remarks; no line is wider than `columns`."""
    names, figures, own = _table(report)
    rows = [[heading.upper() for heading in (*names, *figures)]]
    rows += [[*words, *values] for words, values in own]
    least = [_LEAST] * len(names) + [0] * len(figures)
    widths = column_widths(rows, columns, least) or natural_widths(rows)
    yield from table_lines(rows, widths)
    yield ""
    for sentence in _remarks(report):
        yield from fold(one_line(sentence, 1000), columns)


def _remarks(report: Report) -> Iterator[str]:
    """Yield the sentences about the whole report."""
    yield "GPU-hours; over in hours of pods. known: part of the time in which the use was known."
    if any(cell.endswith(_MARK) for _, cells in _table(report)[2] for cell in cells):
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
    names, figures, own = _table(report)
    kinds = [""] * len(names) + ["figure"] * len(figures)
    columns = list(zip((*names, *figures), kinds, strict=True))

    def cell(name: str, kind: str, value: str) -> dict[str, str]:
        is_marked = kind and value.endswith(_MARK)
        return {"name": name, "value": value, "kind": f"{kind} marked" if is_marked else kind}

    rows = [
        {
            "kind": "" if number < len(report.rows) else "total",
            "cells": [cell(*column, value) for column, value in zip(columns, (*words, *values), strict=True)],
        }
        for number, (words, values) in enumerate(own)
    ]
    headings = [{"name": name, "kind": kind} for name, kind in columns]
    table = {"headings": headings, "rows": rows}
    return render(title="GPU-hours", about=period, table=[table], remarks=_remarks(report))
