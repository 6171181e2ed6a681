"""One row for each pod on each GPU, and the pods that put a GPU at risk. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Final

from msgspec import Struct

from gpuagent.api_types import AgentResponse, ApiAmount, ApiHolding, ApiPod, ApiVerdict
from gpuagent.table.gpu_rows import (
    LONGEST_NAME,
    NONE,
    UNKNOWN,
    GpuState,
    index_text,
    known_bytes,
    percent,
    plain,
)
from kai.keys import FINISHED_PHASES
from service.names import is_dns_label, is_dns_subdomain
from service.text import LONGEST_LINE, shorten
from service.units import duration, size

_SMALL: Final = 256 << 20
"""Bytes above a share that count as a cause in any case. Less counts only for the pod with most of it, since
the response does not have the agent's slack."""


class GpuRisk(Struct, frozen=True, kw_only=True, gc=False):
    """A GPU at risk."""

    free: int
    """Bytes."""
    smallest_excess: int
    """Bytes above its share from which on a pod counts as a cause."""


class RowRisk(Struct, frozen=True, kw_only=True, gc=False):
    """The part of one pod in the risk of its GPU, in bytes; one of the first two is 0."""

    excess: int = 0
    """Memory above the share, 0 for a pod that is no cause."""
    unused: int = 0
    """Memory that the pod is still promised, which may not be free."""
    free: int = 0
    """Free memory of the GPU, for all of its pods."""
    has_share: bool = True
    """Whether the pod has a share of the GPU."""
    is_bound: bool = False
    """Whether the use is unknown: `excess` is then a lower bound, and `unused` an upper one."""

    @property
    def amount(self) -> str:
        """The excess or the unused memory, and whether it is a bound."""
        bound = ("at least " if self.excess else "up to ") if self.is_bound else ""
        return f"{bound}{size(self.excess or self.unused)}"

    @property
    def text(self) -> str:
        """The part in words; empty without one."""
        if self.excess:
            return f"holds {self.amount} {'above its share' if self.has_share else 'without a share here'}"
        if self.unused:
            return f"at risk: {self.amount} of its share unused, {size(self.free)} free"
        return ""


NO_RISK: Final = RowRisk()


def gpus_at_risk(pods: Iterable[ApiPod], gpus: Iterable[GpuState]) -> dict[str, GpuRisk]:
    """Return the GPUs at risk by UUID."""
    at_risk = {gpu.uuid: gpu for gpu in gpus if gpu.is_at_risk and gpu.uuid}
    largest = dict.fromkeys(at_risk, 0)
    for pod in pods if at_risk else ():
        for holding in pod.gpus:
            uuid = holding.gpu_uuid
            share = _allowed(pod, uuid) if uuid in largest else None
            if share is not None:
                used = known_bytes(holding.used_bytes)
                # A pod of unknown use may be the cause, so that little above a share is none.
                excess = (used if used is not None else share + _SMALL) - share
                largest[uuid] = max(largest[uuid], excess)
    return {
        uuid: GpuRisk(
            free=gpu.free or 0,
            smallest_excess=_SMALL if gpu.is_over_promised else min(_SMALL, max(largest[uuid], 1)),
        )
        for uuid, gpu in at_risk.items()
    }


def risk_of(
    risks: Mapping[str, GpuRisk], pod: ApiPod, uuid: str, used: int | None, verdicts: Iterable[ApiVerdict]
) -> RowRisk:
    """Return the part of a pod in the risk of a GPU.

    Args:
        risks: the GPUs at risk.
        pod: the pod.
        uuid: of the GPU.
        used: bytes that the pod holds there; None if unknown.
        verdicts: of the pod on the GPU; where the use is unknown they have a lower bound.
    """
    risk = risks.get(uuid)
    share = _allowed(pod, uuid) if risk is not None else None
    if risk is None or share is None:
        return NO_RISK
    is_bound = used is None
    if used is None:
        used = max((known_bytes(verdict.used_at_least_bytes) or 0 for verdict in verdicts), default=0)
    excess = used - share
    if excess >= risk.smallest_excess:
        return RowRisk(excess=excess, has_share=share > 0, is_bound=is_bound)
    has_promise = uuid in pod.shares and excess < 0
    return RowRisk(unused=-excess, free=risk.free, is_bound=is_bound) if has_promise else NO_RISK


