"""Discovers the kinds that an API server serves, by its aggregated discovery."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

from kube.answers import decode_answer
from kube.client import KubeClient
from kube.metadata import resource_path

_DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
"""Asks for all groups in one answer (aggregated discovery, stable since Kubernetes 1.30)."""


class _ResponseKind(Struct):
    group: str = ""
    kind: str = ""


class _Resource(Struct):
    resource: str = ""
    scope: str = ""
    kind: _ResponseKind | None = msgspec.field(name="responseKind", default=None)


class _Version(Struct):
    version: str = ""
    resources: list[_Resource] = []


class _GroupName(Struct):
    name: str = ""


class _Group(Struct):
    metadata: _GroupName = msgspec.field(default_factory=_GroupName)
    versions: list[_Version] = []


class _Groups(Struct):
    items: list[_Group]


_groups = msgspec.json.Decoder(_Groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedKind:
    """A kind that the API server serves in one version of its group."""

    group: str
    """API group; empty for the core group."""
    version: str
    kind: str
    resource: str
    """Name in paths, such as `deployments`."""
    is_namespaced: bool

    @property
    def api_version(self) -> str:
        """The field apiVersion of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def path(self) -> str:
        """The path of the list of all its objects."""
        return resource_path(self.group, self.version, self.resource)

    def path_in(self, namespace: str) -> str:
        """Return the path of the list of its objects in a namespace."""
        return resource_path(self.group, self.version, self.resource, namespace)

    @property
    def name(self) -> str:
        """The resource with its group, as in `kubectl get`: `deployments.apps`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


async def discover_groups(client: KubeClient) -> list[ServedKind]:
    """Ask the API server for the kinds of all groups but the core group, preferred versions first.

    Every authenticated account may ask.

    Raises:
        ApiError, Unreachable, kube.access.AccessError: as `KubeClient.request`. An API server without
            aggregated discovery counts as unreachable.
    """
    path = "/apis"
    answer = await client.get(path, accept=_DISCOVERY)
    return [
        ServedKind(
            group=group,
            version=version,
            kind=resource.kind.kind,
            resource=resource.resource,
            is_namespaced=resource.scope == "Namespaced",
        )
        for group, version, resource in _resources(answer, path)
        if resource.kind is not None
    ]


def _resources(answer: bytes, path: str) -> Iterator[tuple[str, str, _Resource]]:
    """Yield each resource of an answer with its group and version."""
    for group in decode_answer(_groups, answer, f"GET {path}", expected="aggregated discovery").items:
        for version in group.versions:
            for resource in version.resources:
                yield group.metadata.name, version.version, resource
