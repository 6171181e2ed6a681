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
    resource_version: str = ""
    """Empty for an object that is not stored, as in the answer to a dry run."""
