"""The last BindRequest of each pod, and pods that started without one: when its absence is proof."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gpuagent.pods.bind_requests import LastBindRequests, UnplacedPods
from gpuagent.pods.inventory import BindRequest, Key, NodePod
from tests.support.samples import pod, uid_of

GROUP = {"runai-gpu-group": "ga"}
EARLY, NOON, LATE = "2026-11-28T08:00:00Z", "2026-11-28T12:00:00Z", "2026-11-28T18:00:00Z"
FORGED, HONEST = uid_of("forged"), uid_of("honest")
OTHERS = "default-scheduler"


def a_pod(name: str, created: str = NOON, **fields: Any) -> NodePod:
    return pod(name, **{"labels": GROUP, "created": created, "scheduler_name": "kai-scheduler", **fields})


def bound(name: str, created: str = NOON, **fields: Any) -> tuple[Key, BindRequest]:
    own = {"pod_uid": uid_of(name), "portion": "0.50", "count": 1, "groups": ("ga",), **fields}
    return ("team-a", name), BindRequest(created=created, **own)


@dataclass
class Node:
    """A node's pods and BindRequests, as they are read again and again."""

    unplaced: UnplacedPods = field(default_factory=UnplacedPods)

    def see(
        self,
        *pods: NodePod,
        present: tuple[tuple[Key, BindRequest], ...] = (),
        deleted: tuple[tuple[Key, BindRequest], ...] = (),
        unknown: tuple[str, ...] = (),
        epoch: object = 1,
        is_confirmed: bool = True,
    ) -> set[str]:
        return set(
            self.unplaced.of(
                {each.uid: each for each in pods},
                dict(present),
                dict((*present, *deleted)),
                {("team-a", name) for name in unknown},
                epoch=epoch,
                is_confirmed=lambda _uid: is_confirmed,
            )
        )


def test_a_pod_that_was_seen_to_start_without_one() -> None:
    node, honest = Node(), a_pod("honest")
    pending = a_pod("forged", phase="Pending")
    assert node.see(honest, present=(bound("honest"),)) == set()
    assert node.see(honest, pending, present=(bound("honest"),)) == set(), "it has not started"
    assert node.see(honest, a_pod("forged"), present=(bound("honest"),)) == {FORGED}


def test_a_pod_that_ran_at_first_sight() -> None:
    node = Node()
    node.see()
    assert node.see(a_pod("forged")) == {FORGED}


def test_a_label_that_is_removed_again_or_comes_after_the_start() -> None:
    node = Node()
    node.see()
    node.see(a_pod("forged", phase="Pending"))
    assert node.see(a_pod("forged", labels={})) == {FORGED}
    assert node.see(a_pod("forged", labels={}), a_pod("late", labels={})) == {FORGED}
    assert node.see(a_pod("forged"), a_pod("late")) == {FORGED, uid_of("late")}


def test_a_pod_without_a_group_label_needs_no_such_proof() -> None:
    node = Node()
    node.see()
    assert node.see(a_pod("plain", labels={})) == set()


def test_what_is_once_known_stays_until_a_bind_request_appears() -> None:
    node, forged = Node(), a_pod("forged")
    node.see()
    assert node.see(forged) == {FORGED}
    assert node.see(forged, epoch=None, unknown=("forged",)) == {FORGED}, "the watch broke"
    assert node.see(forged, epoch=2) == {FORGED}
    assert node.see(forged, present=(bound("forged"),), epoch=2) == set()
    assert node.see(forged, deleted=(bound("forged"),), epoch=2) == set(), "the last one seen counts"
    node.see()
    assert node.unplaced._unplaced == set()


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param({"present": (bound("forged"),)}, id="it has one"),
        pytest.param({"deleted": (bound("forged"),)}, id="it had one"),
        pytest.param({"present": (bound("forged", pod_uid=""),)}, id="one without an owner"),
        pytest.param({"present": (bound("forged", pod_uid="x"),)}, id="one of an earlier pod of the name"),
        pytest.param({"unknown": ("forged",)}, id="a malformed one"),
        pytest.param({"is_confirmed": False}, id="the watch may be late"),
        pytest.param({"epoch": None}, id="not to be asked"),
        pytest.param({"epoch": 2}, id="a gap in the watch"),
    ],
)
def test_doubt_about_a_pod_that_appeared(seen: dict[str, Any]) -> None:
    node = Node()
    node.see()
    assert node.see(a_pod("forged"), **seen) == set()
    assert Node().see(a_pod("forged"), **seen) == set()


