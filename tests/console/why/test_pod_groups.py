"""Names of PodGroups, pods and owners."""

import pytest

from console.why.membership import (
    INDEXED_JOB,
    NamedObject,
    creates_for,
    is_made_for,
    may_concern,
    workload_of,
)

_UID = "11111111-2222-4333-8444-555555555555"
_OTHER = "99999999-2222-4333-8444-555555555555"


@pytest.mark.parametrize(
    ("name", "owner", "expected"),
    [
        ("web-7f6b5d4c8x", "web", True),
        ("web-7f6b5d4c8x-x2vqk", "web", True),
        ("web-7f6b5d4c8x-x2vqk", "web-7f6b5d4c8x", True),
        ("train-0", "train", True),
        ("nightly-29371200", "nightly", True),
        ("nightly-29371200-x2vqk", "nightly", True),
        ("llm-worker-3", "llm", True),
        ("llm-0-2", "llm", True),
        ("llm-raycluster-x7k2p", "llm", True),
        ("llm-raycluster", "llm", False),
        ("train-large", "train", False),
        ("train-large-0", "train", False),
        ("train-large-7f6b5d4c8x", "train", False),
        ("training-0", "train", False),
        ("train", "train", False),
    ],
)
def test_only_generated_names_belong_to_an_owner(name: str, owner: str, expected: bool) -> None:
    assert is_made_for(name, owner) is expected


@pytest.mark.parametrize(
    ("workload", "name", "expected"),
    [
        ("train", "train", True),
        ("web-7f6b5d4c8x-x2vqk", "web", True),
        ("llm", "llm-worker-3", True),
        ("train-large", "train", False),
        ("train", "train-large", False),
    ],
)
def test_a_group_concerns_its_own_workload(workload: str, name: str, expected: bool) -> None:
    assert workload_of(f"pg-{workload}-{_UID}") == workload
    assert may_concern(f"pg-{workload}-{_UID}", NamedObject(name=name)) is expected


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("train-x7k2p", "Job", True),
        ("train-2", "Job", False),
        ("train-2-x7k2p", "Job", False),
        ("train-2-x7k2p", INDEXED_JOB, True),
        ("train-2", INDEXED_JOB, False),
        ("train-2", "StatefulSet", True),
        ("train-2-x7k2p", "StatefulSet", False),
        ("train-7f6b5d4c8x-x2vqk", "Deployment", True),
        ("train-2-7f6b5d4c8x", "Deployment", False),
        ("train-x2vqk", "ReplicaSet", True),
        ("train-29371200-x2vqk", "CronJob", True),
        ("train-2-x2vqk", "CronJob", False),
        ("train-worker-3", "PyTorchJob", True),
        ("train-2", "PyTorchJob", False),
        ("train-2", "Pod", False),
    ],
)
def test_the_controller_of_a_kind_gives_names_of_one_form(name: str, kind: str, expected: bool) -> None:
    assert is_made_for(name, "train", kind) is expected


@pytest.mark.parametrize(
    ("group", "target", "expected"),
    [
        (f"pg-train-{_UID}", NamedObject(kind="Job", name="train", uid=_UID), True),
        (f"pg-train-{_OTHER}", NamedObject(kind="Job", name="train", uid=_UID), False),
        (f"pg-train-{_OTHER}", NamedObject(kind="Job", name="train"), True),
        (f"pg-train-{_OTHER}", NamedObject(kind="Job", name="train-2", is_read=True), False),
        (f"pg-train-{_OTHER}", NamedObject(name="train-2"), True),
        ("train", NamedObject(kind="Job", name="train", uid=_UID), True),
    ],
)
def test_a_uid_decides_where_it_is_known(group: str, target: NamedObject, expected: bool) -> None:
    assert may_concern(group, target) is expected


@pytest.mark.parametrize(
    ("kind", "name", "uid", "target", "expected"),
    [
        ("Job", "train", _UID, NamedObject(kind="Job", name="train", uid=_UID), True),
        ("Job", "train", _OTHER, NamedObject(kind="Job", name="train", uid=_UID), False),
        ("Job", "train", "", NamedObject(kind="Job", name="train", uid=_UID), True),
        ("Job", "train-2", _OTHER, NamedObject(kind="Job", name="train"), False),
        ("PyTorchJob", "train", _OTHER, NamedObject(kind="Job", name="train", uid=_UID), False),
        ("ReplicaSet", "web-7f6b5d4c8x", _OTHER, NamedObject(kind="Deployment", name="web", uid=_UID), True),
        ("Job", "web-7f6b5d4c8x", _OTHER, NamedObject(kind="Deployment", name="web", uid=_UID), False),
        ("Job", "night-29371200", _OTHER, NamedObject(kind="CronJob", name="night"), True),
        ("StatefulSet", "llm-2", _OTHER, NamedObject(kind="LeaderWorkerSet", name="llm", uid=_UID), True),
    ],
)
def test_pods_are_created_by_the_workload_or_an_object_in_between(
    kind: str, name: str, uid: str, target: NamedObject, expected: bool
) -> None:
    assert creates_for(kind, name, uid, target) is expected


def test_a_group_made_by_hand_has_its_own_name() -> None:
    assert workload_of("llm") == "llm"
