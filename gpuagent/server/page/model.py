"""What the page shows: flags, problems, and a table for each GPU. Pure.

The number of rows, flags and problems has a limit, since tenants can cause any number of them. The page names
how many are left out; `/api/v1/shares` has all of them.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from gpuagent.gpus.reading import LostGpu
from gpuagent.ledger.snapshot import GpuAccount, Holding
from gpuagent.problems import SUSPENDS_NOTHING, Problem
from gpuagent.server.page.bars import GpuBar, Part, gpu_bar
from gpuagent.server.page.rows import (
    SOURCES,
    Context,
    Entry,
    PodRow,
    groups_text,
    in_order,
    no_utilization,
    pod_row,
    verdict_seconds,
)
from gpuagent.server.page.words import LONGEST_TEXT, amount, anchor, clock_time, safe
from gpuagent.shares.pod_shares import PodShare
from gpuagent.status import Status
from gpuagent.verdicts.grounds import FlagReason
from gpuagent.verdicts.judge import Change, Verdict
from service.text import counted
from service.units import duration, size

MAX_ROWS: Final = 64
"""Largest number of rows of one table."""
MAX_FLAGS: Final = 50
MAX_PROBLEMS: Final = 50
_MAX_CANDIDATES: Final = 8

RUNBOOKS: Final = {
    FlagReason.OVER_SHARE: "KaisharePodOverShare",
    FlagReason.UNASSIGNED_GPU: "KaisharePodUnassignedGPU",
    FlagReason.NO_SHARE: "KaisharePodWithoutShare",
    FlagReason.SHARE_CHANGED: "KaisharePodShareChanged",
    FlagReason.LIMIT_BYPASSED: "KaisharePodLimitBypassed",
    FlagReason.NO_RESERVATION: "KaisharePodWithoutReservation",
}
"""The section of docs/runbooks.md for each reason."""


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
class ProblemItem:
    """A problem with its scope."""

    cause: str
    scope: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LegendItem:
    """A part of a GPU's memory, with its key."""

    kind: str
    """CSS class of the key; empty without one."""
    name: str
    amount: str


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
    legend: tuple[LegendItem, ...] = ()
    rows: tuple[PodRow, ...] = ()
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
    problems: tuple[ProblemItem, ...]
    reservation_problems: tuple[ProblemItem, ...]
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
    """Yield the section of each GPU by index, and one for pods of unknown GPUs; None after each row."""
    snapshot = context.snapshot
    placed: dict[str, list[Entry]] = {}
    for holding in snapshot.holdings if snapshot else ():
        placed.setdefault(holding.gpu_uuid, []).append(_entry(holding))
    accounts = snapshot.gpus if snapshot else ()
    known = {account.gpu.uuid for account in accounts} | {
        instance.uuid for account in accounts for instance in account.gpu.instances
    }
    lost_uuids = {gpu.uuid for gpu in context.status.lost_gpus if gpu.uuid}
    on_lost, without_gpu = _without_holding(snapshot.pod_shares if snapshot else (), known, lost_uuids)
    sections: list[tuple[int, GpuAccount | LostGpu]] = [
        *((account.gpu.index, account) for account in accounts),
        *((gpu.index, gpu) for gpu in context.status.lost_gpus),
    ]
    indices = {account.gpu.index for account in accounts}
    for index, gpu in sorted(sections, key=lambda section: section[0]):
        if isinstance(gpu, LostGpu):
            yield (
                yield from _lost_section(gpu, on_lost.get(gpu.uuid, []), context, is_reused=index in indices)
            )
        else:
            uuids = (gpu.gpu.uuid, *(instance.uuid for instance in gpu.gpu.instances))
            entries = [entry for uuid in uuids for entry in placed.get(uuid, ())]
            yield (yield from _gpu_section(gpu, entries, context))
    if without_gpu:
        yield (yield from _unknown_section(without_gpu, context))


