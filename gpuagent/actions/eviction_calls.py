"""The requests of the evictor to the API server, and its records of evictions, which survive a restart.

A record is an Event in the agent's own namespace, about the agent's node. The Events on the evicted pods do
not serve as a memory. The role `edit` may create and delete Events in its namespaces, so a tenant could
protect pods by invented Events, or raise the budget by deleting real ones. In the agent's namespace only its
administrators may write Events.
"""

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from gpuagent.actions.consent import ConsentReader
from gpuagent.actions.events import COMPONENT
from gpuagent.actions.eviction_budget import PastEviction
from gpuagent.actions.eviction_rules import EvictionRules
from gpuagent.evaluation.status import Evaluation
from gpuagent.pods.inventory import NodePod
from gpuagent.verdicts.messages import EVICTED
from gpuagent.verdicts.verdict import Verdict
from kai.own_labels import EVICTED_OWNER
from kube.client import KubeClient
from kube.events import Event, ObjectReference, create_event, event_name
from kube.eviction import Evicted, evict
from kube.stored_events import list_events

Announce = Callable[[Verdict, Evaluation], Awaitable[None]]

_WRITE_SECONDS: Final = 5.0
_AGE_ERROR: Final = 3.0
"""Maximum error of an Event's age, in seconds. A record counts as younger by this much."""


class ClusterCalls:
    """Requests with the agent's own credentials."""

    def __init__(
        self,
        client: KubeClient,
        *,
        node: str,
        rules: EvictionRules,
        clock: Callable[[], float],
        announce: Announce,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Set up the requests.

        Args:
            client: connection to the API server.
            node: name of this node.
            rules: the rules of eviction, which the fetched pod must pass again.
            clock: monotonic seconds.
            announce: writes the Event of an eviction before it is requested.
            wall_clock: Unix time, for the records.
        """
        self._client = client
        self._node = node
        self._wall_clock = wall_clock
        self.announce: Final = announce
        self.consent: Final = ConsentReader(client, rules=rules, clock=clock).read
        """Reads again whether the pod may be evicted. Never raises."""

    async def past_evictions(self) -> list[PastEviction]:
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

    async def try_eviction(self, pod: NodePod) -> Evicted:
        """Test whether the API server would allow the eviction. Never raises."""
        return await evict(self._client, namespace=pod.namespace, name=pod.name, uid=pod.uid, is_trial=True)

    async def try_record(self, pod: NodePod, owner: str) -> None:
        """Test whether an eviction can be recorded; raises as `record`."""
        await self._write(pod, owner, params={"dryRun": "All"})

    async def record(self, pod: NodePod, owner: str, *, within: float) -> None:
        """Record that a pod is about to be evicted; the request ends after `within` seconds.

        Raises:
            ApiError, Unreachable, AccessError: the record may not be stored.
        """
        await self._write(pod, owner, seconds=within)

    async def evict(self, pod: NodePod, *, within: float) -> Evicted:
        """Evict the pod; nothing is sent after `within` seconds. Never raises."""
        return await evict(self._client, namespace=pod.namespace, name=pod.name, uid=pod.uid, within=within)

    async def _write(
        self,
        pod: NodePod,
        owner: str,
        *,
        seconds: float = _WRITE_SECONDS,
        params: Mapping[str, str] | None = None,
    ) -> None:
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
            seconds=seconds,
            params=params,
        )
