"""A Textual widget with the table's lines. It formats only the lines that are visible."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpuagent.table.rows import Key
from gpuagent.top.arrange import Line
from gpuagent.top.columns import Widths
from gpuagent.top.layout import Layout, layout
from gpuagent.top.screen import style_of


class LinesTable(ScrollView, can_focus=True):
    """The table. The cursor stays on its pod when the order changes, and at the top while it is there."""

    DEFAULT_CSS = """
    LinesTable { height: 1fr; scrollbar-size: 0 0; overflow-x: hidden; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Move", key_display="↑↓/PgDn"),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown,space", "page(1)", "Page down", show=False),
        Binding("home", "first", "First", show=False),
        Binding("end", "last", "Last", show=False),
        Binding("enter", "open", "Details", key_display="⏎"),
    ]

    class Opened(Message):
        """A person asks for the details of a line."""

        def __init__(self, line: Line) -> None:
            super().__init__()
            self.line = line

    class Moved(Message):
        """The cursor or the lines have changed."""

    def __init__(self, clock: Callable[[], float], is_old: Callable[[Line], bool]) -> None:
        """Set where times and ages come from.

        Args:
            clock: monotonic seconds, the clock of the agents' state.
            is_old: whether the figures of a line are of the past.
        """
        super().__init__()
        self._is_old = is_old
        self.lines: Sequence[Line] = ()
        self.cursor = 0
        self._clock = clock
        self._widths: Widths = {}
        self._layout: Layout = layout(80, {})

    @property
    def heading(self) -> str:
        """Return the line with the headings of the present columns."""
        return self._layout.heading()

    def set_lines(self, lines: Sequence[Line], widths: Widths) -> None:
        """Show other lines, with the cursor on the same pod if it is still there."""
        key = self._cursor_key()
        row_on_screen = self.cursor - self.scroll_offset.y
        self.lines = lines
        self._widths = widths
        self.cursor = self._index_of(key)
        self._arrange_columns()
        self.virtual_size = Size(self.size.width, len(lines))
        self.scroll_to(y=max(self.cursor - row_on_screen, 0), animate=False, immediate=True)
        self._after_move()

    def line_at_cursor(self) -> Line | None:
        """Return the line under the cursor; None in an empty table."""
        return self.lines[self.cursor] if self.cursor < len(self.lines) else None

    def render_line(self, y: int) -> Strip:
        """Draw one line of the screen."""
        width = self.size.width
        index = y + self.scroll_offset.y
        if index >= len(self.lines):
            return Strip.blank(width, self.rich_style)
        line = self.lines[index]
        is_old = self._is_old(line)
        style = self.rich_style + style_of(line, is_old=is_old)
        if index == self.cursor:
            style += Style(reverse=True)
        return Strip([Segment(self._layout.line(line, self._clock(), is_old=is_old), style)], width)

    def on_resize(self, event: events.Resize) -> None:
        """Choose the columns for the new width."""
        self._arrange_columns()
        self.virtual_size = Size(event.size.width, len(self.lines))
        self._after_move()

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked line; open it on the second click."""
        index = event.y + self.scroll_offset.y
        if index < len(self.lines):
            if index == self.cursor:
                self.action_open()
            self._move_to(index)

    def action_move(self, lines: int) -> None:
        """Move the cursor by a number of lines."""
        self._move_to(self.cursor + lines)

    def action_page(self, pages: int) -> None:
        """Move the cursor by a number of pages."""
        self._move_to(self.cursor + pages * max(self.size.height - 1, 1))

    def action_first(self) -> None:
        """Move the cursor to the first line."""
        self._move_to(0)

    def action_last(self) -> None:
        """Move the cursor to the last line."""
        self._move_to(len(self.lines) - 1)

    def action_open(self) -> None:
        """Ask for the details of the line under the cursor."""
        line = self.line_at_cursor()
        if line is not None:
            self.post_message(self.Opened(line))

    def _cursor_key(self) -> Key | None:
        line = self.line_at_cursor()
        return line.key if line is not None and self.cursor else None

    def _index_of(self, key: Key | None) -> int:
        if key is not None:
            for index, line in enumerate(self.lines):
                if line.key == key:
                    return index
        return min(self.cursor, max(len(self.lines) - 1, 0))

    def _move_to(self, index: int) -> None:
        self.cursor = min(max(index, 0), max(len(self.lines) - 1, 0))
        self._after_move()

    def _after_move(self) -> None:
        top, height = self.scroll_offset.y, max(self.size.height, 1)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False, immediate=True)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, immediate=True)
        self.refresh()
        self.post_message(self.Moved())

    def _arrange_columns(self) -> None:
        self._layout = layout(self.size.width or 80, self._widths)
