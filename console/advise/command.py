"""The command `advise`: reads a Prometheus and the labels of Namespaces, and prints the advice."""

import argparse
import asyncio
import contextlib
import math
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from console.advise.advice import Advice, AdviceOptions, KnownNamespace, TargetCluster
from console.advise.advice_page import as_html
from console.advise.suggestions import advise
from console.advise.text import as_json, as_text, command_notes, remarks
from console.advise.usage_queries import Window
from console.advise.usage_reader import read_usage
from console.caller import add_cluster_options, add_running_default_mode, cluster_access, default_kubeconfig
from console.cluster_reading import fetch_namespaces
from console.policies import WebhookScope, read_scope
from console.prometheus.prometheus_options import add_prometheus_options, parse_prometheus_options
from console.prometheus.query_api import Prometheus
from kai.keys import QUEUE_LABEL
from kube.answers import AccessError, ApiError
from kube.client import KubeClient
from service.command import (
    UsageError,
    add_namespace,
    columns_of,
    read_by,
    write_document,
    write_lines,
    write_warning,
)
from service.log_writer import discard_library_logs
from service.text import one_line, quoted
from webhook.policy.labels import Mode, NamespacePolicy, PolicyMetadata

NOT_READ: Final = (
    "rows are by the share that pods had, and no command is given, because labels and caps are not known."
)
MAY_NOT_READ: Final = f"You may not read the Namespaces: {NOT_READ}"


async def read_namespaces(
    client: KubeClient, namespace: str | None, scope: WebhookScope
) -> dict[str, KnownNamespace] | None:
    """Read the labels of all namespaces, or of one; return None if the caller may not.

    Args:
        client: for the API server, with the caller's rights.
        namespace: the only namespace to read; None for all.
        scope: the namespaces whose labels change pods.

    Raises:
        ApiError, Unreachable, kube.access.AccessError: the namespaces cannot be read for another reason.
    """
    try:
        namespaces = await fetch_namespaces(client, namespace)
    except ApiError as error:
        if error.is_forbidden:
            return None
        if error.is_not_found:
            return {}
        raise
    return {name: known_namespace(name, metadata, scope) for name, metadata in namespaces.items()}


def known_namespace(name: str, metadata: PolicyMetadata, scope: WebhookScope) -> KnownNamespace:
    """Return a namespace with its policy, and why it has no effect."""
    policy = metadata.policy(name, scope.default_mode)
    return KnownNamespace(metadata, policy, _without_effect(name, policy, scope))


def _without_effect(name: str, policy: NamespacePolicy | None, scope: WebhookScope) -> str:
    """Return why the labels of a namespace change no pod; empty if they do."""
    if policy is None:
        return "the namespace is not managed"
    if not scope.reads_labels:
        return "the webhook reads its policies from files: labels of the namespace change no pod"
    if name in scope.excluded:
        return "the webhook excludes the namespace: its labels change no pod"
    if policy.queue is None:
        return f"the label {QUEUE_LABEL} of the namespace is invalid: its labels change no pod"
    if policy.mode in (Mode.OFF, Mode.OBSERVE):
        default = ", the webhook's default" if policy.has_default_mode else ""
        return f"the mode of the namespace is {policy.mode}{default}: its labels change no pod"
    return ""


_DAYS: Final = re.compile(r"([0-9]{1,5})([mhdw])")
_SECONDS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST_SECONDS: Final = 400 * 86400
_YEARS: Final = range(2000, 2101)
_NUMBER: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_PERCENT: Final = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,4})?)%")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `advise`."""
    command.description = (
        "Suggests the share that each size of each namespace should have, from the memory that its pods used."
        " Reads a Prometheus that scrapes the agents, and the labels of the Namespaces. Changes nothing."
    )
    add_cluster_options(command)
    add_prometheus_options(command)
    add_time_options(command, since="14d")
    add_namespace(command, "pods of this namespace only (default: all)")
    add_running_default_mode(command)
    command.add_argument(
        "--by",
        choices=("size", "workload"),
        default="size",
        help="what has a row of its own in each namespace (default %(default)s)",
    )
    command.add_argument(
        "--quantile",
        type=read_by(_number_from(0.5, 1)),
        default=0.99,
        help="quantile of the use that counts, of the pod that used most (default %(default)s)",
    )
    command.add_argument(
        "--headroom",
        type=read_by(_headroom),
        default=0.15,
        metavar="PERCENT",
        help="added to the quantile (default 15%%)",
    )
    command.add_argument("--cover-peak", action="store_true", help="suggest no less than the peak")
    command.add_argument(
        "--min-hours",
        type=read_by(_number_from(0, 1_000_000)),
        default=24.0,
        metavar="HOURS",
        help="pod-hours below which there is no advice (default 24)",
    )
    command.add_argument(
        "-o",
        "--output",
        choices=("text", "json", "html", "kubectl"),
        default="text",
        help="output format; html is one file with a picture for each row, kubectl prints the commands and"
        " nothing else (default %(default)s)",
    )


