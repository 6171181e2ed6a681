"""Command `kaishare-agent top`: prints one agent's figures once, or refreshes them."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from console.caller import read_token
from console.top.agent_client import Agent, ReadFailed, Received, not_an_answer, with_question
from console.top.arrange import AgentLine, Arrangement, GroupLine, Line
from console.top.fleet import AgentRef, Fleet
from console.top.text import TextLine, as_text, head, head_lines, table_lines
from gpuagent.api_types import NotAnAnswer, read_document
from gpuagent.table.pod_rows import PodState
from service.command import UsageError, columns_of, output_failed, write_output, write_warning
from service.text import shorten

ALARM: Final = Style(color="red", bold=True)
_OVER: Final = Style(color="yellow")
_CAUSE: Final = Style(color="yellow", bold=True)
_AT_RISK: Final = Style(color="magenta")
_OLD: Final = Style(dim=True)
_GROUP: Final = Style(bold=True)
_PLAIN: Final = Style()
_STATES: Final = {PodState.FLAGGED: ALARM, PodState.IN_GRACE: _OVER}


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


EVERY_SECONDS: Final = 2.0


def run(*, url: str, watch: bool | None, output: str, token_file: str) -> int:
    """Show the figures; return the exit status.

    Args:
        url: the agent's address.
        watch: None to watch if standard output is a terminal.
        output: `text` or `json`.
        token_file: file with a token for the agent, `-` for standard input; empty for none.

    Raises:
        UsageError: the URL is invalid, or, without watching, the agent does not respond.
    """
    token = read_token(token_file) if token_file else ""
    try:
        agent = Agent(url, token=token)
    except ValueError as error:
        raise UsageError(str(error)) from None
    is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    is_on_screen = is_terminal and output == "text"
    try:
        if not (is_on_screen if watch is None else watch):
            write_output(_text_once(agent, output))
        elif is_on_screen:
            _watch_on_screen(agent)
        else:
            _watch_in_lines(agent, output)
    except KeyboardInterrupt:
        return 0
    except OSError as error:  # the terminal is gone
        output_failed(error)
    return 0


def _text_once(agent: Agent, output: str) -> str:
    try:
        return _text(agent.fetch(), output, indent=2)
    except ReadFailed as silence:
        raise UsageError(f"{agent.url}: {with_question(str(silence))}") from None


def _text(received: Received, output: str, *, indent: int | None = None) -> str:
    """Return a response in the wanted format. JSON is ASCII, so that no name can control a terminal.

    Raises:
        ReadFailed: the response has a field that cannot be written as JSON.
    """
    if output == "json":
        try:
            return json.dumps(read_document(received.body), indent=indent) + "\n"
        except (NotAnAnswer, RecursionError) as error:
            raise ReadFailed(not_an_answer(error)) from None
    fleet = _fleet_of("agent", received.at)
    fleet.set_response("agent", received)
    return as_text(fleet, Arrangement(), received.at, columns=columns_of(sys.stdout))


def _fleet_of(url: str, now: float) -> Fleet:
    """Return the state of one agent, which has not responded yet."""
    fleet = Fleet()
    fleet.set_agents([AgentRef(url, "")], now)
    return fleet


def _watch_in_lines(agent: Agent, output: str) -> None:
    """Print every response; print an error to standard error only when it changes."""
    silence = ""
    while True:
        try:
            text = _text(agent.fetch(), output)
        except ReadFailed as error:
            if str(error) != silence:
                silence = str(error)
                write_warning(f"{agent.url}: {silence}; retrying")
        else:
            silence = ""
            end = "" if output == "json" else "\n"
            if not write_output(text + end):
                return
        time.sleep(EVERY_SECONDS)


def _watch_on_screen(agent: Agent) -> None:
    # Imported here, since only a refreshed display draws.
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    signal.signal(signal.SIGTERM, _interrupt)  # the terminal must be restored
    fleet = _fleet_of(agent.url, time.monotonic())
    screen = Screen(fleet, time.monotonic)
    console = Console(markup=False, highlight=False, emoji=False)
    with Live(
        console=console,
        screen=True,
        get_renderable=lambda: screen,
        refresh_per_second=1,
        redirect_stdout=False,
        redirect_stderr=False,
    ):
        while True:
            try:
                fleet.set_response(agent.url, agent.fetch())
            except ReadFailed as error:
                fleet.set_failure(agent.url, str(error))
            time.sleep(EVERY_SECONDS)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
