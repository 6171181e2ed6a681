"""The interactive view. Every text from outside is a Rich Text or a Segment, never markup."""

import asyncio
import gc
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static

from console.top.details import details_of, summary_of
from console.top.fleet import GROUPS, SORTS, AgentState, Arrangement, Fleet, Line, Rounds, arrange, is_old
from console.top.layout import Layout, layout
from console.top.pod_rows import SIGNS, PodRow, Tier, sign
from console.top.text import gpu_lines, head

_ALARM: Final = Style(color="red", bold=True)
_OVER: Final = Style(color="yellow")
_STYLES: Final = {
    Tier.FLAGGED: _ALARM,
    Tier.IN_GRACE: _OVER,
    Tier.CAUSE: Style(color="yellow", bold=True),
    Tier.AT_RISK: Style(color="magenta"),
    Tier.CALM: Style(),
}


class LinesTable(ScrollView, can_focus=True):
    """The table. The cursor stays on its pod when the order changes, and at the top while it is there."""

    DEFAULT_CSS = "LinesTable { height: 1fr; scrollbar-size: 0 0; overflow-x: hidden; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Move", key_display="↑↓/PgDn"),
        Binding("pageup", "move(0, -1)", "Page up", show=False),
        Binding("pagedown,space", "move(0, 1)", "Page down", show=False),
        Binding("home", "move(-1000000)", "First", show=False),
        Binding("end", "move(1000000)", "Last", show=False),
        Binding("enter", "app.details", "Details", key_display="⏎"),
    ]

    def __init__(self, fleet: Fleet, on_move: Callable[[], None]) -> None:
        super().__init__()
        self._fleet, self._on_move = fleet, on_move
        self.lines: Sequence[Line] = ()
        self.cursor = 0
        self.chosen: Layout = layout(80, {})

    def set_lines(self, lines: Sequence[Line]) -> None:
        """Show other lines, with the cursor on the same pod if it is still there."""
        line = self.line_at_cursor()
        key = line.key if line is not None and self.cursor else None
        row_on_screen = self.cursor - self.scroll_offset.y
        self.lines = lines
        same = (index for index, line in enumerate(lines) if line.key == key)
        self.cursor = next(same, min(self.cursor, max(len(lines) - 1, 0)))
        self.chosen = layout(self.size.width or 80, self._fleet.widths)
        self.virtual_size = Size(self.size.width, len(lines))
        self.scroll_to(y=max(self.cursor - row_on_screen, 0), animate=False, immediate=True)
        self.action_move()

    def line_at_cursor(self) -> Line | None:
        """Return the line under the cursor; None in an empty table."""
        return self.lines[self.cursor] if self.cursor < len(self.lines) else None

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        index = y + self.scroll_offset.y
        if index >= len(self.lines):
            return Strip.blank(width, self.rich_style)
        line = self.lines[index]
        style = self.rich_style + Style(reverse=index == self.cursor)
        if isinstance(line, PodRow):
            is_past = is_old(self._fleet, line)
            text = self.chosen.row(sign(line, is_old=is_past), line.cells)
            style += _STYLES[line.tier] + Style(dim=True if is_past else None)
        else:
            text = self.chosen.fit(line.text(time.monotonic()))
            style += _OVER if isinstance(line, AgentState) else Style(bold=True)
        return Strip([Segment(text, style)], width)

    def on_resize(self) -> None:
        self.set_lines(self.lines)

    def action_move(self, lines: int = 0, pages: int = 0) -> None:
        """Move the cursor by lines and pages, and keep it on the screen."""
        index = self.cursor + lines + pages * max(self.size.height - 1, 1)
        self.cursor = min(max(index, 0), max(len(self.lines) - 1, 0))
        top, height = self.scroll_offset.y, max(self.size.height, 1)
        if not top <= self.cursor < top + height:
            y = self.cursor if self.cursor < top else self.cursor - height + 1
            self.scroll_to(y=y, animate=False, immediate=True)
        self.refresh()
        self._on_move()


_REFRESH_SECONDS: Final = 0.5  # how often new responses reach the table
_GPU_ROWS: Final = 30  # a terminal with fewer rows has no table of GPUs; a quarter of others is for it
_LOW_ROWS: Final = 20  # a terminal with fewer rows has no summary of the line under the cursor

