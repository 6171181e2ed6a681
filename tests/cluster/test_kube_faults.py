"""kube/ behind a real API server with faults: it ends with the server's truth and never asks in a hot loop."""

import asyncio
import contextlib
import gc
import json
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kube.client import KubeClient
from kube.eviction import EvictionAnswer, evict
from kube.watch import Resource, WatchTiming
from tests.support.administrator import Administrator
from tests.support.api_server import floods, hangs, refuses, says
from tests.support.control_plane import ADMIN_TOKEN, ControlPlane, control_plane
from tests.support.control_plane_fixtures import needed_assets
from tests.support.hostile_api_server import (
    HTML,
    Cut,
    Fault,
    HostileApiServer,
    OlderData,
    Silence,
    Truncate,
    hostile_api_server,
    requests,
)
from tests.support.kube_objects import config_map
from tests.support.kube_objects import pod as pod_on_node
from tests.support.waiting import until
from tests.support.watches import Running, running

CONFIG_MAPS = "/api/v1/namespaces/team-a/configmaps"
ABOUT_CONFIG_MAPS = requests(CONFIG_MAPS)
PACE = WatchTiming(watch=1, grace=0.2, first_pause=0.02, longest_pause=0.1, healthy_after=0.1)
REQUESTS_A_TRY = 3
"""A list, a fallback of it and a watch, or one of them twice with a renewed token."""
FAULT_SECONDS = 0.4
MIB = 1 << 20
ANSWERS: dict[str, Fault] = {
    "400": refuses(400, "BadRequest"),
    "401": refuses(401, "Unauthorized"),
    "401 in plain text": says(b"Unauthorized", status=401, kind="text/plain"),
    "403": refuses(403, "Forbidden"),
    "404": refuses(404, "NotFound"),
    "409": refuses(409, "Conflict"),
    "410": refuses(410, "Expired"),
    "429": refuses(429, "TooManyRequests", Retry_After="1"),
    "500": refuses(500, "InternalError"),
    "503 with an endless body": floods(96 * MIB, status=503),
    "504": refuses(504, "Timeout", "Too large resource version: 900, current: 20"),
    "302 to a log-in page": says("", status=302, Location="/login"),
    "502 HTML": says(HTML, status=502, kind="text/html"),
    "200 HTML": says(HTML, kind="text/html"),
    "200 without a body": says(""),
    "200 {}": says(b"{}"),
}
CONNECTIONS: dict[str, Fault] = {
    "reset before the answer": Cut(after=None),
    "closed before the answer": Cut(after=None, is_reset=False),
    "reset after the head": Cut(after=0),
    "reset within the body": Cut(after=40),
    "closed within the body": Cut(after=40, is_reset=False),
    "body that ends early": Truncate(after=40),
    "body that does not begin": Truncate(after=0),
    "silence instead of an answer": hangs,
    "silence after the head": Silence(after=0),
    "silence within the body": Silence(after=40),
}
FAULTS = ANSWERS | CONNECTIONS


@pytest.fixture(autouse=True)
def connections_cut_while_being_made() -> Iterator[None]:
    """Collect the transports that asyncio forgets, without their warnings, which would fail a later test.

    A request that is cancelled right after the TCP handshake, before TLS begins, leaves its transport open:
    `SSLProtocol._start_shutdown` does nothing in that state (CPython 3.11, asyncio/sslproto.py).
    """
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(autouse=True)
def _short_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kube.client._SECONDS", 1.0)
    monkeypatch.setattr("kube.client._LIST_SECONDS", 1.0, raising=False)
    monkeypatch.setitem(KubeClient.request.__kwdefaults__, "seconds", 1.0)


@pytest.fixture
async def client(hostile: HostileApiServer) -> AsyncIterator[KubeClient]:
    async with KubeClient(hostile.access(ADMIN_TOKEN)) as client:
        yield client


@dataclass
class Versions:
    """Reads objects for a watch, and notes each that is older than the one seen before."""

    newest: dict[str, int] = field(default_factory=dict)
    older: list[str] = field(default_factory=list)

    def read(self, raw: bytes) -> str:
        metadata = json.loads(raw)["metadata"]
        name, version = metadata["name"], int(metadata["resourceVersion"])
        if version < self.newest.get(name, 0):
            self.older.append(name)
        self.newest[name] = version
        return str(metadata["resourceVersion"])


def labelled(label: str) -> dict[str, str]:
    return {"labelSelector": f"fault={label}"} if label else {}


@contextlib.asynccontextmanager
async def watching(client: KubeClient, label: str = "") -> AsyncIterator[Running]:
    """Run a watch of the ConfigMaps with a label; no object may ever be replaced by an older one."""
    versions = Versions()
    watched = Resource(name="configmaps", path=CONFIG_MAPS, params=labelled(label))
    async with running(client, timing=PACE, resource=watched, read=versions.read) as run:
        yield run
        assert versions.older == []


async def truth(admin: Administrator, label: str = "") -> dict[tuple[str, str], str]:
    """Namespace and name of each ConfigMap with a label, and its version."""
    items = json.loads(await admin.client.get(CONFIG_MAPS, params=labelled(label)))["items"]
    return {
        (item["metadata"]["namespace"], item["metadata"]["name"]): item["metadata"]["resourceVersion"]
        for item in items
    }


