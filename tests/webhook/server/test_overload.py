"""More reviews than the server can answer at once, or in time."""

import asyncio
import gzip
from pathlib import Path

import pytest

from tests.support.waiting import until
from tests.support.webhook_process import (
    HELD,
    PATHS,
    REVIEW,
    Connection,
    HeldPolicies,
    Live,
    Reply,
    answered,
    request,
    serving,
)
from webhook.server.admission_server import LONGEST_WAIT_SECONDS, USUAL_WAIT_SECONDS, request_timeout
from webhook.server.bodies import LARGEST_BODY, Intake, Room

SHED = "kaishare_webhook_shed_total"
IN_FLIGHT = "kaishare_webhook_in_flight"


async def test_reviews_above_the_in_flight_limit_are_shed_with_retry_after(
    tmp_path: Path, held_policies: HeldPolicies
) -> None:
    async with serving(tmp_path, held_policies, max_in_flight=2) as live:
        busy = [await live.connect() for _ in range(2)]
        for connection in busy:
            await connection.send(request(HELD))
        await until(lambda: held_policies.waiting == 2, "both are being answered")
        assert await live.figure(IN_FLIGHT) == 2
        third = await live.connect()
        for count in (1, 2):
            reply = await third.post()  # one that would not wait
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert reply.body == b"too many reviews at once\n"
            assert await live.figure(SHED) == count
        held_policies.go.set()
        assert [(await connection.reply()).status for connection in busy] == [200, 200]
        assert (await third.post()).status == 200
        assert await live.figure(IN_FLIGHT) == 0


async def test_large_reviews_are_shed_before_memory_is_full(live: Live, held_policies: HeldPolicies) -> None:
    assert live.server is not None
    live.server._in_flight = Room(512, 2 * len(HELD))
    busy = [await live.connect() for _ in range(2)]
    for connection in busy:
        await connection.send(request(HELD))
    await until(lambda: held_policies.waiting == 2, "both are being answered")
    third = await live.connect()
    assert (await third.post(HELD)).status == 503
    held_policies.go.set()
    assert [(await connection.reply()).status for connection in busy] == [200, 200]
    assert (await third.post(HELD)).status == 200


async def test_a_blocked_policy_source_is_limited_by_the_api_servers_timeout(live: Live) -> None:
    mutate, pods = await live.connect(), await live.connect()
    await mutate.send(request(HELD, "/mutate?timeout=1s"))
    await pods.send(request(HELD, "/validate/pods?timeout=1s"))
    reply = await mutate.reply()
    assert (reply.status, set(reply.response), reply.response["allowed"]) == (200, {"uid", "allowed"}, True)
    reply = await pods.reply()
    assert (reply.status, reply.body) == (500, b"an internal error; the log has its traceback\n")
    assert await live.errors("timeout") == 2
    assert await live.figure(IN_FLIGHT) == 0
    assert (await mutate.post()).status == (await pods.post()).status == 200


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        ("timeout=10s", 10), ("timeout=1s", 1), ("timeout=60s", 30), ("timeout=500ms", 0.5), ("timeout=1.5s", 1.5),
        ("a=b&timeout=2s&c=d", 2), ("timeout=30s", 30), ("timeout=999.5ms", 0.9995),
        *((f"timeout={text}", USUAL_WAIT_SECONDS) for text in ("", "x", "-1s", "0s", "1..2s", "5")),
        ("", USUAL_WAIT_SECONDS), ("x=1s", USUAL_WAIT_SECONDS),
    ],
)  # fmt: skip
def test_an_answer_is_sent_before_the_api_servers_timeout(query: str, seconds: float) -> None:
    waits = request_timeout(query)
    assert seconds / 2 <= waits < seconds <= LONGEST_WAIT_SECONDS
    if seconds == USUAL_WAIT_SECONDS:
        assert waits == request_timeout(f"timeout={USUAL_WAIT_SECONDS:.0f}s")


async def test_a_slow_body_is_given_up_when_there_are_too_many_bodies(live: Live) -> None:
    assert live.server is not None
    live.server._intake = Intake(max_bodies=3)
    slow = [await live.connect() for _ in range(3)]
    for connection in slow:
        await connection.send(request(REVIEW[:100], length=len(REVIEW)))
    await until_unfinished(live, 3)
    early = await live.connect()
    await early.send(request(REVIEW[:100], length=len(REVIEW)))
    reply = await early.reply()
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    await asyncio.sleep(1.05)  # now they are slow
    late = await live.connect()
    await late.send(request(REVIEW[:100], length=len(REVIEW)))
    assert (await first_reply(slow)).status == 503
    await late.send(REVIEW[100:])
    assert (await late.reply()).status == 200
    assert await live.figure(SHED) == 2


async def test_a_large_content_length_cannot_block_other_clients(live: Live) -> None:
    assert live.server is not None
    live.server._intake = Intake(max_bytes=3 * LARGEST_BODY)
    greedy = [await live.connect() for _ in range(3)]
    for connection in greedy:
        await connection.send(request(b"{", length=LARGEST_BODY))
    await until_unfinished(live, 3)
    one_more = await live.connect()
    await one_more.send(request(b"{", length=LARGEST_BODY))
    assert (await one_more.reply()).status == 503
    modest = await live.connect()
    await modest.send(request(REVIEW[:100], length=len(REVIEW)))
    assert (await first_reply(greedy)).status == 503
    await modest.send(REVIEW[100:])
    assert (await modest.reply()).status == 200


async def first_reply(connections: list[Connection]) -> Reply:
    """Return the first answer on any of the connections."""
    replies = [asyncio.create_task(connection.reply()) for connection in connections]
    done, pending = await asyncio.wait(replies, return_when=asyncio.FIRST_COMPLETED)
    for reply in pending:
        reply.cancel()
    await asyncio.wait(pending)
    return done.pop().result()


async def until_unfinished(live: Live, count: int) -> None:
    assert live.server is not None
    unfinished = live.server._intake.unfinished.bodies
    await until(lambda: len(unfinished) == count, f"{count} bodies are unfinished")


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_with_too_large_a_content_length_is_not_awaited(live: Live, path: str) -> None:
    connection = await live.connect()
    await connection.send(request(b"{", path, length=LARGEST_BODY + 1))
    reply = await connection.reply()
    assert (reply.status, reply.headers["connection"]) == (413, "close")
    assert await live.errors("too-large") == 1
    await answered(live)


async def test_a_body_that_turns_out_too_large_is_stopped(live: Live) -> None:
    connection = await live.connect()
    await connection.send(b"POST /mutate HTTP/1.1\r\nHost: webhook\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    for _ in range(8):
        await connection.send(chunk)
        await answered(live)
    await connection.send(b"1\r\n \r\n")
    assert (await connection.reply()).status == 413


async def test_a_compressed_body_is_not_decompressed(live: Live) -> None:
    connection = await live.connect()
    await connection.send(request(gzip.compress(b" " * 50_000_000), more=["Content-Encoding: gzip"]))
    reply = await connection.reply()
    assert (reply.status, reply.body[:20]) == (400, b"the body is not JSON")
