"""Records of evictions that survive a restart: Events in the agent's own namespace, about the agent's node.

The Events on the evicted pods do not serve as a memory. The role `edit` may create and delete Events in its
namespaces, so a tenant could protect pods by invented Events, or raise the budget by deleting real ones. In
the agent's namespace only its administrators may write Events.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpuagent.actions.events import COMPONENT
from gpuagent.pods.inventory import NodePod
from gpuagent.verdicts.messages import EVICTED
from kai.own_labels import EVICTED_OWNER
from kube.client import KubeClient
from kube.events import Event, ObjectReference, create_event, event_name
from kube.stored_events import list_events

KEPT_SECONDS: Final = 3600.0
"""Time for which API servers keep Events by default (`--event-ttl`)."""
_WRITE_SECONDS: Final = 5.0
_AGE_ERROR: Final = 3.0
"""Maximum error of an Event's age, in seconds. A record counts as younger by this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEviction:
    """A recorded eviction of this node."""

    seconds_ago: float
    owner: str
    """Digest of the pod's owner, from `eviction_rules.owner_key`; empty if the record has none."""


class EvictionRecords:
    """Writes a record before each eviction, and reads the records at the start."""

    def __init__(self, client: KubeClient, *, node: str, wall_clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._node = node
        self._wall_clock = wall_clock

    async def read(self) -> list[PastEviction]:
        """Return the recorded evictions of this node, oldest first.

        Raises:
            ApiError, Unreachable, AccessError: the records cannot be read.
        """
        events = await list_events(
            self._client,
            self._client.namespace,
            reason=EVICTED,
            component=COMPONENT,
            about_uid=self._node,
        )
        return [
            PastEviction(
                seconds_ago=max(event.seconds_old - _AGE_ERROR, 0.0),
                owner=event.annotations.get(EVICTED_OWNER, ""),
            )
            for event in events
        ]

    async def write(
        self, pod: NodePod, owner: str, *, within: float = _WRITE_SECONDS, is_trial: bool = False
    ) -> None:
        """Record that a pod is about to be evicted.

        Args:
            pod: the pod.
            owner: digest of its owner.
            within: seconds until the request ends.
            is_trial: whether to use a dry run, which stores nothing.

        Raises:
            ApiError, Unreachable, AccessError: the record may not be stored.
        """
        namespace = self._client.namespace
        event = Event(
            name=event_name(self._node, pod.uid, uuid.uuid4().hex),
            namespace=namespace,
            # As in the kubelet's Events about its node, the UID is the node's name; `kubectl describe node`
            # finds the Event by it.
            about=ObjectReference(
                api_version="v1", kind="Node", namespace=namespace, name=self._node, uid=self._node
            ),
            related=ObjectReference(
                api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid
            ),
            reason=EVICTED,
            message=f"pod {pod.namespace}/{pod.name} is evicted by its namespace's over-share policy",
            annotations={EVICTED_OWNER: owner},
        )
        now = self._wall_clock()
        await create_event(
            self._client,
            event,
            component=COMPONENT,
            host=self._node,
            first_at=now,
            last_at=now,
            seconds=within,
            params={"dryRun": "All"} if is_trial else None,
        )
