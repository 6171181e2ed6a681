"""The board as plain aligned text, without truncation or colour. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from gpuagent.top.board import NOTHING, Board, GpuLine, PodLine
from service.text import width


def as_text(board: Board) -> str:
    """Return the board as lines, each with a line break."""
    return "".join(f"{line}\n" for line in _lines(board))


def _lines(board: Board) -> Iterator[str]:
    yield board.title
    if board.simulated:
        yield board.simulated
    yield board.age
    for problem in board.problems:
        yield f"problem: {problem}"
    if board.gpus:
        yield ""
        yield from aligned([GPU_HEADINGS, *(gpu_cells(line) for line in board.gpus)])
    if board.pods:
        yield ""
        yield from aligned(without_empty([POD_HEADINGS, *(_pod_cells(line) for line in board.pods)]))
    if board.nothing:
        yield ""
        yield board.nothing


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


def aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Pad the cells to columns, with two blanks between them."""
    rows = list(rows)
    widths = [max(map(width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(
            cell + " " * (wide - width(cell)) for cell, wide in zip(row, widths, strict=True)
        ).rstrip()
