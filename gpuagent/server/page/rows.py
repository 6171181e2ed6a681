"""One row of a GPU's table for each pod: texts, colour, drawings, and the order of the rows. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gpuagent.history import History, PodHistory, PodState
from gpuagent.ledger.snapshot import Holding, Snapshot
from gpuagent.problems import Suspension
from gpuagent.server.page.bars import Past, ShareBar, past, share_bar
from gpuagent.server.page.words import ABSENT, amount, anchor, clock_time, percent, safe
from gpuagent.shares.pod_shares import Amount, PodShare, ShareSource
from gpuagent.status import Status
from gpuagent.verdicts.grounds import OF_RECORDS
from gpuagent.verdicts.judge import Verdict
from service.text import counted
from service.units import time_over

COLOURS: Final = 8
"""Number of colours of pods. With more pods on a GPU, colours repeat; the numbers of the rows do not."""

_MAX_GROUPS: Final = 8
_FLAGGED, _OVER, _REST = range(3)

SOURCES: Final = {
    ShareSource.BIND_REQUEST: "BindRequest",
    ShareSource.KAI_CONFIGMAP: "ConfigMap",
    ShareSource.ANNOTATION: "annotation",
    ShareSource.WHOLE_GPU: "whole GPU",
}
"""What the page calls the source of a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """One pod on one GPU, as texts. All of them still need to be escaped for HTML."""

    anchor: str
    number: int
    colour: str
    state: str
    """CSS class: flagged, over or calm."""
    name: str
    namespace: str
    more: tuple[str, ...]
    """Queue, size, workload, number of processes, MIG device."""
    tenant: str
    """The pod's names in its vCluster; empty outside of one."""
    bar: ShareBar | None
    no_bar: str
    """Why there is no bar; empty if there is one."""
    used: str
    share: str
    source: str
    percent: str
    utilization: str
    peak: str
    verdict: str
    """The state in words; the reasons of a flagged pod."""
    since: str
    past: Past | None


@dataclass(frozen=True, slots=True)
class Entry:
    """A pod on a GPU, or of an unknown GPU, before it becomes a row."""

    pod_share: PodShare
    gpu_uuid: str
    holding: Holding | None = None
    note: str = ""
    """Why the pod has no figures."""

    @property
    def key(self) -> tuple[str, str]:
        """Pod UID and GPU UUID."""
        return self.pod_share.pod.uid, self.gpu_uuid


class Context:
    """Everything that rows are made from: one status."""

    def __init__(self, status: Status) -> None:
        self.status = status
        self.snapshot: Snapshot | None = status.snapshot
        self._history: History | None = status.history
        self.verdicts: dict[tuple[str, str], list[Verdict]] = {}
        for verdict in status.verdicts.by_key.values():
            self.verdicts.setdefault((verdict.key.uid, verdict.key.gpu_uuid), []).append(verdict)
        present = {account.gpu.uuid for account in self.snapshot.gpus} if self.snapshot else set()
        self.suspension = Suspension.of(status.problems, present)
        self.taken_at = self.snapshot.taken_at if self.snapshot else 0.0
        self.wall_time = self.snapshot.wall_time if self.snapshot else status.good_wall_time or 0.0

    def history(self, entry: Entry) -> PodHistory | None:
        """Return the past of an entry; None if it has none."""
        return self._history.of(*entry.key) if self._history is not None else None

    def lost_since(self, scope: str) -> float | None:
        """Return the Unix time since which a GPU does not respond; None if unknown."""
        return self._history.lost_since(scope) if self._history is not None else None

    def flags(self, key: tuple[str, str]) -> list[Verdict]:
        """Return the flags of a pod on a GPU."""
        return [verdict for verdict in self.verdicts.get(key, ()) if verdict.is_flagged]

    def violation(self, verdict: Verdict) -> str:
        """Return since when a violation lasts, and how long; empty if the newest sample does not show it."""
        if verdict.since is None:
            return ""
        lasted = verdict.lasted(self.taken_at)
        began = clock_time(self.wall_time - lasted, self.wall_time)
        word = "present" if verdict.key.reason in OF_RECORDS else "over"
        return f"{word} since {began} ({time_over(lasted, verdict.balance)})"


