"""Discovery of the kinds that an API server serves."""

from typing import Any

import pytest

from console.cluster.facts import ServedKind, discover_groups
from kube.answers import Unreachable
from kube.client import KubeClient
from tests.support.api_server import ApiServer, says


def resource(name: str, kind: str, group: str, *, scope: str = "Namespaced") -> dict[str, Any]:
    return {
        "resource": name,
        "scope": scope,
        "responseKind": {"group": group, "version": "", "kind": kind},
        "subresources": [{"subresource": "status"}],
    }


def group(name: str, **versions: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "versions": [{"version": version, "resources": kinds} for version, kinds in versions.items()],
    }


JOBS = group(
    "kubeflow.org",
    v1=[resource("mpijobs", "MPIJob", "kubeflow.org"), {"resource": "odd", "scope": "Namespaced"}],
    v2beta1=[resource("mpijobs", "MPIJob", "kubeflow.org")],
)
QUEUES = group("scheduling.run.ai", v2=[resource("queues", "Queue", "scheduling.run.ai", scope="Cluster")])


@pytest.fixture
def discovery(server: ApiServer) -> ApiServer:
    server.path = "no path"
    server.named = {"/apis": {"items": [JOBS, QUEUES]}}
    return server


async def test_kinds_of_groups_in_order(client: KubeClient, discovery: ApiServer) -> None:
    first, second, queues = await discover_groups(client)
    assert first == ServedKind(
        group="kubeflow.org", version="v1", kind="MPIJob", resource="mpijobs", is_namespaced=True
    )
    assert (first.api_version, first.name) == ("kubeflow.org/v1", "mpijobs.kubeflow.org")
    assert first.path == "/apis/kubeflow.org/v1/mpijobs"
    assert second.path_in("team-a") == "/apis/kubeflow.org/v2beta1/namespaces/team-a/mpijobs"
    assert not queues.is_namespaced


def test_paths_of_the_core_group() -> None:
    pods = ServedKind(group="", version="v1", kind="Pod", resource="pods", is_namespaced=True)
    assert (pods.path, pods.path_in("a")) == ("/api/v1/pods", "/api/v1/namespaces/a/pods")
    assert (pods.api_version, pods.name) == ("v1", "pods")


@pytest.mark.parametrize("answer", ["<html>", "[]", '{"kind": "APIGroupList", "groups": []}'])
async def test_an_api_server_without_aggregated_discovery(
    client: KubeClient, discovery: ApiServer, answer: str
) -> None:
    discovery.always = says(answer)
    with pytest.raises(Unreachable, match="GET /apis: expected aggregated discovery"):
        await discover_groups(client)