def _allowed(pod: ApiPod, uuid: str) -> int | None:
    """Return the bytes that a pod may use on a GPU; None if that is unknown.

    A pod whose GPU is unknown may use its share on any GPU; the verdict has the share then.
    """
    amount = pod.shares.get(uuid)
    if amount is not None:
        return known_bytes(amount.bytes)
    allowed = [verdict.allowed_bytes for verdict in pod.verdicts if verdict.gpu_uuid == uuid]
    share = max((known_bytes(amount) or 0 for amount in allowed if amount is not None), default=None)
    return None if share is None and (pod.gpu_unresolved or pod.has_unsized_gpus) else share or 0


MAX_PODS: Final = 4096
"""Largest number of pods of one agent. A kubelet runs at most some hundred pods."""

MAX_ROWS: Final = 8192
"""Largest number of rows of one agent."""

_OVER_SHARE: Final = "over-share"

_LONGEST_MESSAGE: Final = 1000
_IDLE_AFTER: Final = 3600.0
"""Seconds from which on a row says that its share is idle."""
_MAX_SECONDS: Final = 1e10
"""Larger durations are shown as this one."""

_MIG: Final = "MIG-"
_WHOLE_GPU: Final = "whole-gpu"

_MAX_GPUS: Final = 256
"""Largest number of GPUs and MIG devices of one pod."""


class PodState(StrEnum):
    """The state of a pod on one GPU, from its verdicts. The value is the word for it."""

    FLAGGED = "flagged"
    IN_GRACE = "in grace"
    """In violation, within the grace."""
    WITHIN = "within share"
    NOT_JUDGED = "not judged"


_TIERS: Final = {PodState.FLAGGED: 0, PodState.IN_GRACE: 1}
_CAUSE, _AT_RISK, _REST = 2, 3, 4

Key = tuple[str, str, str]


