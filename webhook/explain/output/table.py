"""The results of `explain` as a table with a line for each pod, and the sums of every text output. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from service.text import counted, fold, one_line, shorten_middle, width
from service.text_table import column_widths, natural_widths, table_lines
from webhook.explain.decision.amounts import GpuAmount
from webhook.explain.decision.explainer import ExplainedDocument, ExplainedPod, UnexplainedObject
from webhook.explain.manifests.sources import Location
from webhook.explain.output.words import (
    action_word,
    amount_after,
    hints,
    is_rank,
    reason_code,
    server_word,
    share_text,
)

_NONE: Final = "-"
_WIDE: Final = 110
"""Width from which the table has both file and name of an object."""
_LEAST: Final = {"FILE": 10, "OBJECT": 10, "NAMESPACE": 10}
"""Smallest width of the columns that are shortened."""


def as_table(documents: Iterable[ExplainedDocument], *, columns: int) -> Iterator[str]:
    """Yield the lines of the table; names are shortened in their middle so that the lines fit.

    Args:
        documents: the explained documents. Objects that have nothing to do with pods are left out.
        columns: width of the lines.
    """
    items = [
        (location, _cells(item, location))
        for document in documents
        for location, item in document.located()
        if isinstance(item, ExplainedPod) or item.code != "no-pods"
    ]
    if not items:
        return
    titles = [title for title in items[0][1] if any(cells[title] for _, cells in items)]
    if "FILE" in titles and columns < _WIDE:
        titles.remove("OBJECT")
    rows = [titles, *([cells[title] or _NONE for title in titles] for _, cells in items)]
    least = [_LEAST.get(title, 0) for title in titles]
    widths = _widths(rows, columns, least)
    if "FILE" in titles:
        for row, (location, _) in zip(rows[1:], items, strict=True):
            row[0] = _file(location, widths[0])
        widths = _widths(rows, columns, least)
    yield from table_lines(rows, widths)


def _cells(item: ExplainedPod | UnexplainedObject, location: Location | None) -> dict[str, str]:
    """Return the cells of a row by the columns' titles; a column of empty cells is left out."""
    pod = item.pod if isinstance(item, ExplainedPod) else item
    names = {
        "FILE": str(location or ""),
        "OBJECT": one_line(f"{pod.kind}/{pod.name or '(no name)'}"),
        "NAMESPACE": one_line(item.namespace),
    }
    if isinstance(item, UnexplainedObject):
        others = {"ACTION": "not known", "SHARE": "?", "REASON": item.code, "WARN": _NONE}
        return {**names, "PODS": "", "SERVER": "", **others}
    return {
        **names,
        "PODS": str(item.running.count) if item.running else "",
        "SERVER": server_word(item),
        "ACTION": action_word(item),
        "SHARE": share_text(item),
        "REASON": reason_code(item),
        "WARN": str(len(hints(item)) or _NONE),
    }


def _file(location: Location | None, columns: int) -> str:
    if location is None:
        return _NONE
    line = f":{location.line}"
    file, room = one_line(location.file), columns - len(line)
    if width(file) > room:
        file = f"…/{file.rpartition('/')[2]}"  # the last part says most
    return shorten_middle(file, room) + line


def _widths(rows: Sequence[Sequence[str]], columns: int, least: Sequence[int]) -> list[int]:
    """Return the widths of the columns; the smallest ones where no table fits."""
    widths = column_widths(rows, columns, least)
    if widths is None:
        widths = [min(room, fewest or room) for room, fewest in zip(natural_widths(rows), least, strict=True)]
    return widths


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
