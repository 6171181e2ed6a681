"""Reads KAI's objects about one pod.

A tenant can write the names, so each is checked before it becomes part of a path.
"""

from typing import Final

from console.why.evidence import Absence
from console.why.objects import (
    PodBindRequest,
    PodGroupObject,
    PodObject,
    Shard,
    decode_bind_request,
    decode_pod_group,
    decode_shard,
)
from console.why.reading.events import is_since
from console.why.reading.requests import Requests
from kai import keys
from kai.queue import Queue, decode_queue
from kube.objects import resource_path
from service.names import is_dns_subdomain

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
