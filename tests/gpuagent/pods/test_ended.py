"""Pods that are no longer listed, whose processes may go on."""

from collections.abc import Iterable

from gpuagent.pods.assemble import EndedPods
from gpuagent.pods.inventory import EndedPod, NodePod
from tests.support.samples import pod


def pods(*names: str) -> Iterable[NodePod]:
    return [pod(name, uid=name) for name in names]


def test_an_ended_pod_keeps_its_names() -> None:
    ended = EndedPods()
    labels = {"pod-template-hash": "abc"}
    ended.add(
        [pod("web-abc-1", uid="u", labels=labels, controller_kind="ReplicaSet", controller_name="web-abc")]
    )
    assert ended.without(()) == {"u": EndedPod("u", "team-a", "web-abc-1", "Deployment/web")}


def test_a_pod_has_ended_from_its_last_listing_to_the_next() -> None:
    ended = EndedPods()
    ended.add(pods("a", "b"))
    assert ended.without({"a", "b"}) == {}
    assert ended.without({"a"}).keys() == ended.without({"a"}).keys() == {"b"}
    assert ended.without({"a", "b"}) == {}


def test_a_pod_that_was_listed_only_between_two_inventories_has_ended() -> None:
    ended = EndedPods()
    ended.add(pods("a"))
    assert ended.without(()).keys() == {"a"}


def test_the_oldest_of_too_many_ended_pods_are_forgotten_and_no_listed_one() -> None:
    ended = EndedPods(most=2)
    ended.add(pods("listed", "a", "b", "c"))
    assert ended.without({"listed"}).keys() == {"b", "c"}
    ended.add(pods("d"))
    assert ended.without({"listed"}).keys() == {"c", "d"}
    assert ended.without({"d"}).keys() == {"listed", "c"}
