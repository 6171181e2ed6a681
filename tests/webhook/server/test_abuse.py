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
    PATHS,
    REVIEW,
    Connection,
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


async def test_slow_heads_end_and_others_are_answered(tmp_path: Path, held_policies: HeldPolicies) -> None:
    limits = admission(head_seconds=0.2, sweep_seconds=0.1)
    async with serving(tmp_path, held_policies, limits=limits) as live:
        slow = [await live.connect() for _ in range(20)]
        silent, used = await live.connect(), await live.connect()
        for connection in (*slow[10:], used):
            assert (await connection.post()).status == 200
        for number, connection in enumerate(slow, 1):
            await connection.send(b"POST /mutate HTTP/1.1\r\nHost: webhook\r\nX-Slow: "[: 2 * number])
        await answered(live)
        for connection in slow:
            await connection.ended()
        for connection in (silent, used):
            assert (await connection.post()).status == 200


async def test_a_client_that_reads_no_answers_gets_no_more(
    tmp_path: Path, held_policies: HeldPolicies
) -> None:
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


async def test_requests_ahead_of_their_answers_take_little_memory(
    tmp_path: Path, held_policies: HeldPolicies
) -> None:
    async with serving(tmp_path, held_policies) as live:
        slow = await live.connect()
        await slow.send(request(HELD))
        await until(lambda: held_policies.waiting, "its policy is looked up")
        await slow.send(request(REVIEW, more=["X-Long: " + "x" * 8000]) * 3)
        await slow.ended()
        held_policies.go.set()
        await answered(live)


@pytest.mark.parametrize("fields", [2, 4])
async def test_a_long_head_that_comes_at_once_gets_no_answer(live: Live, fields: int) -> None:
    connection = await live.connect()
    await connection.send(request(REVIEW, more=["X-Long: " + "x" * 7900] * fields))
    if fields == 2:
        assert (await connection.reply()).status == 200
    else:
        assert await connection.rest() == b""
    await answered(live)


async def test_a_head_without_end_is_cut_off(live: Live) -> None:
    for head in (b"POST /mutate HTTP/1.1\r\n", request(REVIEW)[:60]):
        connection = await live.connect()
        await connection.send(head)
        for number in range(200):
            try:
                await connection.send(f"X-{number}: {'x' * 1000}\r\n".encode())
            except ConnectionError:
                break
        await connection.ended()
    await answered(live)


async def test_a_slow_body_is_answered_408_and_closed(live: Live) -> None:
    slow = await live.connect()
    await slow.send(request(REVIEW[:-1], "/mutate?timeout=1s", length=len(REVIEW)))
    await answered(live)
    reply = await slow.reply()
    assert (reply.status, reply.headers["connection"]) == (408, "close")
    assert reply.body == b"the body did not arrive in time\n"
    assert await live.errors("slow-body") == 1


async def test_a_body_may_come_in_pieces(live: Live) -> None:
    connection = await live.connect()
    for path in PATHS:
        sent = request(REVIEW, path)
        for start in range(0, len(sent), 97):
            await connection.send(sent[start : start + 97])
            await asyncio.sleep(0)
        assert (await connection.reply()).status == 200


async def test_half_open_handshakes_end_and_the_oldest_is_closed_first(
    tmp_path: Path, held_policies: HeldPolicies
) -> None:
    limits = admission(max_handshakes=8, head_seconds=1.0)
    async with serving(tmp_path, held_policies, limits=limits) as live:
        half_open = [await live.connect_plainly() for _ in range(20)]
        for connection in half_open[:12]:
            await connection.ended()
        assert all(connection.is_open for connection in half_open[13:])
        for connection in half_open[13:]:
            await connection.send(b"\x16\x03\x01")  # and now the start of a ClientHello
        await answered(live)
        for connection in half_open:
            await connection.ended()


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


async def test_a_connection_above_the_limit_closes_the_longest_idle_connection(
    tmp_path: Path, held_policies: HeldPolicies
) -> None:
    async with serving(tmp_path, held_policies, limits=FEW) as live:
        first, *others = [await live.connect() for _ in range(4)]
        for connection in (first, *others):
            assert (await connection.post()).status == 200
        assert (await first.post()).status == 200
        newcomer = await live.connect()
        assert (await newcomer.post()).status == 200
        await others[0].ended()
        for connection in (first, *others[1:], newcomer):
            assert (await connection.post()).status == 200


async def test_a_peers_connections_close_none_of_another_peer(
    tmp_path: Path, held_policies: HeldPolicies
) -> None:
    async with serving(tmp_path, held_policies, limits=FEW) as live:
        used = await live.connect()
        assert (await used.post()).status == 200
        silent = [await live.connect(source=OTHER) for _ in range(20)]
        for connection in silent[:17]:
            await connection.ended()
        assert (await used.post()).status == 200


async def test_a_connection_with_a_review_in_flight_is_never_closed(
    tmp_path: Path, held_policies: HeldPolicies
) -> None:
    async with serving(tmp_path, held_policies, limits=FEW) as live:
        busy = [await live.connect() for _ in range(4)]
        for connection in busy:
            await connection.send(request(HELD))
        await until(lambda: held_policies.waiting == 4, "all are being answered")
        await (await live.connect()).ended()
        held_policies.go.set()
        assert [(await connection.reply()).status for connection in busy] == [200] * 4


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


@pytest.mark.parametrize("cut", [1, 40, 200, len(request(REVIEW)) - 1])
async def test_a_client_that_vanishes_within_its_request_is_no_error(live: Live, cut: int) -> None:
    connection = await live.connect()
    await connection.send(request(REVIEW)[:cut])
    await asyncio.sleep(0.02)
    connection.close()
    await until(lambda: not open_connections(live), "it is gone")
    await answered(live)
    assert errors_logged(live) == []
    assert await live.errors("http") == 0


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


async def test_the_plain_port_survives_the_same_clients(live: Live) -> None:
    slow = await live._connect(live.ops)
    await slow.send(b"GET /metrics HT")
    garbage = await live._connect(live.ops)
    await garbage.send(b"\x00\x01\r\n\r\n")
    assert (await garbage.reply()).status == 400
    await garbage.ended()
    large = await live._connect(live.ops)
    await large.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 100_000)
    assert (await large.reply()).status == 200
    posted = await live._connect(live.ops)
    await posted.send(request(b"{}", "/metrics"))
    assert (await posted.reply()).status == 405
    many: list[Connection] = [await live._connect(live.ops) for _ in range(150)]
    await many[0].ended()
    assert (await live.get("/healthz")).status == 200
    assert live.log == []
