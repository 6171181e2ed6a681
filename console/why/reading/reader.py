"""Reads the objects about one pod or workload, with the caller's rights and at most 12 requests.

Requests run in waves: the pod; what every answer needs; what the state of the pod needs; what completes the
story, as far as requests remain.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from console.agent_options import AgentOptions
from console.why.causes.binding import are_reservations_visible
from console.why.causes.scheduler_verdict import SchedulerVerdict, verdict_of
from console.why.evidence import Absence, PodEvidence, known
from console.why.objects import PodObject
from console.why.reading.decision import read_decision
from console.why.reading.events import MOST_EVENTS, EventReader
from console.why.reading.kai_objects import (
    has_node_pool,
    is_served,
    read_bind_request,
    read_pod_group,
    read_queues,
    read_shards,
)
from console.why.reading.requests import Requests
from console.why.reading.surroundings import (
    may_list_all_pods,
    read_claims,
    read_figures,
    read_nodes,
    read_owners,
    read_reservations,
    read_shared_gpu_pods,
)
from console.why.reading.target import Target
from console.why.reading.workload import Subject, find_pod
from kube.client import KubeClient
from service.command import UsageError
from webhook.namespaces.decode import PATH, decode_metadata
from webhook.namespaces.reading import does_not_exist
from webhook.policy.labels import NamespacePolicy, PolicyMetadata

_Work = list[Coroutine[Any, Any, None]]

_OF_QUEUES: Final = ("QueueDoesNotExist", "OverLimit", "NonPreemptibleOverQuota")
"""Reasons of verdicts that are about queues only."""
_OF_VOLUMES: Final = ("VolumeBinding", "PersistentVolumeClaim")
_CUT: Final = f"there are more Events than the newest {MOST_EVENTS}, which were read"
_OF_TOPOLOGY: Final = "opology"


async def read_evidence(
    client: KubeClient, target: Target, *, agents: AgentOptions, settings_namespace: str
) -> PodEvidence:
    """Read all that is known about a pod or workload.

    Objects that cannot be read are absent in the evidence, with the reason. A pod that does not exist is
    absent, too, since its Events may tell what happened to it.

    Args:
        client: for the API server, with the caller's rights.
        target: the pod or workload.
        agents: select the agents.
        settings_namespace: the namespace of the ConfigMap with the webhook's settings.

    Raises:
        UsageError: the pod, the list of the workload's pods, or the kind cannot be read, or the namespace
            does not exist; the message is one line.
    """
    requests = Requests(client)
    subject = await find_pod(requests, target)
    evidence = PodEvidence(
        now=datetime.now(UTC),
        namespace=target.namespace,
        kind=subject.kind,
        name=target.name,
        pod=subject.pod,
        workload=subject.workload,
    )
    reading = _Reading(requests, target, subject, evidence, EventReader(requests, target.namespace))
    await _run(reading.basics())
    if reading.namespace is Absence.MISSING:
        raise UsageError(does_not_exist(target.namespace))
    await _run(reading.details(agents, settings_namespace))
    await _run(reading.rest())
    evidence.now = requests.client.server_time() or datetime.now(UTC)
    evidence.are_events_read = reading.events.are_read
    evidence.not_visible = requests.not_visible
    evidence.notes = (*requests.notes, *([_CUT] if reading.events.is_cut else []))
    return evidence


async def _run(work: _Work) -> None:
    async with asyncio.TaskGroup() as group:
        for each in work:
            group.create_task(each)


@dataclass(slots=True)
class _Reading:
    """The requests of one answer, which fill its evidence."""

    requests: Requests
    target: Target
    subject: Subject
    evidence: PodEvidence
    events: EventReader
    namespace: PolicyMetadata | Absence = Absence.NOT_READ
    """The policy's part of the pod's namespace."""

    @property
    def policy(self) -> NamespacePolicy | None:
        """The policy of the pod's namespace; None if it is not managed, or cannot be read."""
        metadata = known(self.namespace)
        return None if metadata is None else metadata.policy(self.target.namespace)

    def basics(self) -> _Work:
        """Return the requests of every answer."""
        pod = known(self.evidence.pod)
        work: _Work = [self._read_namespace(), self._read_group_events()]
        if pod is not None:
            work += [self._read_pod_events(pod.name, pod.metadata.creation_timestamp)]
            work += [self._read_pod_group(pod), self._read_bind_request(pod)]
        elif self.target.is_pod:
            work += [self._read_pod_events(self.target.name)]
        if not self.target.is_pod and (pod is None or pod.is_bound):
            work += [self._read_creation_events()]
        return work

    def details(self, agents: AgentOptions, settings_namespace: str) -> _Work:
        """Return the requests that the state of the pod needs."""
        pod, metadata = known(self.evidence.pod), known(self.namespace)
        if pod is None:
            return []
        work: _Work = []
        if pod.is_bound:
            if pod.gpu_groups:
                work += [self._read_shared_gpu_pods(pod)]
            if pod.status.phase == "Running":
                work += [self._read_figures(pod, agents)]
        elif not pod.spec.scheduling_gates:
            work += self._of_waiting(pod)
        if metadata is not None and self.policy is not None:
            work += [self._read_decision(pod, metadata, settings_namespace)]
        return work

    def _of_waiting(self, pod: PodObject) -> _Work:
        work: _Work = [self._read_queues(pod)]
        if self.evidence.bind_request is Absence.FORBIDDEN and not pod.pod_group_name:
            work += [self._discover_kai()]
        verdict = verdict_of(self.evidence)
        if verdict is not None and _is_about_nodes(verdict):
            work += [self._read_nodes(), self._read_shared_gpu_pods(pod)]
        elif known(self.evidence.bind_request) is not None:
            work += [self._read_shared_gpu_pods(pod)]
        if verdict is not None and _is_about_volumes(verdict) and pod.claim_names:
            work += [self._read_claims(pod)]
        if has_node_pool(pod, known(self.evidence.pod_group)):
            work += [self._read_shards()]
        return work

    def rest(self) -> _Work:
        """Return the requests that complete the story, as far as requests remain."""
        pod = known(self.evidence.pod)
        work: _Work = []
        if self.evidence.shared_gpu_pods in (Absence.NOT_READ, Absence.FAILED) and self.requests.remaining:
            work += [self._read_rights()]
        shared = known(self.evidence.shared_gpu_pods)
        is_bound = pod is not None and pod.is_bound
        if is_bound and shared is not None and not are_reservations_visible(self.evidence):
            work += [self._read_reservations(shared)]
        if pod is not None and not self.evidence.owners and self.requests.remaining > len(work):
            work += [self._read_owners(pod, is_optional=True)]
        return work

    async def _read_namespace(self) -> None:
        name = self.target.namespace
        self.namespace = await self.requests.get(f"{PATH}/{name}", _decode_policy, f"Namespace {name}")
        if self.policy is not None:
            self.evidence.scheduler = self.policy.scheduler

    async def _read_pod_events(self, name: str, since: datetime | None = None) -> None:
        self.evidence.pod_events = await self.events.about_pod(name, since)

    async def _read_group_events(self) -> None:
        self.evidence.group_events = await self.events.about_groups(self.subject, self.target.name)

    async def _read_creation_events(self) -> None:
        self.evidence.creation_events = await self.events.about_creation(self.subject, self.target.name)

    async def _read_pod_group(self, pod: PodObject) -> None:
        self.evidence.pod_group = await read_pod_group(self.requests, pod)

    async def _read_bind_request(self, pod: PodObject) -> None:
        self.evidence.bind_request = await read_bind_request(self.requests, pod)

    async def _discover_kai(self) -> None:
        if not await is_served(self.requests):
            self.evidence.bind_request = Absence.UNSERVED

    async def _read_queues(self, pod: PodObject) -> None:
        if isinstance(self.evidence.pod_group, Absence):  # then the topmost owner's label may name the queue
            await self._read_owners(pod, is_optional=False)
        self.evidence.queues = await read_queues(self.requests, self.evidence.queue_name)

    async def _read_owners(self, pod: PodObject, *, is_optional: bool) -> None:
        workload = known(self.evidence.workload)
        self.evidence.owners = await read_owners(self.requests, pod, workload, is_optional=is_optional)

    async def _read_nodes(self) -> None:
        self.evidence.nodes = await read_nodes(self.requests)

    async def _read_shared_gpu_pods(self, pod: PodObject) -> None:
        shared = await read_shared_gpu_pods(self.requests, pod)
        self.evidence.shared_gpu_pods, self.evidence.group_members = shared.everywhere, shared.members
        is_allowed = shared.everywhere is Absence.PARTIAL or not isinstance(shared.everywhere, Absence)
        self.evidence.sees_all = is_allowed

    async def _read_reservations(self, shared: Sequence[PodObject]) -> None:
        """Read the reservation pods of other groups, which show whether KAI uses the default namespace."""
        others = await read_reservations(self.requests)
        self.evidence.shared_gpu_pods = Absence.PARTIAL if isinstance(others, Absence) else [*shared, *others]

    async def _read_claims(self, pod: PodObject) -> None:
        self.evidence.claims = await read_claims(self.requests, pod)

    async def _read_shards(self) -> None:
        self.evidence.shards = await read_shards(self.requests)

    async def _read_decision(self, pod: PodObject, policy: PolicyMetadata, settings_namespace: str) -> None:
        self.evidence.decision = await read_decision(
            self.requests, pod, policy, settings_namespace=settings_namespace
        )

    async def _read_figures(self, pod: PodObject, agents: AgentOptions) -> None:
        self.evidence.figures = await read_figures(self.requests, pod, agents)

    async def _read_rights(self) -> None:
        self.evidence.sees_all = await may_list_all_pods(self.requests)


def _is_about_volumes(verdict: SchedulerVerdict) -> bool:
    return any(word in verdict.all_text for word in _OF_VOLUMES)


def _is_about_nodes(verdict: SchedulerVerdict) -> bool:
    """Whether a verdict may be about nodes and their GPUs; one without a reason may be about anything."""
    is_about_topology = _OF_TOPOLOGY in verdict.all_text
    return verdict.reason not in _OF_QUEUES and not is_about_topology and not _is_about_volumes(verdict)


def _decode_policy(document: bytes) -> PolicyMetadata:
    return decode_metadata(document)[1]
