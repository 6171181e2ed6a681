"""The command `advise`: reads a Prometheus and the labels of Namespaces, and prints the advice."""

import argparse
import asyncio
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from console.caller import add_running_default_mode, default_kubeconfig
from console.cluster.webhook import WebhookScope, fetch_namespaces, read_scope
from console.text_table import shown_widths, table_lines
from console.usage.advice import KnownNamespace
from console.usage.options import add_usage_options, open_prometheus, parse_window
from console.usage.page import Html, element, picture, render
from console.usage.pod_use import PodUse, Window
from console.usage.records import read_usage
from console.usage.suggestions import Advice, AdviceRow, Balance, Namespaces, Strategy
from kai.frameworks import may_run_framework, settings_of
from kai.installation import SharingMode
from kai.kaishare_keys import FRAMEWORK_MEMORY
from kai.keys import QUEUE_LABEL
from kai.pod import PodView, decode_pod
from kube.answers import REQUEST_ERRORS, AccessError, ApiError
from kube.client import KubeClient
from kube.kinds import PODS
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
from service.text import MALFORMED, counted, fold, one_line, quoted
from service.units import size
from webhook.policy.labels import Mode, PolicyMetadata

_NOT_READ: Final = (
    "The Namespaces were not read ({}): rows are by the share that pods had, and no command is given, because"
    " labels and caps are not known."
)
_NUMBER: Final = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_NONE: Final = "-"
_MOST_LISTED: Final = 32  # namespaces whose pods are read


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of `advise`."""
    command.description = (
        "Suggests the share that each size of each namespace should have, from the memory that its pods used."
        " Reads a Prometheus that scrapes the agents, and the labels of the Namespaces. Changes nothing."
    )
    add_usage_options(command, since="14d", shortest="10m")
    add_namespace(command, "pods of this namespace only (default: all)")
    add_running_default_mode(command)
    add = command.add_argument
    by = "what has a row of its own in each namespace (default %(default)s)"
    add("--by", choices=("size", "workload"), default="size", help=by)
    quantile = "quantile of the use that counts, of the pod that used most (default %(default)s)"
    add("--quantile", type=read_by(_number(0.5, 1)), default=0.99, help=quantile)
    headroom = "added to the quantile (default 15%%)"
    add("--headroom", type=read_by(_number(0, 1000, "%")), default=15.0, metavar="PERCENT", help=headroom)
    add("--cover-peak", action="store_true", help="suggest no less than the peak")
    hours = "pod-hours below which there is no advice (default 24)"
    add("--min-hours", type=read_by(_number(0, 1_000_000)), default=24.0, metavar="HOURS", help=hours)
    output = (
        "output format; html is one file with a picture for each row, kubectl prints the commands and"
        " nothing else (default %(default)s)"
    )
    add("-o", "--output", choices=("text", "json", "html", "kubectl"), default="text", help=output)


def run(arguments: argparse.Namespace) -> int:
    """Print the advice; return 0."""
    if arguments.output == "kubectl" and arguments.by == "workload":
        raise UsageError("-o kubectl needs --by size: labels belong to namespaces, not to workloads")
    discard_library_logs()
    # kubectl reads the default kubeconfig anyway.
    kubeconfig = arguments.kubeconfig or default_kubeconfig()
    is_default = kubeconfig == default_kubeconfig()
    strategy = Strategy(
        quantile=arguments.quantile,
        headroom=arguments.headroom / 100,
        min_hours=arguments.min_hours,
        cover_peak=arguments.cover_peak,
        by_workload=arguments.by == "workload",
        context=arguments.context or "",
        kubeconfig="" if is_default else str(Path(kubeconfig).expanduser()),
    )
    window = parse_window(arguments)
    advice = asyncio.run(_advice(arguments, strategy, window))
    if arguments.output in ("json", "html"):
        is_json = arguments.output == "json"
        write_document(as_json(advice) if is_json else as_html(advice, strategy, window))
    elif arguments.output == "kubectl":
        write_lines(advice.commands)
        for sentence in (*_notes(advice.rows, has_command=True), *remarks(advice)):
            write_warning(sentence)
    else:
        write_lines(as_text(advice, strategy, columns=columns_of(sys.stdout)))
    return 0


async def _advice(arguments: argparse.Namespace, strategy: Strategy, window: Window) -> Advice:
    async with open_prometheus(arguments, needs_cluster=True) as (prometheus, client):
        usage = await read_usage(
            prometheus, window, quantile=strategy.quantile, namespace=arguments.namespace or ""
        )
        namespaces, notes, mode = await read_namespaces(client, arguments.namespace, arguments.default_mode)
        options = await read_options(client, usage.uses, mode) if isinstance(client, KubeClient) else {}
    remarks = (*usage.remarks, *prometheus.remarks, *notes)
    return strategy.advise(usage.uses, namespaces, options=options, dropped=usage.dropped, remarks=remarks)


async def read_options(
    client: KubeClient, uses: Sequence[PodUse], mode: SharingMode | None
) -> dict[str, str]:
    """Return by UID what pods run that take what they are given, with the option.

    Only pods that still exist are read, in at most `_MOST_LISTED` namespaces; a list that fails is left out.
    """
    wanted = {use.names for use in uses if use.is_current and use.keeps_share and not use.names.vcluster}
    uids, options = {names.uid for names in wanted}, {}
    for name in sorted({names.namespace for names in wanted})[:_MOST_LISTED]:
        with suppress(*REQUEST_ERRORS, *MALFORMED):
            async with client.list_objects(PODS.path(name)) as pods:
                async for item in pods:
                    uid = PODS.decode(item).metadata.uid
                    if uid in uids and (option := option_of(decode_pod(item), mode)):
                        options[uid] = option
    return options


def option_of(pod: PodView, mode: SharingMode | None) -> str:
    """Return the framework of a pod that takes what it is given, and what to do; empty without one."""
    settings = (found for each in filter(may_run_framework, pod.containers) for found in settings_of(each))
    framework = next((setting.framework for setting in settings), None)
    if framework is None:
        return ""
    if mode is SharingMode.HAMI_CORE:
        return f"{framework.name}, which takes a part of its share: its option need not change"
    label = f"label the namespace {FRAMEWORK_MEMORY}=set"
    return f"{framework.name}: change {framework.shown} with the share, or {label}"


async def read_namespaces(
    client: KubeClient | AccessError, name: str | None, default_mode: Mode | None
) -> tuple[Namespaces, list[str], SharingMode | None]:
    """Read the labels of all namespaces, or of one; also say what could not be read, and KAI's mode."""
    if not isinstance(client, KubeClient):
        return None, [_NOT_READ.format(one_line(str(client)))], None
    scope = await read_scope(client, default_mode)
    notes = [f"{note[:1].upper()}{note[1:]}." for note in scope.notes]
    try:
        found = await fetch_namespaces(client, name)
    except ApiError as error:
        if error.is_forbidden:
            return None, [_NOT_READ.format(one_line(str(error)))], scope.sharing_mode
        if not error.is_not_found:
            raise
        found = {}
    known = {each: known_namespace(each, metadata, scope) for each, metadata in found.items()}
    return known, notes, scope.sharing_mode


