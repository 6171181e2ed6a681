"""The columns of the table, which of them a terminal has room for, and the rows in them. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from console.top.gpu_rows import BAR, NONE, UNKNOWN
from service.text import shorten, shorten_middle

Widths = Mapping[str, int]  # largest length of the cells by column; 0 for an optional column without a value
Cells = Mapping[str, str]  # the text of a row in each column


class Column(NamedTuple):
    """One column of the table."""

    name: str  # the key of its text in the cells of a row
    heading: str
    narrowest: int  # smallest width, unless all cells are narrower
    rank: int = 0  # columns with a higher rank appear on wider terminals; 0 is always there
    is_right: bool = False

    def least(self, widths: Widths) -> int:
        """Return the smallest width."""
        return max(min(widths.get(self.name, self.narrowest), self.narrowest), len(self.heading))

    def fit(self, text: str, width: int) -> str:
        """Return a text, which comes from `plain`, in exactly the given number of terminal columns."""
        if len(text) > width:
            text = shorten_middle(text, width)
        return text.rjust(width) if self.is_right else text.ljust(width)


COLUMNS: Final = (
    Column("state", "STATE", 19, rank=5),
    Column("node", "NODE", 10),
    Column("gpu", "GPU", 11),
    Column("used", "USED", 10, is_right=True),
    Column("share", "SHARE", 10, is_right=True),
    Column("bar", "", BAR, rank=3),
    Column("percent", "%", 7, is_right=True),
    Column("utilization", "UTIL", 7, rank=4, is_right=True),
    Column("over", "OVER FOR", 8, rank=1, is_right=True),
    Column("name", "NAMESPACE/POD", 24),  # in place of the next without room for NAMESPACE
    Column("pod", "POD", 20),
    Column("namespace", "NAMESPACE", 14, rank=2),
    Column("size", "SIZE", 8, rank=7),
    Column("queue", "QUEUE", 10, rank=8),
    Column("processes", "PROCESSES", 9, rank=9, is_right=True),
)
# Columns that are left out while no row has a value.
_OPTIONAL: Final = ("utilization", "size", "queue")
# Columns that share the space left, in order of preference.
_WIDENED: Final = ("state", "gpu", "name", "pod", "namespace", "node", "size", "queue")


def measure(rows: Collection[Cells]) -> Widths:
    """Return the widths that rows need."""
    cells = {column.name: {row[column.name] for row in rows} for column in COLUMNS}
    empty = {name for name in _OPTIONAL if cells[name] <= {NONE, UNKNOWN}}
    return {name: 0 if name in empty else max(map(len, texts), default=0) for name, texts in cells.items()}


class Layout(NamedTuple):
    """The chosen columns with their widths."""

    columns: Sequence[tuple[Column, int]]
    width: int

    def heading(self) -> str:
        """Return the line with the headings."""
        return self.row("  ", {column.name: column.heading for column, _ in self.columns})

    def row(self, sign: str, cells: Cells) -> str:
        """Return the line of a row after its sign, in exactly the width of the table."""
        return self.fit(
            " ".join((sign, *(column.fit(cells[column.name], width) for column, width in self.columns)))
        )

    def fit(self, text: str) -> str:
        """Return a text in exactly the width of the table, shortened at its end."""
        return shorten(text, self.width).ljust(self.width) if self.width > 0 else ""


def layout(width: int, widths: Widths, *, without: Collection[str] = (), is_whole: bool = False) -> Layout:
    """Choose the columns for a terminal: as many as fit in their order of rank, then widen the long ones.

    With `is_whole`, for a file or pipe, no cell is cut, and the table is as wide as it needs.
    """
    left_out = {*without, "name", *(name for name in _OPTIONAL if not widths.get(name))}
    sizes, left = dict[str, int](), width - 2
    for column in sorted(COLUMNS, key=lambda column: column.rank):
        if column.name not in left_out and (not column.rank or column.least(widths) < left):
            sizes[column.name] = column.least(widths)
            left -= sizes[column.name] + 1
    if "namespace" not in sizes:
        left += sizes.pop("pod")
        sizes["name"] = next(column.least(widths) for column in COLUMNS if column.name == "name")
        left -= sizes["name"]
    chosen = [column for column in COLUMNS if column.name in sizes]
    if is_whole:
        sizes = {name: max(size, widths.get(name, 0)) for name, size in sizes.items()}
        width = max(width, 2 + sum(size + 1 for size in sizes.values()))
    for name in _WIDENED:
        if left > 0 and name in sizes:
            more = min(left, max(widths.get(name, 0) - sizes[name], 0))
            sizes[name] += more
            left -= more
    for name in ("name", "node", "gpu"):  # on a terminal narrower than the narrowest table
        less = min(max(-left, 0), max(sizes.get(name, 0) - 4, 0))
        sizes[name] = sizes.get(name, 0) - less
        left += less
    return Layout([(column, sizes[column.name]) for column in chosen], width)
