"""Parts that objects of all kinds have in common, as the API server sends them."""

from msgspec import Struct


class ObjectMeta(Struct, frozen=True, rename="camel"):
    """`metadata` of an object: what identifies it.

    A decoder that needs further fields declares a subclass, so that labels, annotations and owners are
    decoded only where they are used.
    """

    name: str
    namespace: str = ""
    """Empty for an object that is not namespaced."""


class VersionedMeta(ObjectMeta, frozen=True):
    """`metadata` of an object that is read to be patched."""

    resource_version: str = ""
    """Precondition of the patch; empty if the API server sent none."""
