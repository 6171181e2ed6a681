"""The whole state as the initial events of a watch, its faults, and the list on servers without them."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from kube.client import KubeClient
from kube.watch import Resource, WatchTiming
from tests.support.api_server import (
    PODS,
    Answer,
    ApiServer,
    event,
    initial_events,
    lists,
    pod,
    refuses,
    status_object,
    streams,
)
from tests.support.waiting import until
from tests.support.watches import QUICK, running

GONE = event("ERROR", status_object(410, "Expired", "too old resource version"))
TOO_NEW = event("ERROR", status_object(504, "Timeout", "Too large resource version: 900, current: 20"))
HASTY = WatchTiming(watch=1, grace=0.2, initial=0.3, first_pause=0.01, longest_pause=0.04, healthy_after=0.1)


async def test_one_request_brings_the_state_and_each_change(server: ApiServer, client: KubeClient) -> None:
    server.pods = {"a": pod("a"), "b": pod("b")}
    resource = Resource(name="pods", path=PODS, params={"fieldSelector": "spec.nodeName=node-1"})
    async with running(client, resource=resource) as run:
        await until(lambda: run.watch.is_synced)
        server.change("DELETED", pod("b"))
        await until(lambda: run.names == {"a"})
        await until(lambda: len(server.watch_requests) == 2)
    assert run.changes == [{"a", "b"}, {"a"}]
    assert server.list_requests == []
    common = {
        "fieldSelector": "spec.nodeName=node-1", "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": "1",
    }  # fmt: skip
    initial = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    queries = [dict(request.query) for request in server.watch_requests]
    assert queries == [common | initial, common | {"resourceVersion": "2"}]
    assert run.watch.restarts == {"closed": 1}
    assert run.troubles == []


CHANGED = pod("b", 8, status={"phase": "Running"})
OTHER_BOOKMARK = event("BOOKMARK", {"metadata": {"resourceVersion": "6", "annotations": {"other": "true"}}})
INVALID = event("ERROR", status_object(422, "Invalid"))
MANY = b"".join(event("MODIFIED", pod("a", number)) for number in range(2, 400))

# answers; reported states, versions of the watches, versions of the lists, restarts
SCRIPTS: dict[str, tuple[list[Answer], str, list[str | None], list[str | None], dict[str, int]]] = {
    "changes within the initial events": (
        [
            streams(initial_events(pod("o"), pod("b"), version=5), GONE),
            streams(event("ADDED", pod("a", 6)), event("ADDED", pod("b", 5)), OTHER_BOOKMARK, event("MODIFIED", CHANGED),
                    event("DELETED", pod("a", 9)), initial_events(version=9)),
        ],
        "ob b", [None, "5", "9"], [], {"gone": 1},
    ),
    "a refusal after the initial events": (
        [streams(initial_events(pod("a"), version=3) + INVALID)], "a", [None, "3"], [], {"422": 1}
    ),
    "versions that went back after a restore": (
        [streams(initial_events(pod("a"), version=900), GONE), streams(TOO_NEW), lists(pod("b"), version=20)],
        "a b", [None, "900", "20"], [None], {"gone": 1, "504": 1},
    ),
    "a least version that is too old": (
        [streams(initial_events(pod("a"), version=7), GONE), refuses(410, "Expired"), streams(initial_events(pod("b"), version=5))],
        "a b", [None, "7", None], [], {"gone": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", SCRIPTS)
async def test_a_watch_goes_on_after(server: ApiServer, client: KubeClient, title: str) -> None:
    answers, states, watched, listed, restarts = SCRIPTS[title]
    server.answers = [*answers]
    async with running(client) as run:
        await until(lambda: run.changes == [set(names) for names in states.split()])
        await until(lambda: len(server.watch_requests) >= len(watched))
    assert [request.query.get("resourceVersion") for request in server.watch_requests][
        : len(watched)
    ] == watched
    assert [request.query.get("resourceVersion") for request in server.list_requests] == listed
    assert restarts.items() <= run.watch.restarts.items()
    if title.startswith("changes"):
        assert run.watch.objects["team-a", "b"] == CHANGED


async def test_changes_that_arrive_together_are_reported_once(server: ApiServer, client: KubeClient) -> None:
    server.answers = [streams(initial_events(pod("a")), MANY)]
    async with running(client) as run:
        await until(lambda: len(server.watch_requests) == 2)
        assert server.watch_requests[1].query["resourceVersion"] == "399"
        assert len(run.changes) < 20


HALF: list[tuple[str, Answer]] = [
    ("the stream ended within the initial events", streams(event("ADDED", pod("half", 9)))),
    ("the answer was cut short", streams(event("ADDED", pod("half", 9)), cut=True)),
    ("not an event", streams(event("ADDED", pod("half", 9)), b"<html>\n")),
    ("500 InternalError", streams(event("ADDED", pod("half", 9)), event("ERROR", status_object(500, "InternalError")))),
    ("504 Timeout", streams(event("ADDED", pod("half", 9)), TOO_NEW)),
    ("410 Expired", streams(event("ADDED", pod("half", 9)), GONE)),
]  # fmt: skip


@pytest.mark.parametrize(("why", "answer"), HALF, ids=[why for why, _ in HALF])
async def test_a_partial_state_is_never_reported_as_complete(
    server: ApiServer, client: KubeClient, why: str, answer: Answer
) -> None:
    server.answers = [answer]
    server.pods = {"whole": pod("whole")}
    server.may_answer.clear()
    async with running(client) as run:
        await until(lambda: run.watch.restarts)
        assert not run.watch.is_synced
        assert run.watch.seconds_since_contact() == float("inf")
        server.may_answer.set()
        await until(lambda: run.watch.is_synced)
        server.answers = [streams(GONE), answer]
        server.cut()
        await until(lambda: not server.answers)
        await until(lambda: len(run.changes) >= 2)
    assert all(names == {"whole"} for names in run.changes)


async def test_a_list_follows_a_stall_in_the_initial_events(server: ApiServer, client: KubeClient) -> None:
    async def stalls(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(event("ADDED", pod("half")))
        await asyncio.sleep(30)
        return response

    server.answers = [stalls]
    server.pods = {"whole": pod("whole")}
    async with running(client, timing=HASTY) as run:
        await until(lambda: run.names == {"whole"})
        assert run.troubles == [f"watch {PODS}: the initial events did not end within 0.3 s"]
        assert run.watch.restarts["unreachable"] == 1
        assert len(server.list_requests) == 1


async def test_a_server_that_ignores_the_parameter_is_listed(server: ApiServer, client: KubeClient) -> None:
    server.watch_list = "ignored"
    server.pods = {"a": pod("a")}
    async with running(client, timing=HASTY) as run:
        await until(lambda: run.names == {"a"})
        server.change("ADDED", pod("b"))
        await until(lambda: run.names == {"a", "b"})
        assert len(server.list_requests) == 1
        await until(lambda: run.troubles[-1] == "")


async def test_a_server_without_the_api_is_asked_again_later(server: ApiServer, client: KubeClient) -> None:
    now = 100.0
    server.watch_list = "refused"
    server.pods = {"a": pod("a")}
    # No watch ends by itself, since the state would be listed once more.
    async with running(client, clock=lambda: now, timing=replace(QUICK, watch=10_000)) as run:
        await until(lambda: run.watch.is_synced)
        assert run.troubles == []
        assert not run.watch.restarts
        for passed, refused, listed in ((0, 1, 2), (599, 1, 3), (2, 2, 4)):
            now += passed
            server.answers = [streams(GONE)]
            server.cut()
            await until(lambda listed=listed: len(server.list_requests) == listed)  # type: ignore[misc]
            assert server.watch_lists_refused == refused
        server.watch_list = "served"
        now += 601
        watches = len(server.watch_requests)
        server.answers = [streams(GONE)]
        server.cut()
        await until(
            lambda: any("sendInitialEvents" in request.query for request in server.watch_requests[watches:])
        )
        assert len(server.list_requests) == 4


@pytest.mark.parametrize("watch_list", ["served", "refused"])
async def test_other_tasks_run_between_objects(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch, watch_list: Any
) -> None:
    """Counts how often another task runs while 300 objects arrive at once; each object counts as long."""
    monkeypatch.setattr("service.tasks._TURN_SECONDS", 0.0)
    server.watch_list = watch_list
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


def large_pods(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield json.dumps(pod(f"p{number}", annotations={"a": "x" * 300_000})).encode()


def sends_large(count: int) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)

        async def pieces() -> AsyncIterator[bytes]:
            if "sendInitialEvents" in request.query:
                for item in large_pods(count):
                    yield b'{"type":"ADDED","object":' + item + b"}\n"
                yield initial_events(version=5)
            else:
                yield b'{"kind":"PodList","metadata":{"resourceVersion":"5"},"items":['
                for number, item in enumerate(large_pods(count)):
                    yield b"," * (number > 0) + item
                yield b"]}"

        if "resourceVersion" in request.query and "watch" in request.query:
            await asyncio.sleep(30)
        async for piece in pieces():
            await response.write(piece)
        return response

    return answer


@pytest.mark.parametrize("watch_list", ["served", "refused"])
async def test_memory_does_not_grow_with_the_number_of_objects(
    server: ApiServer, client: KubeClient, watch_list: Any
) -> None:
    """The server of this process is measured too; it makes one object at a time."""
    server.watch_list = watch_list
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
