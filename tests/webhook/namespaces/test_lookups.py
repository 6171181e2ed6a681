"""Reviews that arrive before the watch's event: one request to the API server, cached for a moment; and their answers."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from kube.client import KubeClient
from tests.support.api_server import Answer, ApiServer, refuses, says
from tests.support.followed_namespaces import (
    PATH,
    following,
    namespace,
    serve_by_name,
    serve_namespaces,
    source,
)
from tests.support.waiting import until
from tests.support.webhook_process import serving
from webhook.namespaces.cluster_policies import NamespaceLookups
from webhook.namespaces.policy_source import ANY_MODE, PolicyUnknown
from webhook.policy.labels import Mode

TEAM_A = f"{PATH}/team-a"


def block_answers(server: ApiServer) -> asyncio.Event:
    """Let a server answer no request by name until the event is set."""
    go = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        await go.wait()
        return await says(json.dumps(server.objects[request.path]))(request)

    server.refusals["/namespaces/"] = answer
    return go


async def test_a_hundred_concurrent_lookups_send_one_request(server: ApiServer, client: KubeClient) -> None:
    serve_by_name(server, namespace("team-a"))
    go = block_answers(server)
    policies = source(client).policies
    finds = [asyncio.create_task(policies.find("team-a")) for _ in range(100)]
    await until(lambda: server.requested_paths("/namespaces/"))
    go.set()
    assert {policy and policy.namespace for policy in await asyncio.gather(*finds)} == {"team-a"}
    assert server.requested_paths("/namespaces/") == [TEAM_A]


async def test_a_cancelled_lookup_leaves_the_request_to_others(server: ApiServer, client: KubeClient) -> None:
    serve_by_name(server, namespace("team-a"))
    go = block_answers(server)
    policies = source(client).policies
    first = asyncio.create_task(policies.find("team-a"))
    await until(lambda: server.requested_paths("/namespaces/"))
    second = asyncio.create_task(policies.find("team-a"))
    await asyncio.sleep(0)
    first.cancel()
    go.set()
    policy = await second
    assert policy is not None
    assert first.cancelled()


@pytest.mark.parametrize(
    ("labelled", "seconds"), [(True, 5.0), (False, 0.1)], ids=["a policy", "that there is none"]
)
async def test_an_answer_counts_for_a_moment(
    server: ApiServer, client: KubeClient, labelled: bool, seconds: float
) -> None:
    now = 100.0
    serve_by_name(server, namespace("team-a", queue="queue-a" if labelled else None))
    policies = source(client, clock=lambda: now).policies

    async def is_managed() -> bool:
        return await policies.find("team-a") is not None

    assert await is_managed() is labelled
    now += seconds * 0.9
    serve_by_name(server, namespace("team-a", queue=None if labelled else "queue-a"))
    assert await is_managed() is labelled
    assert len(server.requests) == 1
    now += seconds * 0.11
    assert await is_managed() is not labelled
    assert len(server.requests) == 2


async def test_a_policy_of_another_mode_counts_for_100_ms(server: ApiServer, client: KubeClient) -> None:
    now = 100.0
    serve_by_name(server, namespace("team-a"))
    policies = source(client, clock=lambda: now).policies
    assert await policies.find("team-a", modes={Mode.DEFAULT}) is not None
    serve_by_name(server, namespace("team-a", mode="enforce"))
    now += 0.2
    policy = await policies.find("team-a", modes={Mode.ENFORCE})
    assert policy is not None
    assert policy.mode is Mode.ENFORCE
    for _ in range(100):  # forged reviews
        await policies.find("team-a", modes={Mode.OBSERVE})
    assert len(server.requests) == 2


@pytest.mark.parametrize("now_enforced", [True, False])
async def test_a_policy_whose_mode_does_not_match_the_webhook_is_looked_up(
    server: ApiServer, client: KubeClient, now_enforced: bool
) -> None:
    serve_namespaces(server, namespace("team-a"))
    serve_by_name(server, namespace("team-a", mode="enforce" if now_enforced else "default"))
    async with following(client) as follow:
        await until(lambda: follow.names)
        policy = await follow.policies.find("team-a", modes={Mode.ENFORCE})
        assert policy is not None
        assert policy.mode is (Mode.ENFORCE if now_enforced else Mode.DEFAULT)
        assert server.requested_paths("/namespaces/") == [TEAM_A]
        await follow.policies.find("team-a", modes={Mode.DEFAULT})
        assert server.requested_paths("/namespaces/") == [TEAM_A]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refuses(403, "Forbidden", "no right to get"), "403 Forbidden: no right to get"),
        (refuses(500, "InternalError"), "500 InternalError"),
        (says("<html>"), "not a Namespace"),
        (says('{"metadata": {"name": 5}}'), "not a Namespace"),
    ],
    ids=["forbidden", "an error", "no JSON", "no namespace"],
)
async def test_an_unusable_answer_is_an_error_until_the_next_request(
    server: ApiServer, client: KubeClient, answer: Answer, error: str
) -> None:
    now = 100.0
    server.answers = [answer]
    serve_by_name(server, namespace("team-a"))
    policies = source(client, clock=lambda: now).policies
    for _ in range(3):
        with pytest.raises(PolicyUnknown, match=error):
            await policies.find("team-a")
    assert len(server.requests) == 1, "an API server in trouble is not asked by every review"
    now += 1
    assert await policies.find("team-a") is not None


async def test_a_silent_api_server_is_an_error_after_the_deadline(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.namespaces.cluster_policies.LONGEST_SECONDS", 0.5)
    block_answers(server)
    policies = source(client).policies
    errors = await asyncio.gather(*(policies.find("team-a") for _ in range(20)), return_exceptions=True)
    assert {str(error) for error in errors} == {f"GET {TEAM_A}: no answer in time"}
    assert server.requested_paths("/namespaces/") == [TEAM_A]


@pytest.mark.parametrize(
    "name", ["", "..", "a/b", "a?watch=1", "team-a/../../x", "UPPER", "a" * 64, "-a", "a\n", "ä"]
)
async def test_an_invalid_name_is_never_requested(server: ApiServer, client: KubeClient, name: str) -> None:
    policies = source(client).policies
    assert await policies.find(name) is None
    assert server.requests == []
    assert await policies.find("gone") is None
    assert server.requested_paths("/namespaces/") == [f"{PATH}/gone"]
    assert "as=PartialObjectMetadata;" in server.requests[0].headers["Accept"]


async def test_the_cache_of_answers_is_bounded(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.namespaces.cluster_policies._MOST_REMEMBERED", 2)
    lookups = NamespaceLookups(client, clock=lambda: 1.0)
    for name in ("a", "b", "a", "c", "a"):
        await lookups.find(name, ANY_MODE)
    assert server.requested_paths("/namespaces/") == [f"{PATH}/{name}" for name in ("a", "b", "c")]
    await lookups.find("b", ANY_MODE)
    assert server.requested_paths("/namespaces/")[-1] == f"{PATH}/b", (
        "the one unused for longest was forgotten"
    )


async def test_invented_names_send_few_requests(server: ApiServer, client: KubeClient) -> None:
    now = 100.0
    lookups = NamespaceLookups(client, clock=lambda: now)
    for number in range(200):
        await lookups.find(f"invented-{number}", ANY_MODE)
    with pytest.raises(PolicyUnknown, match="too many namespaces are requested"):
        await lookups.find("one-more", ANY_MODE)
    assert len(server.requests) == 200
    now += 4
    assert await lookups.find("one-more", ANY_MODE) is None


async def test_refused_names_displace_no_answer_of_another_peer(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.namespaces.cluster_policies._MOST_REMEMBERED", 101)
    lookups = NamespaceLookups(client, clock=lambda: 100.0)
    await lookups.find("team-a", ANY_MODE, "api-server")
    for number in range(300):
        with contextlib.suppress(PolicyUnknown):
            await lookups.find(f"invented-{number}", ANY_MODE, "forger")
    count = len(server.requests)
    await lookups.find("team-a", ANY_MODE, "api-server")
    assert len(server.requests) == count


@pytest.mark.parametrize("forgers", [1, 2, 49])
async def test_names_that_other_peers_invent_leave_new_namespaces_served(
    server: ApiServer, client: KubeClient, forgers: int
) -> None:
    count = 14 if forgers < 10 else 4
    for number in range(count):
        serve_by_name(server, namespace(f"new-{number}"))
    lookups = NamespaceLookups(client, clock=lambda: 100.0)
    for number in range(300 // forgers):
        for forger in range(forgers):
            with contextlib.suppress(PolicyUnknown):
                await lookups.find(f"invented-{number}", ANY_MODE, f"forger-{forger}")
    for number in range(count):
        with pytest.raises(PolicyUnknown, match="too many"):
            await lookups.find(f"new-{number}", ANY_MODE, "forger-0")
        policy = await lookups.find(f"new-{number}", ANY_MODE, "api-server")
        assert policy is not None
        assert policy.namespace == f"new-{number}"
    assert len(server.requests) <= 300


async def test_the_number_of_peers_in_a_window_is_bounded(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.namespaces.cluster_policies._MOST_PEERS", 3)
    now = 100.0
    lookups = NamespaceLookups(client, clock=lambda: now)
    for number in range(3):
        await lookups.find("a", ANY_MODE, f"peer-{number}")
    for number in range(3, 20):
        with pytest.raises(PolicyUnknown, match="too many"):
            await lookups.find("a", ANY_MODE, f"peer-{number}")
    assert len(lookups._requests) == 3
    assert len(server.requests) == 3


async def test_the_number_of_concurrent_requests_is_bounded(server: ApiServer, client: KubeClient) -> None:
    most = waiting = 0

    def counted(answer: Answer) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def count(request: web.Request) -> web.StreamResponse:
            nonlocal most, waiting
            waiting += 1
            most = max(most, waiting)
            await asyncio.sleep(0.01)
            waiting -= 1
            return await answer(request)

        return count

    server.always = counted(refuses(404, "NotFound"))
    policies = source(client).policies
    await asyncio.gather(*(policies.find(f"team-{number}") for number in range(40)))
    assert len(server.requests) == 40
    assert most <= 8


@pytest.mark.parametrize(
    ("path", "status", "part"),
    [
        ("/mutate", 200, b'"allowed":true'),
        ("/validate/pods", 500, b"policy cannot be read now: GET /api/v1/namespaces/team-a: 403 Forbidden"),
    ],
)
async def test_without_a_policy_mutation_admits_and_validation_fails(
    server: ApiServer, client: KubeClient, tmp_path: Path, path: str, status: int, part: bytes
) -> None:
    server.always = refuses(403, "Forbidden", "no right to get")
    async with serving(tmp_path, source(client).policies) as live:
        connection = await live.connect()
        reply = await connection.post(path=path)
        assert reply.status == status
        assert part in reply.body
        assert b"patch" not in reply.body
        assert await live.errors("policies") == 1
        (line,) = live.logged("policy unknown")
        assert "no right to get" in line["problem"]
        decided = [(entry["action"], entry["reason"]) for entry in live.logged("decision")]
        assert decided == ([("error", "policy-unknown")] if status == 200 else [])
