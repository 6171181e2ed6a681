"""Names of a pod inside its tenant's vCluster, for a host pod that vCluster synced. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuagent.pods.inventory import NodePod
from kai import keys
from kai.own_labels import VCLUSTER, VCLUSTER_HOST
from service.names import is_dns_subdomain


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A pod's names inside a vCluster."""

    vcluster: str
    namespace: str
    pod: str


def is_vcluster_host(namespace_labels: Mapping[str, str | None]) -> bool:
    """Whether an administrator has labelled a host namespace as that of a vCluster."""
    return namespace_labels.get(VCLUSTER) == VCLUSTER_HOST


def tenant_of(pod: NodePod, namespaces: Mapping[str, Mapping[str, str]]) -> Tenant | None:
    """Read the names that vCluster's syncer has written on a pod; None for a pod of no vCluster.

    Every user who may create pods can write the same keys. They count only in labelled host namespaces, where
    only the syncer creates pods; it overwrites a tenant's values of these keys (v0.36.1 `translator.go`). As
    in vCluster's own `IsManaged`, the annotations must name the pod itself. Tenants can choose the short
    `vcluster.loft.sh/name` and `namespace`, so these are not read.

    Args:
        pod: the host pod.
        namespaces: labels of the host namespaces that could be fetched.
    """
    if not is_vcluster_host(namespaces.get(pod.namespace, {})):
        return None
    about = pod.annotations
    if (about.get(keys.VCLUSTER_HOST_NAMESPACE), about.get(keys.VCLUSTER_HOST_NAME)) != pod.key:
        return None
    names = (
        pod.labels.get(keys.VCLUSTER_MANAGED_BY, ""),
        about.get(keys.VCLUSTER_OBJECT_NAMESPACE, ""),
        about.get(keys.VCLUSTER_OBJECT_NAME, ""),
    )
    if not all(map(is_dns_subdomain, names)):
        return None
    vcluster, namespace, name = names
    return Tenant(vcluster=vcluster, namespace=namespace, pod=name)
