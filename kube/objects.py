"""Parts that objects of all kinds have in common, as the API server sends them."""

from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

Time = Annotated[datetime, Meta(tz=True)]
"""A time as the API server writes it, with a time zone; one without is an error, as it cannot be compared."""


class ObjectMeta(Struct, frozen=True, rename="camel"):
    """`metadata` of an object: what identifies it.

    A decoder that needs further fields uses a subclass, so that labels, annotations and owners are decoded
    only where they are used.
    """

    name: str
    namespace: str = ""
    """Empty for an object that is not namespaced."""


class VersionedMeta(ObjectMeta, frozen=True):
    """`metadata` of an object that is read to be patched."""

    resource_version: str = ""
    """Precondition of the patch; empty if the API server sent none."""


class LabelledMeta(ObjectMeta, frozen=True):
    """`metadata` with labels."""

    labels: dict[str, str] = {}


class ObjectOwner(Struct, frozen=True, rename="camel"):
    """One of `metadata.ownerReferences`."""

    api_version: str
    kind: str
    name: str
    controller: bool = False

    @property
    def group_kind(self) -> tuple[str, str]:
        """API group and kind; the group is empty for the core group."""
        return self.api_version.rpartition("/")[0], self.kind


class FullMeta(LabelledMeta, frozen=True):
    """`metadata` with all that decides about pods. Its annotations may be large."""

    annotations: dict[str, str] = {}
    owner_references: list[ObjectOwner] = []
    deletion_timestamp: str = ""
    """Time from which the object is being deleted; empty if it is not."""


class Taint(Struct, frozen=True):
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


class PartialObject(Struct, frozen=True):
    """An object of which only the metadata is read (PartialObjectMetadata of Kubernetes)."""

    metadata: FullMeta


decode_partial_object = msgspec.json.Decoder(PartialObject).decode


def resource_path(group: str, version: str, resource: str, namespace: str = "") -> str:
    """Return the path of the list of a kind's objects, in one namespace or in all.

    Args:
        group: API group; empty for the core group.
        version: API version, such as `v1`.
        resource: name in paths, such as `deployments`.
        namespace: the namespace; empty for all, and for a kind without namespaces.
    """
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    return f"{root}/namespaces/{namespace}/{resource}" if namespace else f"{root}/{resource}"
