"""Pods and workloads that belong to an object without a namespace: KAI follows that owner to its queue."""

from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Final

import msgspec
from msgspec import Struct

from kai.pod import Owner
from kube.watch import METADATA_ONLY
from service.check_results import CheckResult, ok, warning
from service.text import counted, listed
from webhook.doctor.api_reader import ApiReader, Completeness, ListSpec
from webhook.doctor.cluster import Cluster
from webhook.policy.checks import CLUSTER_SCOPED_OWNERS, is_cluster_scoped

_CHECK: Final = "cluster-scoped owners"
_MIRROR_OWNER: Final = ("", "Node")
"""The kubelet makes its node the owner of a static pod's mirror."""


class _Metadata(Struct, frozen=True):
    name: str
    namespace: str = ""
    owners: list[Owner] | None = msgspec.field(name="ownerReferences", default=None)


class _Owned(Struct, frozen=True):
    metadata: _Metadata


_owned = msgspec.json.Decoder(_Owned).decode


async def owner_findings(
    reader: ApiReader, cluster: Cluster, kinds: Iterable[tuple[str, str, str]]
) -> AsyncIterator[CheckResult]:
    """Name pods and workloads of managed namespaces with an owner that is not namespaced.

    Args:
        reader: for the API server.
        cluster: what was read of it.
        kinds: group, version and resource of the workloads.
    """
    managed = frozenset(cluster.managed)
    if not managed:
        return
    is_known = True
    owned: list[str] = []
    for group, version, resource in (("", "v1", "pods"), *kinds):
        question = ListSpec(
            resource=resource,
            group=group,
            path=f"/apis/{group}/{version}/{resource}" if group else f"/api/{version}/{resource}",
            accept=METADATA_ONLY,
            without="whether workloads belong to an object without a namespace was not checked",
        )
        found = await reader.list(question, partial(_with_owner, managed=managed, resource=resource))
        is_known &= found.extent in (Completeness.WHOLE, Completeness.UNSERVED)
        owned += found.items
    if owned:
        yield warning(
            _CHECK,
            f"{counted(len(owned), 'object')} with an owner that is not namespaced, and KAI follows"
            f" the queue label of that owner: {listed(owned)}",
            "remove the owner reference; pods that run keep their queue",
        )
    elif is_known:
        yield ok(_CHECK, "no pod or workload of managed namespaces has one")


def _with_owner(item: bytes, managed: frozenset[str], resource: str) -> str | None:
    found = _owned(item).metadata
    if found.namespace not in managed:
        return None
    for owner in found.owners or ():
        is_mirror = resource == "pods" and (owner.group, owner.kind) == _MIRROR_OWNER
        if not is_mirror and is_cluster_scoped(owner, CLUSTER_SCOPED_OWNERS):
            return f"{resource.removesuffix('s')} {found.namespace}/{found.name} of {owner.kind} {owner.name}"
    return None
