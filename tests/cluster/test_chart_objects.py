"""Every object that the chart can render, created on a real API server."""

from collections.abc import AsyncIterator, Iterable

import pytest

from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.chart_variants import ON_THE_NODE, VARIANTS, WITH_POLICIES
from tests.support.cluster_webhook import ensure_namespaces
from tests.support.helm_chart import NAMESPACE, Object, rendered
from tests.support.helm_release import define_others_kinds, kept

_OF_DEPLOYMENTS = ("/apis/apps/v1/namespaces/{}/replicasets", "/api/v1/namespaces/{}/pods")


@pytest.fixture
async def client(admin: Administrator) -> AsyncIterator[KubeClient]:
    """Return an administrator's client; the cluster has the foreign kinds and the release's namespace."""
    await define_others_kinds(admin.client)
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await ensure_namespaces(admin.client, home)
    yield admin.client
    for path in _OF_DEPLOYMENTS:  # no garbage collector runs here
        await admin.client.request("DELETE", path.format(NAMESPACE), params={"gracePeriodSeconds": "0"})


async def all_are_taken(client: KubeClient, objects: Iterable[Object]) -> None:
    items = list(objects)
    assert items
    async with kept(client, items):
        pass


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=pytest.mark.kubernetes(1, 36)) if name in WITH_POLICIES else name
        for name in VARIANTS
        if name != "nothing"
    ],
)
async def test_an_api_server_accepts_every_object_of_every_kind_of_installation(
    variant: str, client: KubeClient
) -> None:
    await all_are_taken(client, rendered(VARIANTS[variant], tests=True))


async def test_an_api_server_accepts_a_webhook_on_the_network_of_its_node(client: KubeClient) -> None:
    await all_are_taken(client, rendered({"webhook": {**ON_THE_NODE["webhook"], "createNamespace": False}}))
