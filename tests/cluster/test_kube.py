"""kube/ against a real API server: the behaviour that the loopback server of other tests assumes."""

import json
from collections.abc import AsyncIterator, Iterator

import pytest

from kube.answers import ApiError
from kube.client import KubeClient
from kube.metadata import METADATA_ONLY
from kube.watch import Resource
from tests.support.administrator import Administrator
from tests.support.control_plane import ControlPlane, control_plane
from tests.support.control_plane_fixtures import needed_assets
from tests.support.kube_objects import config_map
from tests.support.waiting import until
from tests.support.watches import running

CONFIG_MAPS = "/api/v1/namespaces/team-a/configmaps"


def named(number: int) -> dict[str, object]:
    return config_map(f"map-{number}")


@pytest.fixture(scope="module")
def plain_plane(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without the watch-list API."""
    assets = needed_assets()
    folder = tmp_path_factory.mktemp("plain-control-plane")
    with control_plane(assets, folder, "--feature-gates=WatchList=false") as running_plane:
        yield running_plane


@pytest.fixture(params=["with the watch-list API", "without"])
async def any_admin(request: pytest.FixtureRequest) -> AsyncIterator[Administrator]:
    served = request.param == "with the watch-list API"
    plane: ControlPlane = request.getfixturevalue("plane" if served else "plain_plane")
    async with KubeClient(plane.access()) as client:
        administrator = Administrator(client)
        await administrator.prepare()
        yield administrator
        await administrator.clean_up()


async def test_a_watch_gets_the_whole_state_and_each_change_of_metadata_alone(
    any_admin: Administrator,
) -> None:
    admin = any_admin
    for number in range(5):
        await admin.create(named(number))
    resource = Resource(name="configmaps", path=CONFIG_MAPS, accept=METADATA_ONLY)
    async with running(admin.client, resource=resource) as run:
        await until(lambda: run.watch.is_synced)
        assert sum("map-" in name for name in run.names) == 5
        assert all("data" not in item for item in run.watch.objects.values())
        made = await admin.create(named(5))
        await until(lambda: made["metadata"]["name"] in run.names)
        assert "data" not in run.watch.objects["team-a", made["metadata"]["name"]]
        await until(lambda: run.watch.restarts["closed"])
        assert run.watch.restarts.keys() == {"closed"}
        assert run.troubles == []


@pytest.mark.parametrize("limit", [{}, {"limit": "1"}], ids=["in one piece", "in pages"])
async def test_a_list_is_read_to_its_end(any_admin: Administrator, limit: dict[str, str]) -> None:
    made = {(await any_admin.create(named(number)))["metadata"]["name"] for number in range(3)}
    async with any_admin.client.list_objects(CONFIG_MAPS, params=limit) as maps:
        assert made <= {json.loads(item)["metadata"]["name"] async for item in maps}
        assert int(maps.resource_version) > 0


async def test_errors_are_distinguished_by_their_reason(plane: ControlPlane, admin: Administrator) -> None:
    with pytest.raises(ApiError) as caught:
        await admin.client.get(f"{CONFIG_MAPS}/none")
    assert (caught.value.status, caught.value.reason) == (404, "NotFound")
    with pytest.raises(ApiError) as caught:
        await admin.client.get("/apis/scheduling.run.ai/v9/namespaces/team-a/bindrequests/a")
    assert (caught.value.status, caught.value.reason) == (404, "Not Found"), (
        "no such kind, not no such object"
    )
    with pytest.raises(ApiError) as caught:
        async with admin.client.list_objects(CONFIG_MAPS, params={"continue": "nonsense"}) as maps:
            await anext(aiter(maps))
    assert caught.value.status in (400, 410)
    async with KubeClient(plane.access("no-such-token")) as nobody:
        with pytest.raises(ApiError, match="401 Unauthorized: Unauthorized"):
            await nobody.get(CONFIG_MAPS)


async def test_a_new_token_is_read_from_the_file_when_the_old_one_is_refused(
    plane: ControlPlane, admin: Administrator
) -> None:
    token = await admin.token("rotated", {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]})
    async with KubeClient(plane.access("refused-token")) as client:
        (plane.account("refused-token") / "token").write_text(token)
        assert json.loads(await client.get(CONFIG_MAPS))["kind"] == "ConfigMapList"
