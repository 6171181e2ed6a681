"""The states of one port's connections, and which of them to close."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from itertools import islice
from typing import Final, Generic, TypeVar

from service.http.limits import ConnectionLimits

ConnectionT = TypeVar("ConnectionT", bound=Hashable)

_MOST_READINGS: Final = 6
"""Number of times for reading that one answer may take in all. A client that reads a little within each time
could otherwise keep its place, and the answer in memory, for as long as it likes."""


class ConnectionTable(Generic[ConnectionT]):
    """The states of one port's connections. All times are passed in, as seconds of one monotonic clock.

    A connection is busy while a request is being answered, and quiet otherwise. A busy connection is closed
    only if its client exceeds a time limit, or for a peer that has fewer connections.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        """Limits of number and time; they may be replaced."""
        self._peers: dict[ConnectionT, str] = {}
        """Connections and their peers."""
        self._counts: Counter[str] = Counter()
        """Number of connections by peer."""
        self._quiet: dict[ConnectionT, float] = {}
        """Quiet connections and the start of that state; the oldest first."""
        self._busy: dict[ConnectionT, None] = {}
        """Busy connections in the order of their requests."""
        self._heads: dict[ConnectionT, float] = {}
        """Connections with an incomplete head, and the time of its first byte."""
        self._stalled: dict[ConnectionT, float] = {}
        """Connections whose client does not read an answer, and the time since when."""
        self._reading: dict[ConnectionT, float] = {}
        """Connections whose answer once filled the write buffer, and the time of the first such moment."""

    def __len__(self) -> int:
        return len(self._peers)

    def __iter__(self) -> Iterator[ConnectionT]:
        yield from (*self._quiet, *self._busy)

    def __contains__(self, connection: object) -> bool:
        return connection in self._peers

    @property
    def busy_count(self) -> int:
        """Number of connections with a request that is being answered."""
        return len(self._busy)

    def opened(self, connection: ConnectionT, now: float, peer: str = "") -> None:
        """Add a new connection of a peer."""
        self._peers[connection] = peer
        self._counts[peer] += 1
        self._quiet[connection] = now

    def closed(self, connection: ConnectionT) -> None:
        """Remove a connection; ignore an unknown one."""
        peer = self._peers.pop(connection, None)
        if peer is not None:
            self._counts[peer] -= 1
            if not self._counts[peer]:
                del self._counts[peer]
        for connections in (self._quiet, self._busy, self._heads, self._stalled, self._reading):
            connections.pop(connection, None)

    def head_started(self, connection: ConnectionT, now: float) -> None:
        """Record bytes of an incomplete head; the first call for a head sets its time."""
        if connection in self:
            self._heads.setdefault(connection, now)

    def head_arrived(self, connection: ConnectionT) -> None:
        """Record a complete head: the connection is busy."""
        if connection in self:
            self._quiet.pop(connection, None)
            self._heads.pop(connection, None)
            self._busy.setdefault(connection)

    def answered(self, connection: ConnectionT, now: float) -> None:
        """Record the end of an answer."""
        self._reading.pop(connection, None)
        if connection in self._busy:
            del self._busy[connection]
            self._quiet[connection] = now

    def stalled(self, connection: ConnectionT, now: float) -> None:
        """Record that an answer fills the write buffer."""
        if connection in self:
            self._stalled[connection] = now
            self._reading.setdefault(connection, now)

    def resumed(self, connection: ConnectionT) -> None:
        """Record that the write buffer has room again."""
        self._stalled.pop(connection, None)

    def has_place(self, connection: ConnectionT) -> bool:
        """Whether a busy connection is one of the first `max_busy`."""
        places = self.limits.max_busy
        return len(self._busy) <= places or connection in islice(self._busy, places)

    def least_needed(self) -> ConnectionT | None:
        """Return the connection to close for the newest one; None if each one is busy.

        It is the longest quiet one of the peers with most connections. If all others are busy, it is the last
        busy one of the peer with most connections, or the newest connection if no peer has more than its own.
        """
        quiet = max(self._quiet, key=self._connections_of_peer, default=None)
        if quiet is None or len(self._quiet) > 1:
            return quiet
        return max((quiet, *reversed(self._busy)), key=self._connections_of_peer)

    def _connections_of_peer(self, connection: ConnectionT) -> int:
        return self._counts[self._peers[connection]]

    def overdue(self, now: float) -> list[ConnectionT]:
        """Return the connections that exceed a time limit."""
        limits = self.limits
        reading = limits.seconds_for_reading(len(self._stalled))
        return [
            *_until(self._heads, now - limits.head_seconds),
            *(
                connection
                for connection, since in self._stalled.items()
                if since <= now - reading or self._reading[connection] <= now - _MOST_READINGS * reading
            ),
            *_until(self._quiet, now - limits.idle_seconds),
        ]


def _until(times: Mapping[ConnectionT, float], moment: float) -> Iterator[ConnectionT]:
    return (connection for connection, since in times.items() if since <= moment)
