"""The sections of the page: a table for each GPU, and one for the pods whose GPU is unknown. Pure.

The number of rows has a limit, since tenants can cause any number of them. The page names how many are left
out; `/api/v1/shares` has all of them.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from msgspec import Struct

from gpuagent.server.page.bars import GpuBar, Part, gpu_bar
from gpuagent.server.page.rows import (
    Context,
    PageRow,
    anchor,
    clock_time,
    no_utilization,
    pod_row,
)
from gpuagent.table.gpus import GpuState
from gpuagent.table.rows import BY_URGENCY, PodRow, PodState
from gpuagent.table.words import plain
from service.text import counted
from service.units import duration, size

MAX_ROWS: Final = 64
"""Largest number of rows of one table."""
_ALWAYS: Final = frozenset({"host", "unattributed", "reserved"})
"""Parts of the memory that the legend has even if they are empty."""


class SectionOutline(Struct, frozen=True, kw_only=True):
    """What the list of GPUs and the links to rows need of a section."""

    anchor: str
    title: str
    summary: str
    """A few words for the list of GPUs."""
    rows: frozenset[str]
    """Anchors of the rows."""


class GpuSection(Struct, frozen=True, kw_only=True):
    """One GPU with its table, or the pods whose GPU is unknown."""

    anchor: str
    title: str
    model: str
    uuid: str
    alerts: tuple[str, ...] = ()
    """What is wrong with the GPU, one sentence each."""
    notes: tuple[str, ...] = ()
    summary: str
    """A few words for the list of GPUs."""
    is_lost: bool = False
    risk: str = ""
    """Why the next allocation of a pod can fail; empty if it cannot."""
    sensors: tuple[str, ...] = ()
    """Utilisation, temperature and power, as far as known."""
    xid: str = ""
    """The newest error of the driver (XID) with its time; empty without one."""
    bar: GpuBar | None = None
    in_use: str = ""
    legend: tuple[Part, ...] = ()
    """The parts of the memory but the pods."""
    rows: tuple[PageRow, ...] = ()
    hidden_rows: int = 0
    nothing: str = ""
    """Why the table is empty; empty if it is not."""

    @property
    def outline(self) -> SectionOutline:
        """The section without its rows and drawings."""
        rows = frozenset(row.anchor for row in self.rows)
        return SectionOutline(anchor=self.anchor, title=self.title, summary=self.summary, rows=rows)


_T = TypeVar("_T")
_Steps = Generator[None, None, _T]
"""Work that pauses after each row, so that a caller can let other tasks run."""


def gpu_sections(context: Context) -> Iterator[GpuSection | None]:
    """Yield the section of each GPU by index, and one for pods without a known GPU; None after each row."""
    table = context.table
    uuids = {gpu.uuid for gpu in table.gpus if gpu.is_lost}
    present = {gpu.index for gpu in table.gpus if not gpu.is_lost}
    placed: dict[str | int | None, list[PodRow]] = {}
    for row in sorted(table.rows, key=BY_URGENCY):
        placed.setdefault(row.gpu_uuid if row.gpu_uuid in uuids else row.gpu_index, []).append(row)
    for gpu in table.gpus:
        if gpu.is_lost:
            rows = placed.get(gpu.uuid, []) if gpu.uuid else []
            yield (yield from _lost_section(gpu, rows, context, is_reused=gpu.index in present))
        else:
            yield (yield from _gpu_section(gpu, placed.get(gpu.index, []), context))
    if None in placed:
        yield (yield from _unknown_section(placed[None], context))


def _rows(rows: Sequence[PodRow], context: Context) -> _Steps[tuple[PageRow, ...]]:
    """Return the rows of the page."""
    page_rows = []
    for number, row in enumerate(rows[:MAX_ROWS], start=1):
        page_rows.append(pod_row(row, number, context))
        yield
    return tuple(page_rows)


def _flagged(rows: Iterable[PodRow]) -> list[str]:
    """Return the number of flagged rows in words; empty without one."""
    flagged = sum(row.state is PodState.FLAGGED for row in rows)
    return [f"{flagged} flagged"] if flagged else []


def _gpu_section(gpu: GpuState, rows: list[PodRow], context: Context) -> _Steps[GpuSection]:
    page_rows = yield from _rows(rows, context)
    alerts, notes, words = [], [], _flagged(rows)
    if gpu.is_at_risk:
        words.append("at risk")
    if gpu.is_over_promised:
        alerts.append(f"{gpu.promised_text}.")
        words.append("overpromised")
    if gpu.is_suspended:
        alerts.append("Verdicts on this GPU are suspended; the problems above have the reason.")
        words.append("suspended")
    if gpu.is_mig:
        notes.append("This GPU is in MIG mode (Multi-Instance GPU): its pods are reported, not judged.")
    if gpu.memory_unknown:
        notes.append(f"Its memory is unknown: {gpu.memory_unknown}.")
    no_figures = no_utilization(rows, is_mig=gpu.is_mig)
    if no_figures:
        notes.append(f"Utilisation is absent: {no_figures}.")
    parts = _parts(gpu, page_rows, rows)
    return GpuSection(
        anchor=anchor("gpu", gpu.uuid),
        title=gpu.label,
        model=gpu.model,
        uuid=plain(gpu.uuid),
        alerts=tuple(alerts),
        notes=tuple(notes),
        summary=", ".join(words),
        risk=f"at risk: {gpu.risk_text}" if gpu.is_at_risk else "",
        sensors=gpu.sensors,
        xid=gpu.xid,
        bar=gpu_bar(parts, total=gpu.total, used=gpu.used, promised=gpu.promised),
        in_use=f"{size(gpu.used)} of {size(gpu.total)}",
        legend=_legend(gpu, parts),
        rows=page_rows,
        hidden_rows=len(rows) - len(page_rows),
        nothing="" if rows else "No pod uses this GPU, and none has a share of it.",
    )


def _parts(gpu: GpuState, page_rows: Sequence[PageRow], rows: Sequence[PodRow]) -> list[Part]:
    """Return the parts of a GPU's bar: the pods in the order of the table, and everything else."""
    parts = [
        Part(
            kind=pod.colour,
            title=f"{pod.cells.namespace}/{pod.cells.pod}",
            bytes=pod.cells.used,
            number=str(pod.number),
            is_flagged=pod.cells.state is PodState.FLAGGED,
        )
        for pod in page_rows
    ]
    hidden = rows[len(page_rows) :]
    if hidden:
        others = sum(row.used or 0 for row in hidden)
        parts.append(Part(kind="others", title=f"{counted(len(hidden), 'more pod')}", bytes=others))
    parts.append(Part(kind="host", title="host processes", bytes=gpu.host))
    parts.append(Part(kind="unattributed", title="unattributed", bytes=gpu.unattributed))
    if gpu.used is not None:
        attributed = sum(max(part.bytes or 0, 0) for part in parts)
        parts.append(Part(kind="unknown", title="owner unknown", bytes=gpu.used - attributed))
    parts.append(Part(kind="reserved", title="reserved by the driver", bytes=gpu.reserved))
    return parts


