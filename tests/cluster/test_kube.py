"""kube/ against a real API server: what the loopback server of other tests assumes, and kubeconfigs beside a real kubectl."""

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from console.cli import main
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from kube.metadata import METADATA_ONLY
from kube.watch import Resource
from tests.support.administrator import Administrator
from tests.support.control_plane import ADMIN_TOKEN, ControlPlane, control_plane
from tests.support.control_plane_fixtures import needed_assets
from tests.support.hostile_api_server import HostileApiServer, OlderData
from tests.support.kube_objects import config_map
from tests.support.kubeconfigs import CASES, SECRET, Base, Case, write
from tests.support.markers import sampled
from tests.support.selector_cases import BAD, MATCHES, OWN_LIMITS
from tests.support.waiting import until
from tests.support.watches import running

CONFIG_MAPS = "/api/v1/namespaces/team-a/configmaps"


def named(number: int) -> dict[str, object]:
    return config_map(f"map-{number}")


async def test_a_watch_gets_the_whole_state_and_each_change_of_metadata_alone(
    admin: Administrator,
) -> None:
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


async def test_a_list_is_read_to_its_end_and_a_page_is_none(admin: Administrator) -> None:
    made = {(await admin.create(named(number)))["metadata"]["name"] for number in range(3)}
    with pytest.raises(Unreachable, match="not a list: one of several pages"):
        async with admin.client.list_objects(CONFIG_MAPS, params={"limit": "1"}) as maps:
            assert len([item async for item in maps]) == 1
    async with admin.client.list_objects(CONFIG_MAPS) as maps:
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


def versions_of(objects: Iterable[dict[str, Any]]) -> dict[str, str]:
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in objects}


@pytest.mark.nightly
async def test_after_a_restore_of_etcd_a_watch_holds_the_restored_objects(
    plane: ControlPlane, hostile: HostileApiServer, admin: Administrator, tmp_path: Path
) -> None:
    changed, deleted = [(await admin.create(named(number)))["metadata"]["name"] for number in range(2)]
    assets = needed_assets()
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "restored").mkdir()
    snapshot = plane.snapshot(tmp_path / "snapshot")
    await admin.delete(f"{CONFIG_MAPS}/{deleted}")
    await admin.create(named(2))
    for number in range(50):
        await admin.merge(f"{CONFIG_MAPS}/{changed}", {"data": {"number": str(number)}})
    restoring = control_plane(assets, tmp_path / "restored", since=snapshot)
    restored = await asyncio.to_thread(restoring.__enter__)
    try:
        async with (
            KubeClient(restored.access()) as client,
            KubeClient(hostile.access(ADMIN_TOKEN)) as proxied,
            running(proxied, resource=Resource(name="configmaps", path=CONFIG_MAPS)) as run,
        ):
            expected = versions_of(json.loads(await client.get(CONFIG_MAPS))["items"])
            await until(lambda: run.watch.is_synced)
            assert deleted not in run.names
            hostile.inject(OlderData(server=restored.upstream))
            hostile.link.reset()
            await until(lambda: versions_of(run.watch.objects.values()) == expected, seconds=20)
            assert deleted in run.names
    finally:
        await asyncio.to_thread(restoring.__exit__, None, None, None)


@pytest.mark.kubernetes(1, 31)  # an empty item in a list
async def test_the_api_server_reads_selectors_as_kaishare_does(plane: ControlPlane) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    names: dict[str, str] = {}
    async with KubeClient(plane.access()) as client:

        async def selected(text: str) -> set[str]:
            listing = json.loads(await client.get(path, params={"labelSelector": text}))
            return {item["metadata"]["name"] for item in listing["items"]}

        for text, labels, expected in MATCHES:
            key = json.dumps(labels)
            if key not in names:
                names[key] = f"selected-{len(names)}"
                body = {"metadata": {"name": names[key], "labels": labels}}
                await client.request("POST", path, body=json.dumps(body).encode())
            assert (names[key] in await selected(text)) is expected, (text, labels)
        for text in BAD.keys() - OWN_LIMITS:
            with pytest.raises(ApiError) as caught:
                await selected(text)
            assert caught.value.status == 400, text
        for name in names.values():
            await client.request("DELETE", f"{path}/{name}")


# `kaishare policies` with right, odd and wrong kubeconfigs on a real API server, beside a real kubectl.


@pytest.fixture
def base(plane: ControlPlane, tmp_path: Path) -> Base:
    return Base(
        server=f"https://127.0.0.1:{plane.port}",
        ca_file=plane.folder / "ca.crt",
        token=ADMIN_TOKEN,
        folder=tmp_path,
    )


@pytest.mark.parametrize("name", CASES)
def test_a_kubeconfig_works_or_is_refused_with_one_line_without_secrets(
    name: str, base: Base, capfd: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    status = main(["policies", "--kubeconfig", str(write(case, base)), *case.options])
    captured = capfd.readouterr()
    if not case.line:
        assert (status, captured.err.partition("kaishare: ")[1]) in ((0, ""), (1, "")), captured.err
        return
    assert status == 2, captured.out
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("kaishare: ")
    assert case.line in lines[0]
    assert SECRET not in lines[0]
    assert ADMIN_TOKEN not in lines[0]


def kubectl(base: Base, case: Case, *arguments: str) -> "subprocess.CompletedProcess[str]":
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("NOT VERIFIED: kubectl is not installed")
    return subprocess.run(
        [program, "--kubeconfig", str(write(case, base)), *case.options, *arguments],
        env={"PATH": os.environ["PATH"], "HOME": str(base.folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", sampled(CASES, 4))
def test_kubectl_has_the_same_outcome(name: str, base: Base) -> None:
    done = kubectl(base, CASES[name], "get", "namespaces", "-o", "name")
    assert (done.returncode == 0) is (not CASES[name].line), done.stderr
