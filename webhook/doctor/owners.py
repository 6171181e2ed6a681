"""Checks for pods and workloads with an owner that is not namespaced.

KAI takes the queue from such an owner's label instead of the pod's.
"""

from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from kai.pod import Owner
from kube.objects import ObjectMeta
from kube.watch import METADATA_ONLY
from service.check_results import CheckResult, ok, warning
from service.text import counted, listed
from webhook.doctor.api_reader import ApiReader, Completeness, ListSpec
from webhook.doctor.cluster import Cluster
from webhook.policy.checks import CLUSTER_SCOPED_OWNERS, is_cluster_scoped

_CHECK: Final = "cluster-scoped owners"
_MIRROR_OWNER: Final = ("", "Node")
"""Group and kind of a mirror pod's owner: the kubelet sets its node as the owner."""


class _Metadata(ObjectMeta, frozen=True):
    owner_references: list[Owner] | None = None


class _Owned(Struct, frozen=True):
    metadata: _Metadata


_owned = msgspec.json.Decoder(_Owned).decode


async def owner_findings(
    reader: ApiReader, cluster: Cluster, kinds: Iterable[tuple[str, str, str]]
) -> AsyncIterator[CheckResult]:
    """Yield a warning about pods and workloads of managed namespaces with an owner that is not namespaced.

    Args:
        reader: for the API server.
        cluster: the state of the cluster.
        kinds: group, version and resource of each workload kind.
    """
    managed = frozenset(cluster.managed)
    if not managed:
        return
    is_known = True
    owned: list[str] = []
    for group, version, resource in (("", "v1", "pods"), *kinds):
        spec = ListSpec(
            resource=resource,
            group=group,
            path=f"/apis/{group}/{version}/{resource}" if group else f"/api/{version}/{resource}",
            accept=METADATA_ONLY,
            is_namespaced=True,
            without="owners of workloads that are not namespaced were not checked",
        )
        objects = await reader.list(spec, partial(_with_owner, managed=managed, resource=resource))
        is_known &= objects.extent in (Completeness.WHOLE, Completeness.UNSERVED)
        owned += objects.items
    if owned:
        yield warning(
            _CHECK,
            f"{counted(len(owned), 'object')} with an owner that is not namespaced; KAI uses"
            f" that owner's queue label: {listed(owned)}",
            "remove the owner reference; running pods keep their queue",
        )
    elif is_known:
        yield ok(_CHECK, "no pod and no workload of a checked kind in a managed namespace has one")


def _with_owner(item: bytes, managed: frozenset[str], resource: str) -> str | None:
    """Describe a managed namespace's object and its first owner that is not namespaced; None without one."""
    metadata = _owned(item).metadata
    if metadata.namespace not in managed:
        return None
    title = f"{resource.removesuffix('s')} {metadata.namespace}/{metadata.name}"
    for owner in metadata.owner_references or ():
        is_mirror = resource == "pods" and (owner.group, owner.kind) == _MIRROR_OWNER
        if not is_mirror and is_cluster_scoped(owner, CLUSTER_SCOPED_OWNERS):
            return f"{title} of {owner.kind} {owner.name}"
    return None
