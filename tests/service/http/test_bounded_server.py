"""A plain port against clients that are slow, silent, greedy or damaged."""

import asyncio
import contextlib
import gc
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import Mock

import pytest

from service.http.bounded_server import (
    MAX_FIELD_BYTES,
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    MAX_REQUEST_LINE_BYTES,
    HttpConnection,
)
from tests.support.page_server import LARGE, LIMITS, Client, RunningServer, get, limits, serving
from tests.support.waiting import until

Prepare = Callable[[Client], Awaitable[Any]]


async def nothing(_client: Client) -> None:
    return


async def one_request(client: Client) -> None:
    assert (await client.get("/small"))[0] == 200


async def empty_lines(client: Client) -> None:
    await client.send(b"\r\n\r\n")


async def a_request_and_part_of_the_next(client: Client) -> None:
    await client.send(get("/small") + b"G")
    assert (await client.answer())[0] == 200


@pytest.mark.parametrize("prepare", [nothing, one_request, empty_lines, a_request_and_part_of_the_next])
async def test_a_head_that_drips_ends_the_connection(prepare: Prepare) -> None:
    async with serving(limits(head_seconds=0.2)) as running:
        client = await running.connect()
        await prepare(client)
        closed = asyncio.create_task(client.closed())
        while not closed.done():
            try:
                await client.send(b"G")
            except OSError:
                break
            await asyncio.sleep(0.02)
        await closed
        await running.until(0)


@pytest.mark.parametrize(
    ("prepare", "limit"),
    [
        (nothing, "idle_seconds"), (one_request, "idle_seconds"), (a_request_and_part_of_the_next, "idle_seconds"),
        (empty_lines, "head_seconds"),
    ],
)  # fmt: skip
async def test_silence_ends_a_connection(prepare: Prepare, limit: str) -> None:
    async with serving(limits(**{limit: 0.1})) as running:
        client = await running.connect()
        await prepare(client)
        await client.closed()
        await running.until(0)


async def test_a_silent_connection_may_wait_before_and_between_requests() -> None:
    async with serving(limits(head_seconds=0.25)) as running:
        client, other = await running.connect(), await running.connect()
        await one_request(client)
        await other.send(b"GET")
        await other.closed()
        await one_request(client)
        for piece in (b"GET /sm", b"all HTTP/1.1\r\nHost: x\r\n\r", b"\n"):
            await client.send(piece)
            await asyncio.sleep(0)
        assert (await client.answer())[0] == 200


