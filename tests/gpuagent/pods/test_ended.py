"""Pods that are no longer listed, whose processes may go on."""

from gpuagent.pods.assemble import EndedPods


def test_a_pod_has_ended_from_its_last_listing_to_the_next() -> None:
    ended = EndedPods()
    ended.add(["a", "b"])
    assert ended.without({"a", "b"}) == frozenset()
    assert ended.without({"a"}) == ended.without({"a"}) == {"b"}
    assert ended.without({"a", "b"}) == frozenset()


def test_a_pod_that_was_listed_only_between_two_inventories_has_ended() -> None:
    ended = EndedPods()
    ended.add(["a"])
    assert ended.without(()) == {"a"}


def test_the_oldest_of_too_many_ended_pods_are_forgotten_and_no_listed_one() -> None:
    ended = EndedPods(most=2)
    ended.add(["listed", "a", "b", "c"])
    assert ended.without({"listed"}) == {"b", "c"}
    ended.add(["d"])
    assert ended.without({"listed"}) == {"c", "d"}
    assert ended.without({"d"}) == {"listed", "c"}
