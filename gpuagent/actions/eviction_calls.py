"""The requests of the evictor to the API server."""

from collections.abc import Awaitable, Callable

from gpuagent.actions.consent import Consent, ConsentReader, NoConsent
from gpuagent.actions.eviction_records import EvictionRecords, PastEviction
from gpuagent.actions.eviction_rules import EvictionRules
from gpuagent.evaluation.status import Evaluation
from gpuagent.pods.inventory import NodePod
from gpuagent.verdicts.over_share import OverSharePolicy
from gpuagent.verdicts.verdict import Verdict
from kube.client import KubeClient
from kube.eviction import Evicted, evict

Announce = Callable[[Verdict, Evaluation], Awaitable[None]]


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
    ) -> None:
        """Set up the requests.

        Args:
            client: connection to the API server.
            node: name of this node.
            rules: the rules of eviction, which the fetched pod must pass again.
            clock: monotonic seconds.
            announce: writes the Event of an eviction.
        """
        self._client = client
        self._consents = ConsentReader(client, rules=rules, clock=clock)
        self._records = EvictionRecords(client, node=node)
        self._announce = announce

    async def past_evictions(self) -> list[PastEviction]:
        """Read the recorded evictions of this node; raises as `EvictionRecords.read`."""
        return await self._records.read()

    async def consent(
        self, verdict: Verdict, policy: OverSharePolicy, *, accepts_edits: bool
    ) -> Consent | NoConsent:
        """Read again whether the pod may be evicted. Never raises."""
        return await self._consents.read(verdict, policy, accepts_edits=accepts_edits)

    async def try_eviction(self, pod: NodePod) -> Evicted:
        """Test whether the API server would allow the eviction. Never raises."""
        return await evict(self._client, namespace=pod.namespace, name=pod.name, uid=pod.uid, is_trial=True)

    async def try_record(self, pod: NodePod, owner: str) -> None:
        """Test whether an eviction can be recorded; raises as `EvictionRecords.write`."""
        await self._records.write(pod, owner, is_trial=True)

    async def record(self, pod: NodePod, owner: str, *, within: float) -> None:
        """Record an eviction before it is requested; raises as `EvictionRecords.write`."""
        await self._records.write(pod, owner, within=within)

    async def announce(self, verdict: Verdict, evaluation: Evaluation) -> None:
        """Write the Event of an eviction before it is requested."""
        await self._announce(verdict, evaluation)

    async def evict(self, pod: NodePod, *, within: float) -> Evicted:
        """Evict the pod; nothing is sent after `within` seconds. Never raises."""
        return await evict(self._client, namespace=pod.namespace, name=pod.name, uid=pod.uid, within=within)
