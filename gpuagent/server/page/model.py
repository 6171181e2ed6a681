"""What the page shows: flags, problems, and a table for each GPU. Pure.

The number of rows, flags and problems has a limit, since tenants can cause any number of them. The page names
how many are left out; `/api/v1/shares` has all of them.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from gpuagent.api_types import ApiPod, ApiVerdict, transitions_text
from gpuagent.server.page.bars import GpuBar, Part, gpu_bar
from gpuagent.server.page.rows import (
    Context,
    PageRow,
    anchor,
    clock_time,
    groups_text,
    no_utilization,
    pod_row,
)
from gpuagent.status import Status
from gpuagent.table.gpus import GpuState, ProblemText
from gpuagent.table.rows import BY_URGENCY, PodRow, PodState, figures_text
from gpuagent.table.words import plain
from gpuagent.verdicts.grounds import FlagReason
from service.text import counted
from service.units import duration, size

MAX_ROWS: Final = 64
"""Largest number of rows of one table."""
MAX_FLAGS: Final = 50
MAX_PROBLEMS: Final = 50
_MAX_CANDIDATES: Final = 8
_LONGEST_TEXT: Final = 1000
_ALWAYS: Final = frozenset({"host", "unattributed", "reserved"})
"""Parts of the memory that the legend has even if they are empty."""

RUNBOOKS: Final = {
    FlagReason.OVER_SHARE: "KaisharePodOverShare",
    FlagReason.UNASSIGNED_GPU: "KaisharePodUnassignedGPU",
    FlagReason.NO_SHARE: "KaisharePodWithoutShare",
    FlagReason.SHARE_CHANGED: "KaisharePodShareChanged",
    FlagReason.LIMIT_BYPASSED: "KaisharePodLimitBypassed",
    FlagReason.NO_RESERVATION: "KaisharePodWithoutReservation",
}
"""The section of docs/runbooks.md for each reason."""

_REASONS: Final = {reason.value: reason for reason in FlagReason}


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagItem:
    """A flag in the list at the top."""

    anchor: str
    target: str
    """Anchor of the pod's row, or of the GPU if the row is left out."""
    pod: str
    gpu: str
    reason: str
    summary: str
    figures: str
    since: str
    evidence: tuple[tuple[str, str], ...]
    """Names and texts of the details."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionOutline:
    """What the list of GPUs and the links to rows need of a section."""

    anchor: str
    title: str
    summary: str
    """A few words for the list of GPUs."""
    rows: frozenset[str]
    """Anchors of the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSection:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTop:
    """Everything above the sections of the GPUs, but the age of the figures."""

    flags: tuple[FlagItem, ...]
    hidden_flags: int
    problems: tuple[ProblemText, ...]
    hidden_problems: int
    is_suspended: bool
    notes: tuple[str, ...]
    gpus: tuple[SectionOutline, ...]
    transitions: str
    """Numbers of flags raised, cleared and dropped since the agent started."""
    nothing: str
    """Why there are no figures; empty if there are."""


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


def page_top(context: Context, gpus: Sequence[SectionOutline]) -> PageTop:
    """Return the top of the page, given the outlines of its sections."""
    table, response = context.table, context.response
    labels = {gpu.scope: gpu.label for gpu in table.gpus}
    flags = sorted(
        ((verdict, pod) for pod in response.pods for verdict in pod.verdicts if verdict.flagged),
        key=lambda flag: -flag[0].over_seconds,
    )
    rows = frozenset[str]().union(*(section.rows for section in gpus))
    return PageTop(
        flags=tuple(_flag(verdict, pod, labels, rows, context) for verdict, pod in flags[:MAX_FLAGS]),
        hidden_flags=max(len(flags) - MAX_FLAGS, 0),
        problems=table.problems[:MAX_PROBLEMS],
        hidden_problems=max(len(table.problems) - MAX_PROBLEMS, 0),
        is_suspended=table.is_suspended,
        notes=tuple(_node_notes(context.status)),
        gpus=tuple(gpus),
        transitions=transitions_text(response) or "none",
        nothing="" if response.gpus else table.nothing,
    )


def flag_count(status: Status) -> int:
    """Return the number of flags."""
    return sum(verdict.is_flagged for verdict in status.verdicts.by_key.values())


def _node_notes(status: Status) -> Iterator[str]:
    """Yield sentences about GPUs that the agent has never seen."""
    snapshot = status.snapshot
    if snapshot is None or snapshot.labelled_gpus is None or any(a.gpu.mig for a in snapshot.gpus):
        return
    known, labelled = len(snapshot.gpus) + len(snapshot.lost_gpus), snapshot.labelled_gpus
    if known < labelled:
        yield (
            f"The node's label nvidia.com/gpu.count says {labelled}, and the agent knows"
            f" {counted(known, 'GPU')}. The others have not responded since the agent started, so their"
            " indices and UUIDs are unknown."
        )


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
    if gpu.is_over_promised:
        alerts.append(
            f"Promised {size(gpu.promised)}, {size(gpu.excess)} more than the GPU's {size(gpu.total)}."
        )
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
    free = None
    if gpu.total is not None and gpu.used is not None:
        free = gpu.total - gpu.used - (gpu.reserved or 0)
    return (
        Part(kind="promised", title="promised", bytes=gpu.promised),
        *(part for part in parts if not part.number and (part.kind in _ALWAYS or (part.bytes or 0) > 0)),
        Part(kind="free", title="free", bytes=free),
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


def _flag(
    verdict: ApiVerdict, pod: ApiPod, labels: dict[str, str], rows: frozenset[str], context: Context
) -> FlagItem:
    reason = _REASONS[verdict.reason]
    row = anchor("pod", pod.uid, verdict.gpu_uuid)
    return FlagItem(
        anchor=anchor("flag", pod.uid, verdict.gpu_uuid, reason),
        target=row if row in rows else anchor("gpu", verdict.gpu_uuid),
        pod=f"{plain(pod.namespace)}/{plain(pod.name)}",
        gpu=labels.get(verdict.gpu_uuid, "GPU unknown"),
        reason=reason,
        summary=reason.summary,
        figures=figures_text(verdict),
        since=context.violation(verdict) or "not over in the last sample",
        evidence=tuple(_evidence(verdict, pod, reason)),
    )


def _evidence(verdict: ApiVerdict, pod: ApiPod, reason: FlagReason) -> Iterator[tuple[str, str]]:
    """Yield the details of a flag: where its figures come from, and when it ends."""
    yield "pod UID", plain(pod.uid)
    if pod.queue:
        yield "queue", plain(pod.queue)
    if pod.gpu_groups:
        yield "GPU group", groups_text(pod.gpu_groups)
    for candidate in pod.candidates[:_MAX_CANDIDATES]:
        amount = size(candidate.bytes_per_gpu.get(verdict.gpu_uuid))
        text = f"{plain(candidate.says)}, {amount}{'' if candidate.counts else ' (does not count)'}"
        yield f"share by {candidate.source}", text
    if pod.share_changed:
        yield "difference", plain(pod.share_changed, _LONGEST_TEXT)
    if reason is not FlagReason.SHARE_CHANGED:
        yield "counts towards the grace", duration(verdict.balance_seconds or 0.0)
    yield "ends with", reason.cleared_by
    yield "runbook", f"docs/runbooks.md, {RUNBOOKS[reason]}"
