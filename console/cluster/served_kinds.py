"""Discovers the kinds that an API server serves, by its aggregated discovery."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Struct

from kube.answers import decode_answer
from kube.client import KubeClient
from kube.metadata import resource_path

_DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
"""Asks for all groups in one answer (aggregated discovery, stable since Kubernetes 1.30)."""


class _ResponseKind(Struct):
    kind: str = ""


class _Resource(Struct):
    resource: str = ""
    scope: str = ""
    kind: _ResponseKind | None = msgspec.field(name="responseKind", default=None)


class _Version(Struct):
    version: str = ""
    resources: list[_Resource] = []


class _Group(Struct):
    metadata: dict[str, Any] = {}
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

    Every authenticated account may ask. Raises as `KubeClient.request`; an API server without aggregated
    discovery counts as unreachable.
    """
    answer = await client.get("/apis", accept=_DISCOVERY)
    return [
        ServedKind(
            group=str(group.metadata.get("name", "")),
            version=version.version,
            kind=resource.kind.kind,
            resource=resource.resource,
            is_namespaced=resource.scope == "Namespaced",
        )
        for group in decode_answer(_groups, answer, "GET /apis", expected="aggregated discovery").items
        for version in group.versions
        for resource in version.resources
        if resource.kind is not None
    ]