def page_top(context: Context, gpus: Sequence[SectionOutline]) -> PageTop:
    """Return the top of the page, given the outlines of its sections."""
    status = context.status
    names = {account.gpu.uuid: f"GPU {account.gpu.index}" for account in _accounts(status)}
    names |= {gpu.scope: f"GPU {gpu.index}" for gpu in status.lost_gpus}
    flags = sorted(
        (verdict for verdict in status.verdicts.by_key.values() if verdict.is_flagged),
        key=lambda verdict: (-verdict_seconds(verdict, context.taken_at), verdict.pod_share.pod.key),
    )
    rows = frozenset[str]().union(*(section.rows for section in gpus))
    harmless = [problem for problem in status.problems if problem.cause in SUSPENDS_NOTHING]
    others = [problem for problem in status.problems if problem.cause not in SUSPENDS_NOTHING]
    return PageTop(
        flags=tuple(_flag(verdict, names, rows, context) for verdict in flags[:MAX_FLAGS]),
        hidden_flags=max(len(flags) - MAX_FLAGS, 0),
        problems=tuple(_problem(problem, names) for problem in others[:MAX_PROBLEMS]),
        reservation_problems=tuple(_problem(problem, names) for problem in harmless[:MAX_PROBLEMS]),
        hidden_problems=max(len(others) - MAX_PROBLEMS, 0) + max(len(harmless) - MAX_PROBLEMS, 0),
        is_suspended=status.attribution_ok is False,
        notes=tuple(_node_notes(status)),
        gpus=tuple(gpus),
        transitions=_transitions(status),
        nothing=_why_nothing(status),
    )


def _transitions(status: Status) -> str:
    sums = Counter[str]()
    for (_, change), count in status.transitions.items():
        sums[change.label] += count
    return ", ".join(f"{sums[change.label]} {change.label}" for change in Change)


def flag_count(status: Status) -> int:
    """Return the number of flags."""
    return sum(verdict.is_flagged for verdict in status.verdicts.by_key.values())


def _accounts(status: Status) -> tuple[GpuAccount, ...]:
    return status.snapshot.gpus if status.snapshot else ()


def _why_nothing(status: Status) -> str:
    if status.snapshot is None:
        return "No figures: there is no sample yet, or the last one is too old."
    return "" if status.snapshot.gpus else "No GPU on this node responds."


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


def _entry(holding: Holding) -> Entry:
    return Entry(holding.pod_share, holding.gpu_uuid, holding)


def _without_holding(
    pod_shares: Iterable[PodShare], known: set[str], lost: set[str]
) -> tuple[dict[str, list[Entry]], list[Entry]]:
    """Return the pods of each lost GPU, and the pods with a share whose GPU is unknown."""
    on_lost: dict[str, list[Entry]] = {}
    without_gpu: list[Entry] = []
    for pod_share in pod_shares:
        if pod_share.pod.is_finished or not pod_share.has_share:
            continue
        for uuid in pod_share.gpu_uuids:
            if uuid in lost:
                on_lost.setdefault(uuid, []).append(Entry(pod_share, uuid, note="no figures"))
            elif uuid not in known:
                note = f"its reservation names {safe(uuid)}, which has not responded since the agent started"
                without_gpu.append(Entry(pod_share, uuid, note=note))
        if not pod_share.gpu_uuids:
            groups = groups_text(pod_share)
            note = f"GPU group {groups} has no known GPU" if groups else "no GPU group"
            without_gpu.append(Entry(pod_share, "", note=note))
    return on_lost, without_gpu


def _rows(entries: Iterable[Entry], context: Context) -> _Steps[tuple[tuple[PodRow, ...], list[Entry]]]:
    """Return the rows that are shown, and the entries of all rows in their order."""
    ordered = in_order(entries, context)
    rows = []
    for number, entry in enumerate(ordered[:MAX_ROWS], start=1):
        rows.append(pod_row(entry, number, context))
        yield
    return tuple(rows), ordered


