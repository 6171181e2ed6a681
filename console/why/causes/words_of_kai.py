"""KAI's last words about a pod: the newest verdict of its scheduler, with the reason's code. Pure.

The scheduler writes the same verdict in three places: the pod's condition PodScheduled, the PodGroup's
scheduling condition, and Events Unschedulable (v0.9.8, v0.13.4, v0.17.0). An Event is repeated 25 times at
most, and a verdict stays when the scheduler ends: its age proves nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from console.why.evidence import Evidence
from console.why.objects import Event, Pod, PodGroup, UnschedulableReason

_REASON: Final = re.compile(r"(QueueDoesNotExist|OverLimit|NonPreemptibleOverQuota|PodSchedulingErrors): ?")
_LONGEST: Final = 8192
"""Characters of a verdict that are read: one line for each reason and node."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What KAI's scheduler says about a pod."""

    text: str
    """The pod's own text, else its group's; at most 8192 characters."""
    group_text: str
    """The text of the PodGroup, which has the gang's cause; empty if unknown."""
    reason: str
    """The code of the reason, such as `OverLimit`; empty if KAI gives none."""
    detail: UnschedulableReason | None
    """The PodGroup's reason with its figures; None if unknown."""
    since: datetime | None
    """When KAI said it first."""

    @property
    def all_text(self) -> str:
        """Both texts."""
        return f"{self.text}\n{self.group_text}"


def verdict_of(evidence: Evidence) -> Verdict | None:
    """Return KAI's last verdict about the pod; None if KAI has said nothing."""
    pod, group = evidence.pod, evidence.pod_group
    text, since = _pod_text(pod) if isinstance(pod, Pod) else ("", None)
    if not text:
        text, since = _newest(evidence.pod_events)
    condition = group.condition if isinstance(group, PodGroup) else None
    group_text = condition.message if condition else ""
    if not group_text and isinstance(pod, Pod):
        name = pod.pod_group_name
        group_text, _ = _newest([each for each in evidence.group_events if each.involved_object.name == name])
    if not text and not group_text:
        return None
    reasons = (condition.reasons if condition else None) or ()
    match = _REASON.match(text) or _REASON.match(group_text)
    reason = match[1] if match else reasons[0].reason if reasons else ""
    return Verdict(
        text=(text or group_text)[:_LONGEST],
        group_text=group_text[:_LONGEST],
        reason=reason,
        detail=next((each for each in reasons if each.reason == reason), None),
        since=since or (condition.last_transition_time if condition else None),
    )


def _newest(events: Sequence[Event]) -> tuple[str, datetime | None]:
    verdicts = [event for event in events if event.reason == "Unschedulable"]
    return (verdicts[-1].message, verdicts[-1].first) if verdicts else ("", None)


def _pod_text(pod: Pod) -> tuple[str, datetime | None]:
    condition = pod.condition("PodScheduled")
    if condition is None or condition.status != "False":
        return "", None
    return condition.message, condition.last_transition_time
