"""Faults of API servers and proxies that a watch survives, with lists and then watches."""

import asyncio
import itertools
import time
from collections import Counter
from dataclasses import replace

import msgspec
import pytest
from aiohttp import web

from kube.client import KubeClient
from kube.watch import WatchTiming
from tests.support.api_server import (
    FAULTS,
    PODS,
    Answer,
    ApiServer,
    event,
    holds,
    lists,
    pod,
    refuses,
    says,
    status_object,
    streams,
)
from tests.support.waiting import seconds_until, until
from tests.support.watches import QUICK, running


class Colour(msgspec.Struct):
    colour: str


GONE = event("ERROR", status_object(410, "Expired", "too old resource version: 1 (5)"))
TOO_NEW = refuses(504, "Timeout", "Too large resource version: 900, current: 20")
ADDED = event("ADDED", pod("b", 2, annotations="x" * 3000))
PIECES = [ADDED[at : at + 97] for at in range(0, len(ADDED), 97)]
LARGEST = event("ADDED", pod("b", 2, data="x" * 3_000_000))


def least_seconds(tries: int) -> float:
    """The bound for the pace of tries: a pause is at least half as long as the longest from the fourth one on."""
    return (tries - 4) * QUICK.longest_pause / 2


# answers of the server; reported states, each letter is an object; versions of the lists, later pages have none; versions
# of the watches; restarts but for normal ends, which are not compared if there are none; the problem
Script = tuple[tuple[Answer, ...], str, tuple[str | None, ...], tuple[str, ...], dict[str, int], str]


def stream_error(code: int) -> Script:
    error = event("ERROR", status_object(code, "InternalError", "etcd has no leader"))
    answers = (lists(pod("a"), version=4), streams(error))
    problem = f"watch {PODS}: {code} InternalError: etcd has no leader"
    return answers, "a", ("0",), ("4", "4"), {str(code or "error"): 1}, problem


SCRIPTS: dict[str, Script] = {
    "a forgotten version, as HTTP status": (
        (lists(pod("o")), refuses(410, "Expired", "too old")), "o n", ("0", "1"), ("1", "5"), {"gone": 1}, "",
    ),
    "a forgotten version, as event": ((lists(pod("o")), streams(GONE)), "o n", ("0", "1"), ("1", "5"), {"gone": 1}, ""),
    "versions that went back after a restore": (
        (lists(pod("a"), version=900), streams(GONE), TOO_NEW, lists(pod("b"), version=20)),
        "a b", ("0", "900", None), ("900", "20"), {"gone": 1, "504": 1},
        f"GET {PODS}: 504 Timeout: Too large resource version: 900, current: 20",
    ),
    "an error without code": stream_error(0),
    "an internal error": stream_error(500),
    "an unavailable service": stream_error(503),
    "a cut line": ((lists(), streams(ADDED[:-20]), streams(ADDED)), " b", ("0",), ("1", "1"), {}, ""),
    "a line of a broken stream": ((lists(), streams(ADDED[:-20], cut=True), streams(ADDED)), " b", ("0",), ("1", "1"), {}, ""),
    "a line in many pieces": ((lists(), streams(*PIECES)), " b", ("0",), ("1", "2"), {}, ""),
    "the largest possible object": ((lists(), streams(LARGEST)), " b", ("0",), ("1", "2"), {}, ""),
}  # fmt: skip


@pytest.mark.parametrize("title", SCRIPTS)
async def test_a_watch_goes_on_after(server: ApiServer, client: KubeClient, title: str) -> None:
    answers, states, listed, watched, restarts, problem = SCRIPTS[title]
    server.answers = [*answers]
    server.pods, server.version = {"n": pod("n")}, 5
    async with running(client) as run:
        await until(lambda: len(server.watch_requests) >= len(watched))
        await until(lambda: [set(names) for names in states.split(" ")] == run.changes)
    versions = [request.query["resourceVersion"] for request in server.watch_requests]
    assert tuple(versions[: len(watched)]) == watched
    assert tuple(request.query.get("resourceVersion") for request in server.list_requests) == listed
    if restarts:
        assert run.watch.restarts - Counter(closed=99) == restarts
        assert [trouble for trouble in run.troubles if trouble] == [problem] * bool(problem)


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [(410, "Expired", "always"), (403, "Forbidden", 'User "x" cannot list resource "pods"')],
)
async def test_a_repeated_refusal_is_reported_once_and_retried_with_growing_pauses(
    server: ApiServer, client: KubeClient, code: int, reason: str, message: str
) -> None:
    server.always = refuses(code, reason, message)
    async with running(client) as run:
        assert await seconds_until(lambda: len(server.requests) >= 25) > least_seconds(25)
        assert run.troubles == [f"GET {PODS}: {code} {reason}: {message}"]
        assert not run.watch.is_synced
        server.always, server.pods = None, {"a": pod("a")}
        await until(lambda: run.names == {"a"})


