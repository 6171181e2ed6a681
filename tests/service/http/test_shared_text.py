"""Texts that answers share: negotiation of gzip, one compression for all, and the bytes of an answer."""

import asyncio
import gzip
import threading
import zlib

import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from service.http.page_server import Page, SharedText, accepts_gzip
from tests.support.page_server import LIMITS, get, serving

LONG = b"".join(b'kaishare_pod_flagged{pod="%d"} 1\n' % number for number in range(20_000))


@pytest.mark.parametrize(
    ("field", "accepted"),
    [
        (None, False),
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("deflate, gzip;q=1.0, *;q=0.5", True),
        ("br;q=1, gzip ; Q=0.001", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("gzip;q=0, *", False),
        ("identity, *;q=0.1", True),
        ("*;q=0", False),
        ("identity", False),
        ("gzip;q=much", False),
        ("gzip;level=9", False),
        (",,;,", False),
    ],
)
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


async def test_a_long_text_is_compressed_once_for_all_readers_and_outside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
