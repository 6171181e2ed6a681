"""The webhook as a process of its own under clients that hold connections: it answers reviews and ends in time."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from service.http.limits import raise_descriptor_limit
from tests.support.hostile_clients import half_open, not_reading
from tests.support.webhook_process import Live, answered, started

CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00"
"""The beginning of a TLS handshake."""


@pytest.fixture(autouse=True)
def _many_files() -> None:
    if raise_descriptor_limit() < 3000:
        pytest.skip("this process may not open enough files for so many clients")


@contextmanager
def hostile(live: Live, count: int) -> Iterator[None]:
    """Half-open connections and clients that do not read, on both ports."""
    with ExitStack() as stack:
        stack.enter_context(half_open(live.admission, count, CLIENT_HELLO))
        stack.enter_context(half_open(live.ops, count))
        stack.enter_context(not_reading(live.ops, count // 10))
        yield


async def assert_well(live: Live) -> None:
    """Probe as a kubelet does, which takes a pod for unhealthy after three failures in a row, and scrape.

    A new connection may be closed for an older one while hundreds arrive at the same moment. Pages are refused
    while clients that do not read have all places, which ends after little more than a second.
    """
    await answered(live)
    assert await status(live, "/healthz") == 200
    end = asyncio.get_running_loop().time() + 5
    while (refused := await status(live, "/metrics")) != 200:
        assert refused == 503
        assert asyncio.get_running_loop().time() < end
        assert await status(live, "/healthz") == 200
        await asyncio.sleep(0.2)


async def status(live: Live, path: str) -> int:
    for _ in range(2):
        try:
            return (await live.get(path)).status
        except (OSError, EOFError):
            await asyncio.sleep(0.5)  # a kubelet waits for 10 s
    return (await live.get(path)).status


@pytest.mark.parametrize(("files", "count"), [(1024, 1100), (64, 100)])
async def test_half_open_connections_and_clients_that_do_not_read(
    tmp_path: Path, files: int, count: int
) -> None:
    async with started(tmp_path, "--drain", "0s", files=files) as server:
        live = server.live
        opened = hostile(live, count)
        await asyncio.to_thread(opened.__enter__)
        try:
            for _ in range(5):
                await assert_well(live)
            server.process.terminate()
            began = asyncio.get_running_loop().time()
            assert await server.process.ended() == 0
            assert asyncio.get_running_loop().time() - began < 15
        finally:
            opened.__exit__(None, None, None)
    assert b"traceback" not in live.read_log().lower()
    assert len(live.read_log()) < 20_000


async def test_a_flood_of_invalid_reviews_is_counted_and_logged_within_a_limit(tmp_path: Path) -> None:
    async with started(tmp_path, "--drain", "0s") as server:
        live = server.live
        connection = await live.connect()
        for _ in range(300):
            assert (await connection.post(b"{")).status == 400
        assert await live.errors("decode") == 300
        assert 1 <= len(live.logged("bad review")) < 150
        server.process.terminate()
        assert await server.process.ended() == 0
