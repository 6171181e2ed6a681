"""Content of `top`: sorted lines of text that are safe for a terminal. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from gpuagent.api_types import (
    AgentResponse,
    ApiAmount,
    ApiGpu,
    ApiHolding,
    ApiPod,
    ApiVerdict,
    transitions_text,
)
from gpuagent.top.client import Received
from service.text import counted, listed, one_line
from service.units import duration, size, time_over

NOTHING: Final = "-"
"""Placeholder for a value that does not exist; an unknown value is `unknown`."""
IN_GRACE: Final = ", in grace"
_ANNOTATION: Final = "annotation"
_GONE: Final = "gone"
"""Placeholder for the index of a GPU that does not respond; a problem names the GPU."""
_OLD_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLine:
    """The sums of one GPU."""

    gpu: str
    model: str
    used: str
    total: str
    promised: str
    host: str
    unattributed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLine:
    """One pod on one GPU."""

    gpu: str
    pod: str
    tenant: str
    """The pod's name in its vCluster; empty outside of one."""
    queue: str
    size: str
    """Name of the size; empty without one."""
    workload: str
    """Kind and name; empty without one."""
    used: str
    share: str
    source: str
    is_own_word: bool
    """Whether the pod's own annotation is the only source of the share."""
    over: str
    limit: str
    utilization: str
    """In per cent; empty if no pod of the board has a known one."""
    processes: str
    flags: tuple[str, ...]
    """Reason and duration of each flag."""
    pending: tuple[str, ...]
    """Reason and duration of each violation within its grace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Everything that `top` shows."""

    title: str
    simulated: str
    """Note that the figures are synthetic; empty for a real node."""
    age: str
    is_old: bool
    """Whether the figures are outdated."""
    problems: tuple[str, ...]
    gpus: tuple[GpuLine, ...]
    gpu_summary: str
    """Sums over all GPUs, in place of their lines on a low terminal."""
    pods: tuple[PodLine, ...]
    nothing: str
    """Why there are no figures; empty if there are some."""


def board_of(received: Received, *, now: float, silence: str = "") -> Board:
    """Build the board of a response.

    Args:
        received: the last response.
        now: current time, on the clock of `received`.
        silence: why the agent no longer responds; empty while it does.
    """
    answer = received.answer
    age = received.age_at(now)
    flagged = sum(verdict.flagged for pod in answer.pods for verdict in pod.verdicts)
    notes = [f"as of {duration(age)} ago" if age is not None else "no sample yet"]
    if answer.gpus or answer.pods:
        notes.append("no flags" if not flagged else f"{flagged} flag{'s' if flagged > 1 else ''}")
        if transitions := transitions_text(answer):
            notes.append(f"since the agent started {transitions}")
    if silence:
        notes.insert(0, f"NO RESPONSE FROM THE AGENT FOR {duration(max(now - received.at, 0.0))} ({silence})")
    return Board(
        title=f"node {one_line(answer.node)}"
        + (f", driver {one_line(answer.driver_version)}" if answer.driver_version else ""),
        simulated="simulated: these figures are synthetic" if answer.simulated else "",
        age=", ".join(notes),
        is_old=bool(silence) or (age is not None and age > _OLD_SECONDS),
        problems=tuple(_problems(answer)),
        gpus=tuple(_gpu_lines(answer)),
        gpu_summary=_gpu_summary(answer),
        pods=tuple(_pod_lines(answer)),
        nothing=_why_nothing(answer, age),
    )


def waiting_board(url: str, *, silence: str, seconds: float) -> Board:
    """Build the board that is shown before the first response."""
    return Board(
        title=one_line(url),
        simulated="",
        age=f"NO RESPONSE FROM THE AGENT FOR {duration(seconds)} ({silence})" if silence else "connecting…",
        is_old=True,
        problems=(),
        gpus=(),
        gpu_summary="",
        pods=(),
        nothing="No data.",
    )


def _problems(answer: AgentResponse) -> Iterator[str]:
    names = {gpu.uuid: f"GPU {gpu.index}" for gpu in answer.gpus}
    for problem in answer.problems:
        scope = names.get(problem.gpu_uuid) or one_line(problem.gpu_uuid) or "the node"
        detail = f": {one_line(problem.detail)}" if problem.detail else ""
        yield f"{one_line(problem.reason)} ({scope}){detail}"
    if answer.attribution_ok is False:
        yield "Verdicts are suspended until these problems are resolved."
    for pod in answer.pods:
        yield from (one_line(note) for note in pod.notes)


def _why_nothing(answer: AgentResponse, age: float | None) -> str:
    if answer.gpus:
        return "" if answer.pods else "No pod has a GPU share or uses GPU memory."
    if age is None:
        return "No data: the agent has no sample yet."
    return "No data: no GPU responds, or the last successful sample is too old."


def _gpu_lines(answer: AgentResponse) -> Iterator[GpuLine]:
    for gpu in sorted(answer.gpus, key=lambda gpu: gpu.index):
        yield GpuLine(
            gpu=str(gpu.index),
            model=one_line(gpu.model) + (" (MIG: not evaluated)" if gpu.mig else ""),
            used=size(gpu.used_bytes),
            total=size(gpu.total_bytes),
            promised=size(gpu.promised_bytes),
            host=size(gpu.host_bytes),
            unattributed=size(gpu.unattributed_bytes),
        )


