"""Checks of the cluster for one agent: KAI, the agent's rights, and the node's pods.

Measured with KAI 0.13.4 and 0.17.0 beside vCluster 0.36.1: a KAI on the host selects pods by the label
`runai-gpu-group` in the whole cluster, and deletes the tenants' pods with a share and their reservation pods
("Found pod without reservation, deleting").
"""

import asyncio
import contextlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from console.doctor.attribution_checks import PODS, pod_findings
from console.doctor.check_results import CheckResult, State, limited, ok, problem, unknown, warning
from console.doctor.driver_checks import Observation
from console.doctor.shared_checks import (
    MODES,
    SHARING,
    VERSION,
    installed_mode,
    installed_release,
    option_text,
    reach,
)
from gpuagent.node import NodeSettings
from gpuagent.pods import bind_requests, lookups
from gpuagent.pods.cluster_pods import ClusterPods
from gpuagent.pods.inventory import NodePod, UnavailableReason
from gpuagent.pods.lookups import NAMESPACES, Kind
from gpuagent.pods.node_pods import read_pod
from gpuagent.pods.objects import ObjectError
from gpuagent.pods.pod_owners import is_vcluster_host, tenant_of
from kai import keys
from kai.installation import NAMESPACE, Installation, ProgramPod, SharingMode
from kai.kaishare_keys import VCLUSTER, VCLUSTER_HOST
from kai.releases import Version
from kube.access import Access, AccessError
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from kube.kinds import resource_path
from kube.tokens import review_right
from service.log import WARNING, JsonLog
from service.text import MALFORMED, listed, one_line

_CHECK: Final = "KAI"
_RESERVING: Final = f"{keys.VCLUSTER_MANAGED_BY},{keys.APP_LABEL}={keys.RESERVATION_APP}"


def version_finding(installed: Installation, configured: Version | None) -> CheckResult:
    """Compare KAI's release with the value of `--kai-version`; None means a current version."""
    version = installed_release(installed, NAMESPACE, option_text("the agent", configured))
    if isinstance(version, CheckResult):
        return version
    if configured is not None and configured != version:
        what = f"{version}, but --kai-version is {configured}"
    elif configured is None and version.counts_megabytes:
        what = f"{version}, which counts GPU memory in units of 10^6 bytes; --kai-version is not set"
    else:
        return ok(VERSION, str(version))
    return problem(VERSION, what, f"set --kai-version {version}")


def sharing_finding(installed: Installation) -> CheckResult:
    """Check the sharing mode."""
    mode = installed_mode(installed, NAMESPACE)
    if isinstance(mode, CheckResult):
        return mode
    if mode is SharingMode.DISABLED:
        return problem(SHARING, MODES[mode], f"install KAI with {installed.sharing_values}")
    return ok(SHARING, MODES[mode])


async def vclusters_with_kai(
    client: KubeClient, node_pods: Iterable[NodePod], reservation_namespace: str
) -> dict[str, str]:
    """Return the vClusters with running reservation pods of their own, each with one of these pods.

    Keys are the vClusters by name and host namespace, values are `NAMESPACE/NAME`. All nodes are searched by
    KAI's label `app`. On this node, pods without that label are found, too. Only labelled host namespaces
    count.

    Args:
        client: for the API server.
        node_pods: the pods of this node.
        reservation_namespace: KAI's namespace of reservation pods.

    Raises:
        ApiError, Unreachable, kube.access.AccessError: the pods cannot be listed, or a namespace not be read.
    """
    by_namespace: dict[str, dict[str, str]] = {}

    def add(pod: NodePod) -> None:
        if vcluster := _vcluster(pod, reservation_namespace):
            name, vclusters = f"{pod.namespace}/{pod.name}", by_namespace.setdefault(pod.namespace, {})
            vclusters[vcluster] = min(name, vclusters.get(vcluster, name))

    for pod in node_pods:
        if keys.GPU_GROUP in pod.labels:
            add(pod)
    async with client.list_objects("/api/v1/pods", params={"labelSelector": _RESERVING}) as items:
        async for item in items:
            try:
                add(read_pod(item))
            except ObjectError:
                continue  # no reservation pod of KAI's
    return {
        vcluster: name
        for namespace, vclusters in by_namespace.items()
        if await _is_vcluster_host(client, namespace)
        for vcluster, name in vclusters.items()
    }


async def _is_vcluster_host(client: KubeClient, namespace: str) -> bool:
    body = await client.get(f"/api/v1/namespaces/{namespace}")
    return is_vcluster_host(NAMESPACES.decode(body).metadata.labels or {})


def _vcluster(pod: NodePod, reservation_namespace: str) -> str:
    """Return the vCluster whose reservation pod this seems to be, with its host namespace; else empty.

    Whether the host namespace is labelled as a vCluster's is for the caller to check.

    KAI creates reservation pods with a node, a GPU and the default scheduler (v0.9.8, v0.13.4 and v0.17.0).
    A user with the role `edit` in the host namespace can create the same pod, and run it on a free GPU.
    """
    is_of_binder = pod.is_bound and pod.scheduler_name == keys.DEFAULT_SCHEDULER
    labelled = {pod.namespace: {VCLUSTER: VCLUSTER_HOST}}
    tenant = tenant_of(pod, labelled) if is_of_binder and pod.whole_gpus > 0 and pod.is_running else None
    if tenant is None or tenant.namespace != reservation_namespace:
        return ""
    return f"{one_line(tenant.vcluster)} in {pod.namespace}"


