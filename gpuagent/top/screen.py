"""Draws the board in a terminal, at its width. Names are plain text and never markup."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from gpuagent.top.board import IN_GRACE, NOTHING, Board, PodLine
from gpuagent.top.text import GPU_HEADINGS, gpu_cells, gpu_text
from service.text import shorten_middle, width

_TABLE: Final = 72  # columns that a table needs at all
_NAME: Final = 32  # columns for the pod's name that a compact line keeps free of figures
_ANY: Final = 10_000
_MOST_PROBLEMS: Final = 3
_FLAG: Final = "bold red"
_PENDING: Final = "yellow"
_OLD: Final = "bold yellow"
_FOOTNOTE: Final = "* share from the pod's own annotation only"


class Screen:
    """A board that fits the height of the terminal.

    On a low terminal one line sums up the GPUs. If that is not enough, each pod has one line, and the last
    pods are left out: flagged pods come first in a board.
    """

    def __init__(self, board: Board) -> None:
        self._board = board

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the board."""
        height = options.height or console.height
        lines = self._lines(console, options, height)
        for index, line in enumerate(lines):
            if index:
                yield Segment.line()
            yield from line

    def _lines(self, console: Console, options: ConsoleOptions, height: int) -> list[list[Segment]]:
        board = replace(self._board, pods=self._board.pods[: height + 1])  # a line each, at least
        for folds_gpus in (False, True):
            parts = _parts(board, console, options, folds_gpus=folds_gpus)
            lines = _drawn(console, options, parts)
            if len(lines) <= height:
                return lines
        head = _drawn(console, options, _compact_head(self._board))
        pods = _drawn(console, options, [_pods_compact(board, options.max_width)])
        visible = max(height - len(head) - 1, 0)  # with the line of headings
        if not board.pods or len(self._board.pods) < visible:
            return (head + pods)[:height]
        more = Text(self._rest(max(visible - 1, 0)), no_wrap=True, overflow="ellipsis")
        return (head + pods)[: height - 1] + _drawn(console, options, [more])

    def _rest(self, visible: int) -> str:
        """Count the lines, one for each pod and GPU, and the flagged ones that are left out."""
        hidden = sum(bool(line.flags) for line in self._board.pods[visible:])
        flagged = f", {hidden} flagged not shown" if hidden else ""
        return f"… {len(self._board.pods)} lines in total{flagged}; run `top --once` to see all"


def _drawn(console: Console, options: ConsoleOptions, parts: Iterable[RenderableType]) -> list[list[Segment]]:
    return console.render_lines(Group(*parts), options.update(height=None), pad=False)


def _compact_head(board: Board) -> Iterator[RenderableType]:
    """Return title, age, problems and the sums of the GPUs, one line each."""
    yield _cut(board.title, "bold")
    if board.simulated:
        yield _cut(board.simulated, "reverse")
    yield _cut(board.age, _OLD if board.is_old else "")
    for problem in board.problems[:_MOST_PROBLEMS]:
        yield _cut(f"problem: {problem}", "")
    if len(board.problems) > _MOST_PROBLEMS:
        yield _cut(f"… {len(board.problems)} problems in total", "")
    if board.gpu_summary:
        yield _cut(board.gpu_summary, _style(board))
    if board.nothing:
        yield _cut(board.nothing, "")


def _cut(text: str, style: str) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _pods_compact(board: Board, columns: int) -> Table:
    """Draw one line for each pod, with its name shortened in the middle; `*` marks the pod's own word."""
    table = _table(is_compact=True)
    table.add_column("", no_wrap=True)
    table.add_column("GPU", no_wrap=True)
    cells = [(line.gpu, line.used, _share(line), _first_state(line)) for line in board.pods]
    has_figures = columns >= _TABLE
    if has_figures:
        table.add_column("USED", justify="right", no_wrap=True)
        table.add_column("SHARE", justify="right", no_wrap=True)
    headings = ("GPU", "USED", "SHARE", "STATE")
    widths = [
        max(map(width, (heading, *column)))
        for heading, column in zip(headings, zip(*cells, strict=True), strict=True)
    ]
    if not has_figures:
        widths[1:3] = []
    state = min(widths[-1], columns // 3)
    left = columns - 1 - sum(widths[:-1]) - state - len(widths) - 1
    utilization = max((width(line.utilization) for line in board.pods), default=0)
    has_utilization = bool(utilization) and left - max(utilization, 4) - 1 >= _NAME
    if has_utilization:
        table.add_column("UTIL", justify="right", no_wrap=True)
        left -= max(utilization, 4) + 1
    table.add_column("STATE", no_wrap=True)
    table.add_column("POD", no_wrap=True)
    for line in board.pods:
        table.add_row(
            _sign(line),
            Text(line.gpu),
            *((Text(line.used), Text(_share(line))) if has_figures else ()),
            *((Text(line.utilization),) if has_utilization else ()),
            Text(shorten_middle(_first_state(line), state), _FLAG if line.flags else _PENDING),
            Text(shorten_middle(line.pod, max(left, 8))),
            style=_style(board),
        )
    return table


def _first_state(line: PodLine) -> str:
    states = (*line.flags, *(state.removesuffix(IN_GRACE) for state in line.pending))
    more = f" +{len(states) - 1}" if len(states) > 1 else ""
    return f"{states[0]}{more}" if states else NOTHING


def _parts(
    board: Board, console: Console, options: ConsoleOptions, *, folds_gpus: bool
) -> Iterator[RenderableType]:
    has_table = options.max_width >= _TABLE
    yield Text(board.title, "bold")
    if board.simulated:
        yield Text(board.simulated, "reverse")
    yield Text(board.age, _OLD if board.is_old else "")
    for problem in board.problems:
        yield Text.assemble(("problem: ", "bold"), problem)
    if board.gpus:
        if folds_gpus:
            yield Text(board.gpu_summary, _style(board))
        else:
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


def _table(*, is_compact: bool = False) -> Table:
    return Table(
        box=None if is_compact else box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )


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
    has_utilization = any(line.utilization for line in board.pods)
    optional = (*(("LIMIT",) if has_limit else ()), *(("UTIL",) if has_utilization else ()))
    for heading in ("USED", "SHARE", "OVER", *optional):
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
            *((Text(line.utilization),) if has_utilization else ()),
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
    has_utilization = any(line.utilization for line in board.pods)
    for heading in ("USED", "SHARE", "OVER", *(("UTIL",) if has_utilization else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("POD", overflow="fold")
    for line in board.pods:
        table.add_row(
            _sign(line),
            Text(line.gpu),
            Text(line.used),
            Text(_share(line)),
            _over(line),
            *((Text(line.utilization),) if has_utilization else ()),
            Text("\n").join([Text(line.pod), *_states(line), *_below(line)]),
            style=_style(board),
        )
    return table


def _gpu_list(board: Board) -> Text:
    """Draw GPUs without a table, for a narrow terminal."""
    lines = map(gpu_text, board.gpus)
    return Text("\n".join(lines), _style(board), overflow="fold")


def _pod_list(board: Board) -> Text:
    blocks = []
    for line in board.pods:
        over = f" ({line.over})" if line.over != NOTHING else ""
        has_utilization = line.utilization not in ("", NOTHING)
        utilization = f", utilization {line.utilization}" if has_utilization else ""
        where = f"GPU {line.gpu}: {line.used} of {_share(line)}{over}{utilization}"
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
