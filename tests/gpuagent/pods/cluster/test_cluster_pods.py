"""The pods of a node from an API server, and the inventory that is built of them."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from gpuagent.pods.inventory import UnavailableReason
from kai.kaishare_keys import VCLUSTER
from kube.client import KubeClient
from tests.support.api_server import BIND_REQUESTS, ApiServer, event, initial_events, refuses, says, streams
from tests.support.cluster_pods import EVERYTHING, FORBIDDEN, offer, portion_of, running, versioned
from tests.support.inventories import inventory
from tests.support.kube_objects import (
    GROUP_1,
    NODE,
    RESERVATIONS,
    bind_request,
    fraction,
    namespace_object,
    node,
    pod,
    reservation,
)
from tests.support.waiting import seconds_until, until


async def test_the_inventory_equals_that_of_a_file_with_the_same_objects(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, *EVERYTHING)
    async with running(client) as run:
        await until(lambda: run.pods.inventory and run.inventory.namespaces)
        assert run.inventory == inventory(*EVERYTHING)
        assert run.pods.unavailable == ()
        assert [line["message"] for line in run.log] == ["pods listed"]
        selectors = {
            request.path: request.query.get("fieldSelector") or request.query.get("labelSelector")
            for request in server.watch_requests
        }
        assert selectors == {"/api/v1/pods": f"spec.nodeName={NODE}", BIND_REQUESTS: f"selected-node={NODE}"}


async def test_the_first_inventory_waits_for_bind_requests(server: ApiServer, client: KubeClient) -> None:
    """Else an annotation would count as what was said first."""

    async def slowly(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.3)
        return await streams(initial_events(versioned(bind_request())))(request)

    offer(server, fraction())
    server.refusals = {"bindrequests": slowly}
    async with running(client) as run:
        assert await seconds_until(lambda: run.pods.inventory) > 0.29
        assert run.inventory.bind_requests.keys() == {("research", "half")}


async def test_the_first_inventory_does_not_wait_longer_than_its_limit(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        return web.Response()

    monkeypatch.setattr("gpuagent.pods.cluster_pods._FIRST_SECONDS", 0.2)
    offer(server, fraction())
    server.refusals = {"bindrequests": never}
    async with running(client) as run:
        assert await seconds_until(lambda: run.pods.inventory) < 2
        assert run.names == {"half"}


async def test_pods_come_change_and_go_with_their_related_objects(
    server: ApiServer, client: KubeClient
) -> None:
    async with running(client) as run:
        await until(lambda: run.names == set())
        server.bind_requests.change("ADDED", bind_request())
        server.change("ADDED", versioned(fraction()))
        assert await seconds_until(lambda: run.names == {"half"} and run.inventory.bind_requests) < 5
        assert run.inventory.bind_requests.keys() == {("research", "half")}
        server.change("MODIFIED", versioned(fraction(phase="Failed")))
        await until(lambda: [each.phase for each in run.inventory.pods.values()] == ["Failed"])
        server.change("DELETED", versioned(fraction()))
        await until(lambda: run.names == set())
        server.bind_requests.change("DELETED", bind_request())
        await until(lambda: run.inventory.bind_requests == {})


async def test_a_pod_that_is_gone_within_a_moment_is_remembered_as_ended(
    server: ApiServer, client: KubeClient
) -> None:
    async with running(client) as run:
        await until(lambda: run.names == set())
        server.change("ADDED", versioned(fraction()))
        server.change("DELETED", versioned(fraction()))
        await until(lambda: run.inventory.ended.keys() == {fraction()["metadata"]["uid"]})
        server.change("ADDED", versioned(fraction()))
        await until(lambda: run.names == {"half"} and not run.inventory.ended)


async def test_the_first_line_counts_the_reservation_pods_of_tenants(
    server: ApiServer, client: KubeClient
) -> None:
    tenants = reservation(
        number=950,
        namespace="vcluster-a",
        labels={"runai-gpu-group": GROUP_1, "vcluster.loft.sh/managed-by": "a"},
        annotations={
            "vcluster.loft.sh/object-name": "x",
            "vcluster.loft.sh/object-namespace": RESERVATIONS,
            "vcluster.loft.sh/object-host-name": "gpu-reservation-950",
            "vcluster.loft.sh/object-host-namespace": "vcluster-a",
        },
    )
    host = namespace_object("vcluster-a", {VCLUSTER: "true"})
    offer(server, reservation(), tenants, fraction(), host)
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        (line,) = [line for line in run.log if line["message"] == "pods listed"]
        assert (line["pods"], line["reservation_pods"], line["tenant_reservation_pods"]) == (2, 2, 1)


@pytest.mark.parametrize(
    ("part", "resource", "line"),
    [
        ("/nodes/", "nodes", "no right to get nodes: GPU memory is the driver's figure"),
        (
            "namespaces/research",
            "namespaces",
            "no right to get namespaces: namespaces cannot enable eviction or set their own grace",
        ),
    ],
)
async def test_a_missing_right_is_logged_once_and_the_rest_is_read(
    server: ApiServer, client: KubeClient, part: str, resource: str, line: str
) -> None:
    offer(server, *EVERYTHING)
    others = {} if part != "namespaces/research" else {"bindrequests": FORBIDDEN}
    server.refusals = {part: FORBIDDEN, **others}
    async with running(client) as run:
        await until(
            lambda: run.names == {"half"} and resource in [lack.resource for lack in run.pods.unavailable]
        )
        lack = next(lack for lack in run.pods.unavailable if lack.resource == resource)
        assert lack.reason is UnavailableReason.DENIED
        assert lack.line.startswith(line)
        await until(lambda: len(server.requested_paths(part)) > 2)
        assert run.log_subjects("resource unavailable").count(resource) == 1, (
            "asked again and again, and said once"
        )
        server.refusals = {}
        await until(lambda: resource in run.log_subjects("resource available again"))
        await until(lambda: run.inventory == inventory(*EVERYTHING))
        await until(lambda: run.pods.unavailable == ())


async def test_an_unreadable_pod_is_logged_once_and_the_others_count(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, fraction())
    broken = versioned({**pod("broken", 2), "spec": {"containers": "none"}})
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        server.tell(event("ADDED", broken))
        server.tell(event("MODIFIED", broken))
        server.change("ADDED", versioned(pod("fine", 3)))
        await until(lambda: run.names == {"half", "fine"})
        assert run.log_subjects("skipping invalid pod") == [
            "Pod research/broken: spec.containers: expected array | null, got str"
        ]


async def test_an_invalid_object_is_logged_once(server: ApiServer, client: KubeClient) -> None:
    offer(
        server,
        fraction(),
        {**node(), "metadata": {"name": NODE, "labels": {"nvidia.com/gpu.memory": "much"}}},
    )
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        server.change("ADDED", versioned(pod("fine", 3)))
        await until(lambda: run.names == {"half", "fine"})
        (line,) = run.log_subjects("skipping invalid object")
        assert line.startswith(f"Node {NODE}: label nvidia.com/gpu.memory")


async def test_an_unreachable_server_is_logged_by_the_watch_of_the_pods_alone(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, fraction(), bind_request())
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        await server.stop()
        await until(lambda: run.pods.watch.restarts["unreachable"] > 5)
        assert run.pods.unavailable == ()
        assert run.log_subjects("resource unavailable") == []
        assert run.names == {"half"}
        assert portion_of(run) == "0.50"
        assert 0 < run.pods.seconds_since_contact() < 10
        assert len(run.log_subjects("pod watch failing")) <= 2
        await server.start()
        await until(lambda: run.log[-1]["message"] == "pod watch recovered")


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (refuses(500, "InternalError", "etcd"), "500 InternalError: etcd"),
        (says("<html>"), "Namespace: not JSON"),
        (says("[]"), "expected object, got array"),
        (says('{"metadata": {}}'), "metadata.name: expected a name, got none"),
    ],
)
async def test_an_unreadable_answer_is_logged_once_and_requested_again(
    server: ApiServer, client: KubeClient, answer: Any, line: str
) -> None:
    offer(server, *EVERYTHING)
    server.refusals = {"/namespaces/": answer}
    async with running(client) as run:
        await until(lambda: run.pods.unavailable)
        (lack,) = run.pods.unavailable
        assert lack.reason is UnavailableReason.ERROR
        assert line in lack.line
        await until(lambda: len(server.requested_paths("/namespaces/")) > 4)
        assert run.log_subjects("resource unavailable") == ["namespaces"]
        server.refusals = {}
        await until(lambda: run.inventory.namespaces)
        await until(lambda: run.pods.unavailable == ())
