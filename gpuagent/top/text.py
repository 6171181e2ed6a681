"""The board as plain text, without colour. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gpuagent.top.board import NOTHING, Board, GpuLine, PodLine
from service.command import DEFAULT_COLUMNS
from service.text import fold
from service.text_table import column_widths, table_lines

_INDENT: Final = "     "
"""Indentation of the further values of a pod that has several lines."""


def as_text(board: Board, *, columns: int = DEFAULT_COLUMNS) -> str:
    """Return the board as lines, each with a line break.

    Args:
        board: the board.
        columns: largest width of a line. Pods have several lines if their table does not fit.
    """
    return "".join(f"{line}\n" for line in _lines(board, columns))


def _lines(board: Board, columns: int) -> Iterator[str]:
    for line in (board.title, board.simulated, board.age):
        if line:
            yield from fold(line, columns, indent="  ")
    for problem in board.problems:
        yield from fold(f"problem: {problem}", columns, indent="  ")
    if board.gpus:
        yield ""
        yield from _gpu_lines(board.gpus, columns)
    if board.pods:
        yield ""
        yield from _pod_lines(board.pods, columns)
    if board.nothing:
        yield ""
        yield from fold(board.nothing, columns)


def _gpu_lines(gpus: Sequence[GpuLine], columns: int) -> Iterator[str]:
    rows = [GPU_HEADINGS, *map(gpu_cells, gpus)]
    widths = column_widths(rows, columns, [5 if heading == "MODEL" else 0 for heading in GPU_HEADINGS])
    if widths is not None:
        yield from table_lines(rows, widths)
        return
    for gpu in gpus:
        yield from fold(gpu_text(gpu), columns, indent="  ")


def gpu_text(line: GpuLine) -> str:
    """Return the figures of one GPU as a sentence, for narrow terminals."""
    return (
        f"GPU {line.gpu}: {line.used} of {line.total}, promised {line.promised}, host {line.host},"
        f" unattributed {line.unattributed}"
    )


def _pod_lines(pods: Sequence[PodLine], columns: int) -> Iterator[str]:
    rows = without_empty([POD_HEADINGS, *map(_pod_cells, pods)])
    widths = column_widths(rows, columns, [0] * len(rows[0]))
    if widths is not None:
        yield from table_lines(rows, widths)
        return
    figures = [_FIGURES, *(_figures(line) for line in pods)]
    widths = column_widths(figures, columns, [12 if heading == "POD" else 0 for heading in _FIGURES])
    if widths is not None:
        heading, *lines = table_lines(figures, widths)
        yield heading
        blocks: Iterable[list[str]] = ([line] for line in lines)
    else:
        blocks = (fold(_sentence(line), columns, indent=_INDENT) for line in pods)
    for line, block in zip(pods, blocks, strict=True):
        yield from block
        if values := _further_values(line):
            yield from fold(values, columns, head=_INDENT, indent=_INDENT)
        if line.flags or line.pending:
            yield from fold(state(line), columns, head=_INDENT, indent=_INDENT)


_FIGURES = ("", "GPU", "USED", "SHARE", "OVER", "POD")


def _figures(line: PodLine) -> tuple[str, ...]:
    return ("!" if line.flags else "", line.gpu, line.used, line.share, line.over, line.pod)


def _sentence(line: PodLine) -> str:
    over = f" ({line.over})" if line.over != NOTHING else ""
    sign = "! " if line.flags else ""
    return f"{sign}{line.pod}: GPU {line.gpu}: {line.used} of {line.share}{over}"


def _further_values(line: PodLine) -> str:
    """Return the values that have no column in a narrow table."""
    values = {
        "source": line.source,
        "limit": line.limit,
        "utilisation": line.utilization,
        "processes": line.processes,
        "queue": line.queue,
        "size": line.size,
        "workload": line.workload,
        "in vCluster": line.tenant,
    }
    return ", ".join(f"{name} {value}" for name, value in values.items() if value not in ("", NOTHING))


GPU_HEADINGS = ("GPU", "MODEL", "USED", "TOTAL", "PROMISED", "HOST", "UNATTRIBUTED")
POD_HEADINGS = (
    *("", "GPU", "POD", "USED", "SHARE", "SOURCE", "OVER", "LIMIT", "UTIL"),
    *("PROCESSES", "QUEUE", "SIZE", "WORKLOAD", "IN VCLUSTER", "STATE"),
)


def gpu_cells(line: GpuLine) -> tuple[str, ...]:
    """Return the cells of one GPU."""
    return (line.gpu, line.model, line.used, line.total, line.promised, line.host, line.unattributed)


def _pod_cells(line: PodLine) -> tuple[str, ...]:
    return (
        *("!" if line.flags else "", line.gpu, line.pod, line.used, line.share, line.source, line.over),
        *(
            line.limit,
            line.utilization,
            line.processes,
            line.queue or NOTHING,
            line.size or NOTHING,
            line.workload or NOTHING,
            line.tenant or NOTHING,
            state(line),
        ),
    )


def state(line: PodLine) -> str:
    """Return the flags of a pod, and the violations within their grace."""
    flagged = [f"FLAGGED {flag}" for flag in line.flags]
    return "; ".join([*flagged, *line.pending]) or NOTHING


def without_empty(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Remove the columns without a value in any row; the first row has the headings."""
    columns = [
        index
        for index in range(len(rows[0]))
        if any(row[index] not in ("", NOTHING) for row in rows[1:]) or rows[0][index] in _ALWAYS
    ]
    return [tuple(row[index] for index in columns) for row in rows]


_ALWAYS = frozenset({"", "GPU", "POD", "USED", "SHARE", "OVER", "STATE"})
