"""The objects and reports of a watch without faults."""

import asyncio
import json
import math
import tracemalloc

import pytest
from aiohttp import web

from kube.client import KubeClient
from kube.watch import Resource, WatchTiming
from tests.support.api_server import PODS, Answer, ApiServer, event, lists, pod, streams
from tests.support.waiting import until
from tests.support.watches import QUICK, running


async def test_a_watch_lists_and_then_follows(server: ApiServer, client: KubeClient) -> None:
    server.pods = {"a": pod("a"), "b": pod("b")}
    async with running(client) as run:
        assert run.watch.seconds_since_contact() == math.inf
        assert run.watch.last_contact is None
        await until(lambda: run.watch.is_synced and server.watch_requests)
        assert run.names == {"a", "b"}
        server.change("ADDED", pod("c"))
        await until(lambda: run.names == {"a", "b", "c"})
        server.change("MODIFIED", pod("a", status={"phase": "Running"}))
        await until(lambda: "status" in run.watch.objects["team-a", "a"])
        server.change("DELETED", pod("b"))
        await until(lambda: run.names == {"a", "c"} and len(run.changes) == 4)
        assert run.changes == [{"a", "b"}, {"a", "b", "c"}, {"a", "b", "c"}, {"a", "c"}]
        assert run.troubles == []


async def test_the_next_watch_begins_at_the_last_version(server: ApiServer, client: KubeClient) -> None:
    bookmark = event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "77"}})
    gone = event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
    server.answers = [
        lists(pod("a")), streams(event("ADDED", pod("b", 2))), streams(), streams(bookmark), streams(gone),
    ]  # fmt: skip
    selector = {"fieldSelector": "spec.nodeName=node-1"}
    async with running(client, resource=Resource(name="pods", path=PODS, params=selector)) as run:
        await until(lambda: len(server.list_requests) == 2)
        await until(lambda: len(run.changes) == 3)
    watches = [dict(request.query) for request in server.watch_requests]
    assert [query["resourceVersion"] for query in watches[:4]] == ["1", "2", "2", "77"]
    assert {query["allowWatchBookmarks"] for query in watches} == {"true"}
    assert run.changes == [{"a"}, {"a", "b"}, set()], "a bookmark moves the version and nothing else"
    exact = {**selector, "resourceVersionMatch": "NotOlderThan"}
    queries = [dict(request.query) for request in server.list_requests]
    assert queries == [{**exact, "resourceVersion": "0"}, {**exact, "resourceVersion": "77"}]


async def test_objects_that_the_reader_skips_are_not_kept(server: ApiServer, client: KubeClient) -> None:
    def only_running(item: bytes) -> object:
        decoded = json.loads(item)
        return decoded if decoded.get("status", {}).get("phase") == "Running" else None

    server.pods = {"a": pod("a"), "b": pod("b", status={"phase": "Running"})}
    async with running(client, read=only_running) as run:
        await until(lambda: run.watch.is_synced and server.watch_requests)
        assert run.names == {"b"}
        server.change("MODIFIED", pod("b", status={"phase": "Failed"}))
        await until(lambda: run.names == set())


async def test_contact_is_each_list_watch_and_event(server: ApiServer, client: KubeClient) -> None:
    now = 100.0
    async with running(client, clock=lambda: now, wall_clock=lambda: now + 1e9, timing=QUICK) as run:
        await until(lambda: run.watch.is_synced and server.watch_requests)
        await asyncio.sleep(0.05)
        now = 130.0
        assert run.watch.seconds_since_contact() == 30.0
        assert run.watch.last_contact == 1e9 + 100
        server.change("ADDED", pod("a"))
        await until(lambda: run.names)
        assert run.watch.seconds_since_contact() == 0.0
        assert run.watch.last_contact == 1e9 + 130
        now = 160.0
        server.tell(event("ERROR", {"kind": "Status", "code": 500, "reason": "InternalError"}))
        server.answers = [streams()]
        watches = len(server.watch_requests)
        await until(lambda: run.watch.restarts["500"])
        assert run.watch.last_contact == 1e9 + 130
        await until(lambda: len(server.watch_requests) > watches)
        await until(lambda: run.watch.last_contact == 1e9 + 160)


async def test_other_tasks_run_between_objects(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts how often another task runs while 300 objects arrive at once; each object counts as long."""
    monkeypatch.setattr("service.tasks._TURN_SECONDS", 0.0)
    server.pods = {f"p{number}": pod(f"p{number}") for number in range(300)}
    turns = 0
    most = 0
    since_turn = 0

    async def count() -> None:
        nonlocal since_turn, turns
        while True:
            since_turn = 0
            turns += 1
            await asyncio.sleep(0)

    def read(item: bytes) -> str:
        nonlocal most, since_turn
        since_turn += 1
        most = max(most, since_turn)
        return "kept"

    other = asyncio.create_task(count())
    try:
        async with running(client, read=read) as run:
            await until(lambda: run.watch.is_synced)
            assert len(run.names) == 300
    finally:
        other.cancel()
    assert most <= 2
    assert turns >= 300


def sends_large(count: int) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if "watch" in request.query:
            await asyncio.sleep(30)
        await response.write(b'{"kind":"PodList","metadata":{"resourceVersion":"5"},"items":[')
        for number in range(count):
            item = json.dumps(pod(f"p{number}", annotations={"a": "x" * 300_000})).encode()
            await response.write(b"," * (number > 0) + item)
        await response.write(b"]}")
        return response

    return answer


async def test_memory_does_not_grow_with_the_number_of_objects(server: ApiServer, client: KubeClient) -> None:
    """The server of this process is measured too; it makes one object at a time."""
    peaks = []
    for count in (10, 40, 160):
        server.always = sends_large(count)
        tracemalloc.start()
        async with running(client, read=lambda item: "kept", timing=WatchTiming()) as run:
            await until(lambda: run.watch.is_synced, seconds=60)
            peaks.append(tracemalloc.get_traced_memory()[1])
            assert len(run.names) == count
        tracemalloc.stop()
    _, few, many = peaks
    assert many < few * 1.5 + 500_000
    assert many < 160 * 300_000 / 5
