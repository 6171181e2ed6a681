"""Reads the evidence about one pod with the caller's rights: its decision, and KAI's objects.

A tenant can write the names, so each is checked before it becomes part of a path.

Requests run in waves: the pod; what every answer needs; what the state of the pod needs; what completes the
story, as far as requests remain.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from console.agents import AgentOptions
from console.cluster_reading import does_not_exist, read_settings
from console.explain.explainer import ExplainedPod, Explainer, OwnedMetadata
from console.explain.live_workloads import explain_object
from console.explain.text import headline, reason_code
from console.why.causes.binding import are_reservations_visible
from console.why.causes.scheduler_verdict import SchedulerVerdict, verdict_of
from console.why.evidence import Absence, PodEvidence, PolicyDecision, known
from console.why.evidence_objects import (
    PodBindRequest,
    PodGroupObject,
    PodObject,
    Shard,
    decode_bind_request,
    decode_pod_group,
    decode_shard,
)
from console.why.reading.bounded_requests import Requests
from console.why.reading.pod_events import MOST_EVENTS, EventReader, is_since
from console.why.reading.surroundings import (
    may_list_all_pods,
    read_claims,
    read_figures,
    read_nodes,
    read_owners,
    read_reservations,
    read_shared_gpu_pods,
)
from console.why.reading.target import POD, Subject, Target, find_pod
from kai import keys
from kai.kaishare_keys import REASON
from kai.queue import Queue, decode_queue
from kube.client import KubeClient
from kube.metadata import resource_path
from service.command import UsageError
from service.names import is_dns_subdomain
from service.text import one_line
from webhook.namespaces.policy_source import PATH, decode_metadata
from webhook.policy.labels import NamespacePolicy, PolicyMetadata
from webhook.policy.sizes import Source
from webhook.settings.published_settings import SettingsError

_LONGEST_REASON: Final = 40
_SOMETHING_ELSE: Final = "something else, because the policy or the pod has changed since"


async def read_decision(
    requests: Requests, pod: PodObject, policy: PolicyMetadata, *, settings_namespace: str
) -> PolicyDecision:
    """Decide about a new pod like this one, with the settings of the cluster's webhook.

    Without the settings, a preview would be a guess and is left out. LimitRanges are not read.

    Args:
        requests: for the API server.
        pod: the pod as it is.
        policy: labels and annotations of its namespace, which is managed.
        settings_namespace: the namespace of the ConfigMap with the webhook's settings.
    """
    reason = one_line(pod.metadata.annotations.get(REASON, ""), _LONGEST_REASON)
    unknown = PolicyDecision(reason=reason, now_reason="", now="")
    try:
        published = await read_settings(requests.client, settings_namespace)
    except SettingsError as error:
        requests.note(f"what a new pod would get is not known: {error}")
        return unknown
    if published.policies != "cluster":
        return unknown
    namespace = pod.metadata.namespace
    own = policy.policy(namespace, published.rules.default_mode)
    explainer = Explainer(namespace, {} if own is None else {namespace: own}, published.rules)
    # A large pod takes longer than 100 ms.
    items = await asyncio.to_thread(
        explain_object, explainer, POD, OwnedMetadata(pod.name, namespace), pod.document, ""
    )
    explained = next((item for item in items if isinstance(item, ExplainedPod)), None)
    if explained is None:
        return unknown
    if _is_outdated(explained):
        return PolicyDecision(reason=reason, now_reason="", now=_SOMETHING_ELSE)
    return PolicyDecision(reason=reason, now_reason=reason_code(explained), now=headline(explained))


def _is_outdated(pod: ExplainedPod) -> bool:
    """Whether the pod has a share that the webhook gave it, and that the policy does not give any more.

    The pod does not tell any more what its author requested, so that the new share cannot be computed.
    """
    earlier, decision = pod.earlier, pod.mutation.decision
    if earlier is None or earlier.is_current or decision.source is not Source.OWN_SHARE:
        return False
    return earlier.reason != decision.reason.code


_RUN_AI: Final = "scheduling.run.ai"
_MOST_QUEUES: Final = 5
"""Levels of queues; KAI's documentation describes two."""


async def read_pod_group(requests: Requests, pod: PodObject) -> PodGroupObject | Absence:
    """Read the PodGroup that the pod's annotation names."""
    name, namespace = pod.pod_group_name, pod.metadata.namespace
    if not name:
        return Absence.NOT_READ
    if not is_dns_subdomain(name):
        return Absence.MISSING  # no object can have the name
    path = f"{resource_path(_RUN_AI, 'v2alpha2', 'podgroups', namespace)}/{name}"
    return await requests.get(path, decode_pod_group, f"PodGroup {name}")


async def read_bind_request(requests: Requests, pod: PodObject) -> PodBindRequest | Absence:
    """Read the BindRequest of the pod's name; one of an earlier pod of the name counts as missing."""
    path = f"{resource_path(_RUN_AI, 'v1alpha2', 'bindrequests', pod.metadata.namespace)}/{pod.name}"
    request = await requests.get(path, decode_bind_request, f"BindRequest {pod.name}")
    if isinstance(request, Absence) or is_since(pod.metadata.creation_timestamp, request.metadata):
        return request
    return Absence.MISSING


async def is_served(requests: Requests) -> bool:
    """Whether the API server serves KAI's kinds; True if it does not tell.

    Every authenticated user may ask for an API group. A request for an object of a kind that is not served
    is refused where the right to it is missing (Kubernetes 1.36.3).
    """
    absence = await requests.get(f"/apis/{_RUN_AI}", lambda _: None, "KAI's API group")
    return absence not in (Absence.UNSERVED, Absence.MISSING)


async def read_queues(requests: Requests, name: str) -> dict[str, Queue | Absence]:
    """Read a queue and its parents, up to one that cannot be read; empty if the name is."""
    queues: dict[str, Queue | Absence] = {}
    while name and name not in queues and len(queues) < _MOST_QUEUES:
        queue: Queue | Absence = Absence.MISSING  # of a label's values, some are no names of objects
        if is_dns_subdomain(name):
            path = f"{resource_path(_RUN_AI, 'v2', 'queues')}/{name}"
            queue = await requests.get(path, decode_queue, f"Queue {name}")
        queues[name] = queue
        name = "" if isinstance(queue, Absence) else queue.parent
    return queues


def has_node_pool(pod: PodObject, group: PodGroupObject | None) -> bool:
    """Whether a pod or its PodGroup names a node pool, which a SchedulingShard serves."""
    labels = (pod.metadata.labels, group.metadata.labels if group is not None else {})
    return any(keys.NODE_POOL_LABEL in each for each in labels)


async def read_shards(requests: Requests) -> list[Shard] | Absence:
    """Read the SchedulingShards; KAI v0.9.8 to v0.17.0 serve `kai.scheduler/v1`."""
    path = resource_path("kai.scheduler", "v1", "schedulingshards")
    return await requests.list(path, decode_shard, "SchedulingShards")


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
