"""One row of a GPU's table on the page: the row of `gpuagent.table` with colour, drawings and times. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final

from msgspec import Struct

from gpuagent.api_types.shares import AgentResponse, ApiVerdict
from gpuagent.evaluation.history import PodHistory
from gpuagent.evaluation.status import Status
from gpuagent.server.page.bars import ShareBar, share_bar
from gpuagent.server.page.past import Past, past
from gpuagent.table.node import NodeTable
from gpuagent.table.rows import PodRow, PodState
from gpuagent.table.words import NONE, UNKNOWN, plain
from service.units import size, time_over

COLOURS: Final = 8
"""Number of colours of pods. With more pods on a GPU, colours repeat; the numbers of the rows do not."""

_MAX_GROUPS: Final = 8
_CLOCK_ONLY_SECONDS: Final = 20 * 3600.0
_CLASSES: Final = {PodState.FLAGGED: "flagged", PodState.OVER: "over"}
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
    return violation if row.state is PodState.OVER else began if row.state_text == PodState.WITHIN else ""


def no_utilization(rows: Sequence[PodRow], *, is_mig: bool) -> str:
    """Return why a table has no utilisation; empty if a row has one."""
    if not rows or any(row.utilization_text not in (NONE, UNKNOWN) for row in rows):
        return ""
    return "the driver does not report it for MIG devices" if is_mig else "the driver does not report it"
