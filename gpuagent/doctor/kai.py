"""Checks of KAI for the agent: its release and GPU sharing, and KAI inside vClusters, from their host.

Measured with KAI 0.13.4 and 0.17.0 beside vCluster 0.36.1: a KAI on the host selects pods by the label
`runai-gpu-group` in the whole cluster, and deletes the tenants' pods with a share and their reservation pods
("Found pod without reservation, deleting").
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gpuagent.pods.decoding import read_pod
from gpuagent.pods.inventory import NodePod
from gpuagent.pods.objects import ObjectError
from gpuagent.pods.related import NAMESPACES
from gpuagent.pods.tenants import is_vcluster_host, tenant_of
from kai import keys
from kai.installation import NAMESPACE, Installation, SharingMode
from kai.own_labels import VCLUSTER, VCLUSTER_HOST
from kai.version import Version
from kube.client import KubeClient
from kube.doctor_checks import MODES, SHARING, VERSION, installed_mode, installed_release, option_text
from service.check_results import CheckResult, ok, problem, unknown, warning
from service.text import listed, one_line

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
