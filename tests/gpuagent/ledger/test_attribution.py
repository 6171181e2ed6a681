"""Owner of a process, by its cgroup path."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.ledger.attribution import PodIndex
from gpuagent.pods.inventory import EndedPod, NodePod
from gpuagent.sampling.sample import LookupResult, Origin
from tests.support.inventories import inventory
from tests.support.kube_objects import pod, reservation, uid

HASH = "2732ca68f6358eba7703fb6f82a25c94"
LEAF, OTHER_LEAF = "0f" * 32, "1e" * 32


def origin(*pods: str, container: str = "") -> Origin:
    return Origin(result=LookupResult.CONTAINER, pod_uids=pods, container_id=container)


def statuses(*ids: str) -> list[dict[str, str]]:
    return [{"name": "main", "containerID": f"containerd://{leaf}"} for leaf in ids]


def mirror(name: str, number: int, hash_: str = HASH, *, is_mirror: bool = True) -> dict[str, object]:
    annotations = {"kubernetes.io/config.hash": hash_}
    if is_mirror:
        annotations["kubernetes.io/config.mirror"] = hash_
    return pod(name, number, annotations=annotations)


INDEX = PodIndex.from_inventory(
    inventory(
        pod("a", 1, containerStatuses=statuses(LEAF)), pod("b", 2, containerStatuses=statuses(OTHER_LEAF)),
        pod("done", 3, phase="Succeeded"), mirror("static", 4), reservation(number=900),
    )
)  # fmt: skip


@pytest.mark.parametrize(
    ("process_origin", "name"),
    [
        (origin(uid(1)), "a"), (origin(uid(3)), "done"), (origin(HASH), "static"), (origin(uid(4)), "static"),
        (origin(uid(1), uid(2)), "a"), (origin(uid(2), uid(1)), "b"), (origin(uid(77), uid(2)), "b"),
        (origin(container=LEAF), "a"), (origin(uid(2), container=LEAF), "b"), (origin(uid(77), container=LEAF), None),
        (origin(uid(77)), None), (origin(), None), (origin(container="2d" * 32), None),
    ],
    ids=[
        "by UID", "a finished pod", "a static pod by its hash", "a static pod by its mirror's UID",
        "the outermost of two", "the outermost of two, turned", "the outermost known pod",
        "by container where no pod is named", "the pod counts before the container",
        "a container never counts beside a pod, though unknown", "an unknown UID", "no name at all",
        "an unknown container",
    ],
)  # fmt: skip
def test_the_owner_of_a_process(process_origin: Origin, name: str | None) -> None:
    owner = INDEX.pod_of(process_origin)
    assert (owner.name if isinstance(owner, NodePod) else owner) == name


def test_a_reservation_pods_process_is_its_own() -> None:
    assert INDEX.pod_of(origin(uid(900))) is None
    assert INDEX.pod_of(origin(uid(900), uid(1))) is None
    assert INDEX.pod_of(origin(uid(1), uid(900))) is not None
    document = reservation(annotations={"kubernetes.io/config.hash": HASH})
    assert PodIndex.from_inventory(inventory(document)).pod_of(origin(HASH)) is None


STATIC, COPIED, COPIED_UID = (
    mirror("static", 4),
    mirror("forged", 5, is_mirror=False),
    mirror("forged", 5, uid(1)),
)
CLAIMED = [pod(name, number, containerStatuses=statuses(LEAF)) for name, number in (("a", 1), ("b", 2))]
FORGED: dict[str, tuple[list[dict[str, object]], Origin, str | None]] = {
    "a copied hash takes no static pod's processes": ([STATIC, COPIED], origin(HASH), "static"),
    "in any order": ([COPIED, STATIC], origin(HASH), "static"),
    "two mirror pods of one hash own none": ([mirror("a", 4), mirror("b", 5)], origin(HASH), None),
    "a hash that is another pod's UID": ([COPIED_UID, pod("victim", 1)], origin(uid(1)), "victim"),
    "the same, and no mirror": ([mirror("forged", 5, uid(1), is_mirror=False)], origin(uid(1)), None),
    "a container that two pods claim": (CLAIMED, origin(container=LEAF), None),
}


@pytest.mark.parametrize(("documents", "process_origin", "name"), FORGED.values(), ids=FORGED)
def test_forged_names(documents: list[dict[str, object]], process_origin: Origin, name: str | None) -> None:
    owner = PodIndex.from_inventory(inventory(*documents)).pod_of(process_origin)
    assert (owner.name if isinstance(owner, NodePod) else None) == name


@given(st.lists(st.sampled_from([uid(1), uid(2), uid(4), uid(77), HASH, uid(900)]), max_size=5), st.data())
def test_nested_cgroups_do_not_change_the_owner(path: list[str], data: st.DataObject) -> None:
    below = data.draw(st.lists(st.sampled_from([uid(1), uid(2), HASH, uid(900)]), max_size=3))
    owner = INDEX.pod_of(origin(*path))
    if owner is not None:
        assert INDEX.pod_of(origin(*path, *below)) is owner


def test_an_ended_pod_is_still_the_outermost_one() -> None:
    victim = inventory(pod("a", 1))
    index = PodIndex.from_inventory(replace(victim, ended={uid(2): EndedPod(uid(2), "team-a", "gone", "")}))
    assert index.pod_of(origin(uid(2), uid(1))) == EndedPod(uid(2), "team-a", "gone", "")
    assert index.pod_of(origin(uid(1), uid(2))) is victim.pods[uid(1)]
