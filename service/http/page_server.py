"""A read-only HTTP server for a fixed set of pages, whose texts are rendered once for all answers."""

import asyncio
import contextlib
import re
import ssl
import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from weakref import WeakSet

from aiohttp import web

from service.http.authentication import HEALTH_PATHS, AccessRefusal, Authentication
from service.http.bounded_server import BoundedServer
from service.http.host_names import HostNames
from service.http.limits import Address, ConnectionLimits
from service.log import DEBUG, JsonLog, LimitedLog
from service.names import is_dns_label

COMPRESSION_LEVEL: Final = 3
"""zlib's level. Metrics are 11 % larger than at level 6, for less than half of its CPU (measured: 109 kB and
2.7 ms for 710 kB, zlib 1.2.13)."""

_INLINE_BYTES: Final = 64 * 1024
"""Longest text that is compressed in the event loop, within about a millisecond; a longer one in a thread."""

_GZIP_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_GZIP: Final = re.compile(r"\bgzip\b(?!\s*;\s*q\s*=\s*0(?:\.0{0,3})?\s*(?:,|$))", re.IGNORECASE)


class Buffer:
    """Immutable bytes in parts. It is in memory once, as long as the server or an answer refers to it."""

    __slots__ = ("__weakref__", "parts", "size")

    def __init__(self, parts: tuple[bytes, ...]) -> None:
        self.parts = parts
        self.size = sum(map(len, parts))


class SharedText:
    """A text that all answers share. Answers may add bytes of their own after it."""

    def __init__(self, *parts: bytes) -> None:
        """Set the text, in parts: one object of the whole size would be the largest of the process."""
        self.plain = Buffer(parts)
        self._deflating: asyncio.Task[tuple[Buffer, int]] | None = None

    async def gzipped(self, after: bytes) -> tuple[Buffer, bytes]:
        """Return one gzip file of the text and of another one behind it, in two parts.

        The text is compressed once, by the first caller. The ends of the parts are ends of deflate blocks.
        """
        if self._deflating is None:
            self._deflating = asyncio.create_task(self._deflate())
        deflated, checksum = await asyncio.shield(self._deflating)
        size = self.plain.size + len(after)
        trailer = zlib.crc32(after, checksum).to_bytes(4, "little") + (size % 2**32).to_bytes(4, "little")
        return deflated, _deflated((after,), zlib.Z_FINISH) + trailer

    async def _deflate(self) -> tuple[Buffer, int]:
        """Return the deflate blocks of the text, and its checksum."""
        if self.plain.size <= _INLINE_BYTES:
            return self._blocks()
        return await asyncio.to_thread(self._blocks)

    def _blocks(self) -> tuple[Buffer, int]:
        parts, checksum = self.plain.parts, 0
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        return Buffer((_GZIP_HEADER + _deflated(parts, zlib.Z_FULL_FLUSH),)), checksum


def accepts_gzip(request: web.BaseRequest) -> bool:
    """Whether the client names gzip, with a quality above 0."""
    return _GZIP.search(",".join(request.headers.getall("Accept-Encoding", []))) is not None


def _deflated(parts: tuple[bytes, ...], flush: int) -> bytes:
    compressor = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return b"".join([*map(compressor.compress, parts), compressor.flush(flush)])


