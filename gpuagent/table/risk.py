"""The pods on a GPU at risk: those above their share, and those whose share is not used yet. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from gpuagent.api_types.shares import ApiPod, ApiVerdict
from gpuagent.table.gpus import GpuState, known_bytes
from service.units import size

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
