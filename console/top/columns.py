"""The columns of the table at a given width, and the cells of a row. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from console.top.arrange import AgentLine, GroupLine, Line
from console.top.cells import NONE, UNKNOWN, amount, bar, fit, percent
from console.top.rows import Row, Tier
from console.top.widths import Widths, reasons_of
from service.text import counted, shorten
from service.units import duration

SIGN_FLAGGED: Final = "!"
SIGN_OVER: Final = "~"
SIGN_OLD: Final = "?"
_SIGNS: Final = {Tier.FLAGGED: SIGN_FLAGGED, Tier.OVER: SIGN_OVER, Tier.REST: " "}
_BAR: Final = 10


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table."""

    name: str
    heading: str
    cell: Callable[[Row], str]
    narrowest: int
    """Smallest width, unless all cells are narrower."""
    is_right: bool = False
    rank: int = 0
    """Columns with a higher rank appear on wider terminals; 0 is always there."""
    is_optional: bool = False
    """Whether the column is left out while no row has a value."""


def _used(row: Row) -> str:
    has_no_place = row.processes is None and not row.processes_are_unknown and not row.gpu_uuid
    return NONE if has_no_place else amount(row.used)


def _processes(row: Row) -> str:
    if row.processes is None:
        return UNKNOWN if row.processes_are_unknown else NONE
    return str(row.processes)


def _share(row: Row) -> str:
    return amount(row.share) if row.share is not None or row.share_is_unknown else NONE


def _percent(row: Row) -> str:
    if row.ratio is not None:
        return percent(row.ratio)
    return NONE if row.share is None and not row.share_is_unknown else UNKNOWN


def _over_for(row: Row) -> str:
    return NONE if row.over_seconds is None else duration(min(row.over_seconds, 1e10))


COLUMNS: Final = (
    Column("reason", "FLAG", reasons_of, 12, rank=5),
    Column("node", "NODE", lambda row: row.node, 10),
    Column("gpu", "GPU", lambda row: row.gpu, 11),
    Column("used", "USED", _used, 8, is_right=True),
    Column("share", "SHARE", _share, 8, is_right=True),
    Column("bar", "", lambda row: bar(row.ratio, _BAR), _BAR, rank=3),
    Column("percent", "%", _percent, 5, is_right=True),
    Column(
        "utilization",
        "UTIL",
        lambda row: percent(row.utilization) if row.utilization is not None else UNKNOWN,
        5,
        is_right=True,
        rank=4,
        is_optional=True,
    ),
    Column("over", "OVER FOR", _over_for, 8, is_right=True, rank=1),
    Column("pod", "POD", lambda row: row.pod, 20),
    Column("namespace", "NAMESPACE", lambda row: row.namespace, 14, rank=2),
    Column("size", "SIZE", lambda row: row.size or NONE, 8, rank=6, is_optional=True),
    Column("queue", "QUEUE", lambda row: row.queue or NONE, 10, rank=7, is_optional=True),
    Column(
        "processes",
        "PROCESSES",
        _processes,
        9,
        is_right=True,
        rank=8,
    ),
)
POD_WITH_NAMESPACE: Final = Column(
    "pod", "NAMESPACE/POD", lambda row: f"{row.namespace}/{row.pod}", 24
)  # on terminals too narrow for a column with the namespace


@dataclass(frozen=True, slots=True)
class Layout:
    """The chosen columns with their widths."""

    columns: tuple[tuple[Column, int], ...]
    width: int

    @property
    def has_reasons(self) -> bool:
        """Whether the reasons of flags have a column."""
        return any(column.name == "reason" for column, _ in self.columns)

    def heading(self) -> str:
        """Return the line with the headings."""
        cells = (fit(column.heading, width, is_right=column.is_right) for column, width in self.columns)
        return self._line("  ", cells)

    def line(self, line: Line, now: float, *, is_old: bool = False) -> str:
        """Return one line of the table, in exactly the width of the table.

        Args:
            line: row, heading of a group, or agent.
            now: monotonic seconds, on the clock of the agents' state.
            is_old: whether the agent no longer responds, so that a row's figures are of the past.
        """
        if isinstance(line, GroupLine):
            return fit_end(group_text(line), self.width)
        if isinstance(line, AgentLine):
            return fit_end(agent_text(line, now), self.width)
        cells = (fit(column.cell(line), width, is_right=column.is_right) for column, width in self.columns)
        return self._line(sign(line, is_old=is_old), cells)

    def _line(self, mark: str, cells: Iterable[str]) -> str:
        return fit_end(" ".join((mark, *cells)), self.width)


def sign(row: Row, *, is_old: bool) -> str:
    """Return the two characters that mark a row: `!` flagged, `~` in its grace, `?` figures of the past."""
    return _SIGNS[row.tier] + (SIGN_OLD if is_old else " ")


def fit_end(text: str, width: int) -> str:
    """Return a text in exactly the given number of columns, shortened at its end."""
    return shorten(text, width).ljust(width) if width > 0 else ""


def group_text(line: GroupLine) -> str:
    """Return the heading of a group."""
    at_least = "≥" if line.is_lower_bound else ""
    return (
        f"── {line.name}: {counted(line.rows, 'row')}, {line.flagged} flagged, {line.over} in grace,"
        f" used {at_least}{amount(line.used)} of shares {at_least}{amount(line.share)}"
    )


def agent_text(line: AgentLine, now: float) -> str:
    """Return the line of an agent: its silence with age and reason, or its problems."""
    agent = line.agent
    age = duration(agent.silent_seconds(now))
    if agent.failure:
        return f" {SIGN_OLD} {agent.node}: no answer for {age}: {agent.failure}"
    if agent.received is None:
        return f" {SIGN_OLD} {agent.node}: asked {age} ago, no answer yet"
    suspended = "verdicts suspended: " if agent.is_suspended else ""
    return f" {SIGN_OLD} {agent.node}: {suspended}{'; '.join(agent.problems) or 'no figures'}"


def layout(width: int, widths: Widths, *, has_bar: bool = True) -> Layout:
    """Choose the columns for a width: as many as fit in their order of rank, then widen the long ones.

    Args:
        width: of the terminal, in columns.
        widths: from `merge_widths`.
        has_bar: whether the use of the share is drawn, too.
    """
    wanted = [
        column
        for column in COLUMNS
        if (not column.is_optional or widths.get(column.name, 0)) and (has_bar or column.name != "bar")
    ]
    chosen = [column for column in wanted if not column.rank]
    for column in sorted(wanted, key=lambda column: column.rank):
        if column.rank and _needed([*chosen, column], widths) <= width:
            chosen.append(column)
    if not any(column.name == "namespace" for column in chosen):
        widths = {**widths, "pod": widths.get("pod", 0) + widths.get("namespace", 0) + 1}
        chosen = [POD_WITH_NAMESPACE if column.name == "pod" else column for column in chosen]
    chosen.sort(key=lambda column: _ORDER[column.name])
    return Layout(_widened(chosen, widths, width), width)


_ORDER: Final = {column.name: index for index, column in enumerate(COLUMNS)}
_WIDENED: Final = ("reason", "gpu", "pod", "namespace", "node", "size", "queue")
"""Columns that share the space left, in order of preference."""


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
            less = min(-left, max(sizes[name] - 4, 0))
            sizes[name] -= less
            left += less
    return tuple((column, sizes[column.name]) for column in columns)
