"""Reads the evidence about one pod with the caller's rights and at most 16 requests.

A tenant can write the names, so each is checked before it becomes part of a path. Requests run in waves: the
pod; what every answer needs; what the state of the pod needs; what completes the story.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from console.cluster.agents import AgentOptions, Agents
from console.cluster.facts import MISSING, NOT_READ, Fact, FactReader, Listing, Why, items
from console.cluster.rules import is_missed_by_kai
from console.cluster.webhook import does_not_exist, kai_namespace, read_settings
from console.explain.explainer import ExplainedPod, Explainer
from console.explain.live_workloads import SERVED_PODS, explain_object
from console.explain.text import headline, reason_code
from console.why import target
from console.why.causes.unscheduled import is_in_kai
from console.why.core import find_cause
from console.why.evidence import AgentFigures, GpuPod, PodEvidence, PolicyDecision, gpu_pod, request_of
from console.why.target import WorkloadKind
from gpuagent.api_types import ApiPod
from kai import keys
from kai.installation import NAMESPACE
from kai.kaishare_keys import REASON
from kai.queue import Queue
from kube import kinds
from kube.answers import REQUEST_ERRORS
from kube.client import KubeClient
from kube.kinds import FullMeta, Kind, Namespace, Pod, PodOwner, decode_pod_with_document
from service.command import UsageError
from service.names import is_dns_subdomain
from service.text import one_line
from webhook.policy.labels import PolicyMetadata
from webhook.policy.sizes import Source
from webhook.settings.published_settings import SettingsError

MOST_REQUESTS: Final = 16  # maximum number of HTTP requests for one answer
_MOST_OWNERS: Final = 3
_MOST_QUEUES: Final = 5  # levels of queues; KAI's documentation describes two
_LONGEST_REASON: Final = 40
_SOMETHING_ELSE: Final = "something else, because the policy or the pod has changed since"
_NOT_ENDED: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
"""Selects pods that hold their GPUs; an ended pod keeps its labels."""
_NOT_SUCCEEDED: Final = {"fieldSelector": "status.phase!=Succeeded"}
_SCALING: Final = "kai-scale-adjust"  # namespace of KAI's node-scale-adjuster (v0.17.0 `options.go`)
_SCALING_QUERY: Final = {"labelSelector": "app=scaling-pod"}
_OF_FULL_QUEUES: Final = ("OverLimit", "NonPreemptibleOverQuota")

_Work = Iterator[Coroutine[Any, Any, None]]


async def read_evidence(
    client: KubeClient, namespace: str, kinds_named: Sequence[WorkloadKind], name: str, *,
    agents: AgentOptions, settings_namespace: str,
) -> PodEvidence:  # fmt: skip
    """Read all that is known about a pod or workload; what cannot be read is unknown, with the reason.

    A pod that does not exist is missing, since its Events may tell what happened to it. Raises UsageError if
    the pod, the workload's pods, or the kind cannot be read, or if the namespace does not exist.
    """
    reader = FactReader(client, most_requests=MOST_REQUESTS)
    kind, now = kinds_named[0].name, datetime.now(UTC)
    pod, workload = await target.find_pod(reader, namespace, kinds_named, name)
    evidence = PodEvidence(now=now, namespace=namespace, kind=kind, name=name, pod=pod, workload=workload)
    reading = _Reading(reader, evidence)
    await _run(reading.basics())
    if reading.namespace.is_missing:
        raise UsageError(does_not_exist(namespace))
    if pod.known is not None:
        await _run(reading.details(pod.known, agents, settings_namespace))
        await _run(reading.rest(pod.known))
    evidence.now = reader.client.server_time() or datetime.now(UTC)
    texts = [act.command for act in find_cause(evidence).remedies]
    texts += [event.message for event in (*items(evidence.creation_events), *items(evidence.pod_events))]
    if any(f"--namespace {NAMESPACE}" in text or 'webhook "admission.' in text for text in texts):
        evidence.kai_namespace = await kai_namespace(client) or NAMESPACE
    evidence.not_visible, evidence.notes = reader.not_visible, reader.notes
    return evidence


async def _run(work: _Work) -> None:
    async with asyncio.TaskGroup() as group:
        for each in work:
            group.create_task(each)


@dataclass(slots=True)
class _Reading:
    """The requests of one answer, which fill its evidence."""

    reader: FactReader
    evidence: PodEvidence
    namespace: Fact[Namespace] = NOT_READ

    def basics(self) -> _Work:
        """Yield the requests of every answer."""
        pod, is_pod = self.evidence.pod.known, self.evidence.kind == target.POD.name
        yield self._read_namespace()
        yield self._read("group_events", target.events_about_groups(self.reader, self.evidence))
        if pod is not None or is_pod:
            yield self._read("pod_events", target.events_about_pod(self.reader, self.evidence))
        if pod is not None and pod.pod_group_name:
            group = self.reader.get(kinds.POD_GROUPS, pod.pod_group_name, pod.metadata.namespace)
            yield self._read("pod_group", group)
        if pod is not None:
            yield self._read_bind_request(pod)
        if not is_pod and (pod is None or pod.is_bound):
            yield self._read("creation_events", target.events_about_creation(self.reader, self.evidence))

    def details(self, pod: Pod, agents: AgentOptions, settings_namespace: str) -> _Work:
        """Yield the requests that the state of the pod needs."""
        if pod.is_bound and pod.gpu_groups:
            yield self._read("shared_gpu_pods", self._list_reservations(pod))
            if self.evidence.is_rank(pod):
                yield self._read("group_members", self._list_group_members(pod))
        if pod.is_bound and pod.status.phase == "Running":
            yield self._read_figures(pod, agents)
        elif not pod.is_bound and not pod.spec.scheduling_gates:
            yield from self._of_waiting(pod) if is_in_kai(pod, self.evidence.scheduler) else ()
        if not pod.is_bound and not pod.spec.scheduling_gates and pod.spec.resource_claims:
            yield self._read_device_claims(pod)
            yield self._read("device_classes", self.reader.list(kinds.DEVICE_CLASSES))
            yield self._read("slices", self.reader.list(kinds.RESOURCE_SLICES))
        if self.namespace.known is not None:
            yield self._read_decision(pod, self.namespace.known, settings_namespace)

    def _of_waiting(self, pod: Pod) -> _Work:
        evidence, verdict, listing = self.evidence, self.evidence.verdict, self.reader.list
        words, reason = (verdict.all_text, verdict.reason) if verdict is not None else ("", "")
        is_of_volumes = "VolumeBinding" in words or "PersistentVolumeClaim" in words
        is_of_queue = reason in ("QueueDoesNotExist", *_OF_FULL_QUEUES)
        # A verdict without a reason may be about anything.
        is_of_nodes = bool(words) and not is_of_queue and not is_of_volumes and "opology" not in words
        yield self._read_queues(pod)
        is_unclear = not pod.pod_group_name or is_missed_by_kai(pod)
        if evidence.bind_request.why is Why.FORBIDDEN and is_unclear:
            yield self._discover_kai()
        if is_of_nodes:
            yield self._read("nodes", listing(kinds.NODES))
        if is_of_nodes or evidence.bind_request.known is not None:
            query = {"labelSelector": keys.GPU_GROUP, **_NOT_SUCCEEDED}
            yield self._read("shared_gpu_pods", self._list_pods("", query, "pods of other namespaces"))
        if is_of_nodes or reason in _OF_FULL_QUEUES:
            yield self._read("gpu_pods", self._list_gpu_pods())
        group = evidence.pod_group.known
        if keys.NODE_POOL_LABEL in {*pod.metadata.labels, *(group.metadata.labels if group else ())}:
            yield self._read("shards", listing(kinds.SHARDS, what="SchedulingShards"))

    def rest(self, pod: Pod) -> _Work:
        """Yield the requests that complete the story, as far as requests remain."""
        is_told = self.evidence.gpu_pods.is_known and request_of(pod).share is not None
        if is_told:
            scaling = self._list_pods(_SCALING, _SCALING_QUERY, f"pods in {_SCALING}")
            yield self._read("scaling_pods", scaling)
        if not self.evidence.owners and self.reader.remaining > is_told:
            yield self._read_owners(pod)

    async def _read(self, name: str, request: Coroutine[Any, Any, Fact[Any]]) -> None:
        setattr(self.evidence, name, await request)

    async def _read_device_claims(self, pod: Pod) -> None:
        """Read the ResourceClaims of all namespaces, which hold the devices, or else of the pod's own."""
        kind = kinds.RESOURCE_CLAIMS
        claims = await self.reader.list(kind, what="ResourceClaims of other namespaces")
        self.evidence.are_device_claims_of_all = claims.is_known
        if claims.why is Why.FORBIDDEN:
            claims = await self.reader.list(kind, pod.metadata.namespace, what="ResourceClaims")
        self.evidence.device_claims = claims

    async def _read_namespace(self) -> None:
        self.namespace = await self.reader.get(kinds.NAMESPACES, self.evidence.namespace)
        if self.namespace.known is not None:
            own = _policy(self.namespace.known).policy(self.evidence.namespace)
            self.evidence.scheduler = own.scheduler if own else keys.SCHEDULER_NAME

    async def _read_bind_request(self, pod: Pod) -> None:
        """Read the BindRequest of the pod's name; one of an earlier pod of the name counts as missing."""
        request = await self.reader.get(kinds.BIND_REQUESTS, pod.name, pod.metadata.namespace)
        if request.known is not None:
            metadata = request.known.metadata
            uid = next((each.uid for each in metadata.owner_references if each.kind == target.POD.name), "")
            request = request if target.is_of(pod, uid, metadata) else MISSING
        self.evidence.bind_request = request

    async def _discover_kai(self) -> None:
        """Ask whether KAI's kinds are served: others are refused, too, where a right is missing (1.36.3)."""
        served = (await self.reader.served()).known
        if served is not None and not any(kind.group == kinds.POD_GROUPS.group for kind in served):
            self.evidence.bind_request = Fact(why=Why.UNSERVED)

    async def _read_queues(self, pod: Pod) -> None:
        """Read the queue and its parents, up to one that cannot be read."""
        if self.evidence.pod_group.known is None:  # then the topmost owner's label may name the queue
            await self._read_owners(pod)
        queues: dict[str, Fact[Queue]] = {}
        name = self.evidence.queue_name
        while name and name not in queues and len(queues) < _MOST_QUEUES:
            queue = queues[name] = await self.reader.get(kinds.QUEUES, name)
            name = queue.known.parent if queue.known is not None else ""
        self.evidence.queues = queues

    async def _read_owners(self, pod: Pod) -> None:
        """Read the owners, the nearest first, up to one that cannot be read."""
        named = self.evidence.workload.known
        owners: list[PodOwner] = []
        metadata: FullMeta = pod.metadata
        while len(owners) < _MOST_OWNERS and (owner := metadata.owner) is not None:
            kind = target.owner_kind(owner)
            read: Fact[PodOwner] = NOT_READ
            if named is not None and (named.kind, named.metadata.name) == (owner.kind, owner.name):
                read = Fact(named)
            elif kind is not None:
                read = await self.reader.get(kind, owner.name, pod.metadata.namespace)
            if read.known is None:
                break
            owners.append(read.known)
            metadata = read.known.metadata
        self.evidence.owners = owners

    async def _list_reservations(self, pod: Pod) -> Listing[Pod]:
        """List the reservation pods on the pod's node; without any, KAI may use another namespace."""
        on_node = f"spec.nodeName={one_line(pod.spec.node_name)},{_NOT_ENDED['fieldSelector']}"
        query = {"labelSelector": f"{keys.APP_LABEL}={keys.RESERVATION_APP}", "fieldSelector": on_node}
        return await self._list_pods(keys.RESERVATION_APP, query, "reservation pods")

    async def _list_group_members(self, pod: Pod) -> Listing[Pod]:
        """List the other pods of the pod's namespace in its GPU groups, that have not ended."""
        selector = f"{keys.GPU_GROUP} in ({','.join(sorted(pod.gpu_groups))})"
        query = {"labelSelector": selector, **_NOT_ENDED}
        listing = await self._list_pods(pod.metadata.namespace, query, "pods")
        others = tuple(each for each in items(listing) if each.name != pod.name)
        return Fact(others, listing.why, listing.line)

    async def _list_gpu_pods(self) -> Listing[GpuPod]:
        """List what holds GPUs, and what waits for them: the pods of the scheduler, with little of each."""
        scheduler = one_line(self.evidence.scheduler)
        query = {"fieldSelector": f"spec.schedulerName={scheduler},{_NOT_ENDED['fieldSelector']}"}

        def decode(document: bytes) -> GpuPod | None:
            return gpu_pod(decode_pod_with_document(document))

        kind, what = cast("Kind[GpuPod]", kinds.PODS), "pods of other namespaces"
        return await self.reader.list(kind, query=query, decode=decode, keeps_little=True, what=what)

    async def _list_pods(self, namespace: str, query: Mapping[str, str], what: str) -> Listing[Pod]:
        decode = decode_pod_with_document
        return await self.reader.list(kinds.PODS, namespace, query=query, decode=decode, what=what)

    async def _read_decision(self, pod: Pod, namespace: Namespace, settings_namespace: str) -> None:
        """Decide about a new pod like this one, with the settings of the cluster's webhook.

        Without the settings, a preview would be a guess and is left out. LimitRanges are not read.
        """
        metadata, name = _policy(namespace), namespace.metadata.name
        is_managed = metadata.policy(name) is not None
        reason = one_line(pod.metadata.annotations.get(REASON, ""), _LONGEST_REASON)
        self.evidence.decision = Fact(PolicyDecision(reason=reason)) if is_managed else MISSING
        if not is_managed and not is_missed_by_kai(pod):
            return
        try:
            published = await read_settings(self.reader.client, settings_namespace)
        except SettingsError as error:
            if is_managed:
                self.reader.note(f"what a new pod would get is not known: {error}")
            return
        self.evidence.kai_version = published.rules.kai_version
        if published.policies != "cluster" or not is_managed:
            return
        own = metadata.policy(name, published.rules.default_mode)
        explainer = Explainer(name, {} if own is None else {name: own}, published.rules)
        owned = FullMeta(pod.name, name)
        for item in explain_object(explainer, SERVED_PODS, owned, pod.document, None):
            if isinstance(item, ExplainedPod):
                old, new = item.earlier, item.mutation.decision
                is_older = old is not None and not old.is_current and old.reason != new.reason.code
                # The policy has changed since it gave the pod its share, so that the new one is not known.
                is_unknown = is_older and new.source is Source.OWN_SHARE
                now = ("", _SOMETHING_ELSE) if is_unknown else (reason_code(item), headline(item))
                self.evidence.decision = Fact(PolicyDecision(reason=reason, now_reason=now[0], now=now[1]))

    async def _read_figures(self, pod: Pod, options: AgentOptions) -> None:
        node = pod.spec.node_name
        if not is_dns_subdomain(node):
            return
        agents = Agents(self.reader.client, options=options)
        try:
            listed = await agents.list(node)
            running = [p for p in listed if p.spec.node_name == node and p.status.phase == "Running"]
            reading = await agents.read(running[0]) if running else None
        except REQUEST_ERRORS as error:
            right = f"list pods in {options.namespace}"
            self.evidence.figures = Fact(why=self.reader.record(error, "the agents", right).why)
            return
        if reading is None:
            return
        if reading.missing_right:
            self.evidence.figures = Fact(why=Why.FORBIDDEN)
            self.reader.refuse("the agents", f"get pods/proxy in {options.namespace}")
        elif reading.received is None or reading.received.answer.sample_timestamp is None:
            line = "the agent has no recent sample" if reading.received else reading.failure
            self.evidence.figures = Fact(why=Why.FAILED, line=line)
        else:
            pods, key = reading.received.answer.pods, (*pod.metadata.key, pod.metadata.uid)
            own = next((each for each in pods if (each.namespace, each.name, each.uid) == key), None)
            on = _gpus_of(own) if own is not None else frozenset()
            neighbours = sum(each is not own and not on.isdisjoint(_gpus_of(each)) for each in pods)
            self.evidence.figures = Fact(AgentFigures(own, neighbours))


def _policy(namespace: Namespace) -> PolicyMetadata:
    return PolicyMetadata.select(namespace.metadata.labels, namespace.metadata.annotations)


def _gpus_of(pod: ApiPod) -> frozenset[str]:
    return frozenset(pod.gpu_uuids) | {holding.gpu_uuid for holding in pod.gpus}
