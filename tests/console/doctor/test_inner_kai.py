"""KAI on the host of vClusters with a KAI of their own, in the API server's list."""

from typing import Any

import pytest

from console.doctor.api_reader import ApiReader
from console.doctor.check_results import State
from console.doctor.vclusters import VclusterHosts, inner_kai_findings
from kai.installation import Installation
from kube.client import KubeClient
from tests.support.api_server import ApiServer
from tests.support.cluster_facts import WELL, but
from tests.support.kube_objects import reservation

HOSTS = VclusterHosts(frozenset({"red"}), frozenset({"red", "blue"}))
NAME = "reservation-1-x-kai-resource-reservation-x-red"


def tenants_reservation(change: str = "") -> dict[str, Any]:
    """A reservation pod of a KAI inside a vCluster, as vCluster's syncer copies it to the host."""
    pod = reservation(namespace="red", phase="Succeeded" if change == "finished" else "Running")
    pod["metadata"]["name"] = NAME
    pod["spec"]["schedulerName"] = "default-scheduler"  # the API server's default
    pod["metadata"]["labels"]["vcluster.loft.sh/managed-by"] = "red"
    pod["metadata"]["annotations"] |= {
        "vcluster.loft.sh/object-namespace": "default" if change == "other" else "kai-resource-reservation",
        "vcluster.loft.sh/object-host-name": "another" if change == "copied" else NAME,
        "vcluster.loft.sh/object-host-namespace": "red",
    }
    if change == "without a node":
        pod["spec"]["nodeName"] = ""
    elif change == "of a scheduler on the host":
        pod["spec"]["schedulerName"] = "kai-scheduler"
    elif change == "of an unlabelled host":
        pod["metadata"]["namespace"] = "blue"
        pod["metadata"]["annotations"]["vcluster.loft.sh/object-host-namespace"] = "blue"
    return pod


def serve(server: ApiServer, pod: dict[str, Any]) -> None:
    server.path = ""
    server.named["/api/v1/pods"] = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": [pod]}


async def test_both_kais_are_a_warning_that_names_the_pod(server: ApiServer, client: KubeClient) -> None:
    serve(server, tenants_reservation())
    (finding,) = await inner_kai_findings(ApiReader(client), WELL, HOSTS)
    assert (finding.check, finding.state) == ("vClusters", State.WARNING)
    assert f"inside vClusters, too (pod red/{NAME} of red): a KAI on the host deletes" in finding.what
    assert finding.advice.startswith("ask the owner of the pod first")
    assert "uninstall" not in finding.advice


@pytest.mark.parametrize(
    "change",
    ["finished", "other", "copied", "without a node", "of a scheduler on the host", "of an unlabelled host"],
)
async def test_other_pods_are_not_taken_for_reservation_pods(
    server: ApiServer, client: KubeClient, change: str
) -> None:
    serve(server, tenants_reservation(change))
    assert await inner_kai_findings(ApiReader(client), WELL, HOSTS) == []


async def test_a_host_without_kai_is_in_order(server: ApiServer, client: KubeClient) -> None:
    serve(server, tenants_reservation())
    without = but(installation=Installation.seen_in(()))
    assert await inner_kai_findings(ApiReader(client), without, HOSTS) == []
    alone = VclusterHosts(frozenset(), frozenset({"red"}))
    assert await inner_kai_findings(ApiReader(client), WELL, alone) == []