def known_namespace(name: str, metadata: PolicyMetadata, scope: WebhookScope) -> KnownNamespace:
    """Return a namespace with its policy, and why it has no effect."""
    policy = metadata.policy(name, scope.default_mode)
    if policy is None:
        return KnownNamespace(metadata, None, "the namespace is not managed")
    default, is_idle = policy.has_default_mode, policy.mode in (Mode.OFF, Mode.OBSERVE)
    mode = f"{policy.mode}, the webhook's default" if default else policy.mode
    problems = {
        "the webhook reads its policies from files: labels of the namespace": not scope.reads_labels,
        "the webhook excludes the namespace: its labels": name in scope.excluded,
        f"the label {QUEUE_LABEL} of the namespace is invalid: its labels": policy.queue is None,
        f"the mode of the namespace is {mode}: its labels": is_idle,
    }
    problem = next((f"{text} change no pod" for text, is_there in problems.items() if is_there), "")
    return KnownNamespace(metadata, policy, problem)


def _number(least: float, most: float, unit: str = "") -> Callable[[str], float]:
    """Return a function that reads a number with a unit, between two bounds."""

    def read(text: str) -> float:
        number = float(text.removesuffix(unit)) if re.fullmatch(_NUMBER + unit, text) else math.nan
        if not least <= number <= most:
            raise ValueError(f"{quoted(text)} is not allowed; allowed: {least}{unit} to {most}{unit}")
        return number

    return read


def _named(row: AdviceRow) -> tuple[str, str]:
    """Return the namespace with its vCluster, and the workload or the size, of which the default has none."""
    key = row.key
    place = "/".join(filter(None, (key.namespace, key.vcluster, key.virtual_namespace)))
    return place, f"{key.workload_kind}/{key.workload}" if key.workload else key.size or _NONE


def _columns(strategy: Strategy) -> dict[str, Callable[[AdviceRow], str]]:
    """Return the figures of a row by their names; `≥` before the advice says that the pods may need more."""

    def of_bytes(amount: int | None) -> str:
        return _NONE if amount is None else size(amount)

    return {
        "pods": lambda row: str(row.pods),
        "hours": lambda row: f"{row.pod_hours:.0f}",
        "peak": lambda row: of_bytes(row.peak_bytes),
        f"P{strategy.quantile * 100:g}": lambda row: of_bytes(row.quantile_bytes),
        "over": lambda row: _NONE if row.over_hours is None else f"{row.over_hours:.1f}h",
        "share": lambda row: str(row.key.share),
        "advice": lambda row: f"{'≥ ' * row.is_at_limit}{row.suggested}" if row.suggested else _NONE,
    }


