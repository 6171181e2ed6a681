"""Reasons of a flag: their codes, and what is said about each without figures. Pure."""

from enum import StrEnum
from typing import Final, Self


class FlagReason(StrEnum):
    """Why a pod is flagged: the `reason` label of `kaishare_pod_flagged`.

    Each member has its code, the `reason` of its Event, a short summary for the page, and the condition that
    clears the flag.
    """

    __hash__ = str.__hash__  # Enum's own is Python code, and a sample hashes thousands of keys

    event_reason: str
    summary: str
    cleared_by: str

    def __new__(cls, code: str, event_reason: str, summary: str, cleared_by: str) -> Self:
        """Make a member whose value is its code."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.event_reason = event_reason
        member.summary = summary
        member.cleared_by = cleared_by
        return member

    OVER_SHARE = (
        "over-share",
        "GPUMemoryOverShare",
        "uses more memory than its share",
        "usage at or below the share, without slack, in two consecutive samples",
    )
    UNASSIGNED_GPU = (
        "unassigned-gpu",
        "GPUNotAssigned",
        "uses a GPU that is not assigned to it",
        "at most 256 MiB in use on that GPU in two consecutive samples",
    )
    NO_SHARE = (
        "no-share",
        "GPUShareMissing",
        "uses a GPU without a share",
        "at most 256 MiB in use on that GPU in two consecutive samples",
    )
    SHARE_CHANGED = (
        "share-changed",
        "GPUShareChanged",
        "declares a share that differs from its allocation",
        "a declaration that matches the allocation again, in one sample",
    )
    LIMIT_BYPASSED = (
        "limit-bypassed",
        "GPULimitBypassed",
        "uses more memory than its enforced limit",
        "usage at or below the limit, without slack, in two consecutive samples",
    )
    NO_RESERVATION = (
        "no-reservation",
        "GPUReservationMissing",
        "its GPU group has no reservation pod",
        "a reservation pod for its GPU group in two consecutive samples",
    )
    LIMIT_NOT_IN_FORCE = (
        "limit-not-in-force",
        "GPULimitNotInForce",
        "was promised a memory limit that the driver does not hold",
        "the promised limit in the driver in two consecutive samples",
    )
    LIMIT_DIFFERS = (
        "limit-differs",
        "GPULimitDiffers",
        "was promised another memory limit than the driver holds",
        "the promised limit in the driver in two consecutive samples",
    )


FROM_KAI_RECORDS: Final = frozenset({FlagReason.SHARE_CHANGED, FlagReason.NO_RESERVATION})
"""Reasons that are about KAI's records, and not about memory."""

OF_DRIVER_LIMITS: Final = frozenset({FlagReason.LIMIT_NOT_IN_FORCE, FlagReason.LIMIT_DIFFERS})
"""Reasons that compare a promised limit with the driver's, container by container."""
