"""Checks of KAI inside vClusters, from their host: tenants' reservation pods, and no KAI on the host itself.

Measured with KAI 0.13.4 and 0.17.0 beside vCluster 0.36.1: a KAI on the host selects pods by the label
`runai-gpu-group` in the whole cluster, and deletes the tenants' pods with a share and their reservation pods
("Found pod without reservation, deleting").
"""

from collections.abc import Collection
from typing import Final

import msgspec
from msgspec import Struct

from gpuagent.pods.decoding import read_pod
from gpuagent.pods.inventory import NodePod
from gpuagent.pods.objects import ObjectError
from gpuagent.pods.tenants import tenant_of
from kai import keys
from kube.client import KubeClient
from kube.errors import ApiError, decode_answer
from service.check_results import CheckResult, ok, problem, unknown
from service.text import one_line

_CHECK: Final = "KAI"
_BIND_REQUESTS: Final = "bindrequests"
_GROUP_VERSION: Final = "/apis/scheduling.run.ai/v1alpha2"
_NOT_FOUND: Final = 404
_NAMES_SHOWN: Final = 5


class _Resource(Struct):
    name: str = ""


class _Resources(Struct):
    resources: list[_Resource] = []


_resources = msgspec.json.Decoder(_Resources)


async def vclusters_with_kai(client: KubeClient, *, node: str, reservation_namespace: str) -> frozenset[str]:
    """Return the vClusters with reservation pods of their own, by name and host namespace.

    All nodes are searched by KAI's label `app`. On this node, pods without that label are found, too.

    Raises:
        ApiError, Unreachable, kube.access.AccessError: the pods cannot be listed.
    """
    vclusters: set[str] = set()
    managed = keys.VCLUSTER_MANAGED_BY
    for params in (
        {"labelSelector": f"{managed},{keys.APP_LABEL}={keys.RESERVATION_APP}"},
        {"labelSelector": f"{managed},{keys.GPU_GROUP}", "fieldSelector": f"spec.nodeName={node}"},
    ):
        async with client.list_objects("/api/v1/pods", params=params) as items:
            async for item in items:
                try:
                    pod = read_pod(item)
                except ObjectError:
                    continue  # the check of the node's pods reports it
                tenant = tenant_of(pod) if _may_reserve(pod) else None
                if tenant and tenant.namespace == reservation_namespace:
                    vclusters.add(f"{one_line(tenant.vcluster)} in {pod.namespace}")
    return frozenset(vclusters)


def _may_reserve(pod: NodePod) -> bool:
    """Whether a pod can be a reservation pod of KAI's.

    KAI creates them with a node, a GPU and the default scheduler (v0.9.8, v0.13.4 and v0.17.0). Every tenant
    can write the labels and the namespace, and the advice must not follow from these alone.
    """
    is_of_binder = pod.is_bound and pod.scheduler_name == keys.DEFAULT_SCHEDULER
    return is_of_binder and pod.whole_gpus > 0 and not pod.is_finished


async def serves_bind_requests(client: KubeClient) -> bool:
    """Whether the cluster has KAI's BindRequest API. Every authenticated account may ask (system:discovery).

    Raises:
        ApiError, Unreachable, kube.access.AccessError: the API server does not answer.
    """
    try:
        answer = await client.get(_GROUP_VERSION)
    except ApiError as error:
        if error.status == _NOT_FOUND:
            return False
        raise
    served = decode_answer(_resources, answer, f"GET {_GROUP_VERSION}", expected="a list of resources")
    return any(resource.name == _BIND_REQUESTS for resource in served.resources)


def inside_finding(vclusters: Collection[str], *, is_served: bool | None) -> CheckResult:
    """Check a host whose tenants run KAI inside their vClusters.

    Args:
        vclusters: vClusters with reservation pods; at least one.
        is_served: whether the host has the BindRequest API; None if unknown.
    """
    names = sorted(vclusters)
    more = f" and {len(names) - _NAMES_SHOWN} more" if names[_NAMES_SHOWN:] else ""
    where = f"KAI runs inside vClusters ({', '.join(names[:_NAMES_SHOWN])}{more})"
    if is_served is None:
        return unknown(_CHECK, f"{where}; unknown whether the host has KAI, too")
    if is_served:
        return problem(
            _CHECK,
            f"{where}, and the host has KAI's BindRequest API: a KAI on the host deletes the tenants' pods"
            " with a share and their reservation pods",
            "uninstall KAI and its CRDs on the host; the tenants' KAI does not need them",
        )
    return ok(_CHECK, f"{where}; the host has no KAI, as required")
