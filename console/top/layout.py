"""The columns that a terminal has room for, and the lines of the table in them. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from console.top.arrange import AgentLine, GroupLine, Line
from console.top.columns import COLUMNS, Column, Widths
from gpuagent.table.pod_rows import PodRow, PodState
from service.text import counted, shorten, shorten_middle
from service.units import duration, size

SIGN_FLAGGED: Final = "!"
SIGN_OVER: Final = "~"
SIGN_CAUSE: Final = "+"
SIGN_AT_RISK: Final = "*"
SIGN_OLD: Final = "?"
_SIGNS: Final = {PodState.FLAGGED: SIGN_FLAGGED, PodState.IN_GRACE: SIGN_OVER}

POD_WITH_NAMESPACE: Final = Column(
    "pod", "NAMESPACE/POD", lambda row: f"{row.namespace}/{row.pod}", 24
)  # on terminals too narrow for a column with the namespace


@dataclass(frozen=True, slots=True)
class Layout:
    """The chosen columns with their widths."""

    columns: tuple[tuple[Column, int], ...]
    width: int

    def shows_state(self, row: PodRow) -> bool:
        """Whether the whole state of a row has room in its column."""
        return any(column.name == "state" and width >= len(row.state_text) for column, width in self.columns)

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


def sign(row: PodRow, *, is_old: bool) -> str:
    """Return the two characters that mark a row.

    `!` flagged, `~` in its grace, else `+` above its share on a GPU at risk, `*` at risk; `?` figures of the
    past.
    """
    of_risk = SIGN_CAUSE if row.is_cause else SIGN_AT_RISK if row.is_at_risk else " "
    return _SIGNS.get(row.state, of_risk) + (SIGN_OLD if is_old else " ")


def fit(text: str, width: int, *, is_right: bool = False) -> str:
    """Return a text in exactly the given number of columns; the text comes from `plain`."""
    if len(text) > width:
        text = shorten_middle(text, width)
    return text.rjust(width) if is_right else text.ljust(width)


def fit_end(text: str, width: int) -> str:
    """Return a text in exactly the given number of columns, shortened at its end."""
    return shorten(text, width).ljust(width) if width > 0 else ""


def group_text(line: GroupLine) -> str:
    """Return the heading of a group."""
    at_least = "≥" if line.is_lower_bound else ""
    at_risk = f" {line.at_risk} at risk," if line.at_risk else ""
    return (
        f"── {line.name}: {counted(line.rows, 'row')}, {line.flagged} flagged, {line.over} in grace,{at_risk}"
        f" used {at_least}{size(line.used)} of shares {at_least}{size(line.share)}"
    )


def agent_text(line: AgentLine, now: float) -> str:
    """Return the line of an agent: its silence with age and reason, or its problems."""
    agent = line.agent
    age = duration(agent.silent_seconds(now))
    if agent.failure:
        return f" {SIGN_OLD} {agent.node}: no answer for {age}: {agent.failure}"
    if agent.received is None:
        return f" {SIGN_OLD} {agent.node}: asked {age} ago, no answer yet"
    table = agent.table
    suspended = "verdicts suspended: " if table.is_suspended else ""
    problems = "; ".join(problem.text for problem in table.problems)
    return f" {SIGN_OLD} {agent.node}: {suspended}{problems or table.nothing}"


def layout(width: int, widths: Widths, *, without: Collection[str] = (), first: str = "") -> Layout:
    """Choose the columns for a width: as many as fit in their order of rank, then widen the long ones.

    Args:
        width: of the terminal, in columns.
        widths: from `merge_widths`.
        without: names of columns that are left out.
        first: name of the column that has the first rank.
    """
    wanted = [
        column
        for column in COLUMNS
        if column.name not in without and (not column.is_optional or widths.get(column.name, 0))
    ]
    chosen = [column for column in wanted if not column.rank]
    for column in sorted(wanted, key=lambda column: (column.name != first, column.rank)):
        if column.rank and _needed([*chosen, column], widths) <= width:
            chosen.append(column)
    if not any(column.name == "namespace" for column in chosen):
        widths = {**widths, "pod": widths.get("pod", 0) + widths.get("namespace", 0) + 1}
        chosen = [POD_WITH_NAMESPACE if column.name == "pod" else column for column in chosen]
    chosen.sort(key=lambda column: _ORDER[column.name])
    return Layout(_widened(chosen, widths, width), width)


_ORDER: Final = {column.name: index for index, column in enumerate(COLUMNS)}
_WIDENED: Final = ("state", "gpu", "pod", "namespace", "node", "size", "queue", "workload", "tenant")
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
            less = min(-left, max(sizes.get(name, 0) - 4, 0))
            sizes[name] = sizes.get(name, 0) - less
            left += less
    return tuple((column, sizes[column.name]) for column in columns)
