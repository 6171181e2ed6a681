"""The command `report`: reads GPU-hours from a Prometheus, and prints them by team."""

import argparse
import asyncio
import csv
import io
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from console.cluster.prometheus import Prometheus, Sample
from console.text_table import shown_widths, table_lines
from console.usage.options import add_usage_options, open_prometheus, parse_window
from console.usage.page import element, render
from console.usage.pod_use import HOUR, LEAST_KNOWN, Window, are_names
from console.usage.records import DESCRIBED, SEEN, claimed_pods, range_of, read_recorded_time
from kai.frameworks import FRAMEWORKS
from service.command import UsageError, columns_of, read_by, write_document, write_lines, write_warning
from service.log_writer import discard_library_logs
from service.names import is_gpu_model
from service.text import counted, fold, listed, one_line, quoted

FIGURES: Final = (
    "promised", "whole", "used", "used_known", "active", "active_known", "idle", "over", "expected",
)  # fmt: skip
"""Hours of each row: `whole` is promised if each pod had whole GPUs, `expected` the time between the first
and the last value of each pod, and `…_known` the part of it with a figure."""
RECORDS: Final = {
    figure: f"usage:kaishare_{'pod' if figure == 'over' else 'gpu'}_hours_{figure}:sum15m"
    for figure in FIGURES
}
_MOST_GPUS: Final = 1_000_000  # pods or GPUs of one row; hours of more are a mistake or forged
_PRICE: Final = re.compile(r"([^=]{1,100})=([0-9]{1,9}(?:\.[0-9]{1,9})?)")
_CURRENCY: Final = re.compile(r"[A-Za-z]{1,8}|[€$£¥]")
LABELS: Final[Mapping[str, Sequence[str]]] = {
    "namespace": ("namespace", "vcluster", "virtual_namespace"),
    "queue": ("queue", "vcluster"),
    "workload": ("namespace", "vcluster", "virtual_namespace", "workload_kind", "workload"),
    "size": ("size",),
    "node": ("node",),
}
"""The labels of each grouping. A workload's name says nothing without its namespace. Where KAI runs inside a
vCluster, a queue's name says nothing without the vCluster."""
# Names in JSON and CSV that differ from the label's.
_KEYS: Final = {"virtual_namespace": "virtualNamespace", "workload_kind": "workloadKind"}
_HEADINGS: Final = {"virtualNamespace": "in vcluster", "workloadKind": "kind", "coverage": "known"}
_COVERAGE: Final = {
    "promised": "", "used": "", "active": "activeCoverage", "idle": "activeCoverage", "over": "", "saved": "",
    "coverage": "coverage", "cost": "",
}  # fmt: skip
"""The figures of the table, and the coverage by which each is marked."""
_OF_VCLUSTERS: Final = ("vcluster", "virtualNamespace")
_NONE: Final = "-"
_MARK: Final = "!"  # beside figures that were known in less than 90 % of the time
_LEAST: Final = 8  # smallest width of a column of names