_HELP: Final = """\
Keys
  ↑ ↓ j k PgUp PgDn space Home End   move the cursor
  Enter   what to do first, and every figure of the line
  /       filter by words of the node, namespace/pod, size, queue,
          vCluster or state; Esc removes it
  s  g    sort and group in the next way; the last line names it
  f       flagged pods, and those on a GPU at risk
  p  q    pause or resume; quit

Signs in front of a line
  !   flagged
  ~   in violation, within the grace
  +   above its share on a GPU at risk
  *   at risk: its share may not be free any more
  ?   the agent does not answer, or reports problems

`unknown` is never counted as 0, `-` does not exist, and a part of a
sum with ≥ is unknown. 1 GiB is 1024 MiB. % is used memory divided by the share.
"""


class TextScreen(ModalScreen[None]):
    """A text above the table, closed by Esc or Enter."""

    DEFAULT_CSS = """
    TextScreen { align: center middle; }
    TextScreen VerticalScroll { width: 95%; height: 90%; border: round; padding: 0 1; }
    TextScreen Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,question_mark", "dismiss", "Close", key_display="esc")
    ]

    def __init__(self, title: str, text: Callable[[], str]) -> None:
        super().__init__()
        self._title, self._text = title, text

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = Text(self._title)
            yield Static(Text(self._text()), markup=False)

    def on_mount(self) -> None:
        self.set_interval(_REFRESH_SECONDS, self._refresh)
        self.query_one(VerticalScroll).focus()

    def _refresh(self) -> None:
        self.query_one(Static).update(Text(self._text()))


class TopApp(App[None]):
    """Head, table, status line and keys."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 3; }
    #gpus { height: auto; }
    #columns { height: 1; text-style: bold underline; }
    #summary { height: 6; }
    #status { height: 1; text-style: dim; }
    #head, #gpus, #columns, #status { text-wrap: nowrap; text-overflow: ellipsis; }
    #filter { height: 1; border: none; padding: 0; display: none; }
    #filter.open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "next('sort')", "Sort"),
        Binding("f", "next('flagged_only')", "Flagged"),
        Binding("g", "next('group')", "Group"),
        Binding("p", "pause", "Pause"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("escape", "clear_filter", "Clear", show=False),
    ]

    def __init__(self, rounds: Rounds, fleet: Fleet, arrangement: Arrangement) -> None:
        super().__init__(ansi_color=True)
        self.rounds, self._fleet, self.arrangement = rounds, fleet, arrangement
        self._shown_version = -1
        # Textual removes the parts one by one at the end, while timers still run.
        names = ("head", "gpus", "columns", "summary", "status")
        self._parts = {name: Static(id=name, markup=False) for name in names}
        self._table = LinesTable(fleet, self._show_line)
        self._filter = Input(
            id="filter", placeholder="words to find; Enter keeps, Esc removes", select_on_focus=False
        )

    def compose(self) -> ComposeResult:
        head, gpus, columns, summary, status = self._parts.values()
        yield from (head, gpus, columns, self._table, summary, status, self._filter)
        yield Footer(compact=True, show_command_palette=False)

    def on_resize(self) -> None:
        self._show_head()

    def on_mount(self) -> None:
        self._table.focus()
        self._show_head()
        self._read()
        self.set_interval(_REFRESH_SECONDS, self._refresh)

    @work(exit_on_error=True)
    async def _read(self) -> None:
        await self.rounds.run()

    def _refresh(self) -> None:
        """Show new responses; nothing moves while paused."""
        if not self.rounds.is_paused and self._shown_version != self._fleet.version:
            self.rearrange()
        else:
            self._show_head()
            self._table.refresh()

    def rearrange(self) -> None:
        self._shown_version = self._fleet.version
        self._table.set_lines(arrange(self._fleet, self.arrangement))
        self._show_head()

    def _show_head(self) -> None:
        lines = head(self._fleet, time.monotonic())
        text = Text("\n").join(Text(line, _ALARM if is_alarm else "") for line, is_alarm in lines)
        self._parts["head"].update(text)
        self._parts["gpus"].update(Text("\n".join(self._gpu_overview())))
        self._parts["gpus"].display = self.size.height >= _GPU_ROWS and bool(self._fleet.gpus)
        tables = [agent.table for agent in self._fleet.agents.values()]
        has_trouble = any(table.flagged or table.over for table in tables) or self._has_risk()
        self._parts["summary"].display = self.size.height >= _LOW_ROWS and has_trouble

    def _gpu_overview(self) -> list[str]:
        """Return the table of the GPUs, those in trouble first, in a quarter of the screen."""
        gpus, most = self._fleet.gpus, self.size.height // 4
        gpus.sort(key=lambda gpu: not (gpu.loss or gpu.at_risk or gpu.is_over_promised))
        if len(gpus) < most:
            return list(gpu_lines(gpus, self.size.width))
        more = f"and {len(gpus) - most + 2} more GPUs"
        return [*gpu_lines(gpus[: most - 2], self.size.width), more]

    def _has_risk(self) -> bool:
        return any(gpu.at_risk for gpu in self._fleet.gpus)

    def _show_line(self) -> None:
        line = self._table.line_at_cursor()
        summary = summary_of(line, self._fleet) if line is not None else ()
        self._parts["columns"].update(Text(self._table.chosen.heading()))
        self._parts["summary"].update(Text("\n".join(summary)))
        self._parts["status"].update(Text(self._status()))

    def _status(self) -> str:
        choice, count = self.arrangement, len(self._table.lines)
        parts = {
            "PAUSED": self.rounds.is_paused,
            f"{self._table.cursor + 1}/{count}": count,
            f"sort: {choice.sort}": True,
            f"group: {choice.group}": choice.group != "none",
            "flagged only": choice.flagged_only,
            f"namespace: {choice.namespace}": choice.namespace,
            f"filter: {' '.join(choice.words)}": choice.words,
            f"{SIGNS[Tier.FLAGGED]} flagged  {SIGNS[Tier.AT_RISK]} at risk": self._has_risk(),
        }
        return "  ".join(part for part, is_so in parts.items() if is_so)

    def action_details(self) -> None:
        line = self._table.line_at_cursor()
        if line is not None:
            text = partial(details_of, line, self._fleet)
            self.push_screen(TextScreen("details", lambda: "\n".join(text(time.monotonic()))))

    def action_next(self, choice: str) -> None:
        """Take the next order or grouping, or show flagged rows and rows at risk only, or all."""
        values: list[object] = [False, True]
        if choice != "flagged_only":
            values = [*(SORTS if choice == "sort" else GROUPS)]
        place = values.index(getattr(self.arrangement, choice))
        self._choose(**{choice: values[(place + 1) % len(values)]})

    def action_pause(self) -> None:
        self.rounds.is_paused = not self.rounds.is_paused
        self._show_line()

    def action_help(self) -> None:
        self.push_screen(TextScreen("kaishare top", lambda: _HELP))

    def action_filter(self) -> None:
        self._filter.add_class("open").focus()

    def action_clear_filter(self) -> None:
        self._filter.value = ""
        self._choose(words=())
        self.on_input_submitted()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._choose(words=tuple(event.value.lower().split()))

    def on_input_submitted(self) -> None:
        self._filter.remove_class("open")
        self._table.focus()

    def _choose(self, **choices: object) -> None:
        arrangement = replace(self.arrangement, **choices)  # type: ignore[arg-type]
        if arrangement != self.arrangement:
            self.arrangement = arrangement
            self.rearrange()


def tune_garbage_collection() -> None:
    """Collect new garbage in small steps, and visit old objects rarely.

    Each round replaces the rows and the responses of all agents. They have no reference cycles, and visiting
    them took 0.7 s of each round with 12,800 rows and paused the keys for 0.3 s. Textual's strips do have
    cycles: some thousand objects for each redrawn screen.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 100, 100)


async def show(rounds: Rounds, fleet: Fleet, arrangement: Arrangement) -> None:
    """Show the view until a person quits or a signal ends it; restore the terminal."""
    tune_garbage_collection()
    app = TopApp(rounds, fleet, arrangement)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, app.exit)
    await app.run_async()
