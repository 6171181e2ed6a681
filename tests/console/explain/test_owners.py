"""The owner of an object, for any owner references."""

import pytest

from console.explain.explainer import OwnedMetadata, OwnerReference


@pytest.mark.parametrize(
    ("references", "uid"),
    [
        ([], None),
        ([OwnerReference(uid="a")], "a"),
        ([OwnerReference(uid="a"), OwnerReference(uid="b", controller=True)], "b"),
        ([OwnerReference(uid="a", controller=False), OwnerReference(uid="b")], "a"),
        ([OwnerReference(uid=str(number)) for number in range(1000)], "0"),
    ],
)
def test_owner_of_an_object(references: list[OwnerReference], uid: str | None) -> None:
    owner = OwnedMetadata(ownerReferences=references).owner
    assert (owner.uid if owner else None) == uid
