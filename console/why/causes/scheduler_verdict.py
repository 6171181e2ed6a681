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

from console.why.evidence import PodEvidence
from console.why.evidence_objects import EventObject, PodGroupObject, PodObject

_REASON: Final = re.compile(r"(QueueDoesNotExist|OverLimit|NonPreemptibleOverQuota|PodSchedulingErrors): ?")
_LONGEST: Final = 8192
"""Characters of a verdict that are read: one line for each reason and node."""
_MOST_REASONS: Final = 16
"""Reasons of a PodGroup's condition that are compared with the text; KAI writes one or two."""


@dataclass(frozen=True, slots=True)
class SchedulerVerdict:
    """What KAI's scheduler says about a pod."""

    text: str
    """The pod's own text, else its group's; at most 8192 characters."""
    group_text: str
    """The text of the PodGroup, which has the gang's cause; empty if unknown."""
    queue: str
    """Name of the queue that is full, by the PodGroup; empty if that does not name one for this text."""
    reason: str
    """The code of the reason, such as `OverLimit`; empty if KAI gives none."""
    since: datetime | None
    """When KAI said it first."""

    @property
    def all_text(self) -> str:
        """Both texts."""
        return f"{self.text}\n{self.group_text}"


def verdict_of(evidence: PodEvidence) -> SchedulerVerdict | None:
    """Return KAI's last verdict about the pod; None if KAI has said nothing."""
    pod, group = evidence.pod, evidence.pod_group
    text, since = _pod_text(pod) if isinstance(pod, PodObject) else ("", None)
    if not text:
        text, since = _newest(evidence.pod_events)
    condition = group.condition if isinstance(group, PodGroupObject) else None
    group_text = condition.message if condition else ""
    if not group_text and isinstance(pod, PodObject):
        name = pod.pod_group_name
        group_text, _ = _newest([each for each in evidence.group_events if each.involved_object.name == name])
    if not text and not group_text:
        return None
    reasons = (condition.reasons if condition else None) or ()
    own_text = (text or group_text)[:_LONGEST]
    is_same = not text or text.strip(". \n") in group_text
    of_text = (each for each in reasons[:_MOST_REASONS] if each.message and each.message in own_text)
    match = _REASON.match(text) or (_REASON.match(group_text) if is_same else None)
    reason = match[1] if match else reasons[0].reason if reasons and is_same else ""
    return SchedulerVerdict(
        text=own_text,
        group_text=group_text[:_LONGEST],
        queue=next(filter(None, (each.queue for each in of_text)), ""),
        reason=reason,
        since=since or (condition.last_transition_time if condition else None),
    )


def _newest(events: Sequence[EventObject]) -> tuple[str, datetime | None]:
    verdicts = [event for event in events if event.reason == "Unschedulable"]
    return (verdicts[-1].message, verdicts[-1].first) if verdicts else ("", None)


def _pod_text(pod: PodObject) -> tuple[str, datetime | None]:
    condition = pod.status.condition("PodScheduled")
    if condition is None or condition.status != "False":
        return "", None
    return condition.message, condition.last_transition_time


def between(text: str, start: str, end: str) -> str:
    """Return the text between two phrases; empty if one of them is missing."""
    _, _, rest = text.partition(start)
    inner, phrase, _ = rest.partition(end)
    return inner if phrase else ""


def number_after(text: str, phrase: str) -> float | None:
    """Return the number after a phrase; None if there is none."""
    _, _, rest = text.partition(phrase)
    word = rest[:20].partition(" ")[0].rstrip(".,")
    return float(word) if word.replace(".", "", 1).isdecimal() and word.isascii() else None