async def test_a_head_without_end_is_cut_off() -> None:
    async with serving() as running:
        client = await running.connect()
        await client.send(b"GET / HTTP/1.1\r\n")
        for _ in range(MAX_FIELDS - 1):
            with contextlib.suppress(ConnectionError):
                await client.send(b"A: " + b"x" * (MAX_HEAD_BYTES // 32) + b"\r\n")
        await client.closed()
        await running.until(0)
        assert running.log == []


async def read_single_bytes(running: RunningServer) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, (running.address.host, running.address.port))
        await loop.sock_sendall(client, get("/large", "Connection: close"))
        with contextlib.suppress(ConnectionError):
            received = b"?"
            while received:
                received = await loop.sock_recv(client, 1)
                await asyncio.sleep(0.01)


async def test_a_client_that_reads_single_bytes_is_closed() -> None:
    async with serving(limits(answer_seconds=0.5)) as running:
        async with asyncio.timeout(20):
            received = asyncio.create_task(read_single_bytes(running))
            await running.until(1)
            await running.until(0)
            received.cancel()
            await asyncio.wait([received])


async def refused(client: Client, path: str) -> None:
    status, headers, body = await client.get(path)
    assert (status, headers["retry-after"], body) == (503, "1", b"too many readers now\n")


async def test_clients_that_do_not_read_hold_little_memory_and_none_is_cut_for_another() -> None:
    places = limits().max_page_bytes // len(LARGE)
    async with serving() as running:
        clients = [await running.connect() for _ in range(places)]
        for number, client in enumerate(clients, 1):
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(get("/large"))
            await until(lambda count=number: len(running.server.table._stalled) == count)  # type: ignore[misc]
        transports = [connection.transport for connection in running.server.table]
        waiting = [transport.get_write_buffer_size() for transport in transports if transport]
        assert limits().write_buffer_bytes < max(waiting) <= 3 * limits().write_buffer_bytes
        other = await running.connect()
        await refused(other, "/large")
        await one_request(other)
        for client in clients:
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert (await client.answer())[2] == LARGE
        assert (await other.get("/large"))[2] == LARGE, "an idle connection keeps nothing of its last answer"
        assert sum(buffer.size for buffer in running.pages._buffers) == 0


async def test_one_connection_too_many_closes_the_one_that_is_quiet_longest() -> None:
    async with serving(limits(max_connections=4)) as running:
        idle = [await running.connect() for _ in range(2)]
        for client in idle:
            await one_request(client)
        half_open = [await running.connect() for _ in range(2)]
        await running.until(4)
        used = []
        for victim in (*idle, *half_open):
            used.append(await running.connect())
            await used[-1].send(b"GET")
            await victim.closed()
            await used[-1].send(get("/small")[3:])
            assert (await used[-1].answer())[0] == 200
        assert all(client.is_open for client in used)


async def test_a_connection_with_a_request_in_flight_stays_and_new_readers_are_refused_at_once() -> None:
    async with serving(limits(max_connections=4)) as running:
        busy = [await running.connect() for _ in range(3)]
        for client in busy:
            await client.send(get("/held"))
        await until(lambda: running.server.table.busy_count == 3)
        for _ in range(20):
            other = await running.connect()
            await refused(other, "/small")
            await other.closed()
            check = await running.connect()
            assert (await check.get("/healthz"))[0] == 200
            await check.closed()
        running.go.set()
        assert [(await client.answer())[0] for client in busy] == [200] * 3
        await one_request(await running.connect())


async def test_clients_that_do_not_read_lock_no_other_client_out() -> None:
    async with serving(limits(max_connections=8, min_answer_seconds=1)) as running:
        for _ in range(8):
            client = await running.connect()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(get("/medium") * 100)
        await until(lambda: len(running.server.table._stalled) == 6)
        for _ in range(4):
            assert (await (await running.connect()).get("/healthz"))[0] == 200
        await until(lambda: not running.server.table._stalled)
        for _ in range(4):
            await one_request(await running.connect())


@pytest.mark.parametrize(
    ("sent", "status", "line"),
    [
        (get("/" + "x" * MAX_REQUEST_LINE_BYTES), 414, "the request line is longer than 8190 bytes\n"),
        (get("/" + "x" * 15000), 414, "the request line is longer than 8190 bytes\n"),
        (get("/small", "A: " + "x" * (MAX_FIELD_BYTES + 1)), 431, "a header is longer than 8191 bytes\n"),
        (get("/small", *["A: x"] * MAX_FIELDS), 431, "there are more than 64 headers\n"),
        (b"\x00\x01\r\n\r\n", 400, "not an HTTP request: BadHttpMethod\n"),
        (b"GET /small HTTP/1.1\r\n\r\n", 400, "not an HTTP request: BadHttpMessage\n"),
        (b"GET /small HTTP/9.9\r\nHost: x\r\n\r\n", 400, None),
        (b"\x16\x03\x01" + b"x" * 500, 400, None),
        (get("/small", "Content-Length: -1"), 400, None),
        (get("/small", "Content-Length: 1", "Content-Length: 2"), 400, None),
    ],
    ids=lambda value: repr(value[:30]) if isinstance(value, bytes) else None,
)
async def test_an_invalid_request_gets_one_line(sent: bytes, status: int, line: str | None) -> None:
    async with serving() as running:
        client = await running.connect()
        await client.send(sent)
        answered, _, body = await client.answer()
        assert (answered, body.count(b"\n")) == (status, 1)
        assert line is None or body.decode() == line
        await client.closed()
        assert running.log == []


@pytest.mark.parametrize(
    "sent",
    [
        get("/small", "Transfer-Encoding: chunked", method="POST") + b"zz\r\n",
        get("/small", "Transfer-Encoding: chunked") + b"5\r\nab",
        get("/small", "Transfer-Encoding: chunked", "Content-Encoding: gzip") + b"5\r\nabcde\r\n0\r\n\r\n",
        get("/small", "Upgrade: websocket", "Connection: upgrade") + b"x" * 100_000,
        get("host:443", method="CONNECT") + b"x" * 100_000,
        get("/small", "Content-Length: 99999999") + b"x" * 300_000,
        get("/small", "Expect: 100-continue", "Content-Length: 5"),
        get("/small", "Content-Length: 5") + b"hello" + get("/small"),
    ],
    ids=range(8),
)
async def test_a_body_or_an_upgrade_ends_the_connection_after_the_answer(sent: bytes) -> None:
    async with serving(limits(lingering_seconds=0.1)) as running:
        client = await running.connect()
        client.writer.write(sent)
        assert (await client.answer())[0] in (200, 400, 404, 405)
        await client.closed()
        await running.until(0)
        assert running.log == []


async def test_a_body_that_is_not_read_is_not_kept() -> None:
    async with serving() as running:
        client = await running.connect()
        sending = asyncio.create_task(
            client.send(get("/held", "Content-Length: 99999999") + b"x" * 8_000_000)
        )
        await running.until(1)
        await until(lambda: running.renderings == 1)
        (connection,) = running.server.table
        await until(lambda: connection._reading_paused)
        assert not sending.done(), "the kernel's buffers are full, and the server reads no more"
        sending.cancel()
        await asyncio.wait([sending])


async def test_a_server_ends_in_time_whatever_its_clients_do() -> None:
    loop = asyncio.get_running_loop()
    async with serving(limits(max_connections=64)) as running:
        for number in range(40):
            client = await running.connect()
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await client.send((b"", b"GET /", get("/large") * 20, get("/held"))[number % 4])
        await asyncio.sleep(0.05)
        began = loop.time()
        await running.pages.stop(0.2)
        assert loop.time() - began < 5
        assert running.connections == 0
        for client in running.clients:
            client.writer.transport.resume_reading()  # type: ignore[attr-defined]
            await client.closed()


async def test_connections_that_the_kernel_has_completed_are_answered_when_the_server_stops() -> None:
    async with serving(limits(max_connections=128)) as running:
        address = (running.address.host, running.address.port)
        with contextlib.ExitStack() as stack:
            waiting = [stack.enter_context(socket.create_connection(address)) for _ in range(40)]
            for connection in waiting:
                connection.sendall(get("/small", "Connection: close"))
            await running.pages.stop(20)  # the server's loop has accepted none of them before
            assert {connection.recv(12) for connection in waiting} == {b"HTTP/1.1 200"}


async def test_a_connection_without_a_client_takes_no_place_and_leaves_no_error() -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    async with serving() as running:
        lost, silent = (HttpConnection(running.server, running.server._manager, LIMITS, "") for _ in range(2))
        for connection in (lost, silent):
            connection.connection_made(Mock(asyncio.Transport))
        lost.connection_lost(None)  # before its task begins
        silent.data_received(b"\x00\r\n\r\n")  # and its answer is not read
        assert running.server.table.busy_count == 1
        await until(lambda: not running.server.table.busy_count)
        assert running.connections == 1
        silent.connection_lost(None)
        await asyncio.sleep(0)
        gc.collect()
    assert errors == []
