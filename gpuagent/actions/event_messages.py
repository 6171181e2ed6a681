"""What an Event says of a flag: its reason, and one line a person can act on. Pure.

A message names no other object of the host, and not the pod either: vCluster rewrites in it only the names
of the pod that the Event is about.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from math import floor
from typing import Final

from gpuagent.verdicts.grounds import FlagReason
from gpuagent.verdicts.judge import Change, Transition, Verdict
from service.units import size, time_over


class EventReason(StrEnum):
    """`reason` of the Events, and the label of `kaishare_agent_events_total`."""

    OVER_SHARE = "GPUMemoryOverShare"
    WITHIN_SHARE = "GPUMemoryWithinShare"
    NOT_ASSIGNED = "GPUNotAssigned"
    SHARE_MISSING = "GPUShareMissing"
    SHARE_CHANGED = "GPUShareChanged"
    LIMIT_BYPASSED = "GPULimitBypassed"
    RESERVATION_MISSING = "GPUReservationMissing"
    EVICTED = "GPUShareEvicted"


_FLAGGED: Final[Mapping[FlagReason, EventReason]] = {
    FlagReason.OVER_SHARE: EventReason.OVER_SHARE,
    FlagReason.UNASSIGNED_GPU: EventReason.NOT_ASSIGNED,
    FlagReason.NO_SHARE: EventReason.SHARE_MISSING,
    FlagReason.SHARE_CHANGED: EventReason.SHARE_CHANGED,
    FlagReason.LIMIT_BYPASSED: EventReason.LIMIT_BYPASSED,
    FlagReason.NO_RESERVATION: EventReason.RESERVATION_MISSING,
}


def event_reason(transition: Transition) -> EventReason | None:
    """Which Event a transition makes; None: what clears without one, and what is dropped, makes none."""
    reason = transition.verdict.key.reason
    if transition.change is Change.FLAGGED:
        return _FLAGGED[reason]
    is_within = transition.change is Change.CLEARED and reason is FlagReason.OVER_SHARE
    return EventReason.WITHIN_SHARE if is_within else None


def message(transition: Transition, gpu_bytes: int | None) -> str:
    """Say what happened, with figures, and what to do.

    Args:
        transition: of a flag.
        gpu_bytes: all memory of the GPU it is about; None if that is unknown.
    """
    verdict = transition.verdict
    if transition.change is Change.CLEARED:
        held, share = size(verdict.used_bytes), size(verdict.allowed_bytes)
        return f"holds {held} of its {share} share on {_gpu(verdict)}, within it again"
    lasted = time_over(transition.seconds, verdict.balance)
    return _SAID[verdict.key.reason](verdict, lasted) + _advice(verdict, gpu_bytes)


def eviction_message(verdict: Verdict, seconds: float, gpu_bytes: int | None) -> str:
    """Say why a pod is evicted."""
    why = _SAID[verdict.key.reason](verdict, time_over(seconds, verdict.balance))
    return f"is evicted, as its namespace asks: it {why}{_advice(verdict, gpu_bytes)}"


def _over_share(verdict: Verdict, lasted: str) -> str:
    held, share = size(verdict.used_bytes), size(verdict.allowed_bytes)
    return f"holds {held} of its {share} share on {_gpu(verdict)} for {lasted}"


def _limit_bypassed(verdict: Verdict, lasted: str) -> str:
    held, limit = size(verdict.used_bytes), size(verdict.allowed_bytes)
    return f"holds {held} of its {limit} limit, which nothing enforces, on {_gpu(verdict)} for {lasted}"


def _not_assigned(verdict: Verdict, lasted: str) -> str:
    return (
        f"{_holds(verdict)}, and for {lasted} on a GPU that is not its own;"
        " its containers must not set NVIDIA_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES themselves"
    )


def _share_missing(verdict: Verdict, lasted: str) -> str:
    if verdict.pod_share.is_unplaced:
        return (
            f"{_holds(verdict)}, and for {lasted} without a share: its annotation does not count, since KAI"
            " did not place the pod; make it anew with the schedulerName of KAI, by default kai-scheduler"
        )
    return (
        f"{_holds(verdict)}, and for {lasted} without any share of a GPU;"
        " ask for one with the annotation gpu-fraction or gpu-memory, or for nvidia.com/gpu"
    )


def _share_changed(verdict: Verdict, _lasted: str) -> str:
    changed = verdict.pod_share.changed or "it is not what it was"
    return (
        f"what it says of its GPU share does not count: {changed};"
        " another share takes a new pod, so put this one back or make the pod anew"
    )


def _reservation_missing(_verdict: Verdict, _lasted: str) -> str:
    return (
        "its GPU is not reserved for it any more, so KAI may give the GPU to others or delete the pod;"
        " delete the pod to have it scheduled anew"
    )


_SAID: Final[Mapping[FlagReason, Callable[[Verdict, str], str]]] = {
    FlagReason.OVER_SHARE: _over_share,
    FlagReason.LIMIT_BYPASSED: _limit_bypassed,
    FlagReason.UNASSIGNED_GPU: _not_assigned,
    FlagReason.NO_SHARE: _share_missing,
    FlagReason.SHARE_CHANGED: _share_changed,
    FlagReason.NO_RESERVATION: _reservation_missing,
}


def _holds(verdict: Verdict) -> str:
    return f"holds {size(verdict.used_bytes)} on {_gpu(verdict)}"


def _gpu(verdict: Verdict) -> str:
    index = "" if verdict.gpu_index is None else f" {verdict.gpu_index}"
    return f"GPU{index} ({verdict.key.gpu_uuid})"


def _advice(verdict: Verdict, gpu_bytes: int | None) -> str:
    """What to set, if one of the containers runs a framework that can be told.

    Frameworks count in parts of all memory, as the driver has it; the part is rounded down, so that it fits.
    """
    if not gpu_bytes or not verdict.allowed_bytes:
        return ""
    part = floor(verdict.allowed_bytes / gpu_bytes * 100) / 100
    for launch in verdict.pod_share.pod.launches if part >= 0.01 else ():
        setting = launch.setting()
        if setting is None or setting.is_hidden:
            continue
        framework = setting.framework
        if setting.value is None:
            unset = f"it takes {framework.takes} of the GPU otherwise"
            return f"; {framework.name}: set {framework.option}={part:g} ({unset})"
        if setting.is_above(part):
            return f"; {framework.name}: set {framework.option}={part:g} (it is {setting.value[:12]})"
    return ""
