"""BindRequests of the pods of a node: when they count, and what is unknown without them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from gpuagent.pods.inventory import UnavailableReason
from kube.client import KubeClient
from tests.support.api_server import ApiServer, refuses, says
from tests.support.cluster_pods import FORBIDDEN, offer, portion_of, running, scheduled_by, versioned
from tests.support.kube_objects import GROUP_1, bind_request, fraction, pod, reservation, uid
from tests.support.waiting import seconds_until, until


async def test_the_last_bind_request_counts_until_its_pod_ends(server: ApiServer, client: KubeClient) -> None:
    """KAI writes one long after the pod was seen, deletes stale ones, and a list after an outage may lack them, too."""
    now = 0.0
    offer(server, fraction())
    async with running(client, clock=lambda: now) as run:
        await until(lambda: run.pods.inventory)
        assert run.inventory.bind_requests == {}
        now = 1200.0
        for change, portion in (("ADDED", "0.50"), ("MODIFIED", "0.25")):
            server.bind_requests.change(change, bind_request(portion=portion))
            await until(lambda portion=portion: portion_of(run) == portion)
        server.bind_requests.change("DELETED", bind_request(portion="0.25"))
        await until(lambda: not server.bind_requests.pods and portion_of(run) == "0.25")
        server.bind_requests.forgotten = server.bind_requests.version
        server.bind_requests.cut()
        server.change("ADDED", versioned(pod("more", 2)))
        await until(lambda: run.names == {"half", "more"})
        assert portion_of(run) == "0.25"
        server.change("MODIFIED", versioned(fraction(phase="Succeeded")))
        await until(lambda: portion_of(run) is None)


async def test_the_bind_request_of_another_pod_of_the_same_name_does_not_replace_the_pods_own(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, fraction("worker-0", 2), bind_request("worker-0", 1, "0.90"))
    async with running(client) as run:
        await until(lambda: run.names == {"worker-0"})
        server.bind_requests.change("ADDED", bind_request("worker-0", 2, "0.50"))
        await until(lambda: portion_of(run, "worker-0") == "0.50")
        server.bind_requests.change("MODIFIED", bind_request("worker-0", 1, "0.90"))
        server.change("ADDED", versioned(pod("more", 3)))
        await until(lambda: "more" in (run.names or ()))
        assert portion_of(run, "worker-0") == "0.50"
        server.change("DELETED", versioned(fraction("worker-0", 2)))
        server.change("ADDED", versioned(fraction("worker-0", 1)))
        await until(lambda: portion_of(run, "worker-0") == "0.90")


NOT_SERVED = says("404 page not found\n", status=404, kind="text/plain")
OF_A_CONTAINER = {"nvidia.com/container.main.gpu-memory.request": "70Gi"}
UNKNOWN = frozenset({("research", "half")})


@pytest.mark.parametrize(
    ("made", "is_unknown"),
    [
        (lambda: scheduled_by("kai-scheduler", pod()), True),
        (lambda: scheduled_by("another-name-for-kai", pod()), True),
        (lambda: scheduled_by("default-scheduler", fraction()), True),
        (lambda: scheduled_by("default-scheduler", pod(labels={"runai-gpu-group": GROUP_1})), True),
        (lambda: scheduled_by("default-scheduler", pod(labels={f"runai-gpu-group/{GROUP_1}": "g"})), True),
        (lambda: scheduled_by("default-scheduler", pod(annotations=OF_A_CONTAINER)), True),
        (lambda: scheduled_by("default-scheduler", pod()), False),
        (lambda: scheduled_by("kai-scheduler", pod(phase="Succeeded")), False),
        (lambda: scheduled_by("kai-scheduler", reservation()), False),
        (lambda: scheduled_by("", pod(annotations={"kubernetes.io/config.mirror": "abc"})), False),
    ],
)
async def test_a_bind_request_may_exist_where_kai_may_have_placed_the_pod(
    server: ApiServer,
    client: KubeClient,
    made: Callable[[], dict[str, Any]],
    is_unknown: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pod of KAI's that took off all its annotations is one still: its scheduler cannot be edited."""
    monkeypatch.setattr("gpuagent.pods.cluster_pods._FIRST_SECONDS", 0.1)
    offer(server, made())
    server.refusals = {"bindrequests": refuses(500, "InternalError")}
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        assert bool(run.inventory.bind_requests_unknown) is is_unknown


