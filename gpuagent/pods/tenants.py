"""Names of a pod inside its tenant's vCluster, for a host pod that vCluster synced. Pure."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from gpuagent.pods.inventory import NodePod
from kai import keys
from service.names import LONGEST_LABEL, is_dns_subdomain

_HASH_DIGITS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A pod's names inside a vCluster."""

    vcluster: str
    namespace: str
    pod: str


def tenant_of(pod: NodePod) -> Tenant | None:
    """Read the names from annotations that vCluster's syncer overwrites, so that tenants cannot forge them.

    As in vCluster's own `IsManaged`, the pod must have the label, and its annotations must name the pod
    itself; a copy of another pod's annotations is thus ignored. Tenants can choose the short
    `vcluster.loft.sh/name` and `namespace` (v0.36.1 `translator.go`), so these are not read.
    """
    vcluster = pod.labels.get(keys.VCLUSTER_MANAGED_BY)
    if not vcluster:
        return None
    about = pod.annotations
    if about.get(keys.VCLUSTER_HOST_NAME) != pod.name:
        return None
    if about.get(keys.VCLUSTER_HOST_NAMESPACE) != pod.namespace:
        return None
    namespace, name = about.get(keys.VCLUSTER_OBJECT_NAMESPACE, ""), about.get(keys.VCLUSTER_OBJECT_NAME, "")
    if not is_dns_subdomain(namespace) or not is_dns_subdomain(name):
        return None  # not written by vCluster: a host pod may have any annotation
    return Tenant(vcluster=vcluster, namespace=namespace, pod=name)


@lru_cache(maxsize=256)
def namespace_label_key(vcluster: str, key: str) -> str:
    """Return the label with which vCluster mirrors a label of a virtual namespace onto its host pods.

    As in vCluster's `SafeConcatName` (v0.36.1), a name that is too long is cut, and ends in a hash of the
    whole name.
    """
    name = "-".join(("vcluster.loft.sh/ns-label", vcluster, "x", _hash(key)))
    if len(name) <= LONGEST_LABEL:
        return name
    return f"{name[: LONGEST_LABEL - 1 - _HASH_DIGITS]}-{_hash(name)}".replace(".-", "-")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]
