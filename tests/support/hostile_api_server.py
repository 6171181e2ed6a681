"""A TLS proxy on loopback in front of a real API server, which injects faults.

    async with hostile_api_server(plane.upstream, folder) as server:
        server.inject(refuses(429, "TooManyRequests", Retry_After="1"), requests("/api/v1/pods"))
        async with KubeClient(server.access(token)) as client, running(client) as run:
            server.link.reset()  # or fall_silent(), half_open(), go_down(); server.heal() ends every fault
            await until(lambda: run.watch.is_synced)
        assert len(server.seen(requests("/api/v1/pods", watch=True))) < 10

The client's credentials are passed on to the real server. A subprocess gets `server.kubeconfig(token)`, or
`server.account(token)` and `server.environment`. `tls_connections.in_a_thread` runs it for tests that block.
"""

import asyncio
import contextlib
import itertools
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from aiohttp import web
from yarl import URL

from certs.authority import Authority
from tests.support.api_server import Answer, hangs
from tests.support.certificates import serving_context
from tests.support.credentials import Reachable

_CHUNK_BYTES = 65536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER of zero seconds: closing the socket sends RST, not FIN."""
_TURNS_TO_CLOSE = 5
"""Turns of the event loop in which clients in the same loop close their sockets, and connections that were
accepted last are closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The address of a real API server."""

    url: str
    """Address in the form `https://host:port`."""
    trust: ssl.SSLContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The real answer's head and a part of its body, then a reset of the connection."""

    after: int | None
    """Number of body bytes before the end; None ends before the head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """A part of the real answer's body with a correct end of HTTP."""

    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """The real answer's head and a part of its body, then no data on an open connection."""

    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OlderData:
    """The answer of another API server, such as one with an etcd that was restored from a snapshot."""

    server: Upstream


Fault = Answer | Delay | Cut | Truncate | Silence | OlderData
"""An answer in place of the real one, or what happens to the real one."""


@dataclass(slots=True, kw_only=True)
class SeenRequest:
    """A request that reached the hostile API server."""

    method: str
    path: str
    query: Mapping[str, str]
    token: str
    """The bearer token; empty without one."""
    at: float
    """Time of the request in monotonic seconds."""
    fault: Fault | None = None

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") in ("1", "true")


Predicate = Callable[[SeenRequest], bool]


def requests(path: str = "", *, method: str | None = None, watch: bool | None = None) -> Predicate:
    """Match requests whose path begins with a prefix."""

    def matches(request: SeenRequest) -> bool:
        return (
            request.path.startswith(path)
            and method in (None, request.method)
            and watch in (None, request.is_watch)
        )

    return matches


