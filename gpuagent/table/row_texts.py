"""Texts of a row: why a pod is not judged, how long its share is idle, and where it is. Pure."""

from typing import Final

from gpuagent.api_types.shares import ApiHolding, ApiPod
from gpuagent.table.gpus import GpuState, index_text
from gpuagent.table.words import NONE, UNKNOWN, plain
from kai.keys import FINISHED_PHASES
from service.units import duration

IDLE_AFTER: Final = 3600.0
"""Seconds from which on a row says that its share is idle."""
MAX_SECONDS: Final = 1e10
"""Larger durations are shown as this one."""

_MIG: Final = "MIG-"
_WHOLE_GPU: Final = "whole-gpu"


def not_judged(pod: ApiPod, uuid: str, holding: ApiHolding | None, gpu: GpuState | None) -> str:
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


def idle_text(holding: ApiHolding | None) -> str:
    """Return how long a share has been idle; empty below an hour, or if that is unknown."""
    seconds = holding.idle_seconds if holding else None
    if holding is None or seconds is None or seconds < IDLE_AFTER:
        return ""
    missing = "kernel" if holding.used_bytes else "memory"
    return f"idle for {duration(min(seconds, MAX_SECONDS))}: no {missing}"


def place_text(pod: ApiPod, uuid: str, holding: ApiHolding | None, gpu: GpuState | None) -> str:
    """Return the index of the GPU, with the beginning of the UUID of a MIG device."""
    index = holding.gpu if holding else gpu.index if gpu else None
    if index is None:
        is_mig = uuid.startswith(_MIG)
        return plain(uuid, 9) if is_mig else UNKNOWN if uuid or pod.has_share else NONE
    return f"{index_text(index)} {plain(uuid, 9)}" if holding and holding.mig else index_text(index)
