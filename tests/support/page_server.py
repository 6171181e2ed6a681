"""Runs a page server on loopback, with a raw client."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from service.http.bounded_server import BoundedServer
from service.http.host_names import HostNames
from service.http.limits import Address, ConnectionLimits, plain_port_limits
from service.http.page_server import Page, PageServer, SharedText, text_page
from service.log import JsonLog
from tests.support.waiting import until

WAIT_SECONDS = 20.0
LARGE = b"x" * (4 << 20)
MEDIUM = b"x" * (512 << 10)
"""More than the buffers of a connection."""
ANY_PORT = Address("127.0.0.1", 0)
LIMITS = plain_port_limits(16)


def limits(**changes: Any) -> ConnectionLimits:
    return replace(LIMITS, **{"sweep_seconds": 0.02, **changes})


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        """Return the next answer: status, headers by lower-case name, body."""
        async with asyncio.timeout(WAIT_SECONDS):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            lines = head.split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
            }
            length = int(headers.get("content-length", 0)) if has_body else 0
            return int(lines[0].split()[1]), headers, await self.reader.readexactly(length)

    async def get(self, path: str, *headers: str) -> tuple[int, dict[str, str], bytes]:
        await self.send(get(path, *headers))
        return await self.answer()

    async def closed(self) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            try:
                while await self.reader.read(1 << 16):
                    pass
            except OSError:
                return

    @property
    def is_open(self) -> bool:
        return not self.reader.at_eof() and self.reader.exception() is None


@dataclass
class RunningServer:
    """A page server with six pages: a health check, a small, a medium and a large one, one that waits for `go`,
    and one that fails."""

    stream: io.BytesIO = field(default_factory=io.BytesIO)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    renderings: int = 0
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    clients: list[Client] = field(default_factory=list)
    address: Address = ANY_PORT

    least: str = "info"

    def __post_init__(self) -> None:
        self.pages = PageServer(
            {
                "/healthz": partial(self._made, lambda: text_page("ok\n")),
                "/medium": partial(self._made, lambda: Page(body=SharedText(MEDIUM))),
                "/large": partial(self._made, lambda: Page(body=SharedText(LARGE))),
                "/small": self._small, "/held": self._held, "/failing": self._failing,
            },
            not_found="no such page", method_not_allowed="pages are read", log=JsonLog(self.stream, least=self.least),
        )  # fmt: skip

    async def _made(self, make: Callable[[], Page]) -> Page:
        return make()

    async def _small(self) -> Page:
        self.renderings += 1
        return text_page(f"{self.renderings}\n")

    async def _held(self) -> Page:
        self.renderings += 1
        await self.go.wait()
        return text_page("held\n")

    async def _failing(self) -> Page:
        raise ZeroDivisionError

    @property
    def server(self) -> BoundedServer:
        assert self.pages._server is not None
        return self.pages._server

    @property
    def connections(self) -> int:
        return len(self.server.table)

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    async def connect(self) -> Client:
        """Open a connection; it is closed at the end of the test."""
        host, port = self.address.host, self.address.port
        client = Client(*await asyncio.open_connection(host, port))
        self.clients.append(client)
        self.stack.callback(client.writer.transport.abort)
        return client

    async def until(self, count: int) -> None:
        await until(lambda: self.connections == count)


@asynccontextmanager
async def serving(
    of: ConnectionLimits = LIMITS, host_names: HostNames | None = None, least: str = "info"
) -> AsyncIterator[RunningServer]:
    running = RunningServer(least=least)
    running.address = await running.pages.start(ANY_PORT, of, host_names)
    try:
        async with running.stack:
            yield running
    finally:
        running.go.set()
        await running.pages.stop(0.1)
