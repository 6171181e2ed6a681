"""Reads request bodies, with limits on their size, duration and number."""

import asyncio
from dataclasses import dataclass
from typing import Final

from aiohttp import StreamReader, web

LARGEST_BODY: Final = 8 * 1024 * 1024
"""Maximum size in bytes. A review contains the new and the old object, each of up to 3 MiB."""

MOST_UNFINISHED: Final = 512
MOST_UNFINISHED_BYTES: Final = 128 * 1024 * 1024
_SLOW_SECONDS: Final = 1.0


class Overloaded(Exception):
    """The server is overloaded; the client may try again later."""


@dataclass(eq=False, slots=True)
class _Unfinished:
    """A body that has not arrived completely."""

    since: float
    """Start of reading, on the event loop's clock."""
    timeout: asyncio.Timeout
    size: int
    """Announced size in bytes, or the maximum size if none is announced."""
    is_evicted: bool = False
    """Whether the body was dropped to make room for another one."""

    def end_by(self, moment: float) -> None:
        """Move the end of reading to an earlier moment."""
        end = self.timeout.when()
        if not self.timeout.expired() and (end is None or moment < end):
            self.timeout.reschedule(moment)


class Intake:
    """Reads bodies. If too many are unfinished, a slow or a larger one is dropped to make room."""

    def __init__(self, *, max_bodies: int = MOST_UNFINISHED, max_bytes: int = MOST_UNFINISHED_BYTES) -> None:
        self._max_bodies = max_bodies
        self._max_bytes = max_bytes
        self._unfinished: dict[_Unfinished, None] = {}
        """Oldest first."""
        self._bytes = 0

    async def read(self, request: web.BaseRequest, deadline: float) -> bytes:
        """Read a request's body until a deadline on the event loop's clock.

        Raises:
            TimeoutError: the body did not arrive in time.
            Overloaded: there is no room for the body, or it was dropped to make room for another one.
            ConnectionResetError: the client has disconnected.
            aiohttp.web.HTTPRequestEntityTooLarge: the body exceeds `LARGEST_BODY`.
        """
        try:
            if request.content.is_eof():
                return request.content.read_nowait()
            return await self._read_slowly(request, deadline)
        except (OSError, RuntimeError):
            # The error that ended the connection is raised here, too, and may be a TimeoutError.
            if request.transport is None:
                raise ConnectionResetError from None
            raise

    def shorten_deadlines(self) -> None:
        """Limit the remaining time of unfinished bodies to one second."""
        end = asyncio.get_running_loop().time() + _SLOW_SECONDS
        for body in self._unfinished:
            body.end_by(end)

    async def _read_slowly(self, request: web.BaseRequest, deadline: float) -> bytes:
        size = LARGEST_BODY if request.content_length is None else request.content_length
        if size > LARGEST_BODY:
            raise web.HTTPRequestEntityTooLarge(LARGEST_BODY, size)
        now = asyncio.get_running_loop().time()
        self._make_room(size, now)
        body = _Unfinished(now, asyncio.timeout_at(deadline), size)
        self._unfinished[body] = None
        self._bytes += size
        try:
            async with body.timeout:
                return await _read(request.content)
        except TimeoutError:
            if body.is_evicted:
                raise Overloaded from None
            raise
        finally:
            self._forget(body)

    def _forget(self, body: _Unfinished) -> None:
        if body in self._unfinished:
            del self._unfinished[body]
            self._bytes -= body.size

    def _make_room(self, size: int, now: float) -> None:
        while len(self._unfinished) >= self._max_bodies or self._bytes + size > self._max_bytes:
            body = self._next_to_go(size, now)
            if body is None:
                raise Overloaded
            self._forget(body)
            body.is_evicted = True
            body.end_by(now)

    def _next_to_go(self, size: int, now: float) -> _Unfinished | None:
        """Return the body to drop: the oldest if it is slow, else one that is larger than the new body.

        Dropping larger bodies prevents that a large Content-Length blocks others.
        """
        oldest = next(iter(self._unfinished), None)
        if oldest is None or now - oldest.since >= _SLOW_SECONDS:
            return oldest
        if len(self._unfinished) >= self._max_bodies:
            return None
        largest = max(self._unfinished, key=lambda body: body.size)
        return largest if largest.size > size else None


async def _read(content: StreamReader) -> bytes:
    """Read a body to its end.

    `request.read()` is not used, because it stores the body in the request, which the connection keeps until
    the next request. 200 idle connections held a gigabyte.
    """
    pieces: list[bytes] = []
    size = 0
    while piece := await content.readany():
        size += len(piece)
        if size > LARGEST_BODY:
            raise web.HTTPRequestEntityTooLarge(LARGEST_BODY, size)
        pieces.append(piece)
    return b"".join(pieces)
