"""A host pod's names inside its vCluster, and annotations that are not believed."""

from typing import Any

import pytest

from gpuagent.pods.inventory import NodePod
from gpuagent.pods.pod_owners import Tenant, tenant_of
from kai.kaishare_keys import VCLUSTER
from tests.support.inventories import inventory
from tests.support.kube_objects import pod

HOST_NAME = "train-0-x-ml-x-team-a"
LABELLED = {"vcluster-team-a": {VCLUSTER: "true"}}
SYNCED = {
    "object-name": "train-0",
    "object-namespace": "ml",
    "object-host-name": HOST_NAME,
    "object-host-namespace": "vcluster-team-a",
    "name": "train-0",
    "namespace": "ml",
}


def host_pod(managed_by: str | None = "team-a", **annotations: str | None) -> NodePod:
    values = {**SYNCED, **{key.replace("_", "-"): value for key, value in annotations.items()}}
    labels: dict[str, Any] = {} if managed_by is None else {"vcluster.loft.sh/managed-by": managed_by}
    prefixed = {f"vcluster.loft.sh/{key}": value for key, value in values.items() if value is not None}
    (made,) = inventory(
        pod(HOST_NAME, namespace="vcluster-team-a", labels=labels, annotations=prefixed)
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
def test_keys_of_vcluster_name_no_tenant_outside_labelled_host_namespaces(
    namespaces: dict[str, dict[str, str]],
) -> None:
    assert tenant_of(host_pod(), namespaces) is None