def test_after_a_gap_a_pod_that_was_there_before_is_still_one_that_was_seen_to_appear_before_it() -> None:
    """KAI may have created and deleted its BindRequest in the gap."""
    node = Node()
    node.see()
    node.see(a_pod("forged", phase="Pending"))
    assert node.see(a_pod("forged"), epoch=2) == set()


def test_a_watch_that_fails_and_goes_on_without_a_gap() -> None:
    node = Node()
    node.see()
    node.see(a_pod("forged", phase="Pending"))
    node.see(a_pod("forged", phase="Pending"), a_pod("new"), epoch=None, unknown=("forged", "new"))
    assert node.see(a_pod("forged"), a_pod("new")) == {FORGED}, "the other came while it failed"


@pytest.mark.parametrize(
    ("forged", "honest", "expected"),
    [
        pytest.param({}, {"created": EARLY}, {FORGED}, id="KAI keeps an older one"),
        pytest.param({}, {}, {FORGED}, id="KAI keeps one of the same second"),
        pytest.param({"scheduler_name": OTHERS}, {"created": EARLY}, {FORGED}, id="the default scheduler's"),
        pytest.param(
            {"scheduler_name": OTHERS, "has_bound_condition": True}, {}, {FORGED}, id="a copied condition"
        ),
        pytest.param({}, {"created": LATE}, set(), id="all are newer: KAI was installed again"),
        pytest.param({"has_bound_condition": True}, {"created": EARLY}, set(), id="KAI bound it"),
        pytest.param({"created": ""}, {"created": ""}, set(), id="no times, KAI's scheduler"),
        pytest.param(
            {"created": "", "scheduler_name": OTHERS}, {"created": ""}, {FORGED}, id="no times, another's"
        ),
    ],
)
def test_a_pod_that_ran_before_the_agent(
    forged: dict[str, Any], honest: dict[str, Any], expected: set[str]
) -> None:
    pods = a_pod("forged", **forged), a_pod("honest")
    assert Node().see(*pods, present=(bound("honest", **honest),)) == expected


@pytest.mark.parametrize(
    "honest",
    [
        pytest.param(a_pod("honest", phase="Pending"), id="it has not started"),
        pytest.param(a_pod("honest", phase="Succeeded"), id="it has ended"),
        pytest.param(replace(a_pod("honest"), uid="x"), id="another pod of the name"),
    ],
)
def test_only_the_bind_request_of_a_running_pod_proves_that_kai_keeps_them(honest: NodePod) -> None:
    assert Node().see(a_pod("forged"), honest, present=(bound("honest", EARLY),)) == set()


def test_a_bind_request_that_kai_deleted_proves_nothing() -> None:
    pods = a_pod("forged"), a_pod("honest")
    assert Node().see(*pods, deleted=(bound("honest", EARLY),)) == set()


def test_ended_pods_are_forgotten() -> None:
    node = Node()
    node.see()
    node.see(a_pod("forged"))
    assert node.see(a_pod("forged", phase="Succeeded")) == set()
    node.see()
    assert not node.unplaced._appeared
    assert not node.unplaced._labelled


def test_a_bind_request_whose_status_changed_waits_for_its_pod_like_any_other() -> None:
    """Such a change adds an equal BindRequest, and the current one stays the object from before."""
    last, train, other = LastBindRequests(), pod("train"), pod("other")
    current = dict([bound("train")])
    last.add(*bound("train"))
    assert last.of({other.uid: other}, current) == current
    assert last.of({train.uid: train}, {}) == current
    last.add(*bound("train"))
    assert last.of({other.uid: other}, {}) == {}
    assert last.of({train.uid: train}, {}) == {}, "KAI deleted it before its pod was listed"