async def test_an_equal_bind_request_builds_no_inventory(server: ApiServer, client: KubeClient) -> None:
    """KAI writes the status of each BindRequest several times."""
    offer(server, fraction(), bind_request())
    async with running(client) as run:
        await until(lambda: run.pods.inventory and portion_of(run))
        await asyncio.sleep(0.1)
        before = run.inventory
        contact = run.pods.bind_requests.watch.last_contact
        server.bind_requests.change("MODIFIED", {**bind_request(), "status": {"phase": "Failed"}})
        await until(lambda: run.pods.bind_requests.watch.last_contact != contact)
        await asyncio.sleep(0.1)
        assert run.inventory is before


async def test_bind_requests_are_unknown_until_the_api_server_has_listed_them(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()

    async def slowly(request: web.Request) -> web.StreamResponse:
        await answered.wait()
        return await server.bind_requests._answer_about_pods(request)

    monkeypatch.setattr("gpuagent.pods.cluster_pods._FIRST_SECONDS", 0.2)
    offer(server, scheduled_by("default-scheduler", pod(annotations=OF_A_CONTAINER)), reservation())
    server.refusals = {"bindrequests": slowly}
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        assert run.inventory.bind_requests_unknown == UNKNOWN
        answered.set()
        await until(lambda: not run.inventory.bind_requests_unknown)
        assert run.inventory.bind_requests == {}


@pytest.mark.parametrize(
    ("answer", "reason", "line"),
    [
        (FORBIDDEN, UnavailableReason.DENIED, "no right to list and watch"),
        (NOT_SERVED, UnavailableReason.NOT_SERVED, "the API server has no"),
    ],
    ids=["no right", "no such API"],
)
async def test_bind_requests_that_are_not_available_are_not_unknown(
    server: ApiServer, client: KubeClient, answer: Any, reason: UnavailableReason, line: str
) -> None:
    offer(server, fraction())
    server.refusals = {"bindrequests": answer}
    async with running(client) as run:
        assert await seconds_until(lambda: run.pods.inventory) < 5, "it does not wait for them"
        assert run.inventory.bind_requests_unknown == set()
        (lack,) = run.pods.unavailable
        assert (lack.reason, lack.line.startswith(f"{line} bindrequests.scheduling.run.ai: shares come")) == (
            reason,
            True,
        )
        await until(lambda: run.pods.bind_requests.watch.restarts.total() > 3)
        assert run.log_subjects("resource unavailable") == ["bindrequests.scheduling.run.ai"]
        offer(server, bind_request())
        server.refusals = {}
        await until(lambda: portion_of(run) == "0.50")
        await until(lambda: run.pods.unavailable == ())
        assert run.log_subjects("resource available again") == ["bindrequests.scheduling.run.ai"]


async def test_a_withdrawn_right_leaves_what_was_known(server: ApiServer, client: KubeClient) -> None:
    offer(server, fraction(), bind_request())
    async with running(client) as run:
        await until(lambda: run.pods.inventory and portion_of(run))
        server.refusals = {"bindrequests": FORBIDDEN}
        server.bind_requests.cut()
        await until(lambda: run.pods.unavailable)
        server.change("ADDED", versioned(fraction("later", 2)))
        await until(lambda: run.names == {"half", "later"})
        assert portion_of(run) == "0.50"
        assert run.inventory.bind_requests_unknown == set(), "the group label decides"


@pytest.mark.parametrize(
    "answer", [refuses(500, "InternalError", "etcd"), says("<html>")], ids=["an error", "what is none"]
)
async def test_while_their_watch_fails_bind_requests_that_were_not_seen_are_unknown(
    server: ApiServer, client: KubeClient, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuagent.pods.cluster_pods._FIRST_SECONDS", 0.2)
    offer(server, fraction(), bind_request(number=9), fraction("seen", 2), bind_request("seen", 2))
    async with running(client) as run:
        await until(lambda: run.pods.inventory and portion_of(run, "seen"))
        assert run.inventory.bind_requests_unknown == set()
        server.refusals = {"bindrequests": answer}
        server.bind_requests.cut()
        await until(lambda: run.inventory.bind_requests_unknown == UNKNOWN)
        assert portion_of(run, "seen") == "0.50"
        server.refusals = {}
        await until(lambda: not run.inventory.bind_requests_unknown)


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ([], "spec: expected object, got array"),
        ({"receivedGPU": {"portion": 0.5}}, "spec.receivedGPU.portion: expected str"),
        ({"selectedGPUGroups": ["g"] * 1025}, "spec.selectedGPUGroups: 1025 groups; at most 1024"),
    ],
)
async def test_a_malformed_bind_request_is_unknown_and_the_others_are_read(
    server: ApiServer, client: KubeClient, spec: Any, line: str
) -> None:
    malformed = {**bind_request(), "spec": spec}
    offer(server, fraction(), fraction("other", 2), malformed, bind_request("other", 2))
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        assert run.inventory.bind_requests.keys() == {("research", "other")}
        assert run.inventory.bind_requests_unknown == UNKNOWN
        (logged,) = run.log_subjects("skipping invalid object")
        assert logged.startswith(f"BindRequest research/half: {line}")
        server.bind_requests.change("MODIFIED", bind_request())
        await until(lambda: portion_of(run) == "0.50")
        assert run.inventory.bind_requests_unknown == set()
        server.bind_requests.change("MODIFIED", {**bind_request(), "spec": []})
        server.change("ADDED", versioned(pod("more", 3)))
        await until(lambda: "more" in (run.names or ()))
        assert portion_of(run) == "0.50", "the last readable one counts"
        assert run.inventory.bind_requests_unknown == set()


