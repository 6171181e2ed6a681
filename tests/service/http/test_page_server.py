"""Pages: methods, paths, errors, and rendering once for many requests."""

import random
import weakref

import pytest

from service.http.page_server import Buffer, Page, PageServer, SharedText
from service.log import JsonLog
from tests.support.page_server import ANY_PORT, LARGE, LIMITS, RunningServer, get, limits, serving
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("method", "path", "status", "line"),
    [
        ("GET", "/small", 200, "1\n"),
        ("GET", "/small?a=b", 200, "1\n"),
        ("GET", "/%73mall", 200, "1\n"),
        ("GET", "/small/", 404, "no such page\n"),
        ("GET", "//small", 404, "no such page\n"),
        ("GET", "/../small", 404, "no such page\n"),
        ("POST", "/nowhere", 404, "no such page\n"),
        ("POST", "/small", 405, "pages are read\n"),
        ("TRACE", "/small", 405, "pages are read\n"),
        ("OPTIONS", "/small", 405, "pages are read\n"),
    ],
)
async def test_an_answer_is_a_page_or_one_line(method: str, path: str, status: int, line: str) -> None:
    async with serving() as running:
        client = await running.connect()
        await client.send(get(path, method=method))
        answered, headers, body = await client.answer()
        assert (answered, body.decode()) == (status, line)
        assert headers["content-type"] == "text/plain; charset=utf-8"
        assert headers.get("allow") == ("GET, HEAD" if status == 405 else None)
        assert (await client.get("/small"))[0] == 200, "the connection stays open"


async def test_a_page_that_fails_is_a_line_for_the_client_and_tracebacks_for_the_log_within_its_limit() -> (
    None
):
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
    running = RunningServer()
    running.pages = PageServer(
        {"/small": running._small},
        not_found="no such page",
        method_not_allowed="",
        log=JsonLog(running.stream, least=least),
    )
    running.address = await running.pages.start(ANY_PORT, LIMITS)
    try:
        async with running.stack:
            client = await running.connect()
            await client.get("/small")
            await client.get("/nowhere")
    finally:
        await running.pages.stop(0.1)
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
