"""A fair queue for the turns of the event loop."""

import asyncio
import socket
from bisect import insort
from functools import lru_cache
from itertools import count
from typing import Final

_COST: Final = 4096  # cost of a turn without the bytes that it has to work on; each of them costs 1
_EACH_ITERATION: Final = 128 * 1024
"""Cost of the turns in one iteration of the event loop; one turn may exceed it. 50 ms a MiB is the bound of a
review's CPU."""
_Ticket = tuple[int, int, int, asyncio.Future[None]]
"""Order among the tasks of a peer, running number, cost, and the result."""


class FairQueue:
    """Gives turns to those that wait: to the peer that has had least, and to its smallest task first.

    This is self-clocked fair queueing: a peer's backlog delays its own tasks alone. New requests are read in
    between, because an iteration of the event loop gives a bounded amount of turns.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ids = count()
        self._waiting: dict[str, list[_Ticket]] = {}  # tickets of the peers that wait, in their order
        self._used: dict[str, int] = {}  # virtual time at which the next turn of a peer that waits begins
        self._now = 0
        """Virtual time: the end of the last turn."""
        self._left = _EACH_ITERATION
        self._light_left = 0
        self._is_scheduled = False

    def try_take(self, peer: str, size: int = 0) -> bool:
        """Take a turn for a number of bytes; return False if it must be waited for.

        Beside tasks that wait, a light one takes the turn that would be the next one, in this iteration.
        """
        cost = _COST + size
        if self._waiting:
            if self._light_left <= 0 or peer in self._waiting:
                return False
            if self._now + cost >= min(map(self._end_of_next, self._waiting)):
                return False
            self._light_left -= cost
            self._now += cost
            return True
        if self._left <= 0:
            return False
        self._left -= cost
        self._schedule()
        return True

    async def take(self, peer: str, size: int = 0, *, order: int | None = None) -> None:
        """Wait for a turn for a number of bytes.

        By default a peer's tasks with fewer bytes come first, otherwise those of the lower `order`.
        """
        if self.try_take(peer, size):
            return
        future = self._loop.create_future()
        ticket = (size if order is None else order, next(self._ids), _COST + size, future)
        self._used.setdefault(peer, self._now)
        insort(self._waiting.setdefault(peer, []), ticket)
        self._schedule()
        try:
            await future
        except asyncio.CancelledError:
            if ticket in self._waiting.get(peer, ()):
                self._remove(peer, ticket)
            raise

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._give)

    def _give(self) -> None:
        """Give the turns of one iteration of the event loop."""
        self._is_scheduled = False
        self._left = _EACH_ITERATION
        self._light_left = _EACH_ITERATION // 2
        while self._waiting and self._left > 0:
            peer = min(self._waiting, key=self._end_of_next)
            ticket = self._waiting[peer][0]
            *_, cost, future = ticket
            if not future.done():  # it may be cancelled
                self._left -= cost
                self._now = self._used[peer] = self._used[peer] + cost
                future.set_result(None)
            self._remove(peer, ticket)
        if self._waiting:
            self._schedule()

    def _end_of_next(self, peer: str) -> int:
        return self._used[peer] + self._waiting[peer][0][2]

    def _remove(self, peer: str, ticket: _Ticket) -> None:
        self._waiting[peer].remove(ticket)
        if not self._waiting[peer]:
            del self._waiting[peer], self._used[peer]


@lru_cache(maxsize=1024)
def peer_of(host: str) -> str:
    """Return the peer of an address: the IPv4 address, or the /64 network of the IPv6 address."""
    if ":" not in host:
        return host
    return socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:8].hex()