async def test_a_pod_without_a_bind_request_is_unplaced_once_a_list_has_confirmed_it(
    server: ApiServer, client: KubeClient
) -> None:
    """The watch may be late, or its connection dead; the list shows what it has not delivered."""
    offer(server, pod("first", 3))
    async with running(client) as run:
        await until(lambda: run.pods.inventory and run.pods.bind_requests.is_settled)
        late = bind_request("half", 1)
        server.bind_requests.pods["half"] = versioned(late)
        server.change("ADDED", versioned(fraction("half", 1)))
        server.change("ADDED", versioned(fraction("copied", 2)))
        await until(lambda: run.inventory.unplaced_uids == {uid(2)})
        assert portion_of(run, "half") == "0.50"
        lists = [each.query.get("resourceVersion") for each in server.list_requests if "bindreq" in each.path]
        assert lists == ["0", None], "an older state would prove nothing"
        server.bind_requests.change("ADDED", bind_request("copied", 2))
        await until(lambda: run.inventory.unplaced_uids == frozenset())


async def test_a_list_that_fails_confirms_nothing_and_is_repeated(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuagent.pods.bind_requests._LIST_PAUSE", 0.05)
    refused: list[web.Request] = []

    async def respond(request: web.Request) -> web.StreamResponse:
        if "resourceVersion" in request.query or len(refused) == 2:
            return await server.bind_requests._answer_about_pods(request)
        refused.append(request)
        return await refuses(500, "InternalError")(request)

    offer(server, pod("first", 3))
    server.refusals = {"bindrequests": respond}
    async with running(client) as run:
        await until(lambda: run.pods.inventory and run.pods.bind_requests.is_settled)
        server.change("ADDED", versioned(fraction("copied", 2)))
        await until(lambda: run.inventory.unplaced_uids == {uid(2)})
        assert len(refused) == 2