class PodRow(Struct, frozen=True, kw_only=True, gc=False):
    """One pod on one GPU. Text fields are safe for a terminal.

    A row is part of no reference cycle, so garbage collection need not visit it.
    """

    key: Key
    """Agent, pod UID and GPU UUID."""
    state: PodState
    state_text: str
    """The state, with the reasons of flags and violations, or why the pod is not judged."""
    node: str
    gpu: str
    gpu_index: int | None
    """Index of the GPU, that of a MIG device included; None if unknown."""
    used: int | None
    """Bytes; None is unknown."""
    share: int | None
    """Bytes; None if there is none, or if it is unknown."""
    share_source: str
    """The source of the share; empty without one, or if it is unknown."""
    share_is_unknown: bool
    limit: int | None
    """Bytes that an enforcer allows; None without a limit."""
    ratio: float | None
    """Used memory divided by the share."""
    utilization: float | None
    over_seconds: float | None
    """Duration of the longest current violation; None if there is none."""
    pod: str
    namespace: str
    size: str
    queue: str
    workload: str
    tenant: str
    """The pod's names in its vCluster; empty outside of one."""
    risk: RowRisk
    """The part of the pod in the risk of its GPU."""
    verdicts: tuple[ApiVerdict, ...]
    """The flags, else the violations within their grace."""
    haystack: str
    """Lower-case text that the filter searches."""
    rank: float
    """Sort key of the default order: the tier, then the time over or the use of the share."""
    by_pod: str
    """Sort key: namespace and pod, as one string; tuples of strings sort ten times slower."""
    holding: ApiHolding | None
    """What the pod uses on the GPU, as the agent reported it; None without figures."""
    api_pod: ApiPod
    """The pod as the agent reported it."""

    @property
    def is_violation(self) -> bool:
        """Whether the pod is flagged or in its grace."""
        return self.state in _TIERS

    @property
    def is_urgent(self) -> bool:
        """Whether the pod is flagged, in its grace, a cause of a GPU's risk, or at risk."""
        return self.is_violation or self.is_cause or self.is_at_risk

    @property
    def is_flagged_or_at_risk(self) -> bool:
        """Whether the pod is flagged, a cause of a GPU's risk, or at risk."""
        return self.state is PodState.FLAGGED or self.is_cause or self.is_at_risk

    @property
    def is_cause(self) -> bool:
        """Whether the pod holds more than its share on a GPU at risk, flagged or not."""
        return self.risk.excess > 0

    @property
    def is_at_risk(self) -> bool:
        """Whether the pod has not used its share on a GPU at risk, so that its next allocation can fail."""
        return self.risk.unused > 0

    @property
    def gpu_uuid(self) -> str:
        """UUID of the GPU or MIG device as the agent reported it; empty if unknown."""
        return self.key[2]

    @property
    def has_gpu(self) -> bool:
        """Whether the pod has or uses a GPU here; without one it has no figures, not even unknown ones."""
        return self.holding is not None or bool(self.gpu_uuid)

    @property
    def used_text(self) -> str:
        """The used memory."""
        return size(self.used) if self.has_gpu else NONE

    @property
    def share_text(self) -> str:
        """The share."""
        return size(self.share) if self.share is not None or self.share_is_unknown else NONE

    @property
    def limit_text(self) -> str:
        """The limit of an enforcer."""
        return NONE if self.limit is None else size(self.limit)

    @property
    def ratio_text(self) -> str:
        """The use of the share in per cent."""
        return percent(self.ratio) if self.share or self.share_is_unknown else NONE

    @property
    def utilization_text(self) -> str:
        """The utilisation in per cent."""
        return percent(self.utilization) if self.has_gpu else NONE

    @property
    def processes_text(self) -> str:
        """The number of processes."""
        number = self.holding.known_processes if self.holding else None
        return NONE if not self.has_gpu else UNKNOWN if number is None else str(number)

    @property
    def over_for_text(self) -> str:
        """How long the longest violation lasts."""
        return NONE if self.over_seconds is None else duration(self.over_seconds)


BY_URGENCY: Final = attrgetter("rank")
"""Sort key of the default order: flagged rows, violations, causes of a risk, rows at risk, then by use."""


def rows_of(agent: str, node: str, response: AgentResponse, gpus: tuple[GpuState, ...]) -> tuple[PodRow, ...]:
    """Return a row for each pod and GPU of a response, with at most MAX_ROWS, by GPU and pod."""
    rows: list[PodRow] = []
    by_uuid = {gpu.uuid: gpu for gpu in gpus if gpu.uuid}
    pods = response.pods[:MAX_PODS]
    risks = gpus_at_risk(pods, gpus)
    for pod in pods:
        rows.extend(_pod_rows(agent, node, pod, by_uuid, risks))
        if len(rows) >= MAX_ROWS:
            break
    rows.sort(key=lambda row: (len(row.gpu), row.gpu, row.by_pod))
    return tuple(rows[:MAX_ROWS])


def _pod_rows(
    agent: str, node: str, pod: ApiPod, gpus: dict[str, GpuState], risks: dict[str, GpuRisk]
) -> Iterator[PodRow]:
    holdings = {holding.gpu_uuid: holding for holding in pod.gpus}
    verdicts: dict[str, list[ApiVerdict]] = {}
    for verdict in pod.verdicts:
        verdicts.setdefault(verdict.gpu_uuid, []).append(verdict)
    judged = {verdict.gpu_uuid for verdict in pod.verdicts if verdict.flagged or verdict.is_over}
    uuids = list(dict.fromkeys([*sorted(judged), *holdings, *pod.gpu_uuids]))[:_MAX_GPUS] or [""]
    names = _Names.of(pod, node)
    for uuid in uuids:
        yield _row(agent, names, uuid, holdings.get(uuid), gpus.get(uuid), verdicts.get(uuid, []), risks)


