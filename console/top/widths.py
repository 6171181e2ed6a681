"""Widths of the columns that depend on the data. Pure."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from console.top.cells import NONE
from console.top.rows import Row

Widths = Mapping[str, int]
"""Largest length of the cells by column."""


def reasons_of(row: Row) -> str:
    """Return the cell with the reasons of a row's flags."""
    return ",".join(row.reasons) or NONE


_MEASURED: Final[Mapping[str, Callable[[Row], int]]] = {
    "reason": lambda row: len(reasons_of(row)),
    "node": lambda row: len(row.node),
    "gpu": lambda row: len(row.gpu),
    "utilization": lambda row: 0 if row.utilization is None else 5,
    "pod": lambda row: len(row.pod),
    "namespace": lambda row: len(row.namespace),
    "size": lambda row: len(row.size),
    "queue": lambda row: len(row.queue),
}


def measure(rows: Iterable[Row]) -> dict[str, int]:
    """Return the largest length of the cells in each column; 0 for a column without a value."""
    rows = tuple(rows)
    return {name: max(map(length, rows), default=0) for name, length in _MEASURED.items()}


def merge_widths(all_widths: Iterable[Widths]) -> dict[str, int]:
    """Return the largest width of each column."""
    merged = dict.fromkeys(_MEASURED, 0)
    for widths in all_widths:
        for name, width in widths.items():
            merged[name] = max(merged[name], width)
    return merged
