"""Checks of the cluster, through the same code that the agent uses."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from gpuagent.doctor.kai import kai_findings
from gpuagent.doctor.pods import no_pods, pod_findings
from gpuagent.doctor.probe import Observation
from gpuagent.doctor.rights import right_findings
from gpuagent.doctor.vclusters import inside_finding, serves_bind_requests, vclusters_with_kai
from gpuagent.pods.availability import UnavailableReason
from gpuagent.pods.cluster import ClusterPods
from kai.installation import NAMESPACE, KaiPod
from kai.version import Version
from kube.access import Access, AccessError
from kube.check import reach
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from service.check_results import CheckResult, State, ok, problem, unknown
from service.log import WARNING, JsonLog
from service.text import MALFORMED

_NODE: Final = "node"
_INVENTORY_SECONDS: Final = 20.0
_LOOK_EVERY_SECONDS: Final = 0.05
_MOST_LINES: Final = 5
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiQuestion:
    """What the cluster checks need to know."""

    node: str
    reservation_namespace: str
    reads_config_maps: bool
    kai_version: Version | None


async def cluster_findings(
    access: Access, question: ApiQuestion, observation: Observation
) -> AsyncIterator[CheckResult]:
    """Run all checks of the cluster; a failed check does not stop the others."""
    async with KubeClient(access) as client:
        reached = await reach(client, without="rights and pods were not checked")
        yield reached
        if reached.state is State.PROBLEM:
            return
        async for finding in right_findings(client, reads_config_maps=question.reads_config_maps):
            yield finding
        yield await _node(client, question.node)
        inside = await _inside_vclusters(client, question)
        async for finding in _pods(client, question, observation, has_own_kai=inside is None):
            yield finding
        if inside is not None:
            yield inside
        if inside is None or inside.state is not State.OK:
            async for finding in _kai(client, question.kai_version):
                yield finding


async def _inside_vclusters(client: KubeClient, question: ApiQuestion) -> CheckResult | None:
    """Check for KAI inside vClusters; None if there is no sign of it."""
    try:
        vclusters = await vclusters_with_kai(
            client, node=question.node, reservation_namespace=question.reservation_namespace
        )
    except (ApiError, Unreachable, AccessError):
        return None  # the checks of rights and pods report the error
    if not vclusters:
        return None
    try:
        is_served = await serves_bind_requests(client)
    except (ApiError, Unreachable, AccessError):
        return inside_finding(vclusters, is_served=None)
    return inside_finding(vclusters, is_served=is_served)


class _Spec(Struct):
    runtime_class: str | None = msgspec.field(name="runtimeClassName", default=None)


class _OwnPod(Struct):
    spec: _Spec


async def own_runtime_class(access: Access, name: str) -> str | None:
    """Return the RuntimeClass of this process's own pod, by its host name; None if unknown."""
    async with KubeClient(access) as client:
        try:
            pods = await _list(client, client.namespace, _OwnPod, {"fieldSelector": f"metadata.name={name}"})
        except (ApiError, Unreachable, AccessError):
            return None
    return pods[0].spec.runtime_class or "" if len(pods) == 1 else None


async def _node(client: KubeClient, node: str) -> CheckResult:
    try:
        await client.get(f"/api/v1/nodes/{node}")
    except ApiError as error:
        if error.status == _NOT_FOUND:
            return problem(
                _NODE,
                f'the cluster has no node "{node}"',
                "set --node to a name that kubectl get nodes lists",
            )
        return unknown(_NODE, str(error))
    except (Unreachable, AccessError) as error:
        return unknown(_NODE, str(error))
    return ok(_NODE, f"the cluster has the node {node}")


async def _pods(
    client: KubeClient, question: ApiQuestion, observation: Observation, *, has_own_kai: bool
) -> AsyncIterator[CheckResult]:
    """Check the pods of the node. `has_own_kai` is whether the cluster should have its own KAI."""
    stream = io.BytesIO()
    try:
        pods = await _listed_pods(client, question, JsonLog(stream))
    except TimeoutError:
        yield no_pods(f"not listed within {_INVENTORY_SECONDS:.0f} s")
        return
    inventory = pods.inventory
    if inventory is None:
        yield no_pods(pods.watch.problem)
        return
    for line in warnings_in(stream):
        yield problem("objects of the API server", line)
    for unavailable in pods.unavailable:
        if unavailable.reason is UnavailableReason.NOT_SERVED and has_own_kai:
            yield unknown("KAI", unavailable.line, "is KAI installed in this cluster?")
    for finding in pod_findings(
        inventory, observation, node=question.node, source="the cluster", kai_version=question.kai_version
    ):
        yield finding


async def cluster_pods(access: Access, question: ApiQuestion, log: JsonLog) -> ClusterPods | None:
    """Return the pods of the node, with their inventory unless the API server refuses the list.

    None if the list takes too long.
    """
    async with KubeClient(access) as client:
        try:
            return await _listed_pods(client, question, log)
        except TimeoutError:
            return None


async def _listed_pods(client: KubeClient, question: ApiQuestion, log: JsonLog) -> ClusterPods:
    """List the pods of the node once; without an inventory, `watch.problem` has the reason.

    Raises:
        TimeoutError: there is neither an inventory nor a problem.
    """
    pods = ClusterPods(
        client=client,
        node=question.node,
        reservation_namespace=question.reservation_namespace,
        log=log,
        read_config_maps=question.reads_config_maps,
    )
    running = asyncio.create_task(pods.run())
    try:
        async with asyncio.timeout(_INVENTORY_SECONDS):
            while pods.inventory is None and not pods.watch.problem:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(_LOOK_EVERY_SECONDS)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return pods


async def _kai(client: KubeClient, configured: Version | None) -> AsyncIterator[CheckResult]:
    try:
        pods = await _list(client, NAMESPACE, KaiPod, {})
    except (ApiError, Unreachable, AccessError) as error:
        yield unknown("KAI", f"KAI's pods cannot be listed: {error}")
        return
    for finding in kai_findings(pods, configured=configured):
        yield finding


T = TypeVar("T")


async def _list(client: KubeClient, namespace: str, kind: type[T], params: dict[str, str]) -> list[T]:
    """List a namespace's objects of one kind; skip malformed ones."""
    decode: Callable[[bytes], T] = msgspec.json.Decoder(kind).decode
    objects = []
    async with client.list_objects(f"/api/v1/namespaces/{namespace}/pods", params=params) as pods:
        async for item in pods:
            try:
                objects.append(decode(item))
            except MALFORMED:
                continue
    return objects


def warnings_in(stream: io.BytesIO) -> list[str]:
    """Return the warnings of a log, one line each, up to a maximum."""
    lines = (json.loads(line) for line in stream.getvalue().splitlines())
    warnings = [
        str(line.get("error") or line["message"])
        for line in lines
        if line["level"] == WARNING and "resource" not in line  # rights have their own checks
    ]
    more = [f"and {len(warnings) - _MOST_LINES} more"] if warnings[_MOST_LINES:] else []
    return [*warnings[:_MOST_LINES], *more]
