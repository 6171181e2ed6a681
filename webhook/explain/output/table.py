"""The results of `explain` as a table with a line for each pod, and the sums of every text output. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from service.text import counted, fold, one_line, shorten_middle, width
from webhook.explain.decision.amounts import GpuAmount
from webhook.explain.decision.explainer import ExplainedDocument, ExplainedPod, UnexplainedObject
from webhook.explain.output.locations import Location, located
from webhook.explain.output.words import (
    action_word,
    amount_after,
    hints,
    is_rank,
    reason_code,
    server_word,
    share_text,
)

_GAP: Final = "  "
_NONE: Final = "-"
_LEAST: Final = 10
"""Smallest width of a shortened column."""
_WIDE: Final = 110
"""Width from which the table has both file and name of an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """The cells of a pod, or of an object whose pods are not known."""

    location: Location | None
    name: str
    """Kind and name."""
    namespace: str
    action: str
    share: str
    reason: str
    server: str = ""
    """The API server's answer; empty if it was not asked."""
    warnings: int = 0
    pods: int | None = None
    """Pods of the workload in the cluster; None if they were not counted."""


_Cell = Callable[[TableRow, int], str]
"""Returns a cell of at most the given width."""


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    cell: _Cell
    shrinks: bool = False


def _file(row: TableRow, columns: int) -> str:
    if row.location is None:
        return _NONE
    line = f":{row.location.line}"
    file, room = one_line(row.location.file), columns - len(line)
    if width(file) > room:
        file = f"…/{file.rpartition('/')[2]}"  # the last part says most
    return shorten_middle(file, room) + line


_FILE: Final = _Column("FILE", _file, shrinks=True)
_OBJECT: Final = _Column("OBJECT", lambda row, columns: shorten_middle(row.name, columns), shrinks=True)
_NAMESPACE: Final = _Column(
    "NAMESPACE", lambda row, columns: shorten_middle(row.namespace, columns), shrinks=True
)
_PODS: Final = _Column("PODS", lambda row, _: _NONE if row.pods is None else str(row.pods))
_SERVER: Final = _Column("SERVER", lambda row, _: row.server or _NONE)
_REST: Final = (
    _Column("ACTION", lambda row, _: row.action),
    _Column("SHARE", lambda row, _: row.share),
    _Column("REASON", lambda row, _: row.reason),
    _Column("WARN", lambda row, _: str(row.warnings or _NONE)),
)


def as_table(documents: Iterable[ExplainedDocument], *, columns: int) -> Iterator[str]:
    """Yield the lines of the table; names are shortened in their middle so that the lines fit.

    Args:
        documents: the explained documents. Objects that have nothing to do with pods are left out.
        columns: width of the lines.
    """
    rows = [row for location, item in located(documents) if (row := _row(item, location)) is not None]
    if not rows:
        return
    chosen = _chosen_columns(rows, columns)
    rooms = _widths(rows, chosen, columns)
    lines = [[column.title for column in chosen]]
    lines += [[column.cell(row, room) for column, room in zip(chosen, rooms, strict=True)] for row in rows]
    widths = [max(map(width, cells)) for cells in zip(*lines, strict=True)]
    yield from (_line(cells, widths) for cells in lines)


def _row(item: ExplainedPod | UnexplainedObject, location: Location | None) -> TableRow | None:
    if isinstance(item, ExplainedPod):
        return TableRow(
            location=location,
            name=_name(item),
            namespace=one_line(item.namespace),
            action=action_word(item),
            share=share_text(item),
            reason=reason_code(item),
            server=server_word(item),
            warnings=len(hints(item)),
            pods=item.running.count if item.running else None,
        )
    if item.code == "no-pods":
        return None
    return TableRow(
        location=location,
        name=one_line(f"{item.kind}/{item.name or '(no name)'}"),
        namespace=one_line(item.namespace),
        action="not known",
        share="?",
        reason=item.code,
    )


def _name(item: ExplainedPod) -> str:
    """Return kind and name; of a pod that stands for others, those of its owner."""
    return one_line(f"{item.pod.kind}/{item.pod.name or '(no name)'}")


def _chosen_columns(rows: Sequence[TableRow], columns: int) -> list[_Column]:
    has_files = any(row.location for row in rows)
    has_counts = any(row.pods is not None for row in rows)
    places = [_FILE] if has_files else [_OBJECT]
    if has_files and columns >= _WIDE:
        places.append(_OBJECT)
    has_answers = any(row.server for row in rows)
    extra = [*([_PODS] if has_counts else []), *([_SERVER] if has_answers else [])]
    return [*places, _NAMESPACE, *extra, *_REST]


def _widths(rows: Sequence[TableRow], chosen: Sequence[_Column], columns: int) -> list[int]:
    """Return the largest width of each column. The columns with names share what the others leave."""
    natural = [max(len(column.title), *(width(column.cell(row, 1000)) for row in rows)) for column in chosen]
    fixed = sum(room for room, column in zip(natural, chosen, strict=True) if not column.shrinks)
    room = columns - fixed - len(_GAP) * (len(chosen) - 1)
    shrinking = [index for index, column in enumerate(chosen) if column.shrinks]
    for position, index in enumerate(sorted(shrinking, key=lambda index: natural[index])):
        share = max(room // (len(shrinking) - position), _LEAST)
        natural[index] = min(natural[index], share)
        room -= natural[index]
    return natural


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell + " " * (room - width(cell)) for cell, room in zip(cells, widths, strict=True))
    return _GAP.join(padded).rstrip()


def sums(documents: Iterable[ExplainedDocument], *, columns: int) -> list[str]:
    """Return one sentence with the sums of all pods, in lines of at most a width."""
    actions: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    pods = warned = others = running = ranks = 0
    today, after = GpuAmount(), GpuAmount()
    is_live = False
    for document in documents:
        for item in document.items:
            if not isinstance(item, ExplainedPod):
                others += 1
                continue
            pods += 1
            actions[action_word(item)] += 1
            answers[server_word(item)] += 1
            warned += bool(hints(item))
            ranks += is_rank(item)
            if item.running is not None:
                is_live = True
                running += item.running.count
                today += item.running.requested
                after += amount_after(item).times(item.running.count)
    noun = "workload" if is_live else "pod"
    head = counted(pods, noun) + (f" with {counted(running, 'pod')}" if is_live else "")
    parts = [f"{count} {action}" for action, count in actions.most_common()]
    text = f"{head}: {', '.join(parts)}" if parts else head
    server_parts = [f"{count} {answer}" for answer, count in answers.most_common() if answer]
    text += f"; the API server: {', '.join(server_parts)}" if server_parts else ""
    for count, what in ((warned, "with warnings"), (ranks, "of distributed jobs")):
        text += f"; {count} {what}" if count else ""
    text += f"; {counted(others, 'other object')}" if others else ""
    if is_live:
        text += f"; asked for today: {today}; by new pods: {after}"
    return fold(f"{text}.", columns)
