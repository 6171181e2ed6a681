"""Parts of aiohttp and asyncio that service/http/bounded_server.py relies on and that their documentation does not promise."""

import asyncio
from asyncio.sslproto import SSLProtocol

import pytest
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.web_protocol import RequestHandler


@pytest.mark.parametrize(
    ("owner", "name", "why"),
    [
        (RequestHandler, "_messages", "whole requests that wait for an answer, each with its body at index 1"),
        (RequestHandler, "_upgraded", "whether the bytes after a head are no HTTP; aiohttp bounds them"),
        (RequestHandler, "start", "serves the requests of a connection, as a task"),
        (RequestHandler, "data_received", "parses what came and appends to _messages"),
        (RequestHandler, "handle_error", "answers bytes that are not an HTTP request"),
        (BaseProtocol, "pause_writing", "stops an answer while the write buffer is full"),
        (BaseProtocol, "resume_writing", "continues it"),
        (BaseProtocol, "connected", "False once the connection is lost"),
        (SSLProtocol, "max_size", "size of the buffer that each TLS connection has"),
    ],
)  # fmt: skip
def test_a_private_part_still_exists(owner: type, name: str, why: str) -> None:
    assert name in dir(owner), (
        f"{owner.__name__}.{name} is gone; service/http/bounded_server.py needs it: {why}"
    )


async def test_a_parsed_request_is_in_messages_with_its_body() -> None:
    async def answer(_request: web.BaseRequest) -> web.Response:
        return web.Response()

    handler = RequestHandler(web.Server(answer), loop=asyncio.get_running_loop())
    handler.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert len(handler._messages) == 1
    assert handler._messages[-1][1].is_eof()
    handler.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n.")
    assert len(handler._messages) == 2
    assert not handler._messages[-1][1].is_eof()
    handler.data_received(b".")
    assert handler._messages[-1][1].is_eof()
