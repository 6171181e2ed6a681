"""Reading request bodies, bounded in size, in time, and in how many are unfinished at once."""

import asyncio
from typing import Final

from aiohttp import web

from webhook.deadlines import Deadline

LARGEST_BODY: Final = 8 * 1024 * 1024
"""Bytes. A review holds an object and its old self; API servers accept objects of 3 MiB."""

MOST_UNFINISHED: Final = 512
MOST_UNFINISHED_BYTES: Final = 128 * 1024 * 1024
_SLOW_SECONDS: Final = 1.0


class Overloaded(Exception):
    """There is no room for one more; the caller may come again."""


class Intake:
    """Reads bodies. Where too many are unfinished, the slowest gives way."""

    def __init__(self, *, most: int = MOST_UNFINISHED, most_bytes: int = MOST_UNFINISHED_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._unfinished: dict[Deadline, None] = {}
        """The deadline of each request whose body is unfinished, oldest first."""

    async def read(self, request: web.BaseRequest, deadline: Deadline) -> bytes:
        """Read a request's body.

        Raises:
            TimeoutError: it did not arrive in time, or had to give way.
            Overloaded: there is no room for it, and none was slow enough to give way.
            aiohttp.web.HTTPRequestEntityTooLarge: it is larger than allowed.
        """
        if request.content.is_eof():
            return await request.read()
        expected = min(request.content_length or LARGEST_BODY, LARGEST_BODY)
        self._make_room(expected, deadline.since)
        self._bytes += expected
        self._unfinished[deadline] = None
        try:
            return await request.read()
        except asyncio.CancelledError:
            if deadline.caused():
                raise TimeoutError from None
            raise
        finally:
            self._unfinished.pop(deadline, None)
            self._bytes -= expected

    def _make_room(self, expected: int, now: float) -> None:
        if len(self._unfinished) < self._most and self._bytes + expected <= self._most_bytes:
            return
        slowest = next(iter(self._unfinished), None)
        if slowest is None or now - slowest.since < _SLOW_SECONDS:
            raise Overloaded
        del self._unfinished[slowest]
        slowest.end()