def _gpu_section(account: GpuAccount, entries: list[Entry], context: Context) -> _Steps[GpuSection]:
    gpu = account.gpu
    rows, ordered = yield from _rows(entries, context)
    total, promised = gpu.total_bytes, account.promised_bytes
    flagged = sum(bool(context.flags(entry.key)) for entry in ordered)
    alerts, notes, words = [], [], []
    if flagged:
        words.append(f"{flagged} flagged")
    if total is not None and promised is not None and promised > total:
        alerts.append(
            f"Promised {size(promised)}, {size(promised - total)} more than the GPU's {size(total)}."
        )
        words.append("overpromised")
    if context.suspension.covers(gpu.uuid):
        alerts.append("Verdicts on this GPU are suspended; the problems above have the reason.")
        words.append("suspended")
    if gpu.mig:
        notes.append("This GPU is in MIG mode (Multi-Instance GPU): its pods are reported, not judged.")
    if gpu.memory_unknown:
        notes.append(f"Its memory is unknown: {safe(gpu.memory_unknown, LONGEST_TEXT)}.")
    parts = _parts(account, rows, ordered)
    no_figures = no_utilization(rows, is_mig=gpu.mig)
    if no_figures:
        notes.append(f"Utilisation is absent: {no_figures}.")
    return GpuSection(
        anchor=anchor("gpu", gpu.uuid),
        title=f"GPU {gpu.index}",
        model=safe(gpu.model),
        uuid=safe(gpu.uuid),
        alerts=tuple(alerts),
        notes=tuple(notes),
        summary=", ".join(words),
        bar=gpu_bar(parts, total=total, used=gpu.used_bytes, promised=promised),
        legend=_legend(account, parts),
        rows=rows,
        hidden_rows=len(ordered) - len(rows),
        nothing="" if rows else "No pod uses this GPU, and none has a share of it.",
    )


def _parts(account: GpuAccount, rows: Sequence[PodRow], ordered: Sequence[Entry]) -> list[Part]:
    """Return the parts of a GPU's bar: the pods in the order of the table, and everything else."""
    gpu = account.gpu
    used = [entry.holding.used_bytes if entry.holding else None for entry in ordered]
    parts = [
        Part(
            kind=row.colour,
            title=f"{row.namespace}/{row.name}",
            bytes=used_bytes,
            number=str(row.number),
            is_flagged=row.state == "flagged",
        )
        for row, used_bytes in zip(rows, used, strict=False)
    ]
    hidden = ordered[len(rows) :]
    if hidden:
        others = sum(used_bytes or 0 for used_bytes in used[len(rows) :])
        parts.append(Part(kind="others", title=f"{counted(len(hidden), 'more pod')}", bytes=others))
    parts.append(Part(kind="host", title="host processes", bytes=account.host_bytes))
    parts.append(Part(kind="unattributed", title="unattributed", bytes=account.unattributed_bytes))
    if gpu.used_bytes is not None:
        attributed = sum(max(part.bytes or 0, 0) for part in parts)
        parts.append(Part(kind="unknown", title="owner unknown", bytes=gpu.used_bytes - attributed))
    parts.append(Part(kind="reserved", title="reserved by the driver", bytes=gpu.reserved_bytes))
    return parts


def _legend(account: GpuAccount, parts: Iterable[Part]) -> tuple[LegendItem, ...]:
    gpu = account.gpu
    figures = (gpu.total_bytes, gpu.used_bytes, gpu.reserved_bytes)
    free = None
    if gpu.total_bytes is not None and gpu.used_bytes is not None:
        free = gpu.total_bytes - gpu.used_bytes - (gpu.reserved_bytes or 0)
    items = [
        LegendItem(kind="", name="in use", amount=f"{size(figures[1])} of {size(figures[0])}"),
        LegendItem(kind="promised", name="promised", amount=size(account.promised_bytes)),
        LegendItem(kind="host", name="host processes", amount=size(account.host_bytes)),
        LegendItem(kind="unattributed", name="unattributed", amount=size(account.unattributed_bytes)),
        LegendItem(kind="reserved", name="reserved by the driver", amount=size(figures[2])),
        *(
            LegendItem(kind=part.kind, name=part.title, amount=size(part.bytes))
            for part in parts
            if part.kind in ("unknown", "others") and (part.bytes or 0) > 0
        ),
        LegendItem(kind="free", name="free", amount=size(free)),
    ]
    return tuple(items)


