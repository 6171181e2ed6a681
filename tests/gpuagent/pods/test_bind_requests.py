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
                {each.uid: each for each in pods}, dict(present), dict((*present, *deleted)),
                {("team-a", name) for name in unknown}, epoch=epoch, is_confirmed=lambda _uid: is_confirmed,
            )
        )  # fmt: skip


F, H, NEW = a_pod("forged"), a_pod("honest"), a_pod("new")
F_PENDING, F_PLAIN, LATE_PLAIN = (
    a_pod("forged", phase="Pending"),
    a_pod("forged", labels={}),
    a_pod("late", labels={}),
)
OWN = {"present": (bound("honest"),)}
KEPT = {"present": (bound("honest", EARLY),)}
OF_FORGED = bound("forged")
# pods, what else is seen, and which pods are known to be unplaced then
Step = tuple[tuple[NodePod, ...], dict[str, Any], set[str]]
EMPTY: Step = ((), {}, set())
DOUBTS = {
    "it has one": {"present": (OF_FORGED,)},
    "it had one": {"deleted": (OF_FORGED,)},
    "one without an owner": {"present": (bound("forged", pod_uid=""),)},
    "one of an earlier pod of the name": {"present": (bound("forged", pod_uid="x"),)},
    "a malformed one": {"unknown": ("forged",)},
    "the watch may be late": {"is_confirmed": False},
    "not to be asked": {"epoch": None},
    "a gap in the watch": {"epoch": 2},
}
BEFORE: dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]] = {
    "KAI keeps an older one": ({}, {"created": EARLY}, {FORGED}),
    "KAI keeps one of the same second": ({}, {}, {FORGED}),
    "the default scheduler's": ({"scheduler_name": OTHERS}, {"created": EARLY}, {FORGED}),
    "a copied condition": ({"scheduler_name": OTHERS, "has_bound_condition": True}, {}, {FORGED}),
    "all are newer: KAI was installed again": ({}, {"created": LATE}, set()),
    "KAI bound it": ({"has_bound_condition": True}, {"created": EARLY}, set()),
    "no times, KAI's scheduler": ({"created": ""}, {"created": ""}, set()),
    "no times, another's": ({"created": "", "scheduler_name": OTHERS}, {"created": ""}, {FORGED}),
}
HISTORIES: dict[str, list[Step]] = {
    "a pod that was seen to start without one": [((H,), OWN, set()), ((H, F_PENDING), OWN, set()), ((H, F), OWN, {FORGED})],
    "a pod that ran at first sight": [EMPTY, ((F,), {}, {FORGED})],
    "a label that is removed again or comes after the start": [
        EMPTY, ((F_PENDING,), {}, set()), ((F_PLAIN,), {}, {FORGED}), ((F_PLAIN, LATE_PLAIN), {}, {FORGED}),
        ((F, a_pod("late")), {}, {FORGED, uid_of("late")}),
    ],
    "a pod without a group label needs no such proof": [EMPTY, ((a_pod("plain", labels={}),), {}, set())],
    "what is known stays until a BindRequest appears: the watch breaks, and the last one seen counts": [
        EMPTY, ((F,), {}, {FORGED}), ((F,), {"epoch": None, "unknown": ("forged",)}, {FORGED}), ((F,), {"epoch": 2}, {FORGED}),
        ((F,), {"present": (OF_FORGED,), "epoch": 2}, set()), ((F,), {"deleted": (OF_FORGED,), "epoch": 2}, set()),
    ],
    "after a gap it was seen to appear before it: KAI may have created and deleted its BindRequest": [
        EMPTY, ((F_PENDING,), {}, set()), ((F,), {"epoch": 2}, set()),
    ],
    "a watch that fails and goes on without a gap; the other came while it failed": [
        EMPTY, ((F_PENDING,), {}, set()), ((F_PENDING, NEW), {"epoch": None, "unknown": ("forged", "new")}, set()),
        ((F, NEW), {}, {FORGED}),
    ],
    **{f"doubt about a pod that appeared: {name}": [EMPTY, ((F,), seen, set())] for name, seen in DOUBTS.items()},
    **{f"doubt about a pod that ran: {name}": [((F,), seen, set())] for name, seen in DOUBTS.items()},
    **{f"before the agent: {name}": [
        ((a_pod("forged", **forged), H), {"present": (bound("honest", **honest),)}, expected),
    ] for name, (forged, honest, expected) in BEFORE.items()},
    "only a running pod's one proves that KAI keeps them": [((F, a_pod("honest", phase="Pending")), KEPT, set())],
    "and none of a pod that has ended": [((F, a_pod("honest", phase="Succeeded")), KEPT, set())],
    "nor of another pod of the name": [((F, replace(H, uid="x")), KEPT, set())],
    "one that KAI deleted proves nothing": [((F, H), {"deleted": (bound("honest", EARLY),)}, set())],
}  # fmt: skip


@pytest.mark.parametrize("steps", HISTORIES.values(), ids=HISTORIES)
def test_unplaced_pods(steps: list[Step]) -> None:
    node = Node()
    for pods, seen, expected in steps:
        assert node.see(*pods, **seen) == expected


def test_ended_pods_are_forgotten() -> None:
    node = Node()
    node.see()
    node.see(a_pod("forged"))
    assert node.see(a_pod("forged", phase="Succeeded")) == set()
    node.see()
    assert node.unplaced._unplaced == set()
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
