"""Reasons of a flag: their codes, and the texts of Events, page and log. Pure."""

from enum import StrEnum
from typing import Final, Self


class FlagReason(StrEnum):
    """Why a pod is flagged: the `reason` label of `kaishare_pod_flagged`, and all texts about it.

    Each member has its code, the `reason` of its Event, a short summary for the page, the message of the
    Event, and the condition that clears the flag. The message is a template: `{used}`, `{allowed}`, `{gpu}`,
    `{lasted}` and `{changed}` stand for the figures of the verdict.
    """

    __hash__ = str.__hash__  # Enum's own is Python code, and a sample hashes thousands of keys

    event_reason: str
    summary: str
    message: str
    cleared_by: str

    def __new__(cls, code: str, event_reason: str, summary: str, message: str, cleared_by: str) -> Self:
        """Make a member whose value is its code."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.event_reason = event_reason
        member.summary = summary
        member.message = message
        member.cleared_by = cleared_by
        return member

    OVER_SHARE = (
        "over-share",
        "GPUMemoryOverShare",
        "uses more memory than its share",
        "uses {used} on {gpu}, above its share of {allowed}, for {lasted}",
        "usage at or below the share, without slack, in two consecutive samples",
    )
    UNASSIGNED_GPU = (
        "unassigned-gpu",
        "GPUNotAssigned",
        "uses a GPU that is not assigned to it",
        (
            "uses {used} on {gpu}, which is not assigned to it, for {lasted};"
            " its containers must not set NVIDIA_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES themselves"
        ),
        "at most 256 MiB in use on that GPU in two consecutive samples",
    )
    NO_SHARE = (
        "no-share",
        "GPUShareMissing",
        "uses a GPU without a share",
        (
            "uses {used} on {gpu} without a GPU share, for {lasted};"
            " request a share with the annotation gpu-fraction or gpu-memory, or request nvidia.com/gpu"
        ),
        "at most 256 MiB in use on that GPU in two consecutive samples",
    )
    SHARE_CHANGED = (
        "share-changed",
        "GPUShareChanged",
        "declares a share that differs from its allocation",
        (
            "the change to its GPU share has no effect: {changed};"
            " restore the old value, or recreate the pod to change its share"
        ),
        "a declaration that matches the allocation again, in one sample",
    )
    LIMIT_BYPASSED = (
        "limit-bypassed",
        "GPULimitBypassed",
        "uses more memory than its enforced limit",
        "uses {used} on {gpu}, above its memory limit of {allowed}, for {lasted}; the limit is not enforced",
        "usage at or below the limit, without slack, in two consecutive samples",
    )
    NO_RESERVATION = (
        "no-reservation",
        "GPUReservationMissing",
        "its GPU group has no reservation pod",
        (
            "its GPU is no longer reserved, so KAI may give the GPU to other pods or delete this pod;"
            " delete the pod to have it rescheduled"
        ),
        "a reservation pod for its GPU group in two consecutive samples",
    )


ANNOTATION_IGNORED_MESSAGE: Final = (
    "uses {used} on {gpu} without a GPU share, for {lasted}; its share annotation does not count, because KAI"
    " did not place the pod: recreate it with KAI's schedulerName, by default kai-scheduler"
)
"""Message of `no-share` for a pod that declares a share and was not placed by KAI."""

OF_RECORDS: Final = frozenset({FlagReason.SHARE_CHANGED, FlagReason.NO_RESERVATION})
"""Reasons that are about KAI's records, and not about memory."""
