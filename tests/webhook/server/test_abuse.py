"""Clients that are slow, silent or gone: other clients are answered, and all resources are freed."""

import asyncio
import gc
import tracemalloc
from pathlib import Path

import pytest

from tests.support.waiting import until
from tests.support.webhook_process import (
    HELD,
    OTHER,
    REVIEW,
    HeldPolicies,
    Live,
    admission,
    answered,
    ask_until_stalled,
    request,
    serving,
)

FEW = admission(max_connections=4)


def errors_logged(live: Live) -> list[str]:
    return [line["message"] for line in live.log if line["level"] == "error"]


async def test_a_client_that_reads_nothing_gets_no_more(tmp_path: Path, held_policies: HeldPolicies) -> None:
    limits = admission(answer_seconds=0.3, sweep_seconds=0.1)
    async with serving(tmp_path, held_policies, limits=limits) as live:
        deaf = await live.connect(receive_buffer=4096)
        deaf.be_deaf()
        asking = asyncio.create_task(ask_until_stalled(live, deaf))
        await answered(live)
        await until(lambda: not open_connections(live), "it is closed")
        assert (
            len(live.logged("decision")) < 3000
        )  # about 1,000 answers fill the buffers of this machine's kernel
        await answered(live)
        await asking


async def test_requests_ahead_of_answers_are_bounded(tmp_path: Path, held_policies: HeldPolicies) -> None:
    async with serving(tmp_path, held_policies) as live:
        slow = await live.connect()
        await slow.send(request(HELD))
        await until(lambda: held_policies.waiting, "its policy is looked up")
        await slow.send(request(REVIEW, more=["X-Long: " + "x" * 8000]) * 3)
        await slow.ended()
        held_policies.go.set()
        await answered(live)


async def test_a_slow_body_is_answered_408_and_closed(live: Live) -> None:
    slow = await live.connect()
    await slow.send(request(REVIEW[:-1], "/mutate?timeout=1s", length=len(REVIEW)))
    await answered(live)
    reply = await slow.reply()
    assert (reply.status, reply.headers["connection"]) == (408, "close")
    assert reply.body == b"the body did not arrive in time\n"
    assert await live.errors("slow-body") == 1


async def test_half_open_handshakes_of_one_peer_close_none_of_another_peer(
    tmp_path: Path, held_policies: HeldPolicies
) -> None:
    async with serving(tmp_path, held_policies, limits=admission(max_handshakes=8)) as live:
        first = await live.connect_plainly()
        flood = [await live.connect_plainly(OTHER) for _ in range(20)]
        for connection in flood[:13]:
            await connection.ended()
        assert first.is_open


@pytest.mark.parametrize(
    "words", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, b"\x16\x03\x01\xff\xff" + b"x" * 500], ids=str
)
async def test_a_connection_without_tls_is_closed_without_an_answer(live: Live, words: bytes) -> None:
    connection = await live.connect_plainly()
    await connection.send(words)
    if words.startswith(b"\x16"):
        connection.close()
    else:
        await connection.ended()
    await answered(live)
    assert live.log == [line for line in live.log if line["message"] == "decision"]


async def test_resources_of_vanished_clients_are_freed(tmp_path: Path, held_policies: HeldPolicies) -> None:
    async with serving(tmp_path, held_policies, limits=FEW) as live:
        for _ in range(3):
            vanishing = [await live.connect() for _ in range(4)]
            for connection in vanishing:
                await connection.send(request(HELD))
            await until(lambda: held_policies.waiting == 4, "all are being answered")
            for connection in vanishing:
                connection.close()
            await until(lambda: live.server and not open_connections(live), "all are gone")
            held_policies.go.set()
            await until(lambda: held_policies.waiting == 0, "all are answered after their clients have gone")
            held_policies.go.clear()
        idle = [await live.connect() for _ in range(10)]
        for connection in idle[:6]:
            await connection.ended()
        for connection in idle[6:]:
            assert (await connection.post()).status == 200
        assert open_connections(live) == 4
    assert errors_logged(live) == []


def open_connections(live: Live) -> int:
    assert live.server is not None
    server = live.server._server
    assert server is not None
    return len(server.table)


async def test_an_idle_connection_keeps_nothing_of_its_last_request(live: Live) -> None:
    body = b" " * 1_000_000
    idle = [await live.connect() for _ in range(20)]
    assert (await idle[0].post(body)).status == 400
    tracemalloc.start()
    try:
        for connection in idle:
            assert (await connection.post(body)).status == 400
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 5 * len(body)
