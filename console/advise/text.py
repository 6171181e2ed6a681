"""Formats advice as a table for a terminal, and as JSON. Pure functions."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from console.advise.advice import Advice, AdviceOptions, AdviceRow, Balance
from console.text_table import column_widths, natural_widths, table_lines
from service.command import DEFAULT_COLUMNS
from service.text import counted, fold, one_line
from service.units import size

_NONE: Final = "-"
_INDENT: Final = "  "
_Cell = Callable[[AdviceRow], str]


def places(rows: Iterable[AdviceRow]) -> _Cell:
    """Return a function that names the namespace of a row, or the vCluster and the namespace inside.

    The namespace of the host is before the name of a vCluster that two of its namespaces have.
    """
    hosts: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        hosts[row.key.vcluster].add(row.key.namespace)

    def place(row: AdviceRow) -> str:
        key = row.key
        if not key.vcluster:
            return key.namespace
        inside = f"{key.vcluster}/{key.virtual_namespace}"
        return f"{key.namespace}/{inside}" if len(hosts[key.vcluster]) > 1 else inside

    return place


def subject(row: AdviceRow) -> str:
    """Return the workload, or the size; a hyphen for the default share."""
    key = row.key
    if key.workload:
        return f"{key.workload_kind}/{key.workload}"
    return key.size or _NONE


def suggestion(row: AdviceRow) -> str:
    """Return the suggested share; `≥` before it if the pods may need more."""
    if row.suggested is None:
        return _NONE
    return f"{'≥ ' if row.is_at_least else ''}{row.suggested}"


def _bytes(amount: int | None) -> str:
    return _NONE if amount is None else size(amount)


def _columns(options: AdviceOptions, place: _Cell) -> Sequence[tuple[str, int, _Cell]]:
    """Return heading, smallest width (0: cells are not shortened) and cell of each column."""
    return (
        ("NAMESPACE", 9, place),
        ("WORKLOAD" if options.by_workload else "SIZE", 8, subject),
        ("PODS", 0, lambda row: str(row.pods)),
        ("HOURS", 0, lambda row: f"{row.pod_hours:.0f}"),
        ("PEAK", 0, lambda row: _bytes(row.peak_bytes)),
        (f"P{options.quantile * 100:g}", 0, lambda row: _bytes(row.quantile_bytes)),
        ("OVER", 0, lambda row: _NONE if row.over_hours is None else f"{row.over_hours:.1f}h"),
        ("SHARE", 0, lambda row: str(row.current)),
        ("ADVICE", 0, suggestion),
    )


def as_text(advice: Advice, options: AdviceOptions, *, columns: int = DEFAULT_COLUMNS) -> Iterator[str]:
    """Yield the lines of the table, the notes, the commands and the balance.

    Args:
        advice: the advice.
        options: how it was made.
        columns: largest width of a line; a command is never broken.
    """
    place = places(advice.rows)
    described = _columns(options, place)
    rows = [[heading for heading, _, _ in described]]
    rows += [[cell(row) for _, _, cell in described] for row in advice.rows]
    widths = column_widths(rows, columns, [least for _, least, _ in described]) or natural_widths(rows)
    yield from table_lines(rows, widths)
    for number, note in enumerate(_notes(advice.rows)):
        if not number:
            yield ""
        yield from fold(one_line(note, 1000), columns, indent=_INDENT)
    if advice.commands:
        yield ""
        yield from advice.commands
    yield ""
    for line in (balance_sentence(advice.balance), *remarks(advice)):
        yield from fold(one_line(line, 1000), columns)


def command_notes(advice: Advice) -> Iterator[str]:
    """Yield the notes of the rows that have a command."""
    return _notes(advice.rows, has_command=True)


def _notes(rows: Sequence[AdviceRow], *, has_command: bool = False) -> Iterator[str]:
    place = places(rows)
    for row in rows:
        if row.commands or not has_command:
            yield from (f"{place(row)} {subject(row)} {row.current}: {note}" for note in row.notes)


def balance_sentence(balance: Balance | None) -> str:
    """Return what the advice would change in GPUs."""
    if balance is None:
        return "No balance by workload: a label gives all workloads of a size the same share."
    begin = f"Promised now: {balance.promised:.2f} GPUs; with this advice: {balance.suggested:.2f}"
    difference = round(balance.difference, 2)
    if difference < 0:
        return f"{begin}; {-difference:.2f} GPUs are gained."
    if difference > 0:
        return f"{begin}; {difference:.2f} GPUs must be added."
    return f"{begin}; nothing changes."


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
    balance = advice.balance
    document = {
        "rows": [_row(row) for row in advice.rows],
        "balance": None
        if balance is None
        else {
            "promised": balance.promised,
            "suggested": balance.suggested,
            "difference": round(balance.difference, 2),
        },
        "dropped": advice.dropped,
        "remarks": list(advice.remarks),
    }
    return json.dumps(document, indent=2) + "\n"


def _row(row: AdviceRow) -> dict[str, Any]:
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
        "current": str(row.current),
        "suggested": None if row.suggested is None else str(row.suggested),
        "atLeast": row.is_at_least,
        "peakBytes": row.peak_bytes,
        "quantileBytes": row.quantile_bytes,
        "overHours": None if row.over_hours is None else round(row.over_hours, 2),
        "coverage": round(row.coverage, 4),
        "notes": list(row.notes),
    }