def add_time_options(command: argparse.ArgumentParser, *, since: str) -> None:
    """Add the options `--since` and `--until`."""
    command.add_argument(
        "--since",
        type=read_by(_since),
        default=_since(since),
        metavar="DURATION",
        help=f"how far to look back, such as 36h, 14d or 4w (default {since})",
    )
    command.add_argument(
        "--until",
        type=read_by(_until),
        metavar="TIME",
        help="end of the time, such as 2026-05-12 or 2026-05-12T18:00:00Z; UTC unless it says otherwise"
        " (default: now)",
    )


def parse_window(arguments: argparse.Namespace) -> Window:
    """Return the time of `--since` and `--until`."""
    end = time.time() if arguments.until is None else arguments.until
    return Window(start=end - arguments.since, end=end)


def run(arguments: argparse.Namespace) -> int:
    """Print the advice; return 0.

    Raises:
        UsageError: an option is invalid, or standard output cannot be written.
        PrometheusError: the Prometheus gives no usable answer, or has no pod.
        AccessError: the kubeconfig cannot be read.
        ApiError, Unreachable: the namespaces cannot be read.
    """
    if arguments.output == "kubectl" and arguments.by == "workload":
        raise UsageError("-o kubectl needs --by size: labels belong to namespaces, not to workloads")
    discard_library_logs()
    options = AdviceOptions(
        quantile=arguments.quantile,
        headroom=arguments.headroom,
        min_hours=arguments.min_hours,
        cover_peak=arguments.cover_peak,
        by_workload=arguments.by == "workload",
        cluster=parse_target_cluster(arguments),
    )
    window = parse_window(arguments)
    advice = asyncio.run(_advice(arguments, options, window))
    if arguments.output == "json":
        write_document(as_json(advice))
    elif arguments.output == "html":
        write_document("".join(as_html(advice, options, window)))
    elif arguments.output == "kubectl":
        write_lines(advice.commands)
        for sentence in (*command_notes(advice), *remarks(advice)):
            write_warning(sentence)
    else:
        write_lines(as_text(advice, options, columns=columns_of(sys.stdout)))
    return 0


async def _advice(arguments: argparse.Namespace, options: AdviceOptions, window: Window) -> Advice:
    settings = parse_prometheus_options(arguments)
    notes: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        client = None
        try:
            client = await stack.enter_async_context(KubeClient(await cluster_access(arguments)))
        except AccessError as error:
            if settings.service is not None:
                raise
            notes.append(f"The Namespaces were not read ({one_line(str(error))}): {NOT_READ}")
        prometheus = await stack.enter_async_context(Prometheus.open(settings, client))
        usage = await read_usage(
            prometheus, window, quantile=options.quantile, namespace=arguments.namespace or ""
        )
        namespaces = None
        if client is not None:
            scope = await read_scope(client, arguments.default_mode)
            namespaces = await read_namespaces(client, arguments.namespace, scope)
            unknown = (f"{note[:1].upper()}{note[1:]}." for note in scope.notes)
            notes += [MAY_NOT_READ] if namespaces is None else unknown
    remarks = (*usage.remarks, *prometheus.remarks, *notes)
    return advise(usage.uses, namespaces, options, dropped=usage.dropped, remarks=remarks)


def parse_target_cluster(arguments: argparse.Namespace) -> TargetCluster:
    """Return the cluster that commands change; the kubeconfig is left out if kubectl reads it anyway."""
    kubeconfig = arguments.kubeconfig or default_kubeconfig()
    is_default = kubeconfig == default_kubeconfig()
    return TargetCluster(
        kubeconfig="" if is_default else str(Path(kubeconfig).expanduser()), context=arguments.context or ""
    )


def _since(text: str) -> float:
    """Read how far to look back; return seconds.

    Raises:
        ValueError: the text has another form, or the time is too short or too long.
    """
    match = _DAYS.fullmatch(text)
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 600 <= seconds <= _LONGEST_SECONDS:
        raise ValueError(f"{quoted(text)} is not allowed; allowed: 10m to 400d, in m, h, d or w, such as 14d")
    return float(seconds)


def _until(text: str) -> float:
    """Read the end of the time; return Unix seconds.

    Raises:
        ValueError: the text is no date, or not of the years 2000 to 2100.
    """
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.year not in _YEARS:
        raise ValueError(
            f"{quoted(text)} is not a time; allowed: the years 2000 to 2100, such as 2026-05-12T18:00:00Z"
        )
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _headroom(text: str) -> float:
    """Read a percentage; return a ratio.

    Raises:
        ValueError: the text has another form.
    """
    match = _PERCENT.fullmatch(text)
    if match is None or float(match[1]) > 1000:
        raise ValueError(f"{quoted(text)} is not allowed; allowed: 0% to 1000%, such as 15%")
    return float(match[1]) / 100


def _number_from(least: float, most: float) -> Callable[[str], float]:
    """Return a function that reads a plain number between two bounds."""

    def read(text: str) -> float:
        number = float(text) if _NUMBER.fullmatch(text) else math.nan
        if not least <= number <= most:
            raise ValueError(f"{quoted(text)} is not allowed; allowed: {least} to {most}")
        return number

    return read
