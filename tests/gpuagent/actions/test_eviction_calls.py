"""Records of evictions: what is written, what is read back, and the budget that is left after a restart."""

import asyncio
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web

from gpuagent.actions.eviction_rules import KEPT_SECONDS, Budget, PastEviction, remaining_evictions
from gpuagent.actions.evictor import ClusterCalls
from kai.kaishare_keys import EVICTED_OWNER
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from tests.support.api_server import ApiServer, refuses, says
from tests.support.evaluations import RULES
from tests.support.samples import pod

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def past(*ages: float) -> list[PastEviction]:
    return [PastEviction(seconds_ago=age, owner="") for age in ages]


@pytest.mark.parametrize(
    ("budget", "ages", "remaining"),
    [
        (Budget(1, 600), (), 1), (Budget(1, 600), (0,), 0), (Budget(1, 600), (150,), 0.25),
        (Budget(1, 600), (600,), 1), (Budget(1, 600), (1200, 150), 0.25), (Budget(3, 600), (10, 10), 1.05),
        (Budget(3, 600), (0, 0, 0, 0, 0), 0), (Budget(1, 3600), (), 1), (Budget(1, 7200), (), 0.5),
        (Budget(1, 7200), (KEPT_SECONDS + 1,), 0.5), (Budget(24, 24 * 3600), (1800,), 0.5),
    ],
)  # fmt: skip
def test_a_budget_after_a_restart(budget: Budget, ages: tuple[float, ...], remaining: float) -> None:
    assert remaining_evictions(budget, past(*ages)) == pytest.approx(remaining)


class Events:
    """Answers requests for Events in the agent's namespace."""

    def __init__(self, server: ApiServer) -> None:
        self.stored: list[dict[str, Any]] = []
        self.queries: list[dict[str, str]] = []
        server.always = self.answer

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.path == "/api/v1/namespaces/kaishare/events"
        date = format_datetime(NOW, usegmt=True)
        if request.method == "POST":
            event = await request.json()
            created = (NOW - timedelta(seconds=100)).strftime("%Y-%m-%dT%H:%M:%SZ")
            self.stored.append({**event, "metadata": {**event["metadata"], "creationTimestamp": created}})
            return await says(json.dumps(event), status=201, Date=date)(request)
        self.queries.append(dict(request.query))
        items = {"kind": "EventList", "metadata": {"resourceVersion": "1"}, "items": self.stored}
        return await says(json.dumps(items), Date=date)(request)


@pytest.fixture
def events(server: ApiServer) -> Events:
    return Events(server)


def calls_of(client: KubeClient, wall_clock: Callable[[], float] = time.time) -> ClusterCalls:
    """Return the calls of an evictor that announces no eviction."""
    return ClusterCalls(
        client, node="node-a", rules=RULES, clock=time.monotonic,
        announce=lambda _verdict, _evaluation: asyncio.sleep(0), wall_clock=wall_clock,
    )  # fmt: skip


async def test_a_record_is_a_nodes_event_in_the_agents_namespace(events: Events, client: KubeClient) -> None:
    calls = calls_of(client, NOW.timestamp)
    await calls.record(pod("train"), "digest", within=5.0)
    await calls.record(pod("train"), "digest", within=5.0)
    event, again = events.stored
    assert event["metadata"]["name"] != again["metadata"]["name"], "a patched Event would keep its old time"
    assert event["metadata"]["name"].startswith("node-a.")
    assert event["metadata"]["annotations"] == {EVICTED_OWNER: "digest"}
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "Node", "namespace": "kaishare", "name": "node-a", "uid": "node-a",
    }  # fmt: skip
    assert (event["related"]["namespace"], event["related"]["name"]) == ("team-a", "train")
    assert event["source"] == {"component": "kaishare-agent", "host": "node-a"}
    assert event["message"] == "pod team-a/train is evicted by its namespace's over-share policy"


async def test_records_are_read_with_ages_of_the_api_server(events: Events, client: KubeClient) -> None:
    """The times that a client writes into an Event, and the node's clock, do not count."""
    calls = calls_of(client, lambda: 0.0)
    await calls.record(pod("train"), "digest", within=5.0)
    (read,) = await calls.past_evictions()
    assert read.owner == "digest"
    assert 95 <= read.seconds_ago <= 100
    (query,) = events.queries
    selector = "reason=GPUShareEvicted,reportingComponent=kaishare-agent,involvedObject.uid=node-a"
    assert query["fieldSelector"] == selector


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"creationTimestamp": None},
        {"creationTimestamp": "yesterday"},
        {"creationTimestamp": "2026-03-01T12:00:00"},
        {"creationTimestamp": "2026-03-01T12:00:00Z", "annotations": []},
    ],
)
async def test_a_malformed_event_makes_the_records_unreadable(
    events: Events, client: KubeClient, metadata: dict[str, Any]
) -> None:
    events.stored.append({"metadata": {"name": "x", **metadata}})
    with pytest.raises(Unreachable, match="expected an Event"):
        await calls_of(client).past_evictions()


async def test_an_event_from_the_future_counts_as_new(events: Events, client: KubeClient) -> None:
    events.stored.append({"metadata": {"name": "x", "creationTimestamp": "2027-01-01T00:00:00Z"}})
    (read,) = await calls_of(client).past_evictions()
    assert (read.seconds_ago, read.owner) == (0, "")


async def test_a_refusal_is_an_error(server: ApiServer, client: KubeClient) -> None:
    server.always = refuses(403, "Forbidden", "cannot list events")
    calls = calls_of(client)
    with pytest.raises(ApiError, match="cannot list events"):
        await calls.past_evictions()
    with pytest.raises(ApiError, match="cannot list events"):
        await calls.record(pod("train"), "digest", within=5.0)
