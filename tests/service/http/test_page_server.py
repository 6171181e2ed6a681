"""Pages: methods, paths, errors, rendering once for many requests, and texts that answers share, with gzip."""

import asyncio
import gzip
import random
import threading
import weakref
import zlib

import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from service.http.page_server import Buffer, Page, SharedText, accepts_gzip
from tests.support.page_server import LARGE, LIMITS, get, limits, serving
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("method", "path", "status", "line"),
    [
        ("GET", "/small", 200, "1\n"), ("GET", "/small?a=b", 200, "1\n"), ("GET", "/%73mall", 200, "1\n"),
        ("GET", "/small/", 404, "no such page\n"), ("GET", "//small", 404, "no such page\n"),
        ("GET", "/../small", 404, "no such page\n"), ("POST", "/nowhere", 404, "no such page\n"),
        ("POST", "/small", 405, "pages are read\n"), ("TRACE", "/small", 405, "pages are read\n"),
        ("OPTIONS", "/small", 405, "pages are read\n"),
    ],
)  # fmt: skip
async def test_an_answer_is_a_page_or_one_line(method: str, path: str, status: int, line: str) -> None:
    async with serving() as running:
        client = await running.connect()
        await client.send(get(path, method=method))
        answered, headers, body = await client.answer()
        assert (answered, body.decode()) == (status, line)
        assert headers["content-type"] == "text/plain; charset=utf-8"
        assert headers.get("allow") == ("GET, HEAD" if status == 405 else None)
        assert (await client.get("/small"))[0] == 200, "the connection stays open"


async def test_a_page_that_fails_is_a_line_for_the_client_and_few_tracebacks_for_the_log() -> None:
    async with serving() as running:
        client = await running.connect()
        for _ in range(200):
            assert (await client.get("/failing"))[::2] == (
                500,
                b"internal error; the log has its traceback\n",
            )
        assert 1 <= len(running.log) < 100
        assert "ZeroDivisionError" in running.log[0]["traceback"]


async def test_a_page_is_rendered_once_for_all_requests_that_wait_for_it() -> None:
    async with serving(limits(max_connections=128)) as running:
        clients = [await running.connect() for _ in range(50)]
        await clients[0].send(get("/held"))
        await until(lambda: running.renderings == 1)
        for client in clients[1:]:
            await client.send(get("/held"))
        await until(lambda: running.server.table.busy_count == 50)
        running.go.set()
        assert {(await client.answer())[0] for client in clients} == {200}
        assert running.renderings == 2


@pytest.mark.parametrize(("least", "count"), [("debug", 2), ("info", 0)])
async def test_each_request_is_a_line_of_the_log_at_the_level_debug_only(least: str, count: int) -> None:
    async with serving(least=least) as running:
        client = await running.connect()
        await client.get("/small")
        await client.get("/nowhere")
    lines = [(line["message"], line["path"], line["status"], line["level"]) for line in running.log]
    expected = [("request answered", "/small", 200, "debug"), ("request answered", "/nowhere", 404, "debug")]
    assert lines == expected[:count]


async def test_a_client_that_reads_slowly_keeps_only_the_bytes_that_it_gets_in_memory() -> None:
    pages: list[weakref.ref[Buffer]] = []

    async def render() -> Page:
        text = SharedText(random.randbytes(len(LARGE)))
        pages.append(weakref.ref(text.plain))
        return Page(body=text)

    async with serving() as running:
        running.pages._pages["/large"] = render
        client = await running.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(get("/large", "Accept-Encoding: gzip"))
        await until(lambda: running.server.table._stalled != {})
        await until(lambda: [page() for page in pages] == [None])


LONG = b"".join(b'kaishare_pod_flagged{pod="%d"} 1\n' % number for number in range(20_000))


@pytest.mark.parametrize(
    ("field", "accepted"),
    [
        (None, False), ("", False), ("gzip", True), ("GZIP", True), ("x-gzip", True),
        ("deflate, gzip;q=1.0, *;q=0.5", True), ("br;q=1, gzip ; Q=0.001", True), ("gzip;q=0", False),
        ("gzip;q=0.000", False), ("gzip;q=0, *", False), ("gzip;q=0.0 ,br", False), ("gzip;q=0.01", True), ("identity, *;q=0.1", False), ("*;q=0", False),
        ("identity", False), ("gzipped", False), (",,;,", False),
    ],
)  # fmt: skip
def test_gzip_is_for_clients_that_take_it(field: str | None, accepted: bool) -> None:
    headers = {} if field is None else {"Accept-Encoding": field}
    assert accepts_gzip(make_mocked_request("GET", "/", headers=headers)) is accepted


@given(parts=st.lists(st.binary(max_size=200), max_size=5), after=st.binary(max_size=50))
def test_any_text_is_one_gzip_file(parts: list[bytes], after: bytes) -> None:
    async def compressed() -> bytes:
        buffer, tail = await SharedText(*parts).gzipped(after)
        return b"".join((*buffer.parts, tail))

    member = zlib.decompressobj(wbits=31)
    assert member.decompress(asyncio.run(compressed())) == b"".join((*parts, after))
    assert (member.eof, member.unused_data) == (True, b""), "one member: some clients read only the first"


async def test_a_long_text_is_compressed_once_and_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    blocks = SharedText._blocks
    monkeypatch.setattr(
        SharedText, "_blocks", lambda text: threads.append(threading.get_ident()) or blocks(text)
    )
    text = SharedText(LONG)
    answers = await asyncio.gather(*(text.gzipped(b"%d" % number) for number in range(50)))
    assert len({id(buffer) for buffer, _ in answers}) == 1
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()
    assert answers[0][0].size < len(LONG) / 4


async def test_an_answer_has_the_encoding_that_its_client_takes() -> None:
    large = SharedText(b"x" * (LIMITS.max_page_bytes * 2 // 3))

    async def long() -> Page:
        return Page(body=SharedText(LONG[:1000], LONG[1000:]), after=b"]")

    async def shared() -> Page:
        return Page(body=large)

    async with serving() as running:
        running.pages._pages |= {"/long": long, "/shared": shared}
        client = await running.connect()
        lengths: dict[str | None, int] = {}
        for method in ("GET", "HEAD"):
            for accepted in ("gzip", "gzip;q=0"):
                await client.send(get("/long", f"Accept-Encoding: {accepted}", method=method))
                status, headers, body = await client.answer(has_body=method == "GET")
                assert (status, headers["vary"]) == (200, "Accept-Encoding")
                lengths[headers.get("content-encoding")] = int(headers["content-length"])
                if method == "GET":
                    assert (gzip.decompress(body) if "content-encoding" in headers else body) == LONG + b"]"
        assert lengths.keys() == {"gzip", None}
        assert lengths["gzip"] * 4 < lengths[None] == len(LONG) + 1
        readers = [await running.connect() for _ in range(10)]
        answers = await asyncio.gather(*(reader.get("/shared") for reader in readers))
        sizes = {(status, len(body)) for status, _, body in answers}
        assert sizes == {(200, large.plain.size)}, "bytes of one text count once however many clients read it"