@dataclass(eq=False)
class _Connection:
    """A client's connection, and whether its far end was closed."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_half_open: asyncio.Event = field(default_factory=asyncio.Event)


class TcpLink:
    """Forwards TCP connections to a port on loopback; a FIN arrives as FIN, a RST as RST."""

    def __init__(self, *, to_port: int) -> None:
        self.port = 0
        self.connections = 0
        """Number of connections that were accepted."""
        self._to_port = to_port
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_down = False
        self._open: dict[_Connection, asyncio.Task[None]] = {}

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for _ in range(_TURNS_TO_CLOSE):  # a connection that was just accepted has no task yet
            tasks = list(self._open.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)

    def fall_silent(self) -> None:
        """Hold all bytes on old and new connections without closing any."""
        self._soon(self._flows.clear)

    def half_open(self) -> None:
        """Close the far end of every connection without notifying the client; new connections work."""
        self._soon(self._lose_all)

    def lose(self) -> None:
        """Do as `half_open`, and hold all bytes on new connections."""

        def lose() -> None:
            self._lose_all()
            self._flows.clear()

        self._soon(lose)

    def reset(self) -> None:
        """Reset all connections; new connections work."""
        self._soon(self._reset_all)

    def go_down(self) -> None:
        """Reset all connections, including new ones."""

        def down() -> None:
            self._is_down = True
            self._reset_all()

        self._soon(down)

    def recover(self) -> None:
        """Forward again. Bytes held by `fall_silent` are sent late."""

        def up() -> None:
            self._is_down = False
            self._flows.set()

        self._soon(up)

    def _soon(self, control: Callable[[], object]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(control)

    def _lose_all(self) -> None:
        for connection in self._open:
            connection.is_half_open.set()

    def _reset_all(self) -> None:
        for connection in self._open:
            reset(connection.writer.transport)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = _Connection(reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._open[connection] = task
        try:
            await self._flows.wait()
            if self._is_down:
                reset(writer.transport)
            else:
                await self._forward(connection)
            writer.close()  # sends what is still buffered
            await writer.wait_closed()
        except (OSError, asyncio.CancelledError):
            return
        finally:
            writer.transport.abort()
            del self._open[connection]

    async def _forward(self, connection: _Connection) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        ends = {
            asyncio.create_task(self._pass_on(connection.reader, writer)),
            asyncio.create_task(self._pass_on(reader, connection.writer)),
            asyncio.create_task(connection.is_half_open.wait()),
        }
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writer.transport.abort()
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
        if connection.is_half_open.is_set():
            while await connection.reader.read(_CHUNK_BYTES):
                pass

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
            await self._flows.wait()
            return
        reset(writer.transport)


def reset(transport: asyncio.BaseTransport) -> None:
    assert isinstance(transport, asyncio.WriteTransport)
    if not transport.is_closing():
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    transport.abort()


_LARGEST_REQUEST = 16 * 1024 * 1024
_BETWEEN_NEIGHBOURS = frozenset(
    {"host", "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"}
)
"""Headers that apply to a single connection (RFC 9110, 7.6.1), and Host."""


class HostileApiServer(Reachable):
    """Forwards requests to a real API server, except those to which a fault applies."""

    def __init__(self, upstream: Upstream, folder: Path) -> None:
        self.requests: list[SeenRequest] = []
        """All requests, oldest first."""
        self.link: TcpLink
        """Link between clients and this server."""
        self._upstreams = itertools.cycle([upstream])
        self.folder, self.accounts = folder, {}
        self._faults: list[tuple[Predicate, Fault]] = []

    @property
    def port(self) -> int:  # type: ignore[override]
        return self.link.port

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def inject(self, fault: Fault, when: Predicate = requests()) -> None:  # noqa: B008 - has no state
        """Apply a fault to requests from now on. If several match, the oldest applies."""
        self._faults.append((when, fault))

    def alternate(self, *upstreams: Upstream) -> None:
        """Forward each request to the next of several API servers, as a load balancer does."""
        self._upstreams = itertools.cycle(upstreams)

    def heal(self) -> None:
        """End all faults of requests and of the link. Hanging streams stay open."""
        self._faults = []
        self.link.recover()

    def seen(self, when: Predicate) -> list[SeenRequest]:
        return [request for request in self.requests if when(request)]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["HostileApiServer"]:
        authority = Authority.create(now=datetime.now(UTC))
        (self.folder / "ca.crt").write_bytes(authority.pair.certificate_pem)
        app = web.Application(client_max_size=_LARGEST_REQUEST)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.0)
        async with contextlib.AsyncExitStack() as stack:
            # A new connection for each request: a kept one may be closed by a server that restarts.
            connector = aiohttp.TCPConnector(force_close=True, limit=0)
            self._session = await stack.enter_async_context(
                aiohttp.ClientSession(
                    connector=connector,
                    auto_decompress=False,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    timeout=aiohttp.ClientTimeout(total=None),
                    skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
                )
            )
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            trust = serving_context(authority, self.folder)
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=trust).start()
            self.link = TcpLink(to_port=runner.addresses[0][1])
            await self.link.start()
            stack.push_async_callback(self.link.stop)
            yield self

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        seen = SeenRequest(
            method=request.method, path=request.path, query=dict(request.query),
            token=request.headers.get("Authorization", "").removeprefix("Bearer "), at=time.monotonic(),
        )  # fmt: skip
        seen.fault = next((fault for when, fault in self._faults if when(seen)), None)
        self.requests.append(seen)
        try:
            return await self._answer(request, seen)
        except aiohttp.ClientError:  # the real server ended
            _abort(request)
            return web.Response(status=502)

    async def _answer(self, request: web.Request, seen: SeenRequest) -> web.StreamResponse:
        match seen.fault:
            case Cut(after=None):
                _abort(request)
                return web.Response(status=502)
            case Delay(seconds=seconds):
                await asyncio.sleep(seconds)
                return await self._forward(request, seen, next(self._upstreams))
            case OlderData(server=server):
                return await self._forward(request, seen, server)
            case None | Cut() | Truncate() | Silence():
                return await self._forward(request, seen, next(self._upstreams))
            case answer:
                await request.read()
                return await answer(request)

    async def _forward(
        self, request: web.Request, seen: SeenRequest, upstream: Upstream
    ) -> web.StreamResponse:
        most = seen.fault.after if isinstance(seen.fault, Cut | Truncate | Silence) else None
        async with self._session.request(
            request.method,
            URL(upstream.url + request.raw_path, encoded=True),
            headers=_end_to_end(request.headers),
            data=await request.read() or None,
            ssl=upstream.trust,
            allow_redirects=False,
        ) as answer:
            response = web.StreamResponse(
                status=answer.status, reason=answer.reason, headers=_end_to_end(answer.headers)
            )
            if isinstance(seen.fault, Truncate):
                response.headers.pop("Content-Length", None)
            if "Content-Length" not in response.headers:
                response.enable_chunked_encoding()
            await response.prepare(request)
            async for part in _up_to(answer.content, most):
                await response.write(part)
        match seen.fault:
            case Silence():
                await hangs(request)
            case Cut():
                await _sent(request)
                _abort(request)
        return response


@contextlib.asynccontextmanager
async def hostile_api_server(upstream: Upstream, folder: Path) -> AsyncIterator[HostileApiServer]:
    """Run a hostile API server in the running event loop; `folder` is empty and receives its files."""
    async with HostileApiServer(upstream, folder).running() as server:
        yield server


def _end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _BETWEEN_NEIGHBOURS}


async def _up_to(content: aiohttp.StreamReader, most: int | None) -> AsyncIterator[bytes]:
    while most != 0 and (part := (await content.readany())[:most]):
        yield part
        most = None if most is None else most - len(part)


async def _sent(request: web.Request) -> None:
    """Wait until all written data has left this process."""
    transport = request.transport
    assert isinstance(transport, asyncio.WriteTransport | None)
    # A transport has no event for an empty buffer.
    while (  # noqa: ASYNC110
        transport is not None and not transport.is_closing() and transport.get_write_buffer_size()
    ):
        await asyncio.sleep(0.001)


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        reset(request.transport)
