"""Reads request bodies, with limits on their size, duration and number, in all and for each peer."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from aiohttp import web

from service.http.fair_queue import FairQueue

LARGEST_BODY: Final = 8 * 1024 * 1024
"""Maximum size in bytes. A review contains the new and the old object, each of up to 3 MiB."""

MOST_UNFINISHED: Final = 512
MOST_BYTES: Final = 128 * 1024 * 1024
_PEERS_PART: Final = 4
"""One peer holds at most this part of the bytes, a quarter, while there is another peer."""

_SLOW_SECONDS: Final = 1.0
_READING: Final = 8
"""Bytes that are read at the cost of one byte of a review."""


class Overloaded(Exception):
    """The server is overloaded; the client may try again later."""


@dataclass(eq=False, slots=True)
class Body:
    """A body that arrives, waits for its turn, or is being answered."""

    peer: str
    size: int
    """Size in bytes; while the body arrives, the announced size or else the maximum size."""
    slow_at: float = float("inf")
    """Time on the event loop's clock from which the body is slow to arrive."""
    timeout: asyncio.Timeout | None = None
    """The wait of this body; None if it is being answered, and is not dropped any more."""
    is_dropped: bool = False

    def drop(self) -> None:
        """Drop the body to make room for another one."""
        self.is_dropped = True
        self.end_by(asyncio.get_running_loop().time())

    def end_by(self, moment: float) -> None:
        """Move the end of the wait to an earlier moment."""
        if self.timeout is not None and not self.timeout.expired():
            self.timeout.reschedule(min(moment, self.timeout.when() or moment))


class Room:
    """The bodies that are in memory at the same time. Above a limit the peer that holds most loses one."""

    def __init__(self, max_bodies: int, max_bytes: int = MOST_BYTES) -> None:
        self._max_bodies = max_bodies
        self._max_bytes = max_bytes
        self._bytes = 0
        self.bodies: dict[Body, None] = {}
        """Oldest first."""

    def enter(self, body: Body) -> None:
        """Add a body, and drop others where there is no room for it.

        Raises:
            Overloaded: there is no room for the body.
        """
        self.bodies[body] = None
        self._bytes += body.size
        while (surplus := self._next_to_go(body)) is not None:
            self.leave(surplus)
            if surplus is body:
                raise Overloaded
            surplus.drop()

    def leave(self, body: Body) -> None:
        """Remove a body; ignore one that was dropped."""
        if body in self.bodies:
            del self.bodies[body]
            self._bytes -= body.size

    def _next_to_go(self, newest: Body) -> Body | None:
        """Return the body to drop, of the peer that holds most; None if there is room for all.

        It is the peer's oldest one if that is slow, else the newest of its largest ones.
        """
        part = self._max_bytes // _PEERS_PART
        is_full = len(self.bodies) > self._max_bodies or self._bytes > self._max_bytes
        if not is_full and self._bytes <= part:
            return None
        load: Counter[str] = Counter()
        for body in self.bodies:
            load[body.peer] += body.size + self._max_bytes // self._max_bodies
        peer, most = max(load.items(), key=itemgetter(1))
        if not is_full and (most <= part or len(load) == 1):
            return None
        bodies = [body for body in self.bodies if body.peer == peer and (body.timeout or body is newest)]
        if bodies and bodies[0].slow_at <= asyncio.get_running_loop().time():
            return bodies[0]
        largest = max(reversed(bodies), key=lambda body: body.size, default=None)
        return newest if largest is None and is_full else largest


class Intake:
    """Reads bodies, in turns. If too many are unfinished, a slow or a large one is dropped to make room."""

    def __init__(self, *, max_bodies: int = MOST_UNFINISHED, max_bytes: int = MOST_BYTES) -> None:
        self.unfinished = Room(max_bodies, max_bytes)

    async def read(self, request: web.BaseRequest, peer: str, deadline: float, queue: FairQueue) -> bytes:
        """Read the body of a peer's request until a deadline on the event loop's clock.

        Raises:
            TimeoutError: the body did not arrive in time.
            Overloaded: there is no room for the body, or it was dropped to make room for another one.
            ConnectionResetError: the client has disconnected.
            aiohttp.web.HTTPRequestEntityTooLarge: the body exceeds `LARGEST_BODY`.
        """
        try:
            if request.content.is_eof():
                return request.content.read_nowait()
            return await self._read_slowly(request, peer, deadline, queue)
        except (OSError, RuntimeError):
            # The error that ended the connection is raised here, too, and may be a TimeoutError.
            if request.transport is None:
                raise ConnectionResetError from None
            raise

    def shorten_deadlines(self) -> None:
        """Limit the remaining time of unfinished bodies to one second."""
        end = asyncio.get_running_loop().time() + _SLOW_SECONDS
        for body in self.unfinished.bodies:
            body.end_by(end)

    async def _read_slowly(
        self, request: web.BaseRequest, peer: str, deadline: float, queue: FairQueue
    ) -> bytes:
        size = LARGEST_BODY if request.content_length is None else request.content_length
        if size > LARGEST_BODY:
            raise web.HTTPRequestEntityTooLarge(LARGEST_BODY, size)
        slow_at = asyncio.get_running_loop().time() + _SLOW_SECONDS
        body = Body(peer, size, slow_at)
        self.unfinished.enter(body)
        try:
            async with asyncio.timeout_at(deadline) as body.timeout:
                return await _read(request, body, queue)
        except TimeoutError:
            if body.is_dropped:
                raise Overloaded from None
            raise
        finally:
            self.unfinished.leave(body)


async def _read(request: web.BaseRequest, body: Body, queue: FairQueue) -> bytes:
    """Read a body to its end; each piece takes a turn, and the client cannot send more before.

    `request.read()` is not used, because it stores the body in the request, which the connection keeps until
    the next request. 200 idle connections held a gigabyte.
    """
    pieces: list[bytes] = []
    size = 0
    while piece := await request.content.readany():
        size += len(piece)
        if size > LARGEST_BODY:
            raise web.HTTPRequestEntityTooLarge(LARGEST_BODY, size)
        pieces.append(piece)
        await queue.take(body.peer, len(piece) // _READING, order=body.size)
    return b"".join(pieces)