_METHODS: Final = ("GET", "HEAD")
_PIECE_BYTES: Final = 16 * 1024
_SMALL_BYTES: Final = 64 * 1024
"""Size up to which a page is not refused. The number of connections bounds the memory of such pages."""
_TEXT: Final = {"Content-Type": "text/plain; charset=utf-8"}
_ALLOW: Final = {**_TEXT, "Allow": ", ".join(_METHODS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A rendered page."""

    body: bytes | SharedText
    """A text is shared with other pages, and compressed for clients that take gzip; bytes are not."""
    after: bytes = b""  # bytes of this page alone that come after a shared text
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: _TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortSecurity:
    """What a port asks of its clients."""

    authentication: Authentication | None = None
    context: ssl.SSLContext | None = None


OPEN_PORT: Final = PortSecurity()

Render = Callable[[], Awaitable[Page]]
RenderPart = Callable[[str], Awaitable[Page]]
"""Renders the part of a page that is about one namespace."""
_TOO_MANY: Final = Page(body=b"too many readers now\n", status=503, headers={**_TEXT, "Retry-After": "1"})


def text_page(text: str, *, status: int = 200) -> Page:
    """Return a page of plain text."""
    return Page(body=text.encode(), status=status)


class PageServer:
    """Serves pages by path to GET and HEAD. The body of a request is not read; its connection is closed.

    Above the limits of connections and memory a new reader gets 503; answers in progress go on.
    """

    def __init__(
        self,
        pages: Mapping[str, Render],
        *,
        not_found: str,
        method_not_allowed: str,
        log: JsonLog,
        on_error: Callable[[], None] = lambda: None,
        parts: Mapping[str, RenderPart] | None = None,
    ) -> None:
        """Create a server; call `start` to listen.

        Pages are rendering functions by path. The answers for any other path and method are one line.
        `parts` render the path with the query `namespace=NAME`; other paths ignore their query.
        """
        self._parts = parts or {}
        self._pages = {
            path: render if path in HEALTH_PATHS else _SharedRendering(render).get
            for path, render in pages.items()
        }
        self._not_found = not_found
        self._method_not_allowed = method_not_allowed
        self._log = log
        self._failures = LimitedLog(log)
        self._requests = LimitedLog(log)
        self._on_error = on_error
        self._host_names: HostNames | None = None
        self._authentication: Authentication | None = None
        self._server: BoundedServer | None = None
        self._max_page_bytes = 0
        self._buffers: WeakSet[Buffer] = WeakSet()
        """The texts in memory: an answer refers to them, or they are kept for the next reader."""

    async def start(
        self,
        address: Address,
        limits: ConnectionLimits,
        host_names: HostNames | None = None,
        security: PortSecurity = OPEN_PORT,
    ) -> Address:
        """Listen on an address; return the address in use (port 0 selects a free port). May raise OSError.

        Without `host_names` every host is accepted.
        """
        self._host_names = host_names
        self._max_page_bytes = limits.max_page_bytes
        self._authentication = security.authentication
        self._server = BoundedServer(
            self._answer, refuse=_refuse, limits=limits, log=self._log, context=security.context
        )
        return await self._server.listen(address)

    async def stop(self, seconds: float) -> None:
        """Stop listening and close all connections; requests in flight may take `seconds`."""
        if self._server is not None:
            await self._server.finish(seconds)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        is_within_busy_limit = self._server is None or self._server.is_within_busy_limit(request)
        page = await self._page(request, is_within_busy_limit=is_within_busy_limit)
        is_last = request.body_exists or not is_within_busy_limit
        return await self._written(page, request, is_last=is_last)

    async def _page(self, request: web.BaseRequest, *, is_within_busy_limit: bool) -> Page:
        refusal = self._host_names.refusal(request) if self._host_names else None
        if refusal is not None:
            return _refusal_page(refusal)
        page = self._pages.get(request.path)
        if page is None:
            return text_page(f"{self._not_found}\n", status=404)
        if request.method not in _METHODS:
            return Page(body=f"{self._method_not_allowed}\n".encode(), status=405, headers=_ALLOW)
        if not is_within_busy_limit and request.path not in HEALTH_PATHS:
            return _TOO_MANY
        part = self._parts.get(request.path)
        names = request.query.getall("namespace", []) if part else []
        if names and (len(names) > 1 or not is_dns_label(names[0])):
            return text_page("namespace: expected one name of a namespace\n", status=400)
        try:
            if self._authentication is not None:
                not_allowed = await self._authentication.refusal(request, "".join(names))
                if not_allowed is not None:
                    return _refusal_page(not_allowed)
            return await part(names[0]) if part and names else await page()
        except Exception as error:  # noqa: BLE001 - the log has the traceback, and the client one line
            self._on_error()
            self._failures.failure("internal error", error, path=request.path)
            return text_page("internal error; the log has its traceback\n", status=500)

    async def _written(self, page: Page, request: web.BaseRequest, *, is_last: bool) -> web.StreamResponse:
        """Write a page, or that there are too many; return the answer."""
        headers, after = dict(page.headers), page.after
        if isinstance(page.body, bytes):
            buffer = Buffer((page.body,))
        else:
            headers["Vary"] = "Accept-Encoding"
            buffer = page.body.plain
            self._buffers.add(buffer)
            if accepts_gzip(request):
                headers["Content-Encoding"] = "gzip"
                buffer, after = await page.body.gzipped(after)
                self._buffers.add(buffer)
            if buffer.size > _SMALL_BYTES and self._is_full_beside(page.body, buffer):
                return await self._written(_TOO_MANY, request, is_last=is_last)
        response = web.StreamResponse(status=page.status, headers=headers)
        response.content_length = buffer.size + len(after)
        if is_last:
            response.force_close()
        self._requests(
            "request answered", DEBUG, method=request.method, path=request.path, status=page.status
        )
        parts = () if request.method == "HEAD" else (*buffer.parts, after)
        del page  # a client that reads slowly keeps only the bytes that it gets in memory
        await _write(response, request, parts)
        return response

    def _is_full_beside(self, text: SharedText, buffer: Buffer) -> bool:
        """Whether other pages take up the memory; a single page may be of any size."""
        others = sum(each.size for each in self._buffers if each is not text.plain and each is not buffer)
        return others > 0 and others + text.plain.size > self._max_page_bytes


class _SharedRendering:
    """Renders a page once for all requests that arrive before the rendering starts; one rendering at a time.

    A page is never older than its request, and many requests cost as much as a few.
    """

    def __init__(self, render: Render) -> None:
        self._render = render
        self._is_rendering = asyncio.Lock()
        self._next: asyncio.Task[Page] | None = None

    async def get(self) -> Page:
        """Return the page, rendered after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._render_next())
        return await asyncio.shield(self._next)

    async def _render_next(self) -> Page:
        async with self._is_rendering:
            self._next = None
            return await self._render()


async def _write(response: web.StreamResponse, request: web.BaseRequest, parts: tuple[bytes, ...]) -> None:
    """Write a piece whenever the buffer has room; other connections get their turn after each.

    aiohttp writes a body of bytes at once, and asyncio copies the rest that the kernel does not accept. Every
    client that does not read would hold a copy of the whole page.
    """
    with contextlib.suppress(ConnectionError):  # aiohttp sees the end of the connection, too
        await response.prepare(request)
        for part in parts:
            for start in range(0, len(part), _PIECE_BYTES):
                await request.writer.write(part[start : start + _PIECE_BYTES])
                await request.writer.drain()
                await asyncio.sleep(0)


def _refusal_page(refusal: AccessRefusal) -> Page:
    """Return the answer to a refused request; the log has the reason for which a token cannot be checked."""
    if refusal.status == HTTPStatus.SERVICE_UNAVAILABLE:
        text, headers = "the token cannot be checked now; the log has the reason", {"Retry-After": "1"}
    else:
        text, headers = refusal.problem, {}
    if refusal.status == HTTPStatus.UNAUTHORIZED:
        headers = {"WWW-Authenticate": "Bearer"}
    return Page(body=f"{text}\n".encode(), status=refusal.status, headers={**_TEXT, **headers})


def _refuse(status: int, problem: str) -> web.StreamResponse:
    return web.Response(status=status, text=f"{problem}\n")
