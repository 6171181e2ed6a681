"""Reading request bodies, bounded in size, in time, and in how many are unfinished at once."""

import asyncio
from collections import OrderedDict
from typing import Final

from aiohttp import web

LARGEST_BODY: Final = 8 * 1024 * 1024
"""Bytes. A review holds an object and its old self; API servers accept objects of 3 MiB."""

BODY_SECONDS: Final = 10.0
"""How long a body may take to arrive."""

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
        self._unfinished: OrderedDict[asyncio.Timeout, float] = OrderedDict()
        """The scope of each unfinished body and when it began, oldest first."""

    async def read(self, request: web.BaseRequest, seconds: float) -> bytes:
        """Read a request's body.

        Raises:
            TimeoutError: it did not arrive in time, or had to give way.
            Overloaded: there is no room for it, and none was slow enough to give way.
            aiohttp.web.HTTPRequestEntityTooLarge: it is larger than allowed.
        """
        if request.content.is_eof():  # nearly always: a review arrives in one piece
            return await request.read()
        expected = min(request.content_length or LARGEST_BODY, LARGEST_BODY)
        now = asyncio.get_running_loop().time()
        self._make_room(expected, now)
        self._bytes += expected
        scope = asyncio.timeout(min(seconds, BODY_SECONDS))
        try:
            async with scope:
                self._unfinished[scope] = now
                return await request.read()
        finally:
            self._unfinished.pop(scope, None)
            self._bytes -= expected

    def _make_room(self, expected: int, now: float) -> None:
        if len(self._unfinished) < self._most and self._bytes + expected <= self._most_bytes:
            return
        if self._unfinished:
            slowest, since = next(iter(self._unfinished.items()))
            if now - since >= _SLOW_SECONDS:
                del self._unfinished[slowest]
                slowest.reschedule(now)
                return
        raise Overloaded
