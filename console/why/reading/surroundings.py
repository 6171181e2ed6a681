"""Reads a pod's owners, nodes, claims, the pods that share its GPUs, and the figures of its node's agent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from console.agents import AgentOptions, Agents
from console.why.evidence import Absence, AgentFigures
from console.why.evidence_objects import (
    Claim,
    Meta,
    NodeObject,
    PodObject,
    WorkloadObject,
    decode_claim,
    decode_node,
    decode_one_pod,
    decode_workload,
)
from console.why.reading.bounded_requests import Requests
from console.why.reading.target import POD, owner_path
from gpuagent.api_types import ApiPod
from kai import keys
from kube.answers import REQUEST_ERRORS
from kube.kinds import ObjectOwner
from kube.metadata import resource_path
from kube.tokens import review_right
from service.names import is_dns_subdomain

_MOST_OWNERS: Final = 3
_NOT_ENDED: Final = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
"""Selects pods that hold their GPUs; an ended pod keeps its labels."""


@dataclass(frozen=True, slots=True)
class SharedGpuPods:
    """The pods in GPU groups."""

    everywhere: list[PodObject] | Absence
    """Those of all namespaces; of a bound pod those in its own groups."""
    members: Sequence[PodObject]
    """The other pods of the pod's namespace in its GPU groups."""


async def read_owners(
    requests: Requests, pod: PodObject, named: WorkloadObject | None, *, is_optional: bool
) -> list[WorkloadObject]:
    """Read the pod's owners, the nearest first, up to one that cannot be read.

    Args:
        requests: for the API server.
        pod: the pod.
        named: an owner that has been read already.
        is_optional: whether to end where the requests are used up, without a note.
    """
    owners: list[WorkloadObject] = []
    metadata: Meta = pod.metadata
    while len(owners) < _MOST_OWNERS and (reference := _controller(metadata)) is not None:
        path = owner_path(reference, pod.metadata.namespace)
        owner: WorkloadObject | Absence = Absence.NOT_READ
        if named is not None and (named.kind, named.metadata.name) == (reference.kind, reference.name):
            owner = named
        elif path is not None and (requests.remaining or not is_optional):
            owner = await requests.get(path, decode_workload, f"{reference.kind} {reference.name}")
        if isinstance(owner, Absence):
            break
        owners.append(owner)
        metadata = owner.metadata
    return owners


def _controller(metadata: Meta) -> ObjectOwner | None:
    owners = metadata.owner_references
    return next((owner for owner in owners if owner.controller), owners[0] if owners else None)


async def read_nodes(requests: Requests) -> list[NodeObject] | Absence:
    """Read the nodes of the cluster."""
    return await requests.list(resource_path("", "v1", "nodes"), decode_node, "nodes")


async def read_shared_gpu_pods(requests: Requests, pod: PodObject) -> SharedGpuPods:
    """Read the pods in GPU groups that have not ended: of all namespaces if the caller may, else of one.

    Of a bound pod only its own groups are read, so that the pods of other groups do not fill the list.
    """
    params = {"labelSelector": _in_groups(pod), **_NOT_ENDED}
    pods = await requests.list(
        resource_path("", "v1", "pods"), decode_one_pod, "pods of other namespaces", params=params
    )
    near = pods
    if isinstance(pods, Absence) and pod.gpu_groups:
        path = POD.path_in(pod.metadata.namespace)
        near = await requests.list(path, decode_one_pod, "pods", params=params)
    members = [] if isinstance(near, Absence) else [each for each in near if _is_neighbour(each, pod)]
    return SharedGpuPods(pods, members)


async def read_reservations(requests: Requests) -> list[PodObject] | Absence:
    """Read the reservation pods of all groups in KAI's default namespace for them."""
    params = {"labelSelector": f"{keys.APP_LABEL}={keys.RESERVATION_APP}", **_NOT_ENDED}
    path = resource_path("", "v1", "pods", keys.RESERVATION_APP)
    return await requests.list(path, decode_one_pod, "reservation pods", params=params)


def _in_groups(pod: PodObject) -> str:
    """Return the label selector of pods in GPU groups; a share of several GPUs has other labels."""
    groups = sorted(pod.gpu_groups) if pod.is_bound else []
    return f"{keys.GPU_GROUP} in ({','.join(groups)})" if groups else keys.GPU_GROUP


def _is_neighbour(other: PodObject, pod: PodObject) -> bool:
    is_near = other.metadata.namespace == pod.metadata.namespace and other.name != pod.name
    return is_near and not other.gpu_groups.isdisjoint(pod.gpu_groups)


async def read_claims(requests: Requests, pod: PodObject) -> dict[str, Claim | Absence]:
    """Read the PersistentVolumeClaims that the pod mounts, by name."""
    names = frozenset(pod.claim_names)

    def is_mounted(claim: Claim) -> bool:
        return claim.metadata.name in names

    path = resource_path("", "v1", "persistentvolumeclaims", pod.metadata.namespace)
    claims = await requests.list(path, decode_claim, "PersistentVolumeClaims", keep=is_mounted)
    if isinstance(claims, Absence):
        return dict.fromkeys(names, claims)
    by_name: dict[str, Claim | Absence] = dict.fromkeys(names, Absence.MISSING)
    by_name.update((claim.metadata.name, claim) for claim in claims)
    return by_name


async def may_list_all_pods(requests: Requests) -> bool:
    """Ask whether the caller may list pods in all namespaces; False without an answer."""
    try:
        return (await review_right(requests.client, verb="list", resource="pods")).allowed
    except REQUEST_ERRORS as error:
        requests.record(error, "your rights")
        return False


async def read_figures(requests: Requests, pod: PodObject, options: AgentOptions) -> AgentFigures | None:
    """Ask the agent of the pod's node; None if the caller may not read the agents, or there is none."""
    node = pod.spec.node_name
    if not is_dns_subdomain(node):
        return None
    agents = Agents(requests.client, options=options)
    try:
        running = [agent for agent in await agents.list(node) if agent.node == node and agent.is_running]
        if not running:
            return None
        reading = await agents.read(running[0])
    except REQUEST_ERRORS as error:
        requests.record(error, "the agents")
        return None
    if reading.missing_right:
        requests.refuse("the agents")
        return None
    if reading.received is None:
        return AgentFigures(pod=None, gpus=(), neighbours=0, failure=reading.failure)
    answer = reading.received.answer
    if answer.sample_timestamp is None:
        return AgentFigures(pod=None, gpus=(), neighbours=0, failure="the agent has no recent sample")
    own = next((each for each in answer.pods if _is_same(each, pod)), None)
    on = _gpus_of(own) if own is not None else frozenset()
    neighbours = sum(each is not own and not on.isdisjoint(_gpus_of(each)) for each in answer.pods)
    return AgentFigures(pod=own, gpus=answer.gpus, neighbours=neighbours)


def _is_same(seen: ApiPod, pod: PodObject) -> bool:
    metadata = pod.metadata
    return (seen.namespace, seen.name) == (metadata.namespace, metadata.name) and seen.uid == metadata.uid


def _gpus_of(pod: ApiPod) -> frozenset[str]:
    return frozenset(pod.gpu_uuids) | {holding.gpu_uuid for holding in pod.gpus}
