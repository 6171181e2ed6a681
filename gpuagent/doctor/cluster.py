"""Checks of the cluster, through the same code that the agent uses."""

import asyncio
import contextlib
import io
import json
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from gpuagent.doctor.kai import inside_finding, sharing_finding, vclusters_with_kai, version_finding
from gpuagent.doctor.pods import PODS, pod_findings
from gpuagent.doctor.probe import Observation
from gpuagent.doctor.rights import right_findings
from gpuagent.node import NodeSettings
from gpuagent.pods.availability import UnavailableReason
from gpuagent.pods.cluster import ClusterPods
from gpuagent.pods.objects import ObjectError
from kai.installation import NAMESPACE, Installation, ProgramPod
from kai.version import Version
from kube.access import Access, AccessError
from kube.client import KubeClient
from kube.doctor_checks import reach
from kube.errors import ApiError, Unreachable
from kube.objects import resource_path
from service.check_results import CheckResult, State, limited, ok, problem, unknown
from service.log import WARNING, JsonLog
from service.text import MALFORMED

_NODE: Final = "node"
_INVENTORY_SECONDS: Final = 20.0
_LOOK_EVERY_SECONDS: Final = 0.05


async def cluster_findings(
    access: Access, settings: NodeSettings, observation: Observation
) -> list[CheckResult]:
    """Run all checks of the cluster; a failed check does not stop the others."""
    async with KubeClient(access) as client:
        reached, _ = await reach(client, without="rights and pods were not checked")
        if reached.state is State.PROBLEM:
            return [reached]
        findings = [
            reached,
            *await right_findings(client, reads_config_maps=settings.reads_config_maps),
            await _node(client, settings.node),
        ]
        stream = io.BytesIO()
        pods = await _listed_pods(client, settings, JsonLog(stream))
        inside = await _inside_vclusters(client, settings, pods)
        findings += _pods(pods, stream, settings, observation, has_own_kai=inside is None)
        if inside is not None:
            findings.append(inside)
        if inside is None or inside.state is not State.OK:
            findings += await _kai(client, settings.kai_version)
        return findings


async def _inside_vclusters(
    client: KubeClient, settings: NodeSettings, pods: ClusterPods
) -> CheckResult | None:
    """Check for KAI inside vClusters; None if there is no sign of it."""
    node_pods = pods.watch.objects.values()
    try:
        vclusters = await vclusters_with_kai(client, node_pods, settings.reservation_namespace)
    except (ApiError, Unreachable, AccessError, ObjectError):
        return None  # the checks of rights and pods report the error
    if not vclusters:
        return None
    is_served = True if pods.bind_requests.watch.is_synced else None
    if any(kind.reason is UnavailableReason.NOT_SERVED for kind in pods.unavailable):
        is_served = False
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
    except (ApiError, Unreachable, AccessError) as error:
        if isinstance(error, ApiError) and error.is_not_found:
            return problem(
                _NODE,
                f'the cluster has no node "{node}"',
                "set --node to a name that kubectl get nodes lists",
            )
        return unknown(_NODE, str(error))
    return ok(_NODE, f"the cluster has the node {node}")


def _pods(
    pods: ClusterPods,
    log: io.BytesIO,
    settings: NodeSettings,
    observation: Observation,
    *,
    has_own_kai: bool,
) -> Iterator[CheckResult]:
    """Check the pods of the node. `has_own_kai` is whether the cluster should have its own KAI."""
    if pods.inventory is None:
        yield unknown(PODS, pods.watch.problem or f"not listed within {_INVENTORY_SECONDS:.0f} s")
        return
    yield from logged("objects of the API server", log)
    for unavailable in pods.unavailable:
        if unavailable.reason is UnavailableReason.NOT_SERVED and has_own_kai:
            yield unknown("KAI", unavailable.line, "is KAI installed in this cluster?")
    yield from pod_findings(pods.inventory, observation, settings, source="the cluster")


async def cluster_pods(access: Access, settings: NodeSettings, log: JsonLog) -> ClusterPods:
    """Return the pods of the node, with their inventory unless the API server refuses the list."""
    async with KubeClient(access) as client:
        return await _listed_pods(client, settings, log)


async def _listed_pods(client: KubeClient, settings: NodeSettings, log: JsonLog) -> ClusterPods:
    """List the pods of the node once; without an inventory, `watch.problem` may have the reason."""
    pods = ClusterPods(
        client=client,
        node=settings.node,
        reservation_namespace=settings.reservation_namespace,
        log=log,
        read_config_maps=settings.reads_config_maps,
    )
    running = asyncio.create_task(pods.run())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_INVENTORY_SECONDS):
            while pods.inventory is None and not pods.watch.problem:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(_LOOK_EVERY_SECONDS)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return pods


async def _kai(client: KubeClient, configured: Version | None) -> list[CheckResult]:
    try:
        pods = await _list(client, NAMESPACE, ProgramPod, {})
    except (ApiError, Unreachable, AccessError) as error:
        return [unknown("KAI", f"KAI's pods cannot be listed: {error}")]
    installed = Installation.seen_in(pods)
    return [version_finding(installed, configured), sharing_finding(installed)]


T = TypeVar("T")


async def _list(client: KubeClient, namespace: str, kind: type[T], params: dict[str, str]) -> list[T]:
    """List a namespace's pods as one type; skip malformed ones."""
    decoder = msgspec.json.Decoder(kind)
    objects = []
    async with client.list_objects(resource_path("", "v1", "pods", namespace), params=params) as pods:
        async for item in pods:
            with contextlib.suppress(*MALFORMED):
                objects.append(decoder.decode(item))
    return objects


def logged(check: str, log: io.BytesIO) -> Iterator[CheckResult]:
    """Yield a problem for each warning of a log, up to a maximum."""
    lines = (json.loads(line) for line in log.getvalue().splitlines())
    problems = [
        problem(check, str(line.get("error") or line["message"]))
        for line in lines
        if line["level"] == WARNING and "resource" not in line  # rights have their own checks
    ]
    return limited(problems, "more object", "more objects")