def _lost_section(
    gpu: LostGpu, entries: list[Entry], context: Context, *, is_reused: bool
) -> _Steps[GpuSection]:
    since, now = context.lost_since(gpu.scope), context.wall_time
    at = f"at {clock_time(since, now)} UTC" if since is not None else "at an unknown time"
    notes = []
    if gpu.uuid:
        lasted = f" ({duration(max(now - since, 0))} ago)" if since is not None else ""
        alert = f"GPU {gpu.index} was lost {at}{lasted}. It has no figures."
    else:
        alert = f"GPU {gpu.index} does not respond; this was first seen {at}."
        notes.append("Its UUID is unknown, so its pods are among those whose GPU is unknown.")
    if is_reused:
        notes.append(f"Another GPU has the index {gpu.index} now.")
    rows, ordered = yield from _rows(entries, context)
    nothing = "No pod has a share of it." if context.snapshot else "Its pods are unknown without a sample."
    return GpuSection(
        anchor=anchor("gpu", gpu.scope),
        title=f"GPU {gpu.index}",
        model=safe(gpu.model),
        uuid=safe(gpu.uuid),
        alerts=(alert,),
        notes=tuple(notes),
        summary="lost",
        is_lost=True,
        rows=rows,
        hidden_rows=len(ordered) - len(rows),
        nothing="" if rows or not gpu.uuid else nothing,
    )


def _unknown_section(entries: list[Entry], context: Context) -> _Steps[GpuSection]:
    rows, ordered = yield from _rows(entries, context)
    flagged = sum(bool(context.flags(entry.key)) for entry in ordered)
    return GpuSection(
        anchor=anchor("gpu", ""),
        title="Pods whose GPU is unknown",
        model="",
        uuid="",
        summary=f"{flagged} flagged" if flagged else "",
        rows=rows,
        hidden_rows=len(ordered) - len(rows),
    )


def _problem(problem: Problem, names: dict[str, str]) -> ProblemItem:
    scope = names.get(problem.gpu_uuid) or safe(problem.gpu_uuid) or "the node"
    return ProblemItem(cause=problem.cause, scope=scope, detail=safe(problem.detail, LONGEST_TEXT))


def _flag(verdict: Verdict, names: dict[str, str], rows: frozenset[str], context: Context) -> FlagItem:
    key, pod_share = verdict.key, verdict.pod_share
    row = anchor("pod", key.uid, key.gpu_uuid)
    figures = ""
    if verdict.used_bytes is not None:
        figures = verdict.used_text
        figures += f" of {size(verdict.allowed_bytes)}" if verdict.allowed_bytes is not None else " in use"
    violation = context.violation(verdict)
    return FlagItem(
        anchor=anchor("flag", key.uid, key.gpu_uuid, key.reason),
        target=row if row in rows else anchor("gpu", key.gpu_uuid),
        pod=f"{safe(pod_share.pod.namespace)}/{safe(pod_share.pod.name)}",
        gpu=names.get(key.gpu_uuid, "GPU unknown"),
        reason=key.reason,
        summary=key.reason.summary,
        figures=figures,
        since=violation or "not over in the last sample",
        evidence=tuple(_evidence(verdict)),
    )


def _evidence(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Yield the details of a flag: where its figures come from, and when it ends."""
    pod_share, reason = verdict.pod_share, verdict.key.reason
    yield "pod UID", safe(pod_share.pod.uid)
    if pod_share.queue:
        yield "queue", safe(pod_share.queue)
    if pod_share.groups:
        yield "GPU group", groups_text(pod_share)
    for candidate in pod_share.candidates[:_MAX_CANDIDATES]:
        text = f"{safe(candidate.text)}, {amount(candidate.bytes_per_gpu.get(verdict.key.gpu_uuid))}"
        text += "" if candidate.counts else " (does not count)"
        yield f"share by {SOURCES[candidate.source]}", text
    if pod_share.changed:
        yield "difference", safe(pod_share.changed, LONGEST_TEXT)
    if reason is not FlagReason.SHARE_CHANGED:
        yield "counts towards the grace", duration(verdict.balance)
    yield "ends with", reason.cleared_by
    yield "runbook", f"docs/runbooks.md, {RUNBOOKS[reason]}"
