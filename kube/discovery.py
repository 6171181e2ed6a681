"""Discovers the kinds that are not namespaced, by the API server's aggregated discovery."""

from typing import Final

import msgspec
from msgspec import Struct

from kai.scopes import GroupKind
from kube.client import KubeClient
from kube.errors import Unreachable
from service.text import MALFORMED, one_line

_DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
"""Asks for all groups in one answer (aggregated discovery, stable since Kubernetes 1.30)."""
_PATHS: Final = ("/api", "/apis")


class _ResponseKind(Struct):
    group: str = ""
    kind: str = ""


class _Resource(Struct):
    scope: str = ""
    kind: _ResponseKind | None = msgspec.field(name="responseKind", default=None)


class _Version(Struct):
    resources: list[_Resource] = []


class _Group(Struct):
    versions: list[_Version] = []


class _Groups(Struct):
    items: list[_Group]


_groups = msgspec.json.Decoder(_Groups)


async def discover_cluster_scoped(client: KubeClient) -> frozenset[GroupKind]:
    """Ask the API server which kinds are not namespaced. Every authenticated account may ask.

    Raises:
        ApiError, Unreachable, kube.access.AccessError: as `KubeClient.request`. An API server without
            aggregated discovery counts as unreachable.
    """
    kinds: set[GroupKind] = set()
    for path in _PATHS:
        kinds |= _cluster_scoped(await client.get(path, accept=_DISCOVERY), path)
    return frozenset(kinds)


def _cluster_scoped(answer: bytes, path: str) -> set[GroupKind]:
    try:
        groups = _groups.decode(answer).items
    except MALFORMED as error:
        raise Unreachable(f"GET {path}: no aggregated discovery: {one_line(str(error))}") from None
    return {
        (resource.kind.group, resource.kind.kind)
        for group in groups
        for version in group.versions
        for resource in version.resources
        if resource.scope == "Cluster" and resource.kind is not None
    }