@dataclass(frozen=True, slots=True)
class _Names:
    """The safe names of a pod, made once for all of its GPUs."""

    pod: ApiPod
    node: str
    name: str
    namespace: str
    size: str
    queue: str
    workload: str
    tenant: str
    haystack: str

    @classmethod
    def of(cls, pod: ApiPod, node: str) -> "_Names":
        name, namespace = plain(pod.name, LONGEST_NAME), plain(pod.namespace, LONGEST_NAME)
        size, queue = plain(pod.size or "", LONGEST_NAME), plain(pod.queue or "", LONGEST_NAME)
        workload = plain(f"{pod.workload.kind} {pod.workload.name}") if pod.workload else ""
        inner = pod.vcluster
        tenant = plain(f"{inner.name}: {inner.namespace}/{inner.pod}", 3 * LONGEST_NAME) if inner else ""
        text = " ".join((node, f"{namespace}/{name}", size, queue, tenant))
        return cls(pod, node, name, namespace, size, queue, workload, tenant, text.lower())


def _row(
    agent: str,
    names: _Names,
    uuid: str,
    holding: ApiHolding | None,
    gpu: GpuState | None,
    verdicts: list[ApiVerdict],
    risks: dict[str, GpuRisk],
) -> PodRow:
    pod = names.pod
    amount = (pod.shares.get(uuid) or _share_elsewhere(pod, verdicts)) if holding else pod.share_on(uuid)
    limit = pod.limits.get(uuid)
    share = known_bytes(amount.bytes) if amount else None
    used = known_bytes(holding.used_bytes) if holding else None
    utilization = holding.utilization_ratio if holding else None
    state = _state(verdicts)
    visible = tuple(
        verdict for verdict in verdicts if (verdict.flagged if state is PodState.FLAGGED else verdict.is_over)
    )
    over_seconds = max((min(verdict.over_seconds, _MAX_SECONDS) for verdict in visible), default=None)
    ratio = used / share if used is not None and share else None
    risk = risk_of(risks, pod, uuid, used, verdicts)
    if visible:
        reasons = dict.fromkeys(plain(verdict.reason, 48) for verdict in visible)
        state_text = "; ".join(filter(None, (f"{state}: {', '.join(reasons)}", risk.text)))
        state_text = shorten(state_text, LONGEST_LINE)
    elif state is PodState.WITHIN:
        is_above = ratio is not None and ratio > 1
        within = _idle_text(holding) or state
        state_text = risk.text or ("within slack" if is_above else "in order" if amount is None else within)
    else:
        reason = _not_judged(pod, uuid, holding, gpu)
        state_text = f"{state}: {reason}" if reason else state
        state_text = "; ".join(filter(None, (risk.text or _idle_text(holding), state_text)))
    tier, figure = _TIERS.get(state, _REST), over_seconds if visible else ratio
    if not visible and risk.text:
        tier, figure = (_CAUSE, risk.excess) if risk.excess else (_AT_RISK, risk.unused)
    return PodRow(
        key=(agent, pod.uid, uuid),
        state=state,
        state_text=state_text,
        node=names.node,
        gpu=_place_text(pod, uuid, holding, gpu),
        gpu_index=holding.gpu if holding else gpu.index if gpu else None,
        used=used,
        share=share,
        share_source=plain(amount.source, 48) if amount else "",
        share_is_unknown=share is None
        and (amount is not None or pod.has_unsized_gpus or (holding is None and pod.has_share)),
        limit=known_bytes(limit.bytes) if limit else None,
        ratio=ratio,
        utilization=utilization if utilization is not None and 0 <= utilization <= 1 else None,
        over_seconds=over_seconds,
        pod=names.name,
        namespace=names.namespace,
        size=names.size,
        queue=names.queue,
        workload=names.workload,
        tenant=names.tenant,
        risk=risk,
        verdicts=visible,
        haystack=f"{names.haystack} {state_text.lower()}",
        rank=_rank(tier, figure),
        by_pod=f"{names.namespace}\0{names.name}",
        holding=holding,
        api_pod=pod,
    )


