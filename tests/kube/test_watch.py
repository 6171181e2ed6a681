"""The objects and reports of a watch without faults."""

import asyncio
import json
import math

import pytest

from kube.client import KubeClient
from kube.watch import Resource
from tests.support.api_server import PODS, ApiServer, event, lists, pod, streams
from tests.support.waiting import until
from tests.support.watches import QUICK, running


@pytest.fixture(autouse=True, params=["served", "refused"])
def _watch_list(server: ApiServer, request: pytest.FixtureRequest) -> None:
    server.watch_list = request.param


lists_only = pytest.mark.parametrize("_watch_list", ["refused"], indirect=True)
"""For tests that say what an API server answers to a list."""


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


@lists_only
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
