"""Draws the board in a terminal, at its width. Names are plain text and never markup."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gpuagent.top.board import NOTHING, Board, PodLine
from gpuagent.top.text import GPU_HEADINGS, gpu_cells

_TABLE: Final = 72  # columns that a table needs at all
_ANY: Final = 10_000
_FLAG: Final = "bold red"
_PENDING: Final = "yellow"
_OLD: Final = "bold yellow"
_FOOTNOTE: Final = "* share from the pod's own annotation only"


class Screen:
    """A board, cut to the height of the terminal; the pods with the largest excess stay."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the board."""
        height = options.height or console.height
        count = len(self._board.pods)
        board = replace(self._board, pods=self._board.pods[:height])  # a line each, at least
        content = Group(*_parts(board, console, options))
        lines = console.render_lines(content, options.update(height=None), pad=False)
        if len(lines) > height:
            more = Text(
                f"… {count} pods in total; run `top --once` to see all", no_wrap=True, overflow="ellipsis"
            )
            lines = lines[: height - 1] + console.render_lines(more, options.update(height=None), pad=False)
        for index, line in enumerate(lines):
            if index:
                yield Segment.line()
            yield from line


def _parts(board: Board, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
    has_table = options.max_width >= _TABLE
    yield Text(board.title, "bold")
    if board.simulated:
        yield Text(board.simulated, "reverse")
    yield Text(board.age, _OLD if board.is_old else "")
    for problem in board.problems:
        yield Text.assemble(("problem: ", "bold"), problem)
    if board.gpus:
        yield Text()
        yield _gpus(board) if has_table else _gpu_list(board)
    if board.pods:
        yield Text()
        wide = _pods_wide(board)
        if Measurement.get(console, options.update(max_width=_ANY), wide).maximum <= options.max_width:
            yield wide
        else:
            yield _pods_narrow(board) if has_table else _pod_list(board)
            if any(line.is_own_word for line in board.pods):
                yield Text(_FOOTNOTE, "dim")
    if board.nothing:
        yield Text()
        yield Text(board.nothing)


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)


def _gpus(board: Board) -> Table:
    table = _table()
    for heading in GPU_HEADINGS:
        if heading == "MODEL":
            table.add_column(heading, overflow="ellipsis", no_wrap=True, min_width=5)
        else:
            table.add_column(heading, justify="right", no_wrap=True)
    for line in board.gpus:
        table.add_row(*map(Text, gpu_cells(line)), style=_style(board))
    return table


def _style(board: Board) -> str:
    return "dim" if board.is_old else ""


def _pods_wide(board: Board) -> Table:
    """Draw pods with one column for each value; used if the terminal is wide enough."""
    has_limit = any(line.limit != NOTHING for line in board.pods)
    has_tenant = any(line.tenant for line in board.pods)
    table = _table()
    table.add_column("", no_wrap=True)
    table.add_column("GPU", no_wrap=True)
    table.add_column("POD", overflow="fold")
    if has_tenant:
        table.add_column("IN VCLUSTER", overflow="fold")
    for heading in ("USED", "SHARE", "OVER", *(("LIMIT",) if has_limit else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("SOURCE", no_wrap=True)
    table.add_column("STATE", overflow="fold")
    for line in board.pods:
        table.add_row(
            _sign(line),
            Text(line.gpu),
            Text(line.pod),
            *((Text(line.tenant),) if has_tenant else ()),
            Text(line.used),
            Text(line.share),
            _over(line),
            *((Text(line.limit),) if has_limit else ()),
            Text(line.source),
            Text("\n").join(_states(line)),
            style=_style(board),
        )
    return table


def _pods_narrow(board: Board) -> Table:
    """Draw pods with the figures first, and all long values below each other in the last column."""
    table = _table()
    table.add_column("", no_wrap=True)
    table.add_column("GPU", no_wrap=True)
    for heading in ("USED", "SHARE", "OVER"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("POD", overflow="fold")
    for line in board.pods:
        table.add_row(
            _sign(line),
            Text(line.gpu),
            Text(line.used),
            Text(_share(line)),
            _over(line),
            Text("\n").join([Text(line.pod), *_states(line), *_below(line)]),
            style=_style(board),
        )
    return table


def _gpu_list(board: Board) -> Text:
    """Draw GPUs without a table, for a narrow terminal."""
    lines = [
        f"GPU {line.gpu}: {line.used} of {line.total}, promised {line.promised}, host {line.host},"
        f" unattributed {line.unattributed}"
        for line in board.gpus
    ]
    return Text("\n".join(lines), _style(board), overflow="fold")


def _pod_list(board: Board) -> Text:
    blocks = []
    for line in board.pods:
        over = f" ({line.over})" if line.over != NOTHING else ""
        where = f"GPU {line.gpu}: {line.used} of {_share(line)}{over}"
        heading = Text.assemble(_sign(line), " " if line.flags else "", line.pod)
        blocks.append(Text("\n  ").join([heading, Text(where), *_states(line), *_below(line)]))
    text = Text("\n", _style(board), overflow="fold").join(blocks)
    text.overflow = "fold"
    return text


def _share(line: PodLine) -> str:
    return line.share + ("*" if line.is_own_word else "")


def _below(line: PodLine) -> list[Text]:
    below = [f"in {line.tenant}"] if line.tenant else []
    below += [f"limit {line.limit}"] if line.limit != NOTHING else []
    return [Text(text) for text in below]


def _sign(line: PodLine) -> Text:
    return Text("!" if line.flags else "", _FLAG)


def _over(line: PodLine) -> Text:
    return Text(line.over, _FLAG if line.flags and line.over != NOTHING else "")


def _states(line: PodLine) -> list[Text]:
    return [
        *(Text(f"FLAGGED {flag}", _FLAG) for flag in line.flags),
        *(Text(pending, _PENDING) for pending in line.pending),
    ]