def _share_elsewhere(pod: ApiPod, verdicts: list[ApiVerdict]) -> ApiAmount | None:
    """Return the share with which a pod is compared on a GPU that is not known to be its own.

    A pod whose GPU is unknown may use its share on any GPU, and on its former GPUs. The verdict has the share
    then.
    """
    best = next((candidate for candidate in pod.candidates if candidate.counts), None)
    for verdict in verdicts:
        if verdict.reason == _OVER_SHARE and verdict.allowed_bytes is not None:
            return ApiAmount(verdict.allowed_bytes, best.source if best else "")
    return None


def _state(verdicts: list[ApiVerdict]) -> PodState:
    if any(verdict.flagged for verdict in verdicts):
        return PodState.FLAGGED
    if any(verdict.is_over for verdict in verdicts):
        return PodState.IN_GRACE
    return PodState.WITHIN if any(verdict.is_of_memory for verdict in verdicts) else PodState.NOT_JUDGED


def _not_judged(pod: ApiPod, uuid: str, holding: ApiHolding | None, gpu: GpuState | None) -> str:
    """Return why a pod is not judged on a GPU; empty if no reason is known."""
    if holding is None:
        return "its GPU does not respond" if uuid else "its GPU is unknown" if pod.has_share else "no share"
    if pod.phase in FINISHED_PHASES:
        return "the pod has ended"
    if holding.mig:
        return "MIG"
    if gpu is not None and gpu.is_suspended:
        return "verdicts are suspended"
    if holding.used_bytes is None:
        return "memory unknown"
    if pod.shares and all(share.source == _WHOLE_GPU for share in pod.shares.values()):
        return "whole GPU"
    return "share of unknown size" if pod.has_unsized_gpus else ""


def _idle_text(holding: ApiHolding | None) -> str:
    """Return how long a share has been idle; empty below an hour, or if that is unknown."""
    seconds = holding.idle_seconds if holding else None
    if holding is None or seconds is None or seconds < _IDLE_AFTER:
        return ""
    missing = "kernel" if holding.used_bytes else "memory"
    return f"idle for {duration(min(seconds, _MAX_SECONDS))}: no {missing}"


def _place_text(pod: ApiPod, uuid: str, holding: ApiHolding | None, gpu: GpuState | None) -> str:
    """Return the index of the GPU, with the beginning of the UUID of a MIG device."""
    index = holding.gpu if holding else gpu.index if gpu else None
    if index is None:
        is_mig = uuid.startswith(_MIG)
        return plain(uuid, 9) if is_mig else UNKNOWN if uuid or pod.has_share else NONE
    return f"{index_text(index)} {plain(uuid, 9)}" if holding and holding.mig else index_text(index)


def figures_text(verdict: ApiVerdict) -> str:
    """Return the memory that a verdict compared; empty if the reason is not about memory."""
    if not verdict.is_of_memory:
        return ""
    at_least = "at least " if verdict.used_bytes is None else ""
    used = verdict.used_at_least_bytes if verdict.used_bytes is None else verdict.used_bytes
    allowed = (
        f"of {size(known_bytes(verdict.allowed_bytes))}" if verdict.allowed_bytes is not None else "in use"
    )
    return f"{at_least}{size(known_bytes(used))} {allowed}"


def message_text(verdict: ApiVerdict) -> str:
    """Return the text of the Event about a flag; empty without a flag, or from an older agent."""
    return plain(verdict.message or "", _LONGEST_MESSAGE)


def _rank(tier: int, figure: float | None) -> float:
    """Return a number that sorts by tier, then by a figure in descending order, unknown ones last."""
    return tier + (1.0 if figure is None else 1 / (2 + min(max(figure, 0.0), 1e12))) - 0.5


def why_command(pod: ApiPod) -> str:
    """Return the command that tells the story of a pod; empty for a name that Kubernetes does not allow.

    The name comes from an agent, and the command is for a shell.
    """
    if is_dns_label(pod.namespace) and is_dns_subdomain(pod.name):
        return f"kaishare why -n {pod.namespace} {pod.name}"
    return ""
