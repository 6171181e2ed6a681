"""A pod's names and workload inside its vCluster, its workload on the host, and metadata that is not believed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.pods.inventory import NodePod
from gpuagent.pods.node_pods import read_pod
from gpuagent.pods.pod_owners import (
    NO_WORKLOAD,
    Tenant,
    Workload,
    tenant_of,
    virtual_workload_of,
    workload_of,
)
from kai.kaishare_keys import VCLUSTER
from tests.support.inventories import inventory
from tests.support.kube_objects import pod as pod_object
from tests.support.pods import folder_from
from tests.support.samples import pod

HOST_NAME = "train-0-x-ml-x-team-a"
LABELLED = {"vcluster-team-a": {VCLUSTER: "true"}}
SYNCED = {
    "object-name": "train-0", "object-namespace": "ml", "object-host-name": HOST_NAME,
    "object-host-namespace": "vcluster-team-a", "name": "train-0", "namespace": "ml",
}  # fmt: skip


def host_pod(managed_by: str | None = "team-a", **annotations: str | None) -> NodePod:
    values = {**SYNCED, **{key.replace("_", "-"): value for key, value in annotations.items()}}
    labels: dict[str, Any] = {} if managed_by is None else {"vcluster.loft.sh/managed-by": managed_by}
    prefixed = {f"vcluster.loft.sh/{key}": value for key, value in values.items() if value is not None}
    (made,) = inventory(
        pod_object(HOST_NAME, namespace="vcluster-team-a", labels=labels, annotations=prefixed)
    ).pods.values()
    return made


def test_a_synced_pod() -> None:
    assert tenant_of(host_pod(), LABELLED) == Tenant(vcluster="team-a", namespace="ml", pod="train-0")


def test_annotations_with_short_names_are_not_read() -> None:
    spoofed = host_pod(name="spoof", namespace="kube-system")
    assert tenant_of(spoofed, LABELLED) == tenant_of(host_pod(), LABELLED)


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(host_pod(managed_by=None), id="no vCluster's label"),
        pytest.param(host_pod(managed_by=""), id="empty label"),
        pytest.param(host_pod(managed_by="a\x1b[2J"), id="control characters in the label"),
        pytest.param(host_pod(object_host_name="other-x-ml-x-team-a"), id="another pod's annotations"),
        pytest.param(host_pod(object_host_namespace="vcluster-team-b"), id="another namespace's annotations"),
        pytest.param(host_pod(object_host_name=None), id="before v0.21"),
        pytest.param(host_pod(object_name=None), id="no name"),
        pytest.param(host_pod(object_namespace=""), id="empty namespace"),
        pytest.param(host_pod(object_name="x" * 300), id="no name Kubernetes has"),
        pytest.param(host_pod(object_name='a"\n'), id="no name at all"),
    ],
)
def test_pods_whose_tenant_names_are_ignored(made: NodePod) -> None:
    assert tenant_of(made, LABELLED) is None


@pytest.mark.parametrize(
    "namespaces",
    [
        pytest.param({}, id="not read yet, or not allowed"),
        pytest.param({"vcluster-team-a": {}}, id="without the label"),
        pytest.param({"vcluster-team-a": {VCLUSTER: "True"}}, id="misspelt"),
        pytest.param({"vcluster-team-b": {VCLUSTER: "true"}}, id="another namespace's label"),
        pytest.param({"ml": {VCLUSTER: "true"}}, id="the virtual namespace's name"),
    ],
)
def test_keys_name_no_tenant_outside_labelled_namespaces(namespaces: dict[str, dict[str, str]]) -> None:
    assert tenant_of(host_pod(), namespaces) is None


MANAGED = {"vcluster.loft.sh/managed-by": "vc"}


def references(*owners: dict[str, object]) -> dict[str, str]:
    return {"vcluster.loft.sh/owner-references": json.dumps(owners)}


# the pod's fields, its workload
CASES = [
    ({}, NO_WORKLOAD),
    ({"controller_kind": "StatefulSet", "controller_name": "db"}, Workload("StatefulSet", "db")),
    ({"controller_kind": "ReplicaSet", "controller_name": "web-5d4f", "labels": {"pod-template-hash": "5d4f"}},
     Workload("Deployment", "web")),
    ({"controller_kind": "ReplicaSet", "controller_name": "web-5d4f", "labels": {"pod-template-hash": "x"}},
     Workload("ReplicaSet", "web-5d4f")),
    ({"controller_kind": "ReplicaSet", "controller_name": "web"}, Workload("ReplicaSet", "web")),
    ({"controller_kind": "Job", "controller_name": "train"}, Workload("Job", "train")),
    ({"controller_kind": "Job", "controller_name": "nightly-29381760"}, Workload("CronJob", "nightly")),
    ({"controller_kind": "Job", "controller_name": "run-2026112"}, Workload("Job", "run-2026112")),
    ({"controller_kind": "Job", "controller_name": "12345678"}, Workload("Job", "12345678")),
    ({"controller_kind": "Bad Kind", "controller_name": "a"}, NO_WORKLOAD),
    ({"controller_kind": "Job", "controller_name": "a\nb"}, NO_WORKLOAD),
    ({"annotations": references({"kind": "Job", "name": "job", "controller": True})}, NO_WORKLOAD),
    ({"controller_kind": "Job", "controller_name": "train", "labels": MANAGED}, Workload("Job", "train")),
]  # fmt: skip
VIRTUAL_CASES: list[tuple[dict[str, object], Workload]] = [
    ({"controller_kind": "Service", "controller_name": "vc"}, NO_WORKLOAD),
    ({"annotations": references({"kind": "Job", "name": "job", "controller": True})}, Workload("Job", "job")),
    ({"annotations": references({"kind": "Job", "name": "job"})}, NO_WORKLOAD),
    ({"annotations": {"vcluster.loft.sh/owner-references": "spoof"}}, NO_WORKLOAD),
    ({"annotations": references({"kind": 5})}, NO_WORKLOAD),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "expected"), CASES)
def test_the_workload_of_a_pod(fields: dict[str, object], expected: Workload) -> None:
    assert workload_of(pod("a", **fields)) == expected


@pytest.mark.parametrize(("fields", "expected"), VIRTUAL_CASES)
def test_the_workload_of_a_pod_of_a_vcluster(fields: dict[str, object], expected: Workload) -> None:
    assert virtual_workload_of(pod("a", **fields)) == expected


@pytest.mark.parametrize(("file", "kind"), [("pod-of-deployment", "Deployment"), ("pod-of-job", "Job")])
def test_pods_that_vcluster_synced_have_their_workload_inside(file: str, kind: str) -> None:
    folder = folder_from("KAISHARE_FIXTURES", "the objects recorded from vCluster") / "vcluster-live-v0.36.1"
    workload = virtual_workload_of(read_pod((folder / f"{file}.host.json").read_bytes()))
    assert workload.kind == kind
    assert workload.name


@given(st.text(max_size=300) | st.from_regex(r"\[\{.*\}\]", fullmatch=True))
def test_any_annotation_gives_a_printable_workload(text: str) -> None:
    annotations = {"vcluster.loft.sh/owner-references": text}
    workload = virtual_workload_of(pod("a", annotations=annotations))
    assert (workload.kind + workload.name).isprintable()
    assert len(workload.kind) <= 63
    assert len(workload.name) <= 253


def test_a_controller_with_long_names_is_no_workload() -> None:
    metadata = {
        "name": "a",
        "namespace": "team-a",
        "uid": "u",
        "ownerReferences": [{"kind": "K" * 64, "name": "n" * 254, "uid": "r", "controller": True}],
    }
    read = read_pod(json.dumps({"metadata": metadata, "spec": {"containers": []}}).encode())
    assert (read.controller_uid, read.controller_kind, read.controller_name) == ("r", "", "")
    assert workload_of(read) == NO_WORKLOAD