async def make(admin: Administrator, name: str, label: str = "") -> str:
    """Make a ConfigMap; return its path."""
    item = config_map(f"{name}-{label.lower()}" if label else name)
    item["metadata"]["labels"] = {"fault": label}
    made = await admin.create(item)
    return f"{CONFIG_MAPS}/{made['metadata']['name']}"


def most_requests(seconds: float) -> int:
    """Return the bound of requests for one client: PACE pauses at least 10, 20, 40 and then 50 ms between tries."""
    return int(REQUESTS_A_TRY * (4 + seconds / 0.05))


async def recovered(run: Running, expected: dict[tuple[str, str], str]) -> None:
    await until(lambda: run.watch.is_synced and run.watch.objects == expected, seconds=10)
    await until(lambda: run.watch.problem == "", seconds=10)


NAMES = list(FAULTS)


@pytest.mark.parametrize(
    "names", [NAMES[:9], NAMES[9:18], NAMES[18:]], ids=lambda part: f"{part[0]} to {part[-1]}"
)
async def test_a_watch_recovers_also_if_it_starts_during_the_fault(
    plane: ControlPlane, admin: Administrator, tmp_path: Path, names: list[str]
) -> None:
    """Each fault has a hostile API server and a client of its own."""
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(recovers_from(name, plane, admin, tmp_path))


async def recovers_from(name: str, plane: ControlPlane, admin: Administrator, folder: Path) -> None:
    label = f"n{NAMES.index(name)}"
    (folder / label).mkdir()
    changed, deleted = await make(admin, "changed", label), await make(admin, "deleted", label)
    async with (
        hostile_api_server(plane.upstream, folder / label) as hostile,
        KubeClient(hostile.access(ADMIN_TOKEN)) as client,
        watching(client, label) as following,
        contextlib.AsyncExitStack() as stack,
    ):
        await until(lambda: following.watch.is_synced)
        before, began = len(hostile.requests), time.monotonic()
        hostile.inject(FAULTS[name], ABOUT_CONFIG_MAPS)
        hostile.link.reset()
        beginning = await stack.enter_async_context(watching(client, label))
        await admin.merge(changed, {"data": {"changed": "yes"}})
        await admin.delete(deleted)
        await make(admin, "made", label)
        await asyncio.sleep(FAULT_SECONDS)
        await until(lambda: following.troubles and beginning.troubles, name, seconds=10)
        assert len(hostile.requests) - before <= 2 * most_requests(time.monotonic() - began), name
        hostile.heal()
        expected = await truth(admin, label)
        for run in (following, beginning):
            await recovered(run, expected)
            assert run.troubles[-1] == "", name
            assert all(line.isprintable() and len(line) < 500 for line in run.troubles), name
        gone = deleted.rpartition("/")[2]
        was_there = [gone in names for names in following.changes]
        assert was_there == sorted(was_there, reverse=True), f"{name}: a deleted object does not come back"


@pytest.mark.parametrize("name", FAULTS)
async def test_an_eviction_counts_only_if_the_api_server_confirms_it(
    hostile: HostileApiServer, admin: Administrator, client: KubeClient, name: str
) -> None:
    made = (await admin.create({**pod_on_node("evicted"), "status": {}}))["metadata"]
    about = {key: made[key] for key in ("namespace", "name", "uid")}
    hostile.inject(FAULTS[name], requests("/api/v1/namespaces", method="POST"))
    answer = await evict(client, **about, is_trial=True)
    expected = {"403": EvictionAnswer.FORBIDDEN, "404": EvictionAnswer.GONE, "409": EvictionAnswer.GONE}
    assert answer.answer is expected.get(name, EvictionAnswer.FAILED)
    assert answer.line
    assert answer.retry_after == (1.0 if name == "429" else 0.0)
    assert len(hostile.requests) <= 2
    hostile.heal()
    assert (await evict(client, **about, is_trial=True)).answer is EvictionAnswer.EVICTED


@pytest.mark.nightly
async def test_after_a_restore_of_etcd_a_watch_holds_the_restored_objects(
    plane: ControlPlane,
    hostile: HostileApiServer,
    admin: Administrator,
    client: KubeClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The API server waits 3 s for a version before it says that it is too large (seen on 1.36.3).
    monkeypatch.setattr("kube.client._SECONDS", 10.0)
    monkeypatch.setattr("kube.client._LIST_SECONDS", 10.0, raising=False)
    changed, deleted = await make(admin, "changed"), await make(admin, "deleted")
    assets = needed_assets()
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "restored").mkdir()
    snapshot = plane.snapshot(tmp_path / "snapshot")
    await admin.delete(deleted)
    await make(admin, "made")
    for number in range(50):
        await admin.merge(changed, {"data": {"number": str(number)}})
    restoring = control_plane(assets, tmp_path / "restored", since=snapshot)
    restored = await asyncio.to_thread(restoring.__enter__)
    try:
        async with KubeClient(restored.access()) as restored_client, contextlib.AsyncExitStack() as stack:
            expected = await truth(Administrator(restored_client))
            resource = Resource(name="configmaps", path=CONFIG_MAPS)
            run = await stack.enter_async_context(
                running(client, timing=PACE, resource=resource, read=Versions().read)
            )
            await until(lambda: run.watch.is_synced)
            assert {*run.watch.objects} == {*await truth(admin)} != {*expected}
            hostile.inject(OlderData(server=restored.upstream))
            hostile.link.reset()
            await until(lambda: run.watch.objects == expected, seconds=10)
    finally:
        await asyncio.to_thread(restoring.__exit__, None, None, None)