def verdict_seconds(verdict: Verdict, now: float) -> float:
    """Return how long a violation lasts: the uninterrupted time, or the balance where it is longer."""
    return max(verdict.lasted(now), verdict.balance)


def in_order(entries: Iterable[Entry], context: Context) -> list[Entry]:
    """Sort entries: flagged pods, then those above share and slack, then by use of the share."""

    def rank(entry: Entry) -> tuple[int, float, tuple[str, str], str]:
        verdicts = context.verdicts.get(entry.key, ())
        over = [verdict for verdict in verdicts if verdict.is_flagged] or [
            verdict for verdict in verdicts if verdict.is_over
        ]
        if over:
            tier = _FLAGGED if over[0].is_flagged else _OVER
            figure = max(verdict_seconds(verdict, context.taken_at) for verdict in over)
        else:
            tier, figure = _REST, _ratio(entry, _share(entry)) or -1.0
        return tier, -figure, entry.pod_share.pod.key, entry.gpu_uuid

    return sorted(entries, key=rank)


def pod_row(entry: Entry, number: int, context: Context) -> PodRow:
    """Return the row of an entry at a place of the table, from 1 on."""
    pod_share, holding = entry.pod_share, entry.holding
    history, share = context.history(entry), _share(entry)
    share_bytes = share.bytes if share else history.share_bytes if holding is None and history else None
    used = holding.used_bytes if holding else None
    bar = share_bar(used, share_bytes)
    pod, tenant = pod_share.pod, pod_share.tenant
    more = []
    if pod_share.queue:
        more.append(f"queue {safe(pod_share.queue)}")
    if pod_share.size:
        more.append(f"size {safe(pod_share.size)}")
    if pod_share.workload.name:
        more.append(safe(f"{pod_share.workload.kind} {pod_share.workload.name}"))
    if holding is not None:
        more.append(_processes(holding.processes))
        if holding.is_mig:
            more.append(f"MIG device {safe(holding.gpu_uuid)}")
    state, verdict, since = _state(entry, share_bytes, history, context)
    return PodRow(
        anchor=anchor("pod", *entry.key),
        number=number,
        colour=f"c{(history.slot if history else number - 1) % COLOURS}",
        state=state,
        name=safe(pod.name),
        namespace=safe(pod.namespace),
        more=tuple(more),
        tenant=""
        if tenant is None
        else f"vCluster {safe(tenant.vcluster)}: {safe(tenant.namespace)}/{safe(tenant.pod)}",
        bar=bar,
        no_bar="" if bar else _why_no_bar(entry, used, share_bytes),
        used="unknown" if holding is not None and used is None else amount(used),
        share=_share_text(entry, share_bytes),
        source=_source_text(entry, share, share_bytes),
        percent=percent(used / share_bytes if used is not None and share_bytes else None),
        utilization=percent(holding.utilization_ratio if holding else None),
        peak=amount(history.peak_bytes if history else None),
        verdict=verdict,
        since=since,
        past=past(history),
    )


def _processes(number: int | None) -> str:
    return "processes unknown" if number is None else counted(number, "process", "processes")


def groups_text(pod_share: PodShare) -> str:
    """Return the GPU groups of a pod; empty if it has none."""
    more = len(pod_share.groups) - _MAX_GROUPS
    names = ", ".join(safe(group) for group in pod_share.groups[:_MAX_GROUPS])
    return f"{names} and {more} more" if more > 0 else names


def _share(entry: Entry) -> Amount | None:
    return entry.pod_share.shares.get(entry.gpu_uuid)


def _ratio(entry: Entry, share: Amount | None) -> float | None:
    used = entry.holding.used_bytes if entry.holding else None
    return used / share.bytes if used is not None and share is not None and share.bytes else None


