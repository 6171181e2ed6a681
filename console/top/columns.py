"""The columns of the table in a terminal, and the widths that their cells need. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuagent.table.gpu_rows import NONE, UNKNOWN
from gpuagent.table.pod_rows import PodRow

_BAR: Final = 10
_BLOCKS: Final = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table."""

    name: str
    heading: str
    cell: Callable[[PodRow], str]
    narrowest: int
    """Smallest width, unless all cells are narrower."""
    is_right: bool = False
    rank: int = 0
    """Columns with a higher rank appear on wider terminals; 0 is always there."""
    is_optional: bool = False
    """Whether the column is left out while no row has a value."""


def bar(ratio: float | None, width: int = _BAR) -> str:
    """Draw a ratio from 0 to 1 in blocks; a larger ratio ends with a mark."""
    if ratio is None:
        return " " * width
    if ratio > 1:
        return "█" * (width - 1) + "▶"
    eighths = round(max(ratio, 0.0) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_BLOCKS[rest] if rest else "")).ljust(width)


COLUMNS: Final = (
    Column("state", "STATE", lambda row: row.state_text, 19, rank=5),
    Column("node", "NODE", lambda row: row.node, 10),
    Column("gpu", "GPU", lambda row: row.gpu, 11),
    Column("used", "USED", lambda row: row.used_text, 10, is_right=True),
    Column("share", "SHARE", lambda row: row.share_text, 10, is_right=True),
    Column("bar", "", lambda row: bar(row.ratio), _BAR, rank=3),
    Column("percent", "%", lambda row: row.ratio_text, 7, is_right=True),
    Column("util", "UTIL", lambda row: row.utilization_text, 7, is_right=True, rank=4, is_optional=True),
    Column("limit", "LIMIT", lambda row: row.limit_text, 10, is_right=True, rank=6, is_optional=True),
    Column("over", "OVER FOR", lambda row: row.over_for_text, 8, is_right=True, rank=1),
    Column("pod", "POD", lambda row: row.pod, 20),
    Column("namespace", "NAMESPACE", lambda row: row.namespace, 14, rank=2),
    Column("size", "SIZE", lambda row: row.size or NONE, 8, rank=7, is_optional=True),
    Column("queue", "QUEUE", lambda row: row.queue or NONE, 10, rank=8, is_optional=True),
    Column("processes", "PROCESSES", lambda row: row.processes_text, 9, is_right=True, rank=9),
    Column("source", "SOURCE", lambda row: row.share_source or NONE, 12, rank=10),
    Column("workload", "WORKLOAD", lambda row: row.workload or NONE, 14, rank=11, is_optional=True),
    Column("tenant", "IN VCLUSTER", lambda row: row.tenant or NONE, 14, rank=12, is_optional=True),
)

Widths = Mapping[str, int]
"""Largest length of the cells by column; 0 for an optional column without a value."""


def measure(rows: Iterable[PodRow]) -> dict[str, int]:
    """Return the widths that rows need."""
    rows = tuple(rows)
    return {column.name: _BAR if column.name == "bar" else _measured(column, rows) for column in COLUMNS}


def _measured(column: Column, rows: Iterable[PodRow]) -> int:
    cells = {column.cell(row) for row in rows}
    return 0 if column.is_optional and cells <= {NONE, UNKNOWN} else max(map(len, cells), default=0)


def merge_widths(all_widths: Iterable[Widths]) -> dict[str, int]:
    """Return the largest width of each column."""
    merged = dict.fromkeys((column.name for column in COLUMNS), 0)
    for widths in all_widths:
        for name, width in widths.items():
            merged[name] = max(merged[name], width)
    return merged
