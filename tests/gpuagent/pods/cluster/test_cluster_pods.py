"""The pods of a node from an API server, and the inventory that is built of them."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from aiohttp import web

from gpuagent.pods.inventory import UnavailableReason
from gpuagent.pods.lookups import Fetcher
from kai.kaishare_keys import VCLUSTER
from kube.client import KubeClient
from tests.support.api_server import BIND_REQUESTS, ApiServer, event, lists, refuses, says
from tests.support.cluster_pods import EVERYTHING, FORBIDDEN, offer, portion_of, running, versioned
from tests.support.inventories import inventory
from tests.support.kube_objects import (
    NODE,
    bind_request,
    fraction,
    namespace_object,
    of_tenant,
    pod,
    reservation,
)
from tests.support.waiting import seconds_until, until


async def test_the_inventory_is_that_of_a_file(server: ApiServer, client: KubeClient) -> None:
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
        return await lists(versioned(bind_request()))(request)

    offer(server, fraction())
    server.refusals = {"bindrequests": slowly}
    async with running(client) as run:
        assert await seconds_until(lambda: run.pods.inventory) > 0.29
        assert run.inventory.bind_requests.keys() == {("research", "half")}


async def test_the_first_inventory_waits_for_the_namespaces_of_a_vclusters_pods(
    server: ApiServer, client: KubeClient
) -> None:
    host = namespace_object("vcluster-red", {VCLUSTER: "true"})
    offer(server, of_tenant(reservation(number=950)), fraction(), host)
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        (line,) = [line for line in run.log if line["message"] == "pods listed"]
        assert (line["pods"], line["tenant_reservation_pods"]) == (2, 1)


async def test_pods_come_and_go_with_their_related_objects(server: ApiServer, client: KubeClient) -> None:
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


async def test_a_pod_gone_in_a_moment_is_remembered_as_ended(server: ApiServer, client: KubeClient) -> None:
    async with running(client) as run:
        await until(lambda: run.names == set())
        server.change("ADDED", versioned(fraction()))
        server.change("DELETED", versioned(fraction()))
        await until(lambda: run.inventory.ended.keys() == {fraction()["metadata"]["uid"]})
        server.change("ADDED", versioned(fraction()))
        await until(lambda: run.names == {"half"} and not run.inventory.ended)


DENIED, ERROR = UnavailableReason.DENIED, UnavailableReason.ERROR
GRACE = "no right to get namespaces: namespaces cannot enable eviction or set their own grace"


@pytest.mark.parametrize(
    ("part", "answer", "resource", "reason", "line"),
    [
        ("/nodes/", FORBIDDEN, "nodes", DENIED, "no right to get nodes: GPU memory is the driver's figure"),
        ("namespaces/research", FORBIDDEN, "namespaces", DENIED, GRACE),
        ("/namespaces/", refuses(500, "InternalError", "etcd"), "namespaces", ERROR, "500 InternalError: etcd"),
        ("/namespaces/", says("<html>"), "namespaces", ERROR, "Namespace: not JSON"),
        ("/namespaces/", says("[]"), "namespaces", ERROR, "expected object, got array"),
        ("/namespaces/", says('{"metadata": {}}'), "namespaces", ERROR, "metadata.name: expected a name, got none"),
    ],
)  # fmt: skip
async def test_what_cannot_be_read_is_logged_once_and_requested_again_and_the_rest_is_read(
    server: ApiServer, client: KubeClient, part: str, answer: Any, resource: str, reason: UnavailableReason, line: str
) -> None:  # fmt: skip
    offer(server, *EVERYTHING)
    server.refusals = {part: answer, **({"bindrequests": FORBIDDEN} if answer is FORBIDDEN else {})}
    async with running(client) as run:
        await until(
            lambda: run.names == {"half"} and resource in {each.resource for each in run.pods.unavailable}
        )
        (lack,) = [lack for lack in run.pods.unavailable if lack.resource == resource]
        assert (lack.reason, line in lack.line) == (reason, True)
        await until(lambda: len(server.requested_paths(part)) > 4)
        assert run.log_subjects("resource unavailable").count(resource) == 1
        server.refusals = {}
        await until(lambda: resource in run.log_subjects("resource available again"))
        await until(lambda: run.inventory == inventory(*EVERYTHING))
        await until(lambda: run.pods.unavailable == ())


async def test_one_unreadable_pod_is_one_line_and_others_count(server: ApiServer, client: KubeClient) -> None:
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


async def test_an_unreachable_server_is_logged_by_one_watch(server: ApiServer, client: KubeClient) -> None:
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


async def test_related_objects_are_worked_out_once_for_many_changes(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, wanted = 200, list[int]()
    want = Fetcher.request

    def counted(fetcher: Fetcher, names: Iterable[str], **options: Any) -> None:
        wanted.append(1)
        want(fetcher, names, **options)

    monkeypatch.setattr(Fetcher, "request", counted)
    async with running(client) as run:
        await until(lambda: run.names == set())
        before = len(wanted)
        for number in range(changes):
            server.change("MODIFIED", versioned(fraction(labels={"edited": str(number)}), 10 + number))
        last = str(changes - 1)
        await until(lambda: [pod.labels["edited"] for pod in run.inventory.pods.values()] == [last])
        assert len(wanted) - before < changes / 4