def last_share(entry: Entry) -> int | None:
    """Return a share on a GPU that does not respond, by the best source that counts; None if unknown."""
    candidates = (candidate for candidate in entry.pod_share.candidates if candidate.counts)
    best = next(candidates, None)
    return best.bytes_per_gpu.get(entry.gpu_uuid) if best is not None else None


def _share_text(entry: Entry, share_bytes: int | None) -> str:
    if share_bytes is None and entry.holding is None:
        return amount(last_share(entry))
    return amount(share_bytes)


def _source_text(entry: Entry, share: Amount | None, share_bytes: int | None) -> str:
    if share is not None:
        limit = entry.pod_share.limits.get(entry.gpu_uuid)
        source = SOURCES.get(ShareSource(share.source), safe(share.source)) if share.source else ""
        return f"{source}; limit {amount(limit.bytes)}" if limit else source
    if entry.holding is None:
        return "last known" if share_bytes is not None else ""
    if entry.pod_share.pod.has_unsized_gpus:
        return "of unknown size"
    return "none on this GPU"


def _why_no_bar(entry: Entry, used: int | None, share_bytes: int | None) -> str:
    if entry.note:
        return entry.note
    if used is None:
        return "memory unknown"
    return "no share to compare with" if share_bytes is None else ""


def _state(
    entry: Entry, share_bytes: int | None, history: PodHistory | None, context: Context
) -> tuple[str, str, str]:
    """Return the CSS class, the state in words, and since when it lasts."""
    verdicts = context.verdicts.get(entry.key, [])
    flags = [verdict for verdict in verdicts if verdict.is_flagged]
    over = [verdict for verdict in verdicts if verdict.is_over]
    if flags:
        began = _history_since(PodState.FLAGGED, history, context)
        text = next(filter(None, map(context.violation, flags)), "not over now")
        since = f"flagged {began}; {text}" if began else text
        return "flagged", ", ".join(verdict.key.reason for verdict in flags), since
    if over:
        reasons = ", ".join(verdict.key.reason for verdict in over)
        return "over", f"{reasons}, within the grace", context.violation(over[0])
    if any(verdict.key.reason not in OF_RECORDS for verdict in verdicts):
        used = entry.holding.used_bytes if entry.holding else None
        is_above = used is not None and share_bytes is not None and used > share_bytes
        began = _history_since(PodState.WITHIN, history, context)
        return "calm", "within slack" if is_above else "within share", f"since {began}" if began else ""
    return "calm", *_not_judged(entry, context)


def _history_since(state: PodState, history: PodHistory | None, context: Context) -> str:
    is_known = history is not None and history.state is state
    return clock_time(history.since, context.wall_time) if is_known and history is not None else ""


def _not_judged(entry: Entry, context: Context) -> tuple[str, str]:
    pod_share, holding = entry.pod_share, entry.holding
    if holding is None:
        reason = "its GPU is unknown" if not entry.gpu_uuid else "its GPU does not respond"
    elif pod_share.pod.is_finished:
        reason = "the pod has ended"
    elif holding.is_mig:
        reason = "MIG"
    elif context.suspension.covers(entry.gpu_uuid):
        reason = "verdicts are suspended"
    elif holding.used_bytes is None or holding.has_unknown_memory:
        reason = "memory unknown"
    elif _sources(pod_share.shares.values()) == {ShareSource.WHOLE_GPU}:
        reason = "whole GPU"
    elif pod_share.pod.has_unsized_gpus:
        reason = "share of unknown size"
    else:
        reason = ""
    return "not judged", reason


def _sources(amounts: Iterable[Amount]) -> set[str]:
    return {amount.source for amount in amounts}


def no_utilization(rows: Sequence[PodRow], *, is_mig: bool) -> str:
    """Return why a table has no utilisation; empty if a row has one."""
    if not rows or any(row.utilization != ABSENT for row in rows):
        return ""
    return "the driver does not report it for MIG devices" if is_mig else "the driver does not report it"
