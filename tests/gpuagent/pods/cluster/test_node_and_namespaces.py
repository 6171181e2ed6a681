"""The node and the namespaces of its pods: one request each, repeated now and again."""

import asyncio
import json
from io import BytesIO
from typing import cast

import pytest
from aiohttp import web

from gpuagent.pods.lookups import NAMESPACES, Fetcher
from kube.client import KubeClient
from service.log import JsonLog
from tests.support.api_server import BIND_REQUESTS, ApiServer, says
from tests.support.cluster_pods import EVERYTHING, NAMESPACE, offer, running, versioned
from tests.support.kube_objects import NODE, fraction, namespace_object, pod
from tests.support.waiting import seconds_until, until


async def test_one_namespace_that_cannot_be_read_does_not_keep_others_from_being_read(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, pod("a", 1, namespace="broken"), pod("b", 2), namespace_object(labels={"team": "a"}))
    server.refusals = {"/namespaces/broken": says("<html>")}
    async with running(client) as run:
        await until(lambda: run.pods.inventory and run.inventory.namespaces)
        assert run.inventory.namespaces == {"research": {"team": "a"}}


async def test_a_hanging_namespace_request_delays_nothing_else(server: ApiServer, client: KubeClient) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    offer(server, *EVERYTHING)
    server.refusals = {"/api/v1/namespaces/research": never}
    async with running(client) as run:
        assert await seconds_until(lambda: run.pods.inventory) < 2
        assert run.inventory.node_labels
        assert run.inventory.bind_requests


async def test_reads_come_from_the_memory_of_the_api_server(server: ApiServer, client: KubeClient) -> None:
    offer(server, *EVERYTHING)
    async with running(client) as run:
        await until(lambda: run.pods.inventory and run.inventory.namespaces)
        assert {
            request.path: request.query.get("resourceVersion")
            for request in server.requests
            if request not in server.watch_requests
        } == {
            f"/api/v1/nodes/{NODE}": "0",
            "/api/v1/namespaces/research": "0",
            "/api/v1/namespaces/kai-resource-reservation": "0",
            "/api/v1/pods": "0",
            BIND_REQUESTS: "0",
        }


@pytest.mark.parametrize(
    ("count", "seconds"), [(1, 0), (2, 1), (4, 6), (11, 50), (12, 55), (60, 59), (600, 59.9)]
)
async def test_all_namespaces_are_read_within_a_minute_and_few_of_them_sooner(
    count: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 agents with 10 namespaces that start at once send 1,000 requests a second, not 5,000."""
    now, reads = 0.0, list[float]()

    class Client:
        async def get(self, path: str, **_: object) -> bytes:
            reads.append(now)
            return json.dumps(namespace_object(path.rpartition("/")[2])).encode()

    monkeypatch.setattr("gpuagent.pods.lookups.jittered", lambda seconds, _jitter: seconds)
    log = JsonLog(BytesIO())
    fetcher = Fetcher(
        cast(KubeClient, Client()), NAMESPACES, on_change=lambda: None, log=log, clock=lambda: now
    )
    fetcher.request(f"team-{number}" for number in range(count))
    while len(reads) < count:
        name, due = fetcher._next()
        now = max(now, due)
        assert name is not None
        await fetcher._fetch(name)
    assert reads[-1] == pytest.approx(seconds, abs=0.1)


async def test_labels_of_a_namespace_are_read_again_after_half_an_hour_or_for_a_new_pod(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, *EVERYTHING)
    now = 0.0

    def label() -> str | None:
        return run.inventory.namespaces.get("research", {}).get("team")

    async with running(client, clock=lambda: now) as run:
        await until(lambda: run.pods.inventory and label() == "a")
        offer(server, namespace_object(labels={"team": "b"}))
        now = 30.0
        server.change("ADDED", versioned(pod("early", 2)))
        await until(lambda: "early" in (run.names or ()))
        await asyncio.sleep(0.1)
        assert label() == "a", "a namespace is read once a minute at most"
        now = 70.0
        server.change("MODIFIED", versioned(pod("early", 2, labels={"edited": "1"})))
        await asyncio.sleep(0.1)
        assert label() == "a", "a known pod reads nothing"
        server.change("ADDED", versioned(pod("late", 3)))
        await until(lambda: label() == "b")
        offer(server, namespace_object(labels={"team": "c"}))
        requests = len(server.requested_paths("/namespaces/research"))
        now = 70.0 + 1799
        server.change("ADDED", versioned(pod("elsewhere", 4, namespace="elsewhere")))
        await until(lambda: "elsewhere" in (run.names or ()))
        await asyncio.sleep(0.1)
        assert len(server.requested_paths("/namespaces/research")) == requests
        now = 70.0 + 1800 * 1.2 + 1
        server.change("ADDED", versioned(pod("other", 5, namespace="other")))
        await until(lambda: label() == "c")


async def test_a_namespace_that_the_api_server_does_not_know_yet_is_read_again_soon(
    server: ApiServer, client: KubeClient
) -> None:
    """Its memory may be older than the namespace of a new pod."""
    now = 0.0
    offer(server, fraction())
    async with running(client, clock=lambda: now) as run:
        await until(lambda: server.requested_paths("/namespaces/research"))
        await run.pods._namespaces.settled.wait()  # the answer has arrived, too
        offer(server, NAMESPACE)
        now = 73.0
        server.change("ADDED", versioned(pod("elsewhere", 4, namespace="elsewhere")))
        await until(lambda: run.pods.inventory and "research" in run.inventory.namespaces)
