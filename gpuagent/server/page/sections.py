"""The sections of the page: a table for each GPU, and one for the pods whose GPU is unknown. Pure.

The number of rows has a limit, since tenants can cause any number of them. The page names how many are left
out; `/api/v1/shares` has all of them.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final, TypeVar

from msgspec import Struct

from gpuagent.api_types import AgentResponse, ApiVerdict
from gpuagent.evaluation.history import PodHistory
from gpuagent.evaluation.status import Status
from gpuagent.server.page.drawings import GpuBar, Part, Past, ShareBar, gpu_bar, past, share_bar
from gpuagent.table.gpu_rows import NONE, UNKNOWN, GpuState, plain
from gpuagent.table.node_table import NodeTable
from gpuagent.table.pod_rows import BY_URGENCY, PodRow, PodState
from service.text import counted
from service.units import duration, size, time_over

COLOURS: Final = 8
"""Number of colours of pods. With more pods on a GPU, colours repeat; the numbers of the rows do not."""

_MAX_GROUPS: Final = 8
_CLOCK_ONLY_SECONDS: Final = 20 * 3600.0
_CLASSES: Final = {PodState.FLAGGED: "flagged", PodState.IN_GRACE: "over"}
"""CSS class of a row by its state; a row in order is "risk" if its next allocation can fail, else "calm"."""


class PageRow(Struct, frozen=True, kw_only=True):
    """One pod on one GPU, as texts. All of them still need to be escaped for HTML."""

    cells: PodRow
    """The row of the table."""
    anchor: str
    number: int
    colour: str
    state: str
    """CSS class: flagged, over, risk or calm."""
    more: tuple[str, ...]
    """Queue, size, workload, number of processes, MIG device."""
    bar: ShareBar | None
    no_bar: str
    """Why there is no bar; empty if there is one."""
    share: str
    source: str
    peak: str
    since: str
    past: Past | None


class Context:
    """Everything that the page is made from: one status, and its table."""

    def __init__(self, status: Status, response: AgentResponse) -> None:
        """Make the table of a response, which is that of the status."""
        snapshot = status.snapshot
        self.status = status
        self.response = response
        self.table = NodeTable.of("", plain(response.node), response)
        self.wall_time = snapshot.wall_time if snapshot else status.good_wall_time or 0.0

    def history(self, row: PodRow) -> PodHistory | None:
        """Return the past of a row; None if it has none."""
        history = self.status.history
        return history.of(row.key[1], row.gpu_uuid) if history is not None else None

    def lost_since(self, scope: str) -> float | None:
        """Return the Unix time since which a GPU does not respond; None if unknown."""
        return self.status.history.lost_since(scope) if self.status.history is not None else None

    def violation(self, verdict: ApiVerdict) -> str:
        """Return since when a violation lasts, and how long; empty if the newest sample does not show it."""
        if verdict.lasted_seconds is None:
            return ""
        word = "over" if verdict.is_of_memory else "present"
        lasted = time_over(verdict.lasted_seconds, verdict.balance_seconds or 0.0)
        return f"{word} {self.began(verdict.lasted_seconds)} ({lasted})"

    def began(self, lasted_seconds: float) -> str:
        """Return since when something lasts."""
        return f"since {clock_time(self.wall_time - lasted_seconds, self.wall_time)}"


def clock_time(at: float, now: float) -> str:
    """Format a Unix time in UTC: the time of day, or the date and time if that is long ago."""
    moment = datetime.fromtimestamp(at, UTC)
    is_recent = abs(now - at) < _CLOCK_ONLY_SECONDS
    return f"{moment:%H:%M:%S}" if is_recent else f"{moment:%b} {moment.day} {moment:%H:%M}"


def anchor(kind: str, *parts: str) -> str:
    """Return an element ID that stays the same in each rendering, and holds no text from outside."""
    digest = blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=6).hexdigest()
    return f"{kind}-{digest}"


def pod_row(row: PodRow, number: int, context: Context) -> PageRow:
    """Return the row at a place of the table, from 1 on."""
    history, holding = context.history(row), row.holding
    last_share = history.share_bytes if history and holding is None and row.share is None else None
    more = [f"queue {row.queue}"] if row.queue else []
    if row.size:
        more.append(f"size {row.size}")
    if row.workload:
        more.append(row.workload)
    if row.has_gpu:
        processes = row.processes_text
        more.append("1 process" if processes == "1" else f"{processes} processes")
    if holding is not None and holding.mig:
        more.append(f"MIG device {plain(holding.gpu_uuid)}")
    bar = share_bar(row.used, row.share)
    return PageRow(
        cells=row,
        anchor=anchor("pod", row.key[1], row.gpu_uuid),
        number=number,
        colour=f"c{(history.slot if history else number - 1) % COLOURS}",
        state=_CLASSES.get(row.state, "risk" if row.is_urgent else "calm"),
        more=tuple(more),
        bar=bar,
        no_bar="" if bar else _why_no_bar(row),
        share=row.share_text if last_share is None else size(last_share),
        source=_source_text(row) if last_share is None else "last known",
        peak=size(history.peak_bytes) if history else NONE,
        since=_since(row, history, context),
        past=past(history),
    )


def groups_text(groups: Sequence[str]) -> str:
    """Return the GPU groups of a pod; empty if it has none."""
    more = len(groups) - _MAX_GROUPS
    names = ", ".join(plain(group) for group in groups[:_MAX_GROUPS])
    return f"{names} and {more} more" if more > 0 else names


def _source_text(row: PodRow) -> str:
    elsewhere = ""
    if row.holding is not None and row.gpu_uuid not in row.api_pod.shares:
        elsewhere = "its GPU is unknown" if row.api_pod.gpu_unresolved else "not promised on this GPU"
    if row.share is not None or row.share_source:
        limit = f"limit {row.limit_text}" if row.limit is not None else ""
        return "; ".join(filter(None, (row.share_source, elsewhere, limit)))
    if row.holding is None:
        return ""
    if row.api_pod.gpu_unresolved:
        return elsewhere
    return "of unknown size" if row.share_is_unknown else "none on this GPU"


def _why_no_bar(row: PodRow) -> str:
    if row.holding is not None and row.used is None:
        return "memory unknown"
    if row.holding is not None:
        return "" if row.share == 0 else "no share to compare with"
    if row.gpu_index is not None:
        return "no figures"
    if row.gpu_uuid:
        return f"its reservation names {plain(row.gpu_uuid)}, which has not responded since the agent started"
    if not row.api_pod.has_share:
        return "no share"
    groups = groups_text(row.api_pod.gpu_groups)
    return f"GPU group {groups} has no known GPU" if groups else "no GPU group"


def _since(row: PodRow, history: PodHistory | None, context: Context) -> str:
    """Return since when the state lasts; a flag's violation may be shorter, or have ended.

    Empty for a pod within its share that is at risk or idle: its text is about something else than the state.
    """
    is_known = history is not None and history.state is row.state
    began = f"since {clock_time(history.since, context.wall_time)}" if is_known and history else ""
    violation = next(filter(None, map(context.violation, row.verdicts)), "")
    if row.state is PodState.FLAGGED:
        return "; ".join(filter(None, (began, violation or "not over now")))
    return violation if row.state is PodState.IN_GRACE else began if row.state_text == PodState.WITHIN else ""


def no_utilization(rows: Sequence[PodRow], *, is_mig: bool) -> str:
    """Return why a table has no utilisation; empty if a row has one."""
    if not rows or any(row.utilization_text not in (NONE, UNKNOWN) for row in rows):
        return ""
    return "the driver does not report it for MIG devices" if is_mig else "the driver does not report it"


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
