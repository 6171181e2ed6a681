"""Reading request bodies, bounded in size, in time, and in how many are unfinished at once."""

import asyncio
from dataclasses import dataclass
from typing import Final

from aiohttp import StreamReader, web

from webhook.admission.deadlines import Deadline

LARGEST_BODY: Final = 8 * 1024 * 1024
"""Bytes. A review holds an object and its old self; API servers accept objects of 3 MiB."""

MOST_UNFINISHED: Final = 512
MOST_UNFINISHED_BYTES: Final = 128 * 1024 * 1024
_SLOW_SECONDS: Final = 1.0


class Overloaded(Exception):
    """There is no room for one more; the caller may come again."""


@dataclass(eq=False, slots=True)
class _Unfinished:
    """A body that is still arriving."""

    deadline: Deadline
    size: int
    """Bytes it may have in the end."""
    gave_way: bool = False


class Intake:
    """Reads bodies. Where too many are unfinished, a slow one or a larger one gives way."""

    def __init__(self, *, most: int = MOST_UNFINISHED, most_bytes: int = MOST_UNFINISHED_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._unfinished: dict[_Unfinished, None] = {}
        """Oldest first."""
        self._bytes = 0

    async def read(self, request: web.BaseRequest, deadline: Deadline) -> bytes:
        """Read a request's body.

        Raises:
            TimeoutError: it did not arrive in time.
            Overloaded: there is no room for it and nothing that would give way, or it had to give way itself.
            ConnectionResetError: its sender is gone.
            aiohttp.web.HTTPRequestEntityTooLarge: it is larger than allowed.
        """
        try:
            if request.content.is_eof():
                return request.content.read_nowait()
            return await self._read_slowly(request, deadline)
        except (OSError, RuntimeError):
            # Whatever ended the connection is raised where its body is read, and may be a TimeoutError too.
            if request.transport is None:
                raise ConnectionResetError from None
            raise

    def shorten_deadlines(self) -> None:
        """Give what is unfinished now no more than a second."""
        end = asyncio.get_running_loop().time() + _SLOW_SECONDS
        for body in self._unfinished:
            body.deadline.at = min(body.deadline.at, end)

    async def _read_slowly(self, request: web.BaseRequest, deadline: Deadline) -> bytes:
        size = LARGEST_BODY if request.content_length is None else request.content_length
        if size > LARGEST_BODY:
            raise web.HTTPRequestEntityTooLarge(LARGEST_BODY, size)
        self._make_room(size, deadline.since)
        body = _Unfinished(deadline, size)
        self._unfinished[body] = None
        self._bytes += size
        try:
            return await _read(request.content)
        except asyncio.CancelledError:
            if not deadline.caused():
                raise
            raise (Overloaded if body.gave_way else TimeoutError) from None
        finally:
            self._forget(body)

    def _forget(self, body: _Unfinished) -> None:
        if body in self._unfinished:
            del self._unfinished[body]
            self._bytes -= body.size

    def _make_room(self, size: int, now: float) -> None:
        while len(self._unfinished) >= self._most or self._bytes + size > self._most_bytes:
            body = self._next_to_go(size, now)
            if body is None:
                raise Overloaded
            self._forget(body)
            body.gave_way = True
            body.deadline.end()

    def _next_to_go(self, size: int, now: float) -> _Unfinished | None:
        """The oldest if it is slow, or else one larger than what comes: announcing much keeps nobody out."""
        oldest = next(iter(self._unfinished), None)
        if oldest is None or now - oldest.deadline.since >= _SLOW_SECONDS:
            return oldest
        if len(self._unfinished) >= self._most:
            return None
        largest = max(self._unfinished, key=lambda body: body.size)
        return largest if largest.size > size else None


async def _read(content: StreamReader) -> bytes:
    """Read to the end.

    Not by `request.read()`: that keeps the body with the request, and its connection keeps the request until
    the next one: 200 idle connections held a gigabyte.
    """
    pieces: list[bytes] = []
    size = 0
    while piece := await content.readany():
        size += len(piece)
        if size > LARGEST_BODY:
            raise web.HTTPRequestEntityTooLarge(LARGEST_BODY, size)
        pieces.append(piece)
    return b"".join(pieces)
