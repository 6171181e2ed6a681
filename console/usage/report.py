"""The command `report`: reads GPU-hours from a Prometheus, and prints them by team."""

import argparse
import asyncio
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from console.cluster.prometheus import Prometheus
from console.usage.options import add_usage_options, open_prometheus, parse_window
from console.usage.pod_use import HOUR, Window
from console.usage.records import (
    SEEN,
    few,
    no_pods,
    range_of,
    read_recorded_time,
    require_one,
)
from console.usage.report_table import (
    FIGURES,
    LABELS,
    Report,
    as_csv,
    as_html,
    as_json,
    as_text,
    build_report,
    caveats,
    row_labels,
)
from service.command import UsageError, columns_of, read_by, write_document, write_lines, write_warning
from service.log_writer import discard_library_logs
from service.names import is_gpu_model
from service.text import quoted

RECORDS: Final = {
    figure: f"usage:kaishare_{'pod' if figure == 'over' else 'gpu'}_hours_{figure}:sum15m"
    for figure in FIGURES
}
_DESCRIBED: Final = (
    "cluster, job, namespace, node, queue, vcluster, virtual_namespace, size, workload_kind, workload, model"
)
"""Other labels of a record tell the replicas of a Prometheus apart: each hour counts once."""
_MOST_GPUS: Final = 1_000_000
"""Pods or GPUs of one row. Hours of more are a mistake or forged."""
_PRICE: Final = re.compile(r"([^=]{1,100})=([0-9]{1,9}(?:\.[0-9]{1,9})?)")
_CURRENCY: Final = re.compile(r"[A-Za-z]{1,8}|[€$£¥]")

Sums = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]  # hours by labels of a row, for each figure


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
    window = parse_window(arguments)
    report = asyncio.run(_report(arguments, window))
    match arguments.output:
        case "json":
            write_document(as_json(report))
        case "csv":
            write_document(as_csv(report))
            for sentence in caveats(report):  # CSV has no place for them
                write_warning(sentence)
        case "html":
            write_document(as_html(report, str(window)))
        case _:
            write_lines(as_text(report, columns=columns_of(sys.stdout)))
    return 0


async def _report(arguments: argparse.Namespace, window: Window) -> Report:
    labels = row_labels(arguments.by or ["namespace"])
    async with open_prometheus(arguments) as (prometheus, _):
        sums, remarks = await read_sums(prometheus, labels, window)
    prices = dict(arguments.price)
    return build_report(sums, labels, prices=prices, currency=arguments.currency or "", remarks=remarks)


async def read_sums(
    prometheus: Prometheus, labels: Iterable[str], window: Window
) -> tuple[Sums, tuple[str, ...]]:
    """Read the hours of each figure, and say how they were read."""
    recorded = await read_recorded_time(prometheus, window)
    clusters = sorted({origin.cluster for origin in recorded.origins})
    for cluster in clusters:
        require_one(prometheus, [origin for origin in recorded.origins if origin.cluster == cluster], "job")
    by = ", ".join((*labels, "model"))
    matchers, time = f"{{{prometheus.selector}}}", f"[{range_of(window.length)}]"
    queries = [
        f"sum by ({by}) (max by ({_DESCRIBED}) (sum_over_time({record}{matchers}{time})))"
        for record in RECORDS.values()
    ]
    # The record of the expected hours is exact to the minute, but leaves out gaps of more than a day. So the
    # time from the first to the last quarter of an hour in which each pod was seen counts, too.
    last, first = (
        f"{what} by (uid, gpu_uuid, {_DESCRIBED}) ({what}_over_time({SEEN}{matchers}{time}))"
        for what in ("max", "min")
    )
    queries.append(f"sum by ({by}) ({last} - {first}) / {HOUR}")
    most = window.length / HOUR * _MOST_GPUS
    answers = await asyncio.gather(*(prometheus.instant(query, window.end, most=most) for query in queries))
    *sums_of, seen = [[(row.labels, row.value) for row in series] for series in answers]
    sums = dict(zip(FIGURES, sums_of, strict=True))
    spans = {frozenset(names.items()): hours for names, hours in seen}
    sums["expected"] = [
        (names, max(hours, spans.get(frozenset(names.items()), 0.0)) / recorded.part)
        for names, hours in sums["expected"]
    ]
    if not any(sums.values()):
        raise no_pods(prometheus)
    several = (
        f'Rows add up {len(clusters)} clusters: {few(clusters)}. --selector with cluster="NAME" selects one.'
    )
    added_up = [several] if len(clusters) > 1 else []
    return sums, (*added_up, *recorded.remarks, *prometheus.remarks)


def _price(text: str) -> tuple[str, float]:
    match = _PRICE.fullmatch(text)
    if match is None or not is_gpu_model(match[1]) or not math.isfinite(float(match[2])):
        raise ValueError(f'{quoted(text)} is not a price; allowed: MODEL=PRICE, such as "Tesla T4=0.35"')
    return match[1], float(match[2])


def _currency(text: str) -> str:
    if _CURRENCY.fullmatch(text) is None:
        raise ValueError(
            f"{quoted(text)} is not a currency; allowed: up to 8 letters, or a sign, such as EUR"
        )
    return text
