"""Shutdowns under load: no accepted review is lost."""

import asyncio
import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.waiting import until
from tests.support.webhook_process import (
    HELD,
    HeldPolicies,
    Live,
    Reply,
    request,
    serving,
    started,
)
from webhook.serve import drained

CONNECTIONS = 16


@dataclass
class Load:
    """Clients that send reviews one after another, each on a connection of its own while that lasts."""

    live: Live
    replies: list[Reply] = field(default_factory=list)
    lost: list[Exception] = field(default_factory=list)
    """Reviews sent on a connection that the server had taken, and never answered."""
    refused: list[OSError] = field(default_factory=list)
    """Connections that never came about."""

    def begin(self, group: asyncio.TaskGroup) -> None:
        for _ in range(CONNECTIONS):
            group.create_task(self._client())

    async def _client(self) -> None:
        while True:
            try:
                connection = await self.live.connect()
            except OSError as error:
                self.refused.append(error)
                return
            try:
                reply = await connection.post()
                while "connection" not in reply.headers:
                    self.replies.append(reply)
                    reply = await connection.post()
                self.replies.append(reply)
            except (OSError, EOFError, TimeoutError) as error:
                self.lost.append(error)
                return
            finally:
                connection.close()


async def test_a_drain_loses_no_review_that_was_accepted(tmp_path: Path) -> None:
    async with started(tmp_path, "--drain", "600ms") as server:
        live, load = server.live, Load(server.live)
        async with asyncio.TaskGroup() as group:
            load.begin(group)
            await until(lambda: len(load.replies) > 100, "under load")
            assert (await live.get("/readyz")).status == 200
            assert not any("connection" in reply.headers for reply in load.replies)
            server.process.terminate()
            await until(lambda: live.logged("draining"), "the signal has arrived")
            not_ready = await live.get("/readyz")
            assert (not_ready.status, not_ready.body) == (503, b"draining\n")
            answered = len(load.replies)
            await until(lambda: len(load.replies) > answered + 3 * CONNECTIONS, "it serves on")
            status = await server.process.ended()
    assert status == 0
    assert load.lost == []
    assert {reply.status for reply in load.replies} == {200}
    assert {reply.headers.get("connection") for reply in load.replies[answered + CONNECTIONS :]} == {"close"}
    assert len(load.refused) == CONNECTIONS
    messages = [line["message"] for line in live.log if line["message"] != "decision"]
    assert messages == [
        "policy invalid", "serving", "draining", "drain ended while clients still connect; a longer --drain may help",
        "stopping", "stopped",
    ]  # fmt: skip


@dataclass
class RecentConnections:
    """Reports recent connections a number of times."""

    times: float
    calls: int = 0

    def __call__(self) -> bool:
        self.calls += 1
        return self.calls <= self.times


@pytest.mark.parametrize(
    ("times", "seconds", "is_over"),
    [
        pytest.param(0, 0.1, True, id="no client connects"),
        pytest.param(3, 0.2, True, id="clients connect for a while"),
        pytest.param(math.inf, 0.1, False, id="clients connect for ever"),
        pytest.param(math.inf, 0.0, True, id="no drain is wanted"),
    ],
)
async def test_a_drain_ends_without_new_connections_or_after_three_times_its_length(
    times: float, seconds: float, is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhook.serve._LOOK_EVERY_SECONDS", 0.01)
    recent, loop = RecentConnections(times), asyncio.get_running_loop()
    began = loop.time()
    assert await drained(recent, seconds, asyncio.Event()) is is_over
    took = loop.time() - began
    assert took >= (seconds if is_over else 3 * seconds)
    assert recent.calls == times + 1 or math.isinf(times)


@pytest.mark.parametrize("is_finished", [True, False])
async def test_reviews_in_flight_are_finished_within_a_limit_and_idle_connections_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    if not is_finished:
        monkeypatch.setattr("webhook.server.admission_server._FINISH_SECONDS", 0.1)
    policies = HeldPolicies()
    async with serving(tmp_path, policies) as live:
        assert live.server is not None
        busy, idle = await live.connect(), await live.connect()
        await busy.send(request(HELD, "/mutate?timeout=30s"))
        await until(lambda: policies.waiting, "the review is being answered")
        live.server.drain()
        stopping = asyncio.create_task(live.server.stop())
        await idle.ended()
        with pytest.raises(ConnectionRefusedError):
            await live.connect()
        if is_finished:
            assert not stopping.done()
            policies.go.set()
            reply = await busy.reply()
            assert (reply.status, reply.headers["connection"]) == (200, "close")
        await busy.ended()
        await asyncio.wait_for(stopping, 20)
    assert [line["count"] for line in live.logged("requests cut off")] == [1] * (not is_finished)
