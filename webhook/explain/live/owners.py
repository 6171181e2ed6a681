"""Groups the objects of a cluster by their topmost owner. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

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
        return controller_of(self.ownerReferences or ())

    @property
    def owner_key(self) -> ObjectKey | None:
        """Namespace and uid of the owner; None without owners."""
        owner = self.owner
        return None if owner is None else (self.namespace, owner.uid or "")


def controller_of(owners: Sequence[OwnerReference]) -> OwnerReference | None:
    """Return the owner that is the controller, else the first one; None without owners."""
    return next((owner for owner in owners if owner.controller), owners[0] if owners else None)


@dataclass(slots=True)
class OwnerGraph:
    """The objects that were listed, each with its owner.

    The topmost owner of an object is found by climbing from owner to owner as far as objects were listed.
    Users may write any owner references, also circles. The topmost owner of a circle is the member that was
    added first.
    """

    _owners: dict[ObjectKey, ObjectKey | None] = field(default_factory=dict)
    _positions: dict[ObjectKey, int] = field(default_factory=dict)
    """Order of addition."""
    _tops: dict[ObjectKey, ObjectKey] = field(default_factory=dict)
    """Topmost owners that were found since the last addition."""

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._owners)

    def __contains__(self, key: ObjectKey) -> bool:
        """Whether the object was added."""
        return key in self._owners

    def add(self, key: ObjectKey, owner: ObjectKey | None) -> bool:
        """Add an object, unless it was added before; return whether it may be a topmost owner.

        An object whose owner was added earlier is never one, so that its content need not be kept.
        """
        if key in self._owners:
            return False
        may_be_top = owner is None or owner not in self._owners
        self._positions[key] = len(self._owners)
        self._owners[key] = owner
        self._tops.clear()
        return may_be_top

    def top(self, key: ObjectKey) -> ObjectKey:
        """Return the topmost owner of an object: the object itself if its owner was not added."""
        climbed: dict[ObjectKey, None] = {}
        here = key
        while (top := self._tops.get(here)) is None:
            if here in climbed:
                circle = list(climbed)
                top = min(circle[circle.index(here) :], key=self._positions.__getitem__)
                break
            climbed[here] = None
            owner = self._owners.get(here)
            if owner is None or owner not in self._owners:
                top = here
                break
            here = owner
        for below in climbed:
            self._tops[below] = top
        return top
