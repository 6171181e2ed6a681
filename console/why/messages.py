"""What KAI's messages about a waiting pod are about, as far as it decides what to read. Pure."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from console.why.objects import Event, Pod, PodGroup

_SCHEDULED: Final = "PodScheduled"
_UNSCHEDULABLE: Final = "Unschedulable"
_OF_QUEUES: Final = ("QueueDoesNotExist", "OverLimit", "NonPreemptibleOverQuota")
"""Reason codes in the PodGroup, and first words of the texts, which are about queues only."""
_OF_VOLUMES: Final = "VolumeBinding"
_OF_TOPOLOGY: Final = "opology"


def last_messages(pod: Pod, events: Sequence[Event], group: PodGroup | None) -> Iterator[str]:
    """Yield what KAI says last about a pod that it does not schedule."""
    condition = pod.condition(_SCHEDULED)
    if condition is not None and condition.status == "False":
        yield condition.message
    said = group.condition if group is not None else None
    if said is not None:
        yield said.message
    yield from (event.message for event in events[-1:] if event.reason == _UNSCHEDULABLE)


def are_about_nodes(texts: Collection[str]) -> bool:
    """Whether a message may be about nodes and their GPUs; one without a reason may be about either."""
    others = (_OF_VOLUMES, _OF_TOPOLOGY)
    return any(not text.startswith(_OF_QUEUES) and not any(word in text for word in others) for text in texts)


def are_about_volumes(texts: Collection[str]) -> bool:
    """Whether a message is about the volumes of the pod."""
    return any(_OF_VOLUMES in text for text in texts)
