"""Reviews of several peers at the same time: a flood of one peer delays and sheds no review of another one."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from service.http.fair_queue import FairQueue
from tests.support.pods import gpu_container, pod
from tests.support.waiting import until
from tests.support.webhook_process import OTHER, REVIEW, Connection, HeldPolicies, Live, request, serving
from tests.support.webhook_server import review_of
from webhook.server.bodies import Intake, Room

LARGE = json.dumps(review_of(pod(gpu_container(), annotations={"note": "x" * 200_000}), "large")).encode()
SMALL = json.dumps(review_of(pod(gpu_container()), "small")).encode()
WAITS = "/mutate?timeout=30s"
SHED = "kaishare_webhook_shed_total"
IN_FLIGHT = "kaishare_webhook_in_flight"


class Gate:
    """Withholds all turns of a server while it is closed."""

    def __init__(self, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live = live
        self._set = monkeypatch.setattr
        self._name = "service.http.fair_queue._EACH_ITERATION"

    @property
    def queue(self) -> FairQueue:
        assert self.live.server is not None
        assert self.live.server._server is not None
        return self.live.server._server.queue

    @property
    def tickets(self) -> int:
        """Number of tasks that wait."""
        return sum(map(len, self.queue._waiting.values()))

    def close(self) -> None:
        self._set(self._name, 0)
        self.queue._left = self.queue._light_left = 0

    def open(self) -> None:
        self._set(self._name, 128 * 1024)

    async def waiting(self, count: int) -> None:
        """Wait until a number of reviews are in flight."""
        server = self.live.server
        assert server is not None
        await until(lambda: server._metrics.in_flight == count, f"{count} are in flight")


@asynccontextmanager
async def gated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Live, Gate]]:
    async with serving(folder, HeldPolicies()) as live:
        gate = Gate(live, monkeypatch)
        try:
            yield live, gate
        finally:
            gate.open()


async def statuses(connections: list[Connection]) -> list[int]:
    return sorted([(await connection.reply()).status for connection in connections])


async def test_small_reviews_are_answered_first_and_those_of_another_peer_before_a_flood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gated(tmp_path, monkeypatch) as (live, gate):
        flood = [await live.connect(source=OTHER) for _ in range(8)]
        same, other = await live.connect(source=OTHER), await live.connect()
        gate.close()
        for connection in flood:
            await connection.send(request(LARGE, WAITS))
        await until(lambda: gate.tickets == 8, "the flood waits")
        for connection in (same, other):
            await connection.send(request(SMALL, WAITS))
        await until(lambda: gate.tickets == 10, "all wait")
        gate.open()
        assert await statuses([*flood, same, other]) == [200] * 10
        namespaces = [line["namespace"] for line in live.logged("decision")]
        assert namespaces == ["small"] * 2 + ["large"] * 8
        assert await live.figure(IN_FLIGHT) == 0


@pytest.mark.parametrize(
    ("room", "shed"),
    [
        pytest.param(lambda: Room(4), 1, id="number"),
        pytest.param(lambda: Room(512, 4 * len(SMALL) + 200), 3, id="bytes"),
    ],
)
async def test_a_peer_that_holds_all_places_loses_one_to_another_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: Callable[[], Room], shed: int
) -> None:
    async with gated(tmp_path, monkeypatch) as (live, gate):
        assert live.server is not None
        live.server._in_flight = room()
        flood = [await live.connect(source=OTHER) for _ in range(4)]
        one_more, other = await live.connect(source=OTHER), await live.connect()
        gate.close()
        for connection in flood:
            await connection.send(request(SMALL, WAITS))
        await gate.waiting(4)
        assert await live.figure(IN_FLIGHT) == 4
        assert await live.figure(SHED) == 0
        await one_more.send(request(SMALL, WAITS))
        await until(lambda: gate.tickets == 5, "one more waits without a place")
        await other.send(request(SMALL, WAITS))
        await gate.waiting(5 - shed)
        await until(lambda: gate.tickets == 6, "all wait, some without a place")
        gate.open()
        assert (await other.reply()).status == 200
        reply = await one_more.reply()
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert await statuses(flood) == [200] * (4 - shed) + [503] * shed
        assert await live.figure(SHED) == 1 + shed
        assert await live.figure(IN_FLIGHT) == 0
        assert (await one_more.post()).status == 200


async def test_a_review_that_waits_for_longer_than_the_api_server_is_shed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gated(tmp_path, monkeypatch) as (live, gate):
        connection = await live.connect()
        gate.close()
        await connection.send(request(SMALL, "/mutate?timeout=1s"))
        await gate.waiting(1)
        await gate.waiting(0)
        gate.open()
        assert (await connection.reply()).status == 503
        assert not live.logged("decision")
        assert await live.figure(SHED) == 1


async def test_a_gone_clients_review_is_unanswered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(tmp_path, monkeypatch) as (live, gate):
        connection = await live.connect()
        gate.close()
        await connection.send(request(SMALL, WAITS))
        await gate.waiting(1)
        connection.close()
        server = live.server and live.server._server
        assert server is not None
        await until(lambda: not server.table, "it is gone")
        gate.open()
        await gate.waiting(0)
        assert not live.logged("decision")


async def test_bodies_that_one_peer_does_not_finish_shed_no_body_of_another_peer(live: Live) -> None:
    assert live.server is not None
    live.server._intake = Intake(max_bodies=3)
    slow = [await live.connect(source=OTHER) for _ in range(3)]
    for connection in slow:
        await connection.send(request(REVIEW[:100], length=len(REVIEW)))
    await until(lambda: live.server and len(live.server._intake.unfinished.bodies) == 3, "all arrive")
    other = await live.connect()
    await other.send(request(LARGE[:100], length=len(LARGE)))
    replies = [asyncio.create_task(connection.reply()) for connection in slow]
    done, pending = await asyncio.wait(replies, return_when=asyncio.FIRST_COMPLETED)
    assert done.pop().result().status == 503
    for reply in pending:
        reply.cancel()
    await other.send(LARGE[100:])
    assert (await other.reply()).status == 200
