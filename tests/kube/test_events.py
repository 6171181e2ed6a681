"""Events: their form, their counts, and servers that are unreachable or refuse them."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from kube.client import KubeClient
from kube.events import Event, EventTiming, ObjectReference, event_name
from tests.support.api_server import ApiServer, refuses, says
from tests.support.event_writer import writing
from tests.support.waiting import until

EVENTS = "/api/v1/namespaces/team-a/events"


@dataclass
class Kept:
    """Events as a well-behaved server keeps them, and its requests."""

    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        body = await request.json()
        if request.method == "POST":
            name = body["metadata"]["name"]
            if name in self.events:
                return await refuses(409, "AlreadyExists")(request)
            self.events[name] = body
        else:
            assert request.content_type == "application/merge-patch+json"
            name = request.path.rpartition("/")[2]
            if name not in self.events:
                return await refuses(404, "NotFound")(request)
            self.events[name] |= body
        return web.json_response(self.events[name])


def over(
    name: str = "train-0.1", message: str = "too much", namespace: str = "team-a", **fields: Any
) -> Event:
    about = ObjectReference(api_version="v1", kind="Pod", namespace=namespace, name="train-0", uid="u-1")
    return Event(
        name=name, namespace=namespace, about=about, reason="GPUMemoryOverShare", message=message, **fields
    )


@pytest.fixture
def kept(server: ApiServer) -> Kept:
    server.always = kept = Kept()
    return kept


@pytest.mark.parametrize(("is_warning", "kind"), [(True, "Warning"), (False, "Normal")])
async def test_the_form_of_an_event(client: KubeClient, kept: Kept, is_warning: bool, kind: str) -> None:
    async with writing(client, wall_clock=lambda: 1_795_222_215.9) as run:
        run.writer.emit(over(is_warning=is_warning))
        await run.settled(created=1)
    assert kept.events["train-0.1"] == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "train-0.1", "namespace": "team-a"},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": "team-a", "name": "train-0", "uid": "u-1",
        },
        "reason": "GPUMemoryOverShare",
        "message": "too much",
        "source": {"component": "kaishare-agent", "host": "node-1"},
        "firstTimestamp": "2026-11-21T00:50:15Z",
        "lastTimestamp": "2026-11-21T00:50:15Z",
        "count": 1,
        "type": kind,
        "reportingComponent": "kaishare-agent",
        "reportingInstance": "node-1",
    }  # fmt: skip
    assert kept.requests == [f"POST {EVENTS}"]


async def test_the_count_of_an_event(client: KubeClient, kept: Kept) -> None:
    def written() -> tuple[int, str]:
        return kept.events["train-0.1"]["count"], kept.events["train-0.1"]["message"]

    now = [1_795_222_215.0]
    async with writing(client, wall_clock=lambda: now[0]) as run:
        for number in range(5):
            run.writer.emit(over(message=f"no. {number}"))
            now[0] += 1
        await run.settled(created=1)
        assert written() == (5, "no. 4"), "a waiting event is written once"
        now[0] += 55
        run.writer.emit(over(message="second"))
        await run.settled(created=1, updated=1)
        assert written() == (6, "second")
        assert [kept.events["train-0.1"][f"{each}Timestamp"] for each in ("first", "last")] == [
            "2026-11-21T00:50:15Z", "2026-11-21T00:51:15Z",
        ]  # fmt: skip
        assert kept.requests == [f"POST {EVENTS}", f"PATCH {EVENTS}/train-0.1"], "nothing is ever read"
        kept.events.clear()
        run.writer.emit(over())
        await run.settled(created=2, updated=1)
        assert written() == (1, "too much"), "the server had deleted it"
    kept.events["train-0.1"] |= {"count": 40, "message": "old"}
    async with writing(client) as run:
        run.writer.emit(over())
        await run.settled(updated=1)
    assert written() == (2, "too much"), "an earlier process wrote it"


@pytest.mark.parametrize(
    ("message", "written"),
    [
        ("x" * 1024, "x" * 1024),
        ("x" * 1025, "x" * 1021 + "…"),
        ("ä" * 600, "ä" * 510 + "…"),  # 1021 bytes are 510 of them and a half
        ("half a pair \ud800", "half a pair \ufffd"),
    ],
    ids=["longest", "too long", "cut between characters", "no UTF-8"],
)
async def test_a_long_message_is_cut(client: KubeClient, kept: Kept, message: str, written: str) -> None:
    async with writing(client) as run:
        run.writer.emit(over(message=message))
        await run.settled(created=1)
    assert kept.events["train-0.1"]["message"] == written


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "Connection refused"),
        (refuses(429, "TooManyRequests"), "429 TooManyRequests"),
        (refuses(503, "Service Unavailable"), "503 Service Unavailable"),
        *((says(body), "expected Event") for body in ("", "{}", "<h1>log in</h1>", '{"kind": "Status"}', '{"kind": "Eve')),
    ],
    ids=["away", "busy", "unavailable", "nothing", "an object", "a page", "another kind", "half an answer"],
)  # fmt: skip
async def test_events_wait_for_a_server_in_trouble(
    server: ApiServer, client: KubeClient, kept: Kept, answer: Any, problem: str
) -> None:
    if answer is None:
        await server.stop()
    server.always = answer
    async with writing(client, wall_clock=lambda: 1_795_222_215.0) as run:
        for number in range(3):
            run.writer.emit(over(name=f"train-0.{number}"))
        await until(lambda: bool(run.troubles))
        assert problem in run.troubles[0]
        assert run.results == {}
        server.always = kept
        if answer is None:
            await server.start()
        await run.settled(created=3)
        assert run.troubles[-1] == ""
    assert {event["firstTimestamp"] for event in kept.events.values()} == {"2026-11-21T00:50:15Z"}


async def test_settled_waits_for_all_writes(server: ApiServer, client: KubeClient, kept: Kept) -> None:
    gate = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        await gate.wait()
        return await kept(request)

    server.always = slow
    async with writing(client) as run:
        await run.writer.settled()
        run.writer.emit(over())
        await until(lambda: bool(server.requests))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run.writer.settled(), 0.05)
        gate.set()
        await asyncio.wait_for(run.writer.settled(), 5)
        assert run.results == {("GPUMemoryOverShare", "created"): 1}


async def test_of_too_many_the_oldest_are_dropped(server: ApiServer, client: KubeClient, kept: Kept) -> None:
    now = [0.0]
    timing = EventTiming(max_waiting=3, per_second=1000.0, first_pause=0.01, longest_pause=0.02)
    async with writing(client, timing, clock=lambda: now[0]) as run:
        for number in range(10):
            now[0] += 1
            run.writer.emit(over(name=f"train-0.{number}"))
        assert run.writer.waiting == 3
        assert run.results == {("GPUMemoryOverShare", "dropped"): 7}
        await run.settled(created=3, dropped=7)
    assert sorted(kept.events) == ["train-0.7", "train-0.8", "train-0.9"]


@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (422, "Invalid"), (400, "BadRequest")])
async def test_a_refused_event_fails_and_delays_no_other(
    server: ApiServer, client: KubeClient, kept: Kept, status: int, reason: str
) -> None:
    server.answers = [refuses(status, reason)]
    async with writing(client) as run:
        run.writer.emit(over(name="train-0.refused"))
        run.writer.emit(over(name="train-0.other"))
        await run.settled(failed=1, created=1)
        assert [bool(trouble) for trouble in run.troubles] == [True, False]
    assert list(kept.events) == ["train-0.other"]


async def test_refusals_of_a_namespace_stay_there(server: ApiServer, client: KubeClient, kept: Kept) -> None:
    quota = 'events "train-0.1" is forbidden: exceeded quota: few, requested: count/events=1'
    server.refusals = {"/team-a/": refuses(403, "Forbidden", quota)}
    server.always = None
    timing = EventTiming(per_second=1000.0, burst=100, first_pause=600.0, longest_pause=600.0)
    async with writing(client, timing) as run:
        for number in range(30):
            run.writer.emit(over(name=f"train-0.{number}"))
        await run.settled(failed=30)
        server.refusals["/team-b/"] = kept
        run.writer.emit(over(namespace="team-b"))
        await run.settled(failed=30, created=1)
        run.writer.emit(over(name="train-0.7"))
        await run.settled(failed=31, created=1)
        assert len(run.troubles) == 1, "one line for all refused Events"


async def test_a_missing_right_delays_all_events(server: ApiServer, client: KubeClient) -> None:
    message = 'events is forbidden: User "agent" cannot create resource "events" in API group ""'
    server.always = refuses(403, "Forbidden", message)
    timing = EventTiming(per_second=1000.0, first_pause=600.0, longest_pause=600.0)
    async with writing(client, timing) as run:
        for number in range(3):
            run.writer.emit(over(name=f"train-0.{number}"))
        await until(lambda: bool(run.troubles))
        await asyncio.sleep(0.1)
        assert len(server.requests) == 1


@pytest.mark.parametrize("give_up_after", [0.3, 600.0])
async def test_an_event_that_always_makes_the_server_fail_is_given_up_and_delays_no_other(
    server: ApiServer, client: KubeClient, kept: Kept, give_up_after: float
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if (await request.json())["metadata"]["name"] == "train-0.bad":
            return await refuses(500, "InternalError")(request)
        return await kept(request)

    server.always = answer
    timing = EventTiming(per_second=1000.0, give_up_after=give_up_after, first_pause=0.01, longest_pause=0.02)
    async with writing(client, timing) as run:
        run.writer.emit(over(name="train-0.bad"))
        run.writer.emit(over(name="train-0.good"))
        await until(lambda: "train-0.good" in kept.events)
        if give_up_after < 1:
            await run.settled(failed=1, created=1)


@pytest.mark.parametrize(
    ("answers", "timing", "seconds"),
    [
        ([refuses(429, "TooManyRequests", Retry_After="1")], EventTiming(burst=9), 1.0),
        ([], EventTiming(burst=3, per_second=10.0), 0.29),
    ],
    ids=["Retry-After", "a burst goes out at once"],
)
async def test_the_pace(
    server: ApiServer, client: KubeClient, kept: Kept, answers: list[Any], timing: EventTiming, seconds: float
) -> None:
    server.answers = answers
    loop = asyncio.get_running_loop()
    async with writing(client, timing) as run:
        began = loop.time()
        for number in range(6):
            run.writer.emit(over(name=f"train-0.{number}"))
        await run.settled(created=6)
        assert loop.time() - began >= seconds


async def test_the_number_of_remembered_events_is_bounded(client: KubeClient, kept: Kept) -> None:
    timing = EventTiming(per_second=1000.0, burst=100, max_remembered=2)
    async with writing(client, timing) as run:
        for number in range(5):
            run.writer.emit(over(name=f"train-0.{number}"))
        await run.settled(created=5)
        assert len(run.writer._counts) == 2
        run.writer.emit(over(name="train-0.0"))
        await run.settled(created=5, updated=1)
    assert kept.events["train-0.0"]["count"] == 2


@pytest.mark.parametrize(
    ("about", "begins"),
    [("train-0", "train-0."), ("p" * 253, "p" * 236 + "."), ("a" * 235 + "-b" * 9, "a" * 235 + ".")],
    ids=["as it is", "the longest name", "no dash before the dot"],
)
def test_a_name_begins_with_the_objects_and_is_never_too_long(about: str, begins: str) -> None:
    name = event_name(about, "uid", "GPUMemoryOverShare", "GPU-1")
    assert name.startswith(begins)
    assert len(name) <= 253
    assert name == event_name(about, "uid", "GPUMemoryOverShare", "GPU-1")
    assert name != event_name(about, "uid", "GPUMemoryOverShare", "GPU-2")
    assert event_name(about, "ab", "c") != event_name(about, "a", "bc")
