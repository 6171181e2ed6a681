"""What identifies an object of a cluster, and its owner. Pure."""

from msgspec import Struct

from kai.pod import Owner
from service.text import one_line

_NAME_SHOWN = 63

ObjectKey = tuple[str, str]
"""Namespace and uid. An owner in another namespace does not count, as in Kubernetes' garbage collector."""


class OwnerReference(Owner):
    """One of `metadata.ownerReferences`, with what identifies the owner."""

    uid: str | None = None
    controller: bool | None = None

    @property
    def title(self) -> str:
        """Kind and name in one line."""
        return f"{one_line(self.kind or '', _NAME_SHOWN)} {one_line(self.name or '', _NAME_SHOWN)}"


class OwnedMetadata(Struct):
    """`metadata` of an object: what identifies it, and its owners."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    ownerReferences: list[OwnerReference] | None = None  # noqa: N815 - the name in JSON

    @property
    def key(self) -> ObjectKey:
        """Namespace and uid."""
        return self.namespace, self.uid

    @property
    def owner(self) -> OwnerReference | None:
        """The controller, else the first owner; None without owners."""
        owners = self.ownerReferences or ()
        return next((owner for owner in owners if owner.controller), owners[0] if owners else None)

    @property
    def owner_key(self) -> ObjectKey | None:
        """Namespace and uid of the owner; None without owners."""
        owner = self.owner
        return None if owner is None else (self.namespace, owner.uid or "")


class OwnedObject(Struct):
    """The part of an object that identifies it."""

    metadata: OwnedMetadata
