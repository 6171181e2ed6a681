"""The columns of the table, which of them a terminal has room for, and the rows in them. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from console.top.gpu_rows import BAR, NONE, UNKNOWN
from console.top.pod_rows import PodRow, PodState
from service.text import shorten, shorten_middle

SIGN_FLAGGED: Final = "!"
SIGN_AT_RISK: Final = "*"
SIGN_OLD: Final = "?"
_RIGHT: Final = frozenset({"used", "share", "percent", "utilization", "limit", "over", "processes"})

Widths = Mapping[str, int]  # largest length of the cells by column; 0 for an optional column without a value


class Column(NamedTuple):
    """One column of the table."""

    name: str  # the key of its text in the cells of a row
    heading: str
    narrowest: int  # smallest width, unless all cells are narrower
    rank: int = 0  # columns with a higher rank appear on wider terminals; 0 is always there

    def text(self, row: PodRow) -> str:
        """Return the cell of a row."""
        return f"{row.namespace}/{row.pod}" if self is _POD_WITH_NAMESPACE else row.cells[self.name]

    def fit(self, text: str, width: int) -> str:
        """Return a text, which comes from `plain`, in exactly the given number of terminal columns."""
        if len(text) > width:
            text = shorten_middle(text, width)
        return text.rjust(width) if self.name in _RIGHT else text.ljust(width)


COLUMNS: Final = (
    Column("state", "STATE", 19, rank=5),
    Column("node", "NODE", 10),
    Column("gpu", "GPU", 11),
    Column("used", "USED", 10),
    Column("share", "SHARE", 10),
    Column("bar", "", BAR, rank=3),
    Column("percent", "%", 7),
    Column("utilization", "UTIL", 7, rank=4),
    Column("limit", "LIMIT", 10, rank=6),
    Column("over", "OVER FOR", 8, rank=1),
    Column("pod", "POD", 20),
    Column("namespace", "NAMESPACE", 14, rank=2),
    Column("size", "SIZE", 8, rank=7),
    Column("queue", "QUEUE", 10, rank=8),
    Column("processes", "PROCESSES", 9, rank=9),
    Column("source", "SOURCE", 12, rank=10),
    Column("workload", "WORKLOAD", 14, rank=11),
    Column("tenant", "IN VCLUSTER", 14, rank=12),
)
# Columns that are left out while no row has a value.
_OPTIONAL: Final = frozenset({"utilization", "limit", "size", "queue", "workload", "tenant"})
# On terminals too narrow for a column with the namespace.
_POD_WITH_NAMESPACE: Final = Column("pod", "NAMESPACE/POD", 24)
_ORDER: Final = {column.name: index for index, column in enumerate(COLUMNS)}
# Columns that share the space left, in order of preference.
_WIDENED: Final = ("state", "gpu", "pod", "namespace", "node", "size", "queue", "workload", "tenant")


def measure(rows: Collection[PodRow]) -> Widths:
    """Return the widths that rows need."""
    cells = {column.name: {row.cells[column.name] for row in rows} for column in COLUMNS}
    empty = {name for name in _OPTIONAL if cells[name] <= {NONE, UNKNOWN}}
    longest = {name: 0 if name in empty else max(map(len, texts), default=0) for name, texts in cells.items()}
    return {**longest, "bar": BAR}


def merge_widths(all_widths: Iterable[Widths]) -> Widths:
    """Return the largest width of each column."""
    merged = dict.fromkeys(_ORDER, 0)
    for widths in all_widths:
        for name, width in widths.items():
            merged[name] = max(merged[name], width)
    return merged


class Layout(NamedTuple):
    """The chosen columns with their widths."""

    columns: tuple[tuple[Column, int], ...]
    width: int

    def heading(self) -> str:
        """Return the line with the headings."""
        cells = (column.fit(column.heading, width) for column, width in self.columns)
        return self.fit_line(" ".join(("  ", *cells)))

    def row(self, row: PodRow, *, is_old: bool = False) -> str:
        """Return the line of a row, in exactly the width of the table; `is_old` are figures of the past."""
        cells = (column.fit(column.text(row), width) for column, width in self.columns)
        return self.fit_line(" ".join((sign(row, is_old=is_old), *cells)))

    def fit_line(self, text: str) -> str:
        """Return a text in exactly the width of the table, shortened at its end."""
        return shorten(text, self.width).ljust(self.width) if self.width > 0 else ""


def sign(row: PodRow, *, is_old: bool) -> str:
    """Return the two characters that mark a row, as the help of the screen explains them."""
    if row.is_violation:
        mark = SIGN_FLAGGED if row.state is PodState.FLAGGED else "~"
    else:
        mark = "+" if row.is_cause else SIGN_AT_RISK if row.is_at_risk else " "
    return mark + (SIGN_OLD if is_old else " ")


def layout(width: int, widths: Widths, *, without: Collection[str] = (), is_whole: bool = False) -> Layout:
    """Choose the columns for a terminal: as many as fit in their order of rank, then widen the long ones.

    With `is_whole`, for a file or pipe, no cell is cut, and the table is as wide as it needs.
    """
    wanted = [
        column
        for column in COLUMNS
        if column.name not in without and (column.name not in _OPTIONAL or widths.get(column.name, 0))
    ]
    chosen = [column for column in wanted if not column.rank]
    for column in sorted(wanted, key=lambda column: column.rank):
        if column.rank and _needed([*chosen, column], widths) <= width:
            chosen.append(column)
    if not any(column.name == "namespace" for column in chosen):
        widths = {**widths, "pod": widths.get("pod", 0) + widths.get("namespace", 0) + 1}
        chosen = [_POD_WITH_NAMESPACE if column.name == "pod" else column for column in chosen]
    chosen.sort(key=lambda column: _ORDER[column.name])
    if is_whole:
        whole = [column._replace(narrowest=widths.get(column.name, 0)) for column in chosen]
        width = max(width, _needed(whole, widths))
    return Layout(_widened(chosen, widths, width), width)


def _least(column: Column, widths: Widths) -> int:
    natural = widths.get(column.name, column.narrowest)
    return max(min(natural, column.narrowest), len(column.heading))


def _needed(columns: Iterable[Column], widths: Widths) -> int:
    return 2 + sum(1 + _least(column, widths) for column in columns)


def _widened(columns: list[Column], widths: Widths, width: int) -> tuple[tuple[Column, int], ...]:
    sizes = {column.name: _least(column, widths) for column in columns}
    left = width - _needed(columns, widths)
    for name in _WIDENED:
        if left > 0 and name in sizes:
            more = min(left, max(widths.get(name, 0) - sizes[name], 0))
            sizes[name] += more
            left -= more
    if left < 0:  # narrower than the narrowest table: the names give way
        for name in ("pod", "node", "gpu"):
            less = min(-left, max(sizes.get(name, 0) - 4, 0))
            sizes[name] = sizes.get(name, 0) - less
            left += less
    return tuple((column, sizes[column.name]) for column in columns)