def _legend(gpu: GpuState, parts: Iterable[Part]) -> tuple[Part, ...]:
    return (
        Part(kind="promised", title="promised", bytes=gpu.promised),
        *(part for part in parts if not part.number and (part.kind in _ALWAYS or (part.bytes or 0) > 0)),
        Part(kind="free", title="free", bytes=gpu.free),
    )


def _lost_section(
    gpu: GpuState, rows: list[PodRow], context: Context, *, is_reused: bool
) -> _Steps[GpuSection]:
    since, now = context.lost_since(gpu.scope), context.wall_time
    at = f"at {clock_time(since, now)} UTC" if since is not None else "at an unknown time"
    notes = []
    if gpu.uuid:
        lasted = f" ({duration(max(now - since, 0))} ago)" if since is not None else ""
        alert = f"{gpu.label} was lost {at}{lasted}. It has no figures."
    else:
        alert = f"{gpu.label} does not respond; this was first seen {at}."
        notes.append("Its UUID is unknown, so its pods are among those without a known GPU.")
    if is_reused:
        notes.append(f"Another GPU has the index {gpu.index} now.")
    page_rows = yield from _rows(rows, context)
    nothing = (
        "No pod has a share of it." if context.status.snapshot else "Its pods are unknown without a sample."
    )
    return GpuSection(
        anchor=anchor("gpu", gpu.scope),
        title=gpu.label,
        model=gpu.model,
        uuid=plain(gpu.uuid),
        alerts=(alert,),
        notes=tuple(notes),
        summary="lost",
        xid=gpu.xid,
        is_lost=True,
        rows=page_rows,
        hidden_rows=len(rows) - len(page_rows),
        nothing="" if rows or not gpu.uuid else nothing,
    )


def _unknown_section(rows: list[PodRow], context: Context) -> _Steps[GpuSection]:
    page_rows = yield from _rows(rows, context)
    return GpuSection(
        anchor=anchor("gpu", ""),
        title="Pods without a known GPU",
        model="",
        uuid="",
        summary="".join(_flagged(rows)),
        rows=page_rows,
        hidden_rows=len(rows) - len(page_rows),
    )
