"""One line for each pod and GPU, made from an agent's response. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from msgspec import Struct

from console.top.cells import UNKNOWN, plain
from gpuagent.api_types import AgentResponse, ApiGpu, ApiHolding, ApiPod, ApiProblem, ApiVerdict

MAX_PODS: Final = 4096
"""Largest number of pods shown for one agent. A kubelet runs at most some hundred pods."""

MAX_ROWS: Final = 8192
"""Largest number of rows for one agent."""

_MAX_GPUS: Final = 256
"""Largest number of GPUs and MIG devices of one pod."""

_NAME: Final = 253
"""Largest length of a Kubernetes name (DNS-1123 subdomain)."""

_IMPLAUSIBLE: Final = 1 << 53
"""Bytes (8 PiB); JSON numbers above this are not exact."""

_MIG: Final = "MIG-"
_NVML: Final = "nvml"
_GONE: Final = "gone"


class Tier(IntEnum):
    """Rank of a row in the default order."""

    FLAGGED = 0
    OVER = 1
    """In violation, within the grace."""
    REST = 2


Key = tuple[str, str, str]


class Row(Struct, frozen=True, kw_only=True, gc=False):
    """One pod on one GPU. Text fields are safe for a terminal.

    A row is part of no reference cycle, so garbage collection need not visit it.
    """

    key: Key
    """Agent, pod UID and GPU UUID."""
    tier: Tier
    node: str
    gpu: str
    gpu_uuid: str
    used: int | None
    """Bytes; None is unknown."""
    share: int | None
    """Bytes; None if there is none, or if it is unknown."""
    share_is_unknown: bool
    ratio: float | None
    """Used memory divided by the share."""
    utilization: float | None
    over_seconds: float | None
    """Duration of the longest current violation; None if there is none."""
    pod: str
    namespace: str
    size: str
    queue: str
    processes: int | None
    """None if the pod has none on a GPU, or if the number is unknown."""
    processes_are_unknown: bool
    reasons: tuple[str, ...]
    """Reasons of the flags, else those of violations within their grace."""
    haystack: str
    """Lower-case text that the filter searches."""
    rank: float
    """Sort key of the default order: the tier, then the time over or the use of the share."""
    by_pod: str
    """Sort key: namespace and pod, as one string; tuples of strings sort ten times slower."""
    source: ApiPod
    """The pod as the agent reported it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU of one node, in bytes; None is unknown."""

    name: str
    """Node and index; the UUID of a lost GPU whose index is unknown."""
    uuid: str
    is_lost: bool
    total: int | None = None
    used: int | None = None
    promised: int | None = None

    @property
    def is_over_promised(self) -> bool:
        """Whether the pods' shares exceed the GPU's memory."""
        return self.total is not None and self.promised is not None and self.promised > self.total


def rows_of(agent: str, node: str, response: AgentResponse) -> tuple[Row, ...]:
    """Return a row for each pod and GPU of a response, with at most MAX_ROWS, by GPU and pod."""
    rows: list[Row] = []
    indices = {gpu.uuid: _index(gpu.index) for gpu in response.gpus}
    for pod in response.pods[:MAX_PODS]:
        rows.extend(_pod_rows(agent, node, pod, indices))
        if len(rows) >= MAX_ROWS:
            break
    rows.sort(key=lambda row: (len(row.gpu), row.gpu, row.by_pod))
    return tuple(rows[:MAX_ROWS])


def gpu_names(response: AgentResponse, earlier: Mapping[str, str]) -> dict[str, str]:
    """Return the names of a response's GPUs by UUID, such as `GPU 3`, and of those that its problems name.

    A response has no index of a lost GPU.

    Args:
        response: of an agent.
        earlier: names from the agent's previous response.
    """
    names = {gpu.uuid: f"GPU {_index(gpu.index)}" for gpu in response.gpus}
    taken = set(names.values())
    for problem in response.problems:
        name = earlier.get(problem.gpu_uuid)
        if name is not None and name not in taken:
            names.setdefault(problem.gpu_uuid, name)
    return names


def gpus_of(node: str, response: AgentResponse, names: Mapping[str, str]) -> tuple[GpuState, ...]:
    """Return the GPUs of a response, and the lost ones that its problems name.

    A GPU in the response is not lost: the driver refuses a part of its figures. The UUID of a problem may be
    that of a MIG device, too.
    """
    present = {gpu.uuid for gpu in response.gpus}
    lost = dict.fromkeys(
        problem.gpu_uuid
        for problem in response.problems
        if problem.reason == _NVML
        and problem.gpu_uuid
        and problem.gpu_uuid not in present
        and not problem.gpu_uuid.startswith(_MIG)
    )
    return (
        *(_gpu(node, gpu) for gpu in response.gpus),
        *(
            GpuState(name=f"{node} {names.get(uuid) or plain(uuid, 20)}", uuid=plain(uuid, 64), is_lost=True)
            for uuid in lost
        ),
    )


def problems_of(response: AgentResponse, names: Mapping[str, str]) -> tuple[str, ...]:
    """Return the problems of a response, one line each.

    Args:
        response: of an agent.
        names: of its GPUs, from `gpu_names`.
    """
    return tuple(_problem(problem, names) for problem in response.problems)


def _problem(problem: ApiProblem, names: Mapping[str, str]) -> str:
    scope = names.get(problem.gpu_uuid) or plain(problem.gpu_uuid, 64) or "the node"
    detail = f": {plain(problem.detail)}" if problem.detail else ""
    return f"{plain(problem.reason, 48)} ({scope}){detail}"


def _gpu(node: str, gpu: ApiGpu) -> GpuState:
    return GpuState(
        name=f"{node} GPU {_index(gpu.index)}",
        uuid=plain(gpu.uuid, 64),
        is_lost=False,
        total=known_bytes(gpu.total_bytes),
        used=known_bytes(gpu.used_bytes),
        promised=known_bytes(gpu.promised_bytes),
    )


def _pod_rows(agent: str, node: str, pod: ApiPod, indices: dict[str, str]) -> Iterator[Row]:
    holdings = {holding.gpu_uuid: holding for holding in pod.gpus}
    verdicts: dict[str, list[ApiVerdict]] = {}
    for verdict in pod.verdicts:
        if verdict.flagged or verdict.lasted_seconds is not None:
            verdicts.setdefault(verdict.gpu_uuid, []).append(verdict)
    flagged = [uuid for uuid, entries in verdicts.items() if any(verdict.flagged for verdict in entries)]
    uuids = list(dict.fromkeys([*sorted(flagged), *holdings, *pod.gpu_uuids]))[:_MAX_GPUS] or [""]
    names = _Names.of(pod, node)
    for uuid in uuids:
        holding = holdings.get(uuid)
        yield _row(agent, names, uuid, holding, _place(uuid, holding, indices), verdicts.get(uuid, []))


@dataclass(frozen=True, slots=True)
class _Names:
    """The safe names of a pod, made once for all of its GPUs."""

    pod: ApiPod
    node: str
    name: str
    namespace: str
    size: str
    queue: str
    haystack: str

    @classmethod
    def of(cls, pod: ApiPod, node: str) -> "_Names":
        name, namespace = plain(pod.name, _NAME), plain(pod.namespace, _NAME)
        size, queue = plain(pod.size or "", _NAME), plain(pod.queue or "", _NAME)
        tenant = pod.vcluster
        virtual = plain(f"{tenant.name} {tenant.namespace} {tenant.pod}") if tenant else ""
        text = " ".join((node, f"{namespace}/{name}", size, queue, virtual))
        return cls(pod, node, name, namespace, size, queue, text.lower())


def _row(
    agent: str,
    names: _Names,
    uuid: str,
    holding: ApiHolding | None,
    place: str,
    verdicts: list[ApiVerdict],
) -> Row:
    pod = names.pod
    amount = pod.share_on(uuid)
    share = known_bytes(amount.bytes) if amount else None
    used = known_bytes(holding.used_bytes) if holding else None
    flags = [verdict for verdict in verdicts if verdict.flagged]
    tier = Tier.FLAGGED if flags else Tier.OVER if verdicts else Tier.REST
    over_seconds = max((_seconds(verdict) for verdict in flags or verdicts), default=None)
    ratio = used / share if used is not None and share else None
    reasons = tuple(dict.fromkeys(plain(verdict.reason, 48) for verdict in flags or verdicts))
    return Row(
        key=(agent, pod.uid, uuid),
        tier=tier,
        node=names.node,
        gpu=place,
        gpu_uuid=plain(uuid, 64),
        used=used,
        share=share,
        share_is_unknown=share is None and (amount is not None or pod.has_unsized_gpus),
        ratio=ratio,
        utilization=known_ratio(holding.utilization_ratio) if holding else None,
        over_seconds=over_seconds,
        pod=names.name,
        namespace=names.namespace,
        size=names.size,
        queue=names.queue,
        processes=holding.known_processes if holding else None,
        processes_are_unknown=holding is not None and holding.known_processes is None,
        reasons=reasons,
        haystack=f"{names.haystack} {' '.join(reasons).lower()}" if reasons else names.haystack,
        rank=_rank(tier, over_seconds if tier is not Tier.REST else ratio),
        by_pod=f"{names.namespace}\0{names.name}",
        source=pod,
    )


def _rank(tier: Tier, figure: float | None) -> float:
    """Return a number that sorts by tier, then by a figure in descending order, unknown ones last."""
    return tier + (1.0 if figure is None else 1 / (2 + min(figure, 1e12))) - 0.5


def known_bytes(value: int | None) -> int | None:
    """Return an amount that a GPU can have; None, for unknown, in place of an implausible one."""
    return value if value is not None and 0 <= value < _IMPLAUSIBLE else None


def known_ratio(value: float | None) -> float | None:
    """Return a ratio from 0 to 1; None, for unknown, in place of an impossible one."""
    return value if value is not None and 0 <= value <= 1 else None


def _index(number: int) -> str:
    return str(number) if 0 <= number < 1000 else UNKNOWN


def _seconds(verdict: ApiVerdict) -> float:
    """Return the time over: the uninterrupted one, or the balance where it is longer."""
    return max(verdict.lasted_seconds or 0.0, verdict.balance_seconds or 0.0)


def _place(uuid: str, holding: ApiHolding | None, indices: dict[str, str]) -> str:
    if holding:
        return f"{_index(holding.gpu)} {plain(uuid, 9)}" if holding.mig else _index(holding.gpu)
    if not uuid:
        return UNKNOWN
    return indices.get(uuid) or (plain(uuid, 9) if uuid.startswith(_MIG) else _GONE)
