"""The command `report`: its options; reads a Prometheus, and prints GPU-hours."""

import argparse
import asyncio
import contextlib
import math
import re
import sys
from typing import Final

from console.advise.command import add_time_options, parse_window
from console.caller import add_cluster_options, cluster_access
from console.html_page import utc_minute
from console.prometheus.prometheus_options import add_prometheus_options, parse_prometheus_options
from console.prometheus.query_api import Prometheus
from console.report.gpu_hours import read_sums
from console.report.report_rows import LABELS, Report, build_report, row_labels
from console.report.text import as_csv, as_html, as_json, as_text, caveats
from kube.client import KubeClient
from service.command import UsageError, columns_of, read_by, write_document, write_lines, write_warning
from service.log_writer import discard_library_logs
from service.names import is_gpu_model
from service.text import quoted

_PRICE: Final = re.compile(r"([^=]{1,100})=([0-9]{1,9}(?:\.[0-9]{1,9})?)")
_CURRENCY: Final = re.compile(r"[A-Za-z]{1,8}|[€$£¥]")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `report`."""
    command.description = (
        "Shows GPU-hours by team: promised, used, active, idle, over, and saved by sharing. Reads a"
        " Prometheus that scrapes the agents. Changes nothing."
    )
    add_cluster_options(command)
    add_prometheus_options(command)
    add_time_options(command, since="30d")
    command.add_argument(
        "--by",
        choices=tuple(LABELS),
        action="append",
        help="what has a row of its own for each model of card; repeatable; workload includes its namespace"
        " (default namespace)",
    )
    command.add_argument(
        "--price",
        type=read_by(_price),
        action="append",
        default=[],
        metavar="MODEL=PRICE",
        help='price of a promised GPU-hour, such as "Tesla T4=0.35"; repeatable',
    )
    command.add_argument("--currency", type=read_by(_currency), metavar="NAME", help="currency of the prices")
    command.add_argument(
        "-o",
        "--output",
        choices=("table", "csv", "json", "html"),
        default="table",
        help="output format; html is one self-contained page (default %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the report; return 0.

    Raises:
        UsageError: an option is invalid, or standard output cannot be written.
        PrometheusError: the Prometheus gives no usable answer, or has no pod.
        AccessError: the kubeconfig cannot be read.
    """
    if arguments.currency and not arguments.price:
        raise UsageError("--currency needs --price MODEL=PRICE")
    models = [model for model, _ in arguments.price]
    for model in models:
        if models.count(model) > 1:
            raise UsageError(f"--price {quoted(model)} is given more than once")
    discard_library_logs()
    window = parse_window(arguments)
    report = asyncio.run(_report(arguments, window.start, window.end))
    if arguments.output == "json":
        write_document(as_json(report))
    elif arguments.output == "csv":
        write_document(as_csv(report))
        for sentence in caveats(report):  # CSV has no place for them
            write_warning(sentence)
    elif arguments.output == "html":
        period = f"{utc_minute(window.start)} UTC to {utc_minute(window.end)} UTC"
        write_document(as_html(report, period))
    else:
        write_lines(as_text(report, columns=columns_of(sys.stdout)))
    return 0


async def _report(arguments: argparse.Namespace, start: float, end: float) -> Report:
    settings = parse_prometheus_options(arguments)
    labels = row_labels(arguments.by or ["namespace"])
    async with contextlib.AsyncExitStack() as stack:
        client = None
        if settings.service is not None:
            client = await stack.enter_async_context(KubeClient(await cluster_access(arguments)))
        prometheus = await stack.enter_async_context(Prometheus.open(settings, client))
        sums, remarks = await read_sums(prometheus, labels, start=start, end=end)
    prices = dict(arguments.price)
    return build_report(sums, labels, prices=prices, currency=arguments.currency or "", remarks=remarks)


def _price(text: str) -> tuple[str, float]:
    """Read a price; return the model of card and its price of an hour.

    Raises:
        ValueError: the text has another form.
    """
    match = _PRICE.fullmatch(text)
    if match is None or not is_gpu_model(match[1]) or not math.isfinite(float(match[2])):
        raise ValueError(f'{quoted(text)} is not a price; allowed: MODEL=PRICE, such as "Tesla T4=0.35"')
    return match[1], float(match[2])


def _currency(text: str) -> str:
    """Read a currency.

    Raises:
        ValueError: the text has another form.
    """
    if _CURRENCY.fullmatch(text) is None:
        raise ValueError(
            f"{quoted(text)} is not a currency; allowed: up to 8 letters, or a sign, such as EUR"
        )
    return text
