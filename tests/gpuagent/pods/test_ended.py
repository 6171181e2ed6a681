"""Pods that are no longer listed, whose processes may go on."""

from gpuagent.pods.ended import EndedPods


def test_a_pod_has_ended_from_its_last_listing_to_the_next() -> None:
    ended = EndedPods()
    ended.see(["a", "b"])
    assert ended.after({"a", "b"}) == frozenset()
    assert ended.after({"a"}) == ended.after({"a"}) == {"b"}
    assert ended.after({"a", "b"}) == frozenset()


def test_a_pod_that_was_listed_only_between_two_inventories_has_ended() -> None:
    ended = EndedPods()
    ended.see(["a"])
    assert ended.after(()) == {"a"}


def test_the_oldest_of_too_many_ended_pods_are_forgotten_and_no_listed_one() -> None:
    ended = EndedPods(most=2)
    ended.see(["listed", "a", "b", "c"])
    assert ended.after({"listed"}) == {"b", "c"}
    ended.see(["d"])
    assert ended.after({"listed"}) == {"c", "d"}
    assert ended.after({"d"}) == {"listed", "c"}