def as_text(advice: Advice, strategy: Strategy, *, columns: int = 80) -> Iterator[str]:
    """Yield the lines of the table, the notes, the commands and the balance; a command is never broken."""
    figures = _columns(strategy)
    rows = [["NAMESPACE", "WORKLOAD" if strategy.by_workload else "SIZE", *map(str.upper, figures)]]
    rows += [[*_named(row), *(figure(row) for figure in figures.values())] for row in advice.rows]
    yield from table_lines(rows, shown_widths(rows, columns, [9, 8, *[0] * len(figures)]))
    notes = list(_notes(advice.rows))
    yield from ("",) if notes else ()
    for note in notes:
        yield from fold(one_line(note, 1000), columns, indent="  ")
    if advice.commands:
        yield from ("", *advice.commands)
    yield ""
    for line in (_balance_sentence(advice.balance), *remarks(advice)):
        yield from fold(one_line(line, 1000), columns)


def _notes(rows: Sequence[AdviceRow], *, has_command: bool = False) -> Iterator[str]:
    for row in rows:
        if row.command or not has_command:
            yield from (f"{' '.join(_named(row))} {row.key.share}: {note}" for note in row.notes)


def _balance_sentence(balance: Balance | None) -> str:
    if balance is None:
        return "No balance by workload: a label gives all workloads of a size the same share."
    promised, suggested, difference = balance
    change = f"{abs(difference):.2f} GPUs {'must be added' if difference > 0 else 'are gained'}"
    change = change if difference else "nothing changes"
    return f"Promised now: {promised:.2f} GPUs; with this advice: {suggested:.2f}; {change}."


def remarks(advice: Advice) -> Iterator[str]:
    """Yield the sentences about the whole answer."""
    yield from advice.remarks
    if advice.dropped:
        yield (
            f"Dropped: {counted(advice.dropped, 'pod')} with names that no Kubernetes object can have, or"
            " with figures that no GPU can have."
        )


def as_json(advice: Advice) -> str:
    """Format the advice as a JSON document in ASCII; unknown values are null."""
    document = {
        "rows": [_json_row(row) for row in advice.rows],
        "balance": advice.balance and advice.balance._asdict(),
        "dropped": advice.dropped,
        "remarks": list(advice.remarks),
    }
    return json.dumps(document, indent=2) + "\n"


def _json_row(row: AdviceRow) -> dict[str, Any]:
    key = row.key
    return {
        "namespace": key.namespace,
        "vcluster": key.vcluster,
        "virtualNamespace": key.virtual_namespace,
        "size": key.size,
        "workloadKind": key.workload_kind or None,
        "workload": key.workload or None,
        "model": row.models[0] if len(row.models) == 1 else None,
        "pods": row.pods,
        "podHours": round(row.pod_hours, 2),
        "current": str(key.share),
        "suggested": None if row.suggested is None else str(row.suggested),
        "atLeast": row.suggested is not None and row.is_at_limit,
        "peakBytes": row.peak_bytes,
        "quantileBytes": row.quantile_bytes,
        "overHours": None if row.over_hours is None else round(row.over_hours, 2),
        "coverage": round(row.coverage, 4),
        "notes": list(row.notes),
    }


def as_html(advice: Advice, strategy: Strategy, window: Window) -> str:
    """Format the advice as one page with a picture for each row."""
    rule = f"Quantile {strategy.quantile:g} of the pod that used most, plus {strategy.headroom:.0%}"
    return render(
        "GPU shares: what would have done",
        f"{window}. {rule}{', and no less than the peak' if strategy.cover_peak else ''}.",
        element("p", _balance_sentence(advice.balance), class_="sum"),
        *(element("p", sentence) for sentence in remarks(advice)),
        *(_section(row, _columns(strategy), window) for row in advice.rows),
    )


def _section(row: AdviceRow, columns: Mapping[str, Callable[[AdviceRow], str]], window: Window) -> Html:
    place, subject = _named(row)
    figures = {name: figure(row) for name, figure in columns.items()}
    figures |= {"use known": f"{row.coverage:.0%}", "card": ", ".join(row.models) or _NONE}
    marked = "advice" if row.is_change else ""
    terms = (
        element("div", element("dt", name), element("dd", text, class_="change" if name == marked else ""))
        for name, text in figures.items()
    )
    return element(
        "section",
        element("h2", f"{place} · {'no size' if subject == _NONE else subject}"),
        element("dl", *terms),
        _picture(row, f"Use over time against the share of {place} {subject}", figures, window),
        element("ul", *(element("li", note) for note in row.notes)) if row.notes else "",
        element("pre", row.command) if row.command else "",
    )


def _picture(row: AdviceRow, title: str, figures: Mapping[str, str], window: Window) -> str:
    """Return the picture of a row, in parts of a GPU; with several models the largest part counts."""
    largest: defaultdict[float, float] = defaultdict(float)
    gpus = {use.gpu_bytes for use in row.uses if use.gpu_bytes is not None}
    for use in row.uses:
        for at, peak in zip(*use.peaks, strict=True) if use.gpu_bytes else ():
            largest[at] = max(largest[at], peak / (use.gpu_bytes or 1))
    shares = {"share": row.key.share, "advice": row.suggested}
    lines = {
        name: (figures[name], max(share.bytes_on(gpu) / gpu for gpu in gpus))
        for name, share in shares.items()
        if largest and share is not None
    }
    return picture(title, sorted(largest.items()), lines, window) if largest else ""
