"""Reads what the agent of a pod's node reports about the pod."""

from console.agent_options import AgentOptions
from console.agents import Agents
from console.why.evidence import AgentFigures
from console.why.objects import PodObject
from console.why.reading.requests import Requests
from gpuagent.api_types.shares import ApiPod
from kube.errors import REQUEST_ERRORS
from service.names import is_dns_subdomain


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
