"""kube/ against a real API server: what the loopback one of other tests takes for granted."""

import json

import pytest

from kube.client import KubeClient
from kube.errors import ApiError
from kube.watch import METADATA_ONLY, Resource
from tests.cluster.administrator import Administrator
from tests.cluster.control_plane import ControlPlane
from tests.gpuagent.objects import config_map
from tests.kube.watching import running, until

CONFIG_MAPS = "/api/v1/namespaces/team-a/configmaps"


def named(number: int) -> dict[str, object]:
    return config_map(f"map-{number}", namespace="team-a", data="x")


async def test_lists_in_pages_and_watches_metadata_alone(
    admin: Administrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kube.watch.PAGE", 2)
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


async def test_a_continue_token_goes_on_at_the_version_of_the_first_page(admin: Administrator) -> None:
    for number in range(3):
        await admin.create(named(number))
    versions = {page.metadata.resourceVersion async for page in admin.client.pages(CONFIG_MAPS, page=1)}
    assert len(versions) == 1


async def test_errors_are_told_by_their_reason(plane: ControlPlane, admin: Administrator) -> None:
    with pytest.raises(ApiError) as caught:
        await admin.client.get(f"{CONFIG_MAPS}/none")
    assert (caught.value.status, caught.value.reason) == (404, "NotFound")
    with pytest.raises(ApiError) as caught:
        await admin.client.get("/apis/scheduling.run.ai/v9/namespaces/team-a/bindrequests/a")
    assert (caught.value.status, caught.value.reason) == (404, "Not Found"), (
        "no such kind, not no such object"
    )
    with pytest.raises(ApiError) as caught:
        await anext(admin.client.pages(CONFIG_MAPS, params={"continue": "nonsense"}))
    assert caught.value.status in (400, 410)
    async with KubeClient(plane.access("no-such-token")) as nobody:
        with pytest.raises(ApiError, match="401 Unauthorized: Unauthorized"):
            await nobody.get(CONFIG_MAPS)


async def test_a_new_token_in_the_file_is_taken_when_the_old_one_is_refused(
    plane: ControlPlane, admin: Administrator
) -> None:
    token = await admin.token("rotated", {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]})
    async with KubeClient(plane.access("refused-token")) as client:
        (plane.account("refused-token") / "token").write_text(token)
        assert json.loads(await client.get(CONFIG_MAPS))["kind"] == "ConfigMapList"