async def test_a_server_that_ends_all_streams_is_tried_seldom(server: ApiServer, client: KubeClient) -> None:
    server.answers = [lists(pod("a"))]
    server.always = streams()
    # A watch that lasts longer than the test: without its version the whole state would be read.
    async with running(client, timing=replace(QUICK, watch=60, healthy_after=20)) as run:
        assert await seconds_until(lambda: len(server.watch_requests) >= 25) > least_seconds(25)
        assert run.troubles == [f"watch {PODS}: the server closes every stream at once"]
        assert run.names == {"a"}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_watch_keeps_what_it_knows_and_recovers_also_if_it_starts_during_the_fault(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr("kube.client._SECONDS", 0.5)
    monkeypatch.setattr("kube.client._LIST_SILENT_SECONDS", 0.5)
    server.pods = {name: pod(name) for name in ("kept", "gone")}
    async with running(client) as following:
        await until(lambda: following.watch.is_synced)
        server.always = FAULTS[fault]
        server.cut()
        before, began = len(server.requests), time.monotonic()
        async with running(client) as beginning:
            server.change("MODIFIED", pod("kept"))
            server.change("DELETED", pod("gone"))
            server.change("ADDED", pod("made"))
            await until(lambda: following.troubles and beginning.troubles, fault)
            assert (following.names, beginning.watch.is_synced) == ({"kept", "gone"}, False)
            seconds = time.monotonic() - began
            assert len(server.requests) - before <= 2 * 2 * (4 + seconds / (QUICK.longest_pause / 2)), (
                "a refused token is renewed once"
            )
            server.always = None
            for run in (following, beginning):
                await until(lambda: list(run.watch.objects.values()) == [*server.pods.values()], fault)  # noqa: B023
                await until(lambda: run.troubles[-1] == "", fault)  # noqa: B023
                assert all(line.isprintable() and len(line) < 500 for line in run.troubles)
    was_there = ["gone" in names for names in following.changes]
    assert was_there == sorted(was_there, reverse=True), "a deleted object does not come back"


@pytest.mark.parametrize(
    "line",
    [
        b"Unauthorized\n", b"<html>\n", b"\xff\xfe\x00\n", b"[" * 100_000 + b"\n", b'{"type": "ADDED"}\n',
        b'{"type": "FROZEN", "object": {"metadata": {"name": "x", "resourceVersion": "9"}}}\n',
        b'{"type": "ERROR", "object": "text"}\n',
        b'{"type": "ERROR", "object": null}\n',
    ],
)  # fmt: skip
async def test_what_is_no_event_ends_the_stream(server: ApiServer, client: KubeClient, line: bytes) -> None:
    server.answers = [lists(pod("a"), version=3), streams(line, event("DELETED", pod("a", 9)))]
    async with running(client) as run:
        await until(lambda: len(server.watch_requests) == 2)
        assert run.names == {"a"}
        assert server.watch_requests[1].query["resourceVersion"] == "3"
        assert run.watch.restarts.total() == 1
        (trouble,) = run.troubles
        assert len(trouble) < 500
        assert trouble.isprintable()


@pytest.mark.parametrize(
    "item",
    [{}, {"metadata": {}}, {"metadata": {"name": "x"}}, {"metadata": {"name": 5, "resourceVersion": "9"}}],
)
async def test_an_object_that_cannot_be_decoded_is_skipped_and_counted_and_the_watch_goes_on(
    server: ApiServer, client: KubeClient, item: dict[str, object]
) -> None:
    lines: list[str] = []
    server.answers = [
        lists(pod("a"), item, version=3),
        streams(event("MODIFIED", item), event("ADDED", pod("b", 9))),
    ]
    async with running(client, on_unreadable=lines.append) as run:
        await until(lambda: run.names == {"a", "b"})
        assert run.watch.unreadable == len(lines) == 2
        assert all(line.startswith(f"watch {PODS}: not an object: ") and line.isprintable() for line in lines)
        await until(lambda: len(server.watch_requests) == 2)
        assert server.watch_requests[1].query["resourceVersion"] == "9"
        assert run.troubles == []


async def test_the_last_readable_version_of_an_object_stays(server: ApiServer, client: KubeClient) -> None:
    def read(item: bytes) -> str:
        return msgspec.json.decode(item, type=Colour).colour

    lines: list[str] = []
    server.answers = [
        lists(pod("a", colour="red"), pod("b", colour=5), version=3),
        streams(event("MODIFIED", pod("a", 4, colour=5)), event("ADDED", pod("c", 5, colour="blue"))),
        streams(GONE),
        lists(pod("a", colour=5), pod("b", colour="green"), version=9),
        streams(event("DELETED", pod("a", 10, colour=5))),
    ]
    async with running(client, read=read, on_unreadable=lines.append) as run:
        await until(lambda: run.watch.objects == {("team-a", "a"): "red", ("team-a", "c"): "blue"})
        await until(lambda: run.watch.objects == {("team-a", "b"): "green"})
    assert {"a", "b"} in run.changes
    assert lines == ["Expected `str`, got `int` - at `$.colour`"] * 3
    assert run.troubles == []


async def test_a_line_without_end_is_given_up(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kube.answers._LONGEST_LINE", 1 << 20)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in itertools.repeat(None, 64):
            await response.write(b"x" * 65536)
        return response

    server.answers = [lists(pod("a")), endless]
    async with running(client) as run:
        await until(lambda: run.troubles)
        assert run.troubles == [f"GET {PODS}: a line of more than 1048576 bytes"]
        await until(lambda: len(server.watch_requests) == 2)


async def test_a_stream_without_data_for_too_long_is_ended(server: ApiServer, client: KubeClient) -> None:
    server.answers = [lists(pod("a")), holds]
    server.pods = {"a": pod("a")}
    async with running(client) as run:
        took = await seconds_until(lambda: run.troubles)
        assert QUICK.watch + QUICK.grace - 0.1 < took < QUICK.watch + QUICK.grace + 5
        assert run.watch.restarts == {"unreachable": 1}
        await until(lambda: len(server.watch_requests) == 2)


async def test_a_silent_watch_is_renewed_at_its_version(server: ApiServer, client: KubeClient) -> None:
    now = 100.0
    timing = replace(QUICK, watch=300, silence=0.2, healthy_after=0)
    server.answers = [lists(pod("a"), version=3), holds, holds, holds]
    async with running(client, timing=timing, clock=lambda: now) as run:
        await until(lambda: len(server.watch_requests) == 1)
        now = 250.0
        assert run.watch.seconds_since_contact() == 150
        await until(lambda: len(server.watch_requests) == 2)
        await until(lambda: run.watch.seconds_since_contact() == 0)
        await until(lambda: len(server.watch_requests) == 3)
        assert [request.query["resourceVersion"] for request in server.watch_requests] == ["3"] * 3
        assert len(server.list_requests) == 1
        assert run.watch.restarts.keys() == {"silent"}
        assert run.troubles == []


async def test_a_watch_without_a_version_reads_everything(server: ApiServer, client: KubeClient) -> None:
    """After a restore of etcd the API server sends neither objects nor bookmarks to a watch of before."""
    now = 100.0
    server.answers = [lists(pod("a"), version=900), holds]
    server.pods, server.version = {"b": pod("b")}, 20
    async with running(client, timing=replace(QUICK, watch=300, silence=0.2), clock=lambda: now) as run:
        await until(lambda: len(server.watch_requests) == 1)
        now = 380.0
        await until(lambda: run.names == {"b"})
        assert server.list_requests[1].query["resourceVersion"] == "900", (
            "the API server refuses it if it is too new"
        )


async def test_watches_last_a_random_time_within_their_limits(server: ApiServer, client: KubeClient) -> None:
    server.second = 0.001
    async with running(client, timing=WatchTiming(watch=300, spread=300, healthy_after=0)):
        await until(lambda: len(server.watch_requests) >= 6)
    seconds = [int(request.query["timeoutSeconds"]) for request in server.watch_requests]
    assert all(300 <= each <= 600 for each in seconds)
    assert len(set(seconds)) > 3


async def test_a_problem_ends_once_the_next_watch_has_lasted(server: ApiServer, client: KubeClient) -> None:
    """A watch lasts for minutes, so its end is too late."""
    refused = [*[refuses(500, "InternalError", "a")] * 3, *[refuses(503, "Unavailable", "b")] * 3]
    server.answers = [*refused, refuses(429, "TooManyRequests", Retry_After="1"), lists(pod("a")), holds]
    began = time.monotonic()
    async with running(client, timing=replace(QUICK, watch=300)) as run:
        await until(lambda: run.watch.cause == "500")
        await until(lambda: run.troubles[-1:] == [""], seconds=5)
        assert time.monotonic() - began >= 1, "Retry-After is obeyed"
        assert [line.partition(": ")[2] for line in run.troubles] == [
            "500 InternalError: a", "503 Unavailable: b", "429 TooManyRequests: told to", "",
        ]  # fmt: skip
        assert run.watch.problem == run.watch.cause == ""
        assert len(server.watch_requests) == 1


async def test_only_refusals_are_repeated_at_their_own_pause(server: ApiServer, client: KubeClient) -> None:
    server.always = refuses(404, "NotFound")
    async with running(client, timing=replace(QUICK, longest_refused=60)) as run:
        await until(lambda: run.watch.restarts["404"] >= 7)
        requests = len(server.requests)
        await asyncio.sleep(0.1)
        assert len(server.requests) - requests <= 1
        server.always = refuses(500, "InternalError")
        await until(lambda: run.watch.restarts["500"] > 20)


@pytest.mark.parametrize(
    "answer",
    [
        says("<!DOCTYPE html><html><body>hello</body></html>", kind="text/html"),
        says("{}"), says(""), streams(), streams(b'{"type":"ADDED"'),
    ],
    ids=["a page", "an object", "nothing", "a stream without events", "half of an event"],
)  # fmt: skip
async def test_what_is_no_watch_is_no_contact(server: ApiServer, client: KubeClient, answer: Answer) -> None:
    """A proxy without an API server answers 200: what is known gets older."""
    now = 100.0
    server.pods = {"a": pod("a")}
    async with running(client, clock=lambda: now, wall_clock=lambda: now) as run:
        await until(lambda: server.watch_requests and run.watch.is_synced)
        await until(lambda: run.watch.last_contact == 100.0)
        now = 100.5  # the version that is known is still new
        server.always = answer
        server.cut()
        tries = run.watch.restarts.total()
        await until(lambda: run.watch.restarts.total() >= tries + 5)
        assert run.watch.seconds_since_contact() == 0.5
        assert run.watch.last_contact == 100.0
        assert run.names == {"a"}


async def test_a_resource_no_longer_served_has_no_contact(server: ApiServer, client: KubeClient) -> None:
    """As after the removal of a CRD: the alert for silent watches would fire until a restart."""
    now = 100.0
    server.pods = {"a": pod("a")}
    async with running(client, clock=lambda: now, wall_clock=lambda: now) as run:
        await until(lambda: run.watch.last_contact == 100.0)
        now = 130.0
        server.always = refuses(404, "NotFound")
        server.cut()
        await until(lambda: run.watch.restarts["404"])
        assert run.watch.last_contact is None
        assert run.watch.seconds_since_contact() == 30.0
        assert run.names == {"a"}
        server.always = None
        await until(lambda: run.watch.last_contact == 130.0)


async def test_a_long_unavailable_server_is_retried_at_the_longest_pause_until_it_is_back(
    server: ApiServer, client: KubeClient
) -> None:
    server.pods = {"a": pod("a")}
    async with running(client) as run:
        await until(lambda: server.watch_requests)
        await server.stop()
        # Ten minutes are 20 of the longest pauses at the usual pace.
        assert await seconds_until(lambda: run.watch.restarts["unreachable"] >= 25) > least_seconds(25)
        errors = [
            f"GET {PODS}: {why}"
            for why in ("the answer was cut short", f"127.0.0.1:{server.port}: Connection refused")
        ]
        assert run.troubles == errors, "one line, however many tries"
        assert run.names == {"a"}, "what was known stays"
        assert run.watch.seconds_since_contact() > least_seconds(25)
        server.pods = {"b": pod("b")}
        server.version = 9
        server.answers = [refuses(410, "Expired")]
        await server.start()
        assert await seconds_until(lambda: run.names == {"b"}) < 5
        assert run.watch.seconds_since_contact() < 5
        await until(lambda: len(run.troubles) == 3)
        assert run.troubles[2] == "", "the problem has ended"
        assert run.watch.problem == ""