def _gpu_summary(answer: AgentResponse) -> str:
    """Return the sums in one line, and the GPUs whose shares exceed their memory."""
    gpus = answer.gpus
    if not gpus:
        return ""
    used = _sum(gpu.used_bytes for gpu in gpus)
    total = _sum(gpu.total_bytes for gpu in gpus)
    promised = _sum(gpu.promised_bytes for gpu in gpus)
    over = [f"GPU {gpu.index}" for gpu in sorted(gpus, key=lambda gpu: gpu.index) if _is_over_promised(gpu)]
    warning = f" ({listed(over)} overpromised)" if over else ""
    sums = f"used {size(used)}, promised {size(promised)} of {size(total)}"
    return f"{counted(len(gpus), 'GPU')}{warning}: {sums}"


def _sum(amounts: Iterable[int | None]) -> int | None:
    """Add up amounts; the sum is unknown if one of them is."""
    known = list(amounts)
    return None if None in known else sum(amount for amount in known if amount is not None)


def _is_over_promised(gpu: ApiGpu) -> bool:
    return None not in (gpu.promised_bytes, gpu.total_bytes) and (gpu.promised_bytes or 0) > (
        gpu.total_bytes or 0
    )


def _pod_lines(answer: AgentResponse) -> Iterator[PodLine]:
    lines = []
    has_utilization = any(
        holding.utilization_ratio is not None for pod in answer.pods for holding in pod.gpus
    )
    indices = {gpu.uuid: gpu.index for gpu in answer.gpus}
    for pod in answer.pods:
        places = {holding.gpu_uuid: _place(holding) for holding in pod.gpus}
        for uuid in pod.gpu_uuids:
            places.setdefault(uuid, str(indices.get(uuid, _GONE)))
        flagged_gpus = {verdict.gpu_uuid for verdict in pod.verdicts if verdict.flagged} - places.keys()
        places |= {uuid: one_line(uuid)[:12] or "?" for uuid in sorted(flagged_gpus)}
        holdings = {holding.gpu_uuid: holding for holding in pod.gpus}
        for uuid, place in (places or {"": "?"}).items():
            order, line = _pod_line(pod, place, uuid, holdings.get(uuid))
            lines.append((order, line if has_utilization else replace(line, utilization="")))
    for _, line in sorted(lines, key=lambda pair: pair[0]):
        yield line


def _place(holding: ApiHolding) -> str:
    return f"{holding.gpu} {one_line(holding.gpu_uuid)[:12]}" if holding.mig else str(holding.gpu)


_Order = tuple[bool, bool, bool, bool, int, str, str]


def _pod_line(pod: ApiPod, place: str, uuid: str, holding: ApiHolding | None) -> tuple[_Order, PodLine]:
    """Return one line and its sort key: flags, violations, then the excess; unknown figures come last."""
    share, limit = pod.share_on(uuid), pod.limits.get(uuid)
    used = holding.used_bytes if holding else None
    over = None if used is None else used - (share.bytes if share else 0)
    verdicts = [verdict for verdict in pod.verdicts if verdict.gpu_uuid == uuid]
    tenant = pod.vcluster
    line = PodLine(
        gpu=place,
        pod=f"{one_line(pod.namespace)}/{one_line(pod.name)}",
        tenant=one_line(f"{tenant.name}: {tenant.namespace}/{tenant.pod}") if tenant else "",
        queue=one_line(pod.queue or ""),
        size=one_line(pod.size or ""),
        workload=one_line(f"{pod.workload.kind} {pod.workload.name}") if pod.workload else "",
        used=size(used) if holding or uuid else NOTHING,
        share=size(None) if share is None and pod.has_unsized_gpus else _amount(share),
        source=one_line(share.source) if share else NOTHING,
        is_own_word=share is not None and share.source == _ANNOTATION,
        over=f"+{size(over)}" if over is not None and over > 0 and share else NOTHING,
        limit=_amount(limit),
        utilization=_percent(holding.utilization_ratio) if holding else NOTHING,
        processes=_processes(holding) if holding else NOTHING,
        flags=tuple(_mark(verdict) for verdict in verdicts if verdict.flagged),
        pending=tuple(_mark(v) for v in verdicts if not v.flagged and v.lasted_seconds is not None),
    )
    is_over = line.over != NOTHING
    order = (not line.flags, not line.pending, not is_over, over is None, -(over or 0), line.pod, place)
    return order, line


def _processes(holding: ApiHolding) -> str:
    return "unknown" if holding.known_processes is None else str(holding.known_processes)


def _percent(ratio: float | None) -> str:
    return "unknown" if ratio is None or not 0 <= ratio <= 1 else f"{ratio * 100:.0f}%"


def _amount(amount: ApiAmount | None) -> str:
    return NOTHING if amount is None else size(amount.bytes)


def _mark(verdict: ApiVerdict) -> str:
    reason = one_line(verdict.reason)
    if verdict.lasted_seconds is None:
        return f"{reason}, clearing"
    since = f"{reason} for {time_over(verdict.lasted_seconds, verdict.balance_seconds or 0.0)}"
    return since if verdict.flagged else since + IN_GRACE
