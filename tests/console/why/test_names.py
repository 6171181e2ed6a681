"""Names of pods, kinds, owners and PodGroups: what is typed, and what a tenant writes."""

import pytest

from console.why.target import (
    INDEXED_JOB,
    NamedObject,
    creates_for,
    is_made_for,
    may_concern,
    owner_kind,
    parse_target,
    workload_of,
)
from kube.kinds import ObjectOwner

_UID = "11111111-2222-4333-8444-555555555555"
_OTHER = "99999999-2222-4333-8444-555555555555"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("web-0", "Pod"), ("web.v1", "Pod"), *((f"{word}/a", "Pod") for word in ("po", "pod", "pods", "POD", "pods.v1")),
        ("deploy/web", "Deployment"), ("Deployment/web", "Deployment"), ("deployments.apps/web", "Deployment"),
        ("deployment.v1.apps/web", "Deployment"), ("rs/a", "ReplicaSet"), ("sts/a", "StatefulSet"), ("ds/a", "DaemonSet"),
        ("job/a", "Job"), ("cj/a", "CronJob"), ("rc/a", "ReplicationController"), ("lws/a", "LeaderWorkerSet"),
        ("pytorchjobs.kubeflow.org/llm", "PyTorchJob"), ("mpijob/llm", "MPIJob MPIJob"),
        ("mpijobs.v2beta1.kubeflow.org/llm", "MPIJob"),
    ],
)  # fmt: skip
def test_kinds_are_named_as_in_kubectl(text: str, kinds: str) -> None:
    found, name = parse_target(text)
    assert " ".join(kind.name for kind in found) == kinds
    assert name == text.rpartition("/")[2]


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "a/", "/a", "pod/a/b", "../a", "A", "a b", "x" * 254, "a\x1b[2J", "deploy/..", "svc/a", "widget/a",
        "jobs.kubeflow.org/a", "deployment.v2.apps/a", "node/a",
    ],
)  # fmt: skip
def test_what_no_pod_or_workload_can_be_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not the name of") as error:
        parse_target(text)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("api_version", "kind", "path"),
    [
        ("apps/v1", "ReplicaSet", "/apis/apps/v1/namespaces/team/replicasets/a"),
        ("v1", "ReplicationController", "/api/v1/namespaces/team/replicationcontrollers/a"),
        ("kubeflow.org/v2beta1", "MPIJob", "/apis/kubeflow.org/v2beta1/namespaces/team/mpijobs/a"),
        *(("v1", kind, None) for kind in ("Secret", "Pod", "Node")), ("apps/v1", "Job", None),
        ("apps/..", "ReplicaSet", None), ("apps/v1/..", "ReplicaSet", None),
    ],
)  # fmt: skip
def test_the_path_of_an_owner(api_version: str, kind: str, path: str | None) -> None:
    owned = owner_kind(ObjectOwner(api_version=api_version, kind=kind, name="a"))
    assert (owned.path("team", "a") if owned else None) == path


@pytest.mark.parametrize(
    ("name", "owner", "kind", "expected"),
    [
        ("web-7f6b5d4c8x", "web", "", True), ("web-7f6b5d4c8x-x2vqk", "web", "", True),
        ("web-7f6b5d4c8x-x2vqk", "web-7f6b5d4c8x", "", True), ("train-0", "train", "", True),
        ("nightly-29371200", "nightly", "", True), ("nightly-29371200-x2vqk", "nightly", "", True),
        ("llm-worker-3", "llm", "", True), ("llm-0-2", "llm", "", True),
        ("llm-raycluster-x7k2p", "llm", "", True), ("llm-raycluster", "llm", "", False),
        ("train-large", "train", "", False), ("train-large-0", "train", "", False),
        ("train-large-7f6b5d4c8x", "train", "", False), ("training-0", "train", "", False),
        ("train", "train", "", False), ("train-x7k2p", "train", "Job", True),
        ("train-2", "train", "Job", False), ("train-2-x7k2p", "train", "Job", False),
        ("train-2-x7k2p", "train", INDEXED_JOB, True), ("train-2", "train", INDEXED_JOB, False),
        ("train-2", "train", "StatefulSet", True), ("train-2-x7k2p", "train", "StatefulSet", False),
        ("train-7f6b5d4c8x-x2vqk", "train", "Deployment", True),
        ("train-2-7f6b5d4c8x", "train", "Deployment", False), ("train-x2vqk", "train", "ReplicaSet", True),
        ("train-29371200-x2vqk", "train", "CronJob", True), ("train-2-x2vqk", "train", "CronJob", False),
        ("train-worker-3", "train", "PyTorchJob", True), ("train-2", "train", "PyTorchJob", False),
        ("train-2", "train", "Pod", False),
    ],
)  # fmt: skip
def test_only_generated_names_belong_to_an_owner(name: str, owner: str, kind: str, expected: bool) -> None:
    assert is_made_for(name, owner, kind) is expected


@pytest.mark.parametrize(
    ("group", "target", "expected"),
    [
        (f"pg-train-{_UID}", NamedObject("", "train"), True),
        (f"pg-web-7f6b5d4c8x-x2vqk-{_UID}", NamedObject("", "web"), True),
        (f"pg-train-large-{_UID}", NamedObject("", "train"), False),
        (f"pg-train-{_UID}", NamedObject("", "train-large"), False),
        # A uid decides where it is known.
        (f"pg-train-{_UID}", NamedObject("Job", "train", _UID), True),
        (f"pg-train-{_OTHER}", NamedObject("Job", "train", _UID), False),
        (f"pg-train-{_OTHER}", NamedObject("Job", "train"), True),
        (f"pg-train-{_OTHER}", NamedObject("Job", "train-2"), False),
        ("train", NamedObject("Job", "train", _UID), True),
    ],
)
def test_a_group_concerns_its_own_workload(group: str, target: NamedObject, expected: bool) -> None:
    assert may_concern(group, target) is expected


def test_the_workload_is_in_the_name_of_a_group() -> None:
    assert workload_of(f"pg-train-large-{_UID}") == ("train-large", _UID)
    assert workload_of("llm") == ("llm", "")  # made by hand


@pytest.mark.parametrize(
    ("kind", "name", "uid", "target", "expected"),
    [
        ("Job", "train", _UID, NamedObject("Job", "train", _UID), True),
        ("Job", "train", _OTHER, NamedObject("Job", "train", _UID), False),
        ("Job", "train", "", NamedObject("Job", "train", _UID), True),
        ("Job", "train-2", _OTHER, NamedObject("Job", "train"), False),
        ("PyTorchJob", "train", _OTHER, NamedObject("Job", "train", _UID), False),
        ("ReplicaSet", "web-7f6b5d4c8x", _OTHER, NamedObject("Deployment", "web", _UID), True),
        ("Job", "web-7f6b5d4c8x", _OTHER, NamedObject("Deployment", "web", _UID), False),
        ("Job", "night-29371200", _OTHER, NamedObject("CronJob", "night"), True),
        ("StatefulSet", "llm-2", _OTHER, NamedObject("LeaderWorkerSet", "llm", _UID), True),
    ],
)
def test_pods_are_created_by_the_workload_or_an_object_in_between(
    kind: str, name: str, uid: str, target: NamedObject, expected: bool
) -> None:
    assert creates_for(kind, name, uid, target) is expected