def inside_finding(vclusters: Mapping[str, str], *, is_served: bool | None) -> CheckResult:
    """Check a host whose tenants run KAI inside their vClusters.

    With KAI on the host the finding is a warning only: tenants can forge the pods from which it follows.

    Args:
        vclusters: vClusters with reservation pods, each with a pod; at least one.
        is_served: whether the host has the BindRequest API; None if unknown.
    """
    where = f"KAI runs inside vClusters ({listed(vclusters)})"
    if is_served is None:
        return unknown(_CHECK, f"{where}; unknown whether the host has KAI, too")
    if is_served:
        pods = [f"pod {pod} of {vcluster}" for vcluster, pod in vclusters.items()]
        return warning(
            _CHECK,
            f"the host has KAI's BindRequest API, and KAI seems to run inside vClusters, too ({listed(pods)})"
            ": a KAI on the host deletes the tenants' pods with a share and their reservation pods",
            "ask the owner of the pod first whether KAI runs inside the vCluster: every user who may create"
            " pods in the namespace can write such a pod. If so, see KAI inside vClusters in docs/install.md",
        )
    return ok(_CHECK, f"{where}; the host has no KAI, as required")


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource, in every namespace or in the agent's own."""

    verb: str
    resource: str
    without: str
    """Consequence of a missing right."""
    group: str = ""
    subresource: str = ""
    is_needed: bool = False
    is_in_own_namespace: bool = False

    def __str__(self) -> str:
        """Return the right in RBAC's words: `list bindrequests.scheduling.run.ai`, `create pods/eviction`."""
        group = f".{self.group}" if self.group else ""
        part = f"/{self.subresource}" if self.subresource else ""
        place = " in its own namespace" if self.is_in_own_namespace else ""
        return f"{self.verb} {self.resource}{group}{part}{place}"


def _right_to_get(kind: Kind) -> Right:
    return Right(verb="get", resource=kind.resource, without=kind.without)


def _right_to_bind_requests(verb: str) -> Right:
    resource, _, group = bind_requests.RESOURCE.partition(".")
    return Right(verb=verb, resource=resource, group=group, without=bind_requests.WITHOUT, is_needed=True)


_PODS: Final = "no GPU memory can be attributed to pods"
_NO_EVICTION: Final = "no pod can be evicted"
_EVENTS: Final = "flags appear in metrics, log and page only"

EVICTION_RIGHTS: Final = (
    Right(verb="create", resource="pods", subresource="eviction", without=_NO_EVICTION),
    Right(verb="get", resource="pods", without=_NO_EVICTION),
    Right(verb="create", resource="events", without=_NO_EVICTION, is_in_own_namespace=True),
    Right(
        verb="list",
        resource="events",
        without="after a restart, the eviction budget starts with one eviction",
        is_in_own_namespace=True,
    ),
)
RIGHTS: Final = (
    Right(verb="list", resource="pods", without=_PODS, is_needed=True),
    Right(verb="watch", resource="pods", without=_PODS, is_needed=True),
    _right_to_bind_requests("list"),
    _right_to_bind_requests("watch"),
    Right(verb="create", resource="events", without=_EVENTS, is_needed=True),
    Right(verb="patch", resource="events", without=_EVENTS, is_needed=True),
    _right_to_get(lookups.NODES),
    _right_to_get(lookups.NAMESPACES),
    *EVICTION_RIGHTS,
)


async def right_findings(client: KubeClient) -> list[CheckResult]:
    """Check each right of the agent's credentials with a SelfSubjectAccessReview."""
    return [await _finding(client, right, is_needed=right.is_needed) for right in RIGHTS]


async def _finding(client: KubeClient, right: Right, *, is_needed: bool) -> CheckResult:
    check = f"right to {right}"
    try:
        status = await review_right(
            client,
            verb=right.verb,
            resource=right.resource,
            group=right.group,
            subresource=right.subresource,
            namespace=client.namespace if right.is_in_own_namespace else "",
        )
    except (ApiError, Unreachable, AccessError) as error:
        return unknown(check, str(error))
    if status.allowed:
        return ok(check, "granted")
    if status.error:
        return unknown(check, one_line(status.error))
    if is_needed:
        return problem(check, f"not granted: {right.without}", _rule(right))
    return ok(check, f"not granted, which is optional: {right.without}")


def _rule(right: Right) -> str:
    resource = f"{right.resource}/{right.subresource}" if right.subresource else right.resource
    return (
        "bind a ClusterRole to the agent's service account with"
        f' {{apiGroups: ["{right.group}"], resources: [{resource}], verbs: [{right.verb}]}}'
    )


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
            *await right_findings(client),
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