Row = Mapping[str, Any]
"""The names and figures of a group of pods on one model of card, by their names in JSON and CSV.

None is unknown, or no name. Figures are GPU-hours, as KAI charges them, but `over` in hours of pods; `saved`
is what the same pods would have taken more with whole GPUs; `coverage` and `activeCoverage` are the parts of
the time in which the use and the utilisation were known.
"""
Sums = Mapping[str, Sequence[Sample]]
"""For each of `FIGURES` the hours by labels of a row, in any number of parts that are added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole report."""

    names: Sequence[str]  # the names that a row begins with, by their names in JSON and CSV
    rows: Sequence[Row]
    models: Sequence[Row]  # totals by model of card
    total: Row
    dropped: Sequence[float]  # GPU-hours of rows with names that no object can have; totals contain them
    unpriced: Sequence[str]  # models without a price, if there are prices
    period: str = ""  # the time that is looked at, as text
    currency: str = ""
    remarks: Sequence[str] = ()


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `report`."""
    command.description = (
        "Shows GPU-hours by team: promised, used, active, idle, over, and saved by sharing. Reads a"
        " Prometheus that scrapes the agents. Changes nothing."
    )
    add_usage_options(command, since="30d", shortest="15m")
    add = command.add_argument
    by = (
        "what has a row of its own for each model of card; repeatable; workload includes its namespace"
        " (default namespace)"
    )
    add("--by", choices=tuple(LABELS), action="append", help=by)
    price = 'price of a promised GPU-hour, such as "Tesla T4=0.35"; repeatable'
    add("--price", type=read_by(_price), action="append", default=[], metavar="MODEL=PRICE", help=price)
    add("--currency", type=read_by(_currency), metavar="NAME", help="currency of the prices")
    output = "output format; html is one self-contained page (default %(default)s)"
    add("-o", "--output", choices=("table", "csv", "json", "html"), default="table", help=output)


def run(arguments: argparse.Namespace) -> int:
    """Print the report; return 0."""
    if arguments.currency and not arguments.price:
        raise UsageError("--currency needs --price MODEL=PRICE")
    models = [model for model, _ in arguments.price]
    if twice := next((model for model in models if models.count(model) > 1), ""):
        raise UsageError(f"--price {quoted(twice)} is given more than once")
    discard_library_logs()
    report = asyncio.run(_report(arguments))
    if arguments.output == "table":
        write_lines(as_text(report, columns=columns_of(sys.stdout)))
        return 0
    write_document({"json": as_json, "csv": as_csv, "html": as_html}[arguments.output](report))
    for sentence in caveats(report) if arguments.output == "csv" else ():  # CSV has no place for them
        write_warning(sentence)
    return 0


async def _report(arguments: argparse.Namespace) -> Report:
    labels, window = row_labels(arguments.by or ["namespace"]), parse_window(arguments)
    async with open_prometheus(arguments) as (prometheus, _):
        sums, remarks = await read_sums(prometheus, labels, window)
    more = {"period": str(window), "currency": arguments.currency or ""}
    return build_report(sums, labels, prices=dict(arguments.price), remarks=remarks, **more)


async def read_sums(
    prometheus: Prometheus, labels: Iterable[str], window: Window
) -> tuple[Sums, tuple[str, ...]]:
    """Read the hours of each figure, and say how they were read."""
    recorded = await read_recorded_time(prometheus, window)
    by = ", ".join((*labels, "model"))
    matchers, time = f"{{{recorded.matchers}}}", f"[{range_of(window.length)}]"
    queries = [
        f"sum by ({by}) (max by ({DESCRIBED}) (sum_over_time({record}{matchers}{time})))"
        for record in RECORDS.values()
    ]
    # The record of the expected hours is exact to the minute, but leaves out gaps of more than a day. So the
    # time from the first to the last quarter of an hour in which each pod was seen counts, too.
    last, first = (
        f"{what} by (uid, gpu_uuid, {DESCRIBED}) ({what}_over_time({SEEN}{matchers}{time}))"
        for what in ("max", "min")
    )
    queries.append(f"sum by ({by}) ({last} - {first}) / {HOUR}")
    queries.append(f"count({claimed_pods(prometheus.selector, window)})")
    queries.append(f"sum by (framework) (increase(kaishare_webhook_framework_options_total{time}))")
    most = window.length / HOUR * _MOST_GPUS
    answers = await asyncio.gather(*(prometheus.instant(query, window.end, most=most) for query in queries))
    sums = dict(zip(FIGURES, answers, strict=False))
    spans = {frozenset(names.items()): hours for names, hours in answers[-3]}
    sums["expected"] = [
        (names, max(hours, spans.get(frozenset(names.items()), 0.0)) / recorded.part)
        for names, hours in sums["expected"]
    ]
    claims = "with a resource claim: promised is what the claim asks for; KAI's queues do not count it."
    notes = [f"{counted(round(pods), 'pod')} {claims}" for _, pods in answers[-2]]
    kept = {names.get("framework"): round(pods) for names, pods in answers[-1]}
    if counts := [f"{row.name} {kept[row.key]}" for row in FRAMEWORKS if kept.get(row.key)]:
        notes.append(f"New pods that an option set by the webhook keeps to their share: {', '.join(counts)}.")
    return sums, (*notes, *recorded.remarks, *prometheus.remarks)


def _price(text: str) -> tuple[str, float]:
    match = _PRICE.fullmatch(text)
    if match is None or not is_gpu_model(match[1]):
        raise ValueError(f'{quoted(text)} is not a price; allowed: MODEL=PRICE, such as "Tesla T4=0.35"')
    return match[1], float(match[2])


def _currency(text: str) -> str:
    if _CURRENCY.fullmatch(text) is None:
        raise ValueError(
            f"{quoted(text)} is not a currency; allowed: up to 8 letters, or a sign, such as EUR"
        )
    return text


def row_labels(groupings: Iterable[str]) -> tuple[str, ...]:
    """Return the labels of a row for values of `--by`, each once, without the model."""
    return tuple(dict.fromkeys(label for grouping in groupings for label in LABELS[grouping]))


def build_report(
    sums: Sums,
    labels: Sequence[str],
    *,
    prices: Mapping[str, float],
    period: str = "",
    currency: str = "",
    remarks: Sequence[str] = (),
) -> Report:
    """Build the report; the prices are of a promised GPU-hour, by model."""
    labels = (*labels, "model")
    of_rows: defaultdict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    of_models: defaultdict[str, dict[str, float]] = defaultdict(dict)
    of_all: dict[str, float] = {}
    for figure in FIGURES:
        for words, hours in sums.get(figure, ()):
            key = tuple(words.get(label, "") for label in labels)
            model = key[-1] if is_gpu_model(key[-1]) else ""
            for group in (of_rows[key], of_models[model], of_all):
                group[figure] = group.get(figure, 0.0) + hours
    names = [_KEYS.get(label, label) for label in labels]
    rows, dropped = [], []
    for key, own in sorted(of_rows.items(), key=lambda item: (-item[1].get("promised", 0.0), item[0])):
        if are_names(dict(zip(labels, key, strict=True))):
            shown = {name: word or None for name, word in zip(names, key, strict=True)}
            rows.append({**shown, **_figures(own, prices.get(key[-1]))})
        else:
            dropped.append(own.get("promised", 0.0))
    models: list[Row] = [
        {"model": model or None, **_figures(own, prices.get(model))}
        for model, own in sorted(of_models.items())
    ]
    unpriced = [row["model"] or "" for row in models if row["promised"]]
    costs = [row["cost"] for row in models if row["cost"] is not None]
    return Report(
        names=names,
        rows=rows,
        models=models,
        total={**_figures(of_all, None), "cost": sum(costs) if costs else None},
        dropped=dropped,
        unpriced=[model for model in unpriced if prices and model not in prices],
        period=period,
        currency=currency,
        remarks=remarks,
    )


def _figures(sums: Mapping[str, float], price: float | None) -> dict[str, float | None]:
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


def _rounded(row: Row) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}


def as_json(report: Report) -> str:
    """Format the report as a JSON document in ASCII; unknown values are null."""
    document = {
        "rows": list(map(_rounded, report.rows)),
        "totals": {**_rounded(report.total), "models": list(map(_rounded, report.models))},
        "currency": report.currency or None,
        "unpriced": list(report.unpriced),
        "dropped": len(report.dropped),
        "remarks": list(report.remarks),
    }
    return json.dumps(document, indent=2) + "\n"


def as_csv(report: Report) -> str:
    """Format the rows as CSV, without totals; unknown values are empty cells.

    No cell acts as a formula in a spreadsheet: every name has the syntax of its kind.
    """
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [*report.names, *report.total, "currency"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**_rounded(row), "currency": report.currency} for row in report.rows)
    return stream.getvalue()


def _table(report: Report) -> tuple[list[str], list[str], list[list[str]]]:
    """Return the headings of names and of figures, and the rows, the models if several, and all.

    The columns of vClusters are left out if there is none, and the cost.
    """
    used = {name for row in report.rows for name in _OF_VCLUSTERS if row.get(name)}
    names = [name for name in report.names if name not in _OF_VCLUSTERS or name in used]
    figures = [figure for figure in _COVERAGE if figure != "cost" or report.total["cost"] is not None]

    def cell(figure: str, row: Row) -> str:
        value, coverage = row[figure], _COVERAGE[figure]
        mark = _MARK if coverage and (row[coverage] or 0.0) < LEAST_KNOWN else ""
        if figure == "coverage":
            return (_NONE if value is None else f"{int(value * 100 + 1e-6)}%") + mark
        return _NONE if value is None else f"{value:.2f}" if figure == "cost" else f"{value:.1f}{mark}"

    begin = ["total", *[""] * (len(names) - 2)]
    rows = [([row[name] or _NONE for name in names], row) for row in report.rows]
    if len(report.models) > 1:
        rows += [([*begin, row["model"] or _NONE], row) for row in report.models]
    rows.append(([*begin, ""], report.total))
    headings = _HEADINGS | {"cost": f"cost {report.currency}".rstrip()}
    return (
        [headings.get(name, name) for name in names],
        [headings.get(figure, figure) for figure in figures],
        [[*words, *(cell(figure, row) for figure in figures)] for words, row in rows],
    )


def as_text(report: Report, *, columns: int = 80) -> Iterator[str]:
    """Yield the lines of the table and the remarks; no line is wider than `columns`."""
    names, figures, rows = _table(report)
    rows = [[heading.upper() for heading in (*names, *figures)], *rows]
    yield from table_lines(rows, shown_widths(rows, columns, [_LEAST] * len(names) + [0] * len(figures)))
    yield ""
    for sentence in _remarks(report, rows):
        yield from fold(one_line(sentence, 1000), columns)


def _remarks(report: Report, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "GPU-hours; over in hours of pods. known: part of the time in which the use was known."
    if any(cell.endswith(_MARK) for row in rows for cell in row):
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
            f"Dropped: {counted(len(report.dropped), 'row')} with names that no Kubernetes object can have,"
            f" and {sum(report.dropped):.1f} GPU-hours promised. The totals contain them."
        )


def as_html(report: Report) -> str:
    """Format the report as a page."""
    names, figures, rows = _table(report)
    columns = [(name, "") for name in names] + [(name, "figure") for name in figures]
    heading = (element("th", name, scope="col", class_=kind) for name, kind in columns)
    lines = []
    for number, row in enumerate(rows):
        cells = (
            element(
                "td", text, class_=f"{kind}{' marked' * text.endswith(_MARK)}" if kind else "", data_name=name
            )
            for (name, kind), text in zip(columns, row, strict=True)
        )
        lines.append(element("tr", *cells, class_="total" if number >= len(report.rows) else ""))
    table = element("table", element("thead", element("tr", *heading)), element("tbody", *lines))
    return render(
        "GPU-hours",
        report.period,
        element("div", table, class_="table", role="region", aria_label="GPU-hours", tabindex="0"),
        *(element("p", sentence) for sentence in _remarks(report, rows)),
    )
