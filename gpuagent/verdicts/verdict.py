"""Verdicts on pods, and the transitions of their flags. Pure.

`verdicts.flagging` decides them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct

from gpuagent.shares.pod_share import PodShare
from gpuagent.verdicts.flag_reasons import FlagReason
from service.units import size


class Key(Struct, frozen=True, gc=False):
    """Identifies a verdict: a pod, a GPU and a reason."""

    uid: str
    gpu_uuid: str
    """Empty if the pod's GPU is unknown."""
    reason: FlagReason


class Verdict(Struct, frozen=True, kw_only=True, gc=False):
    """The verdict on one pod for one reason on one GPU."""

    key: Key
    pod_share: PodShare
    gpu_index: int | None
    """None if the pod's GPU is unknown."""
    used_bytes: int | None = None
    """None if the reason is not about memory."""
    is_lower_bound: bool = False
    """Whether the pod may use more than `used_bytes`."""
    allowed_bytes: int | None = None
    """Share or limit that the usage is compared with, without slack; None if there is none."""
    detail: str = ""
    """The finding in one clause, for a limit of the driver."""
    is_flagged: bool = False
    since: float | None = None
    """Start of the current uninterrupted violation, in monotonic seconds; None if there is none."""
    balance: float = 0.0
    """Seconds that count towards the grace."""

    @property
    def used_text(self) -> str:
        """The usage for a person; a lower bound is marked as such."""
        return f"at least {size(self.used_bytes)}" if self.is_lower_bound else size(self.used_bytes)

    @property
    def is_over(self) -> bool:
        """Whether the newest sample shows the violation."""
        return self.since is not None

    def lasted(self, now: float) -> float:
        """Return the duration of the current uninterrupted violation, in seconds; 0 if there is none."""
        return 0.0 if self.since is None else max(0.0, now - self.since)


class Change(StrEnum):
    """What happened to a flag."""

    FLAGGED = "flagged"
    CLEARED = "cleared"
    DROPPED = "dropped"
    """The pod or GPU is gone, or the reason no longer applies; the violation may not have ended."""

    @property
    def label(self) -> str:
        """The word of metrics and API: raised, cleared or dropped."""
        return "raised" if self is Change.FLAGGED else self.value


TransitionCounts = Mapping[tuple[FlagReason, Change], int]
"""Number of transitions by reason and change; a pair without an entry has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A flag that one sample raised, cleared or dropped."""

    change: Change
    verdict: Verdict
    seconds: float = 0.0
    """Duration of the current uninterrupted violation; 0 if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """All verdicts of one moment. A key that is not evaluated is absent."""

    by_key: Mapping[Key, Verdict] = field(default_factory=dict)
    over_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Seconds above the share, flagged or not, by pod UID and GPU UUID, for every pod that is compared
    with a share."""
