"""The topmost owners of objects, for any owner references."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.explain.live.owners import OwnedMetadata, OwnerGraph, OwnerReference

Graph = Mapping[int, int | None]
"""Owners by object, in the order of addition. An owner may be missing."""


def graph_of(owners: Graph) -> OwnerGraph:
    graph = OwnerGraph()
    for item, owner in owners.items():
        graph.add(("ns", str(item)), None if owner is None else ("ns", str(owner)))
    return graph


@pytest.mark.parametrize(
    ("owners", "tops"),
    [
        ({1: None}, {1: 1}),
        ({1: None, 2: 1}, {1: 1, 2: 1}),
        ({2: 1, 1: None}, {1: 1, 2: 1}),
        ({3: 2, 2: 1, 1: None}, {1: 1, 2: 1, 3: 1}),
        ({2: 1}, {2: 2}),
        ({3: 2, 2: 1}, {3: 2, 2: 2}),
        ({1: 1}, {1: 1}),
        ({1: 2, 2: 1}, {1: 1, 2: 1}),
        ({2: 1, 1: 2, 3: 1}, {1: 2, 2: 2, 3: 2}),
        ({4: 3, 1: 3, 2: 1, 3: 2}, {1: 1, 2: 1, 3: 1, 4: 1}),
    ],
    ids=[
        "no owner",
        "owner first",
        "owner last",
        "owner of the owner",
        "owner not listed",
        "owner of the owner not listed",
        "itself",
        "circle of two",
        "below a circle",
        "circle of three, with an object before it",
    ],
)
def test_topmost_owner(owners: Graph, tops: Mapping[int, int]) -> None:
    graph = graph_of(owners)
    assert {item: int(graph.top(("ns", str(item)))[1]) for item in owners} == tops


def test_a_long_chain_and_a_long_circle() -> None:
    count = 100_000
    chain = graph_of({item: item + 1 for item in range(count)})
    assert chain.top(("ns", "0")) == ("ns", str(count - 1))
    circle = graph_of({item: (item + 1) % count for item in range(count)})
    assert {circle.top(("ns", str(item))) for item in range(0, count, 1000)} == {("ns", "0")}


def test_an_owner_in_another_namespace_does_not_count() -> None:
    graph = OwnerGraph()
    graph.add(("a", "owner"), None)
    metadata = OwnedMetadata(namespace="b", uid="owned", ownerReferences=[OwnerReference(uid="owner")])
    assert graph.add(metadata.key, metadata.owner_key)
    assert graph.top(metadata.key) == ("b", "owned")


def test_an_object_is_added_once() -> None:
    graph = graph_of({1: None, 2: None})
    assert not graph.add(("ns", "2"), ("ns", "1"))
    assert graph.top(("ns", "2")) == ("ns", "2")
    assert len(graph) == 2


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


@given(st.dictionaries(st.integers(0, 12), st.none() | st.integers(0, 14), max_size=13))
def test_any_graph(owners: Graph) -> None:
    graph = OwnerGraph()
    may_be_top = {
        item: graph.add(("ns", str(item)), None if owner is None else ("ns", str(owner)))
        for item, owner in owners.items()
    }
    tops = {item: int(graph.top(("ns", str(item)))[1]) for item in owners}
    for item, top in tops.items():
        assert tops[top] == top, "a topmost owner stands for itself"
        assert may_be_top[top], "its content was kept"
        owner = owners[item]
        if owner in owners:
            assert tops[owner] == top, "an object has its owner's topmost owner"
        else:
            assert top == item
        above = owners[top]
        assert above not in owners or tops[above] == top, (
            "a topmost owner has no listed owner, or is in a circle"
        )
