"""Draws the table of one agent in a terminal. Names are plain text and never markup."""

from collections.abc import Callable
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from gpuagent.table.rows import PodState
from gpuagent.top.arrange import AgentLine, Arrangement, GroupLine, Line
from gpuagent.top.fleet import Fleet
from gpuagent.top.head import head
from gpuagent.top.text import TextLine, head_lines, table_lines
from service.text import shorten

ALARM: Final = Style(color="red", bold=True)
_OVER: Final = Style(color="yellow")
_CAUSE: Final = Style(color="yellow", bold=True)
_AT_RISK: Final = Style(color="magenta")
_OLD: Final = Style(dim=True)
_GROUP: Final = Style(bold=True)
_PLAIN: Final = Style()
_STATES: Final = {PodState.FLAGGED: ALARM, PodState.OVER: _OVER}


def style_of(line: Line, *, is_old: bool) -> Style:
    """Return the style of a line of the table; `is_old` are figures of the past."""
    if isinstance(line, GroupLine):
        return _GROUP
    if isinstance(line, AgentLine):
        return _OVER
    of_risk = _CAUSE if line.is_cause else _AT_RISK if line.is_at_risk else _PLAIN
    return _STATES.get(line.state, of_risk) + (_OLD if is_old else _PLAIN)


class Screen:
    """The table at the height of the terminal.

    On a low terminal the lines of the GPUs are left out; if that is not enough, each row has one line, and
    then the last rows are left out and counted.
    """

    def __init__(self, fleet: Fleet, clock: Callable[[], float]) -> None:
        """Set the state that is drawn, and its clock."""
        self._fleet = fleet
        self._clock = clock

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the present state."""
        lines = self._lines(options.max_width, options.height or console.height)
        text = Text("\n").join(Text(line.text, _style(line)) for line in lines)
        text.no_wrap, text.overflow = True, "crop"
        yield text

    def _lines(self, columns: int, height: int) -> list[TextLine]:
        fleet, now = self._fleet, self._clock()
        sums = [TextLine(shorten(part.text, columns), is_alarm=part.is_alarm) for part in head(fleet, now)]
        advice = table_lines(fleet, Arrangement(), now, columns, with_advice=True)
        whole = list(table_lines(fleet, Arrangement(), now, columns))
        compact = table_lines(fleet, Arrangement(), now, columns, is_compact=True)
        above = list(head_lines(fleet, now, columns))
        for lines in ([*above, *advice], above + whole, sums + whole, [*sums, *compact]):
            if len(lines) <= height:
                return lines
        kept, hidden = lines[: height - 1], lines[height - 1 :]
        flagged = sum(is_flagged(line) for line in hidden)
        also = f", {flagged} flagged" if flagged else ""
        rest = f"… {len(hidden)} more lines{also}; run `kaishare-agent top --once` to see all"
        return [*kept, TextLine(shorten(rest, columns), is_alarm=bool(flagged))]


def is_flagged(line: TextLine) -> bool:
    """Return whether a line is the row of a flagged pod."""
    row = line.line
    return not isinstance(row, GroupLine | AgentLine | None) and row.state is PodState.FLAGGED


def _style(line: TextLine) -> Style:
    if line.line is not None:
        return style_of(line.line, is_old=line.is_old)
    return (ALARM if line.is_alarm else _PLAIN) + (_OLD if line.is_old else _PLAIN)
