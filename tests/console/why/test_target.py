"""Names of pods, kinds and owners: what is typed, and what a tenant writes."""

import pytest

from console.cluster.served_kinds import ServedKind
from console.why.reading.target import Target, find_kind, owner_path, pod_label
from console.why.why_options import parse_target
from kube.kinds import ObjectOwner


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("web-0", ("Pod", "web-0")),
        ("pod/web-0", ("pod", "web-0")),
        ("deploy/web", ("deploy", "web")),
        ("Deployment/web.v1", ("Deployment", "web.v1")),
        ("pytorchjobs.kubeflow.org/llm", ("pytorchjobs.kubeflow.org", "llm")),
    ],
)
def test_what_is_typed(text: str, target: tuple[str, str]) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text", ["", "/", "a/", "/a", "a/b/c", "../a", "A", "a b", "x" * 254, "a\x1b[2J", "deploy/.."]
)
def test_what_no_object_can_be_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not the name of") as error:
        parse_target(text)
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("po", "Pod"), ("pods", "Pod"), ("POD", "Pod"), ("pods.v1", "Pod"),
        ("deploy", "Deployment"), ("deployments.apps", "Deployment"), ("deployment.v1.apps", "Deployment"),
        ("rs", "ReplicaSet"), ("sts", "StatefulSet"), ("ds", "DaemonSet"), ("job", "Job"), ("cj", "CronJob"),
        ("rc", "ReplicationController"), ("pytorchjob", "PyTorchJob"), ("lws", "LeaderWorkerSet"),
        ("jobs.kubeflow.org", None), ("deployment.v2.apps", None), ("svc", None), ("", None), ("widget", None),
    ],
)  # fmt: skip
def test_kinds_are_named_as_in_kubectl(word: str, kind: str | None) -> None:
    known = Target(namespace="team", kind=word, name="a").known_kind
    assert (known.kind if known else None) == kind


def test_a_kind_without_namespaces_is_none_of_a_pod() -> None:
    node = ServedKind(group="", version="v1", kind="Node", resource="nodes", is_namespaced=False)
    assert find_kind("node", [node]) is None


def path_of(api_version: str, kind: str, name: str = "a") -> str | None:
    return owner_path(ObjectOwner(api_version=api_version, kind=kind, name=name), "team")


def test_the_path_of_an_owner() -> None:
    assert path_of("apps/v1", "ReplicaSet", "web-1") == "/apis/apps/v1/namespaces/team/replicasets/web-1"
    assert path_of("v1", "ReplicationController") == "/api/v1/namespaces/team/replicationcontrollers/a"
    assert path_of("kubeflow.org/v2beta1", "MPIJob") == "/apis/kubeflow.org/v2beta1/namespaces/team/mpijobs/a"


@pytest.mark.parametrize(
    ("api_version", "kind", "name"),
    [
        ("v1", "Secret", "a"),
        ("v1", "Pod", "a"),
        ("v1", "Node", "a"),
        ("apps/v1", "Job", "a"),
        ("apps/..", "ReplicaSet", "a"),
        ("apps/v1/..", "ReplicaSet", "a"),
        ("apps/v1", "ReplicaSet", "../../secrets"),
        ("apps/v1", "ReplicaSet", "a?b"),
        ("apps/v1", "ReplicaSet", ""),
    ],
)
def test_an_owner_that_has_no_path(api_version: str, kind: str, name: str) -> None:
    assert path_of(api_version, kind, name) is None


def test_the_label_of_pods() -> None:
    known = Target(namespace="team", kind="pytorchjob", name="llm").known_kind
    assert known is not None
    assert pod_label(known) == "training.kubeflow.org/job-name"
    assert pod_label(ServedKind(group="a", version="v1", kind="A", resource="as", is_namespaced=True)) == ""
