"""The states of one port's connections, and which of them to close."""

from collections import OrderedDict
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

    A connection is half-open before its first complete request head, busy while a request is being answered,
    and idle otherwise. A busy connection is closed only if its client exceeds a time limit.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        """Limits of number and time; they may be replaced."""
        self._half_open: OrderedDict[ConnectionT, float] = OrderedDict()
        """Half-open connections and the start of that state; the oldest first."""
        self._idle: OrderedDict[ConnectionT, float] = OrderedDict()
        """Idle connections and the start of that state; the oldest first."""
        self._busy: OrderedDict[ConnectionT, None] = OrderedDict()
        """Busy connections in the order of their requests."""
        self._heads: dict[ConnectionT, float] = {}
        """Connections with an incomplete head, and the time of its first byte."""
        self._stalled: dict[ConnectionT, float] = {}
        """Connections whose client does not read an answer, and the time since when."""
        self._reading: dict[ConnectionT, float] = {}
        """Connections whose answer once filled the write buffer, and the time of the first such moment."""

    def __len__(self) -> int:
        return len(self._half_open) + len(self._idle) + len(self._busy)

    def __iter__(self) -> Iterator[ConnectionT]:
        yield from (*self._half_open, *self._idle, *self._busy)

    def __contains__(self, connection: object) -> bool:
        return connection in self._half_open or connection in self._idle or connection in self._busy

    @property
    def busy_count(self) -> int:
        """Number of connections with a request that is being answered."""
        return len(self._busy)

    def opened(self, connection: ConnectionT, now: float) -> None:
        """Add a new connection."""
        self._half_open[connection] = now

    def closed(self, connection: ConnectionT) -> None:
        """Remove a connection; ignore an unknown one."""
        for connections in (
            self._half_open,
            self._idle,
            self._busy,
            self._heads,
            self._stalled,
            self._reading,
        ):
            connections.pop(connection, None)

    def head_started(self, connection: ConnectionT, now: float) -> None:
        """Record bytes of an incomplete head; the first call for a head sets its time."""
        if connection in self:
            self._heads.setdefault(connection, now)

    def head_arrived(self, connection: ConnectionT) -> None:
        """Record a complete head: the connection is busy."""
        if connection in self:
            for connections in (self._half_open, self._idle, self._heads):
                connections.pop(connection, None)
            self._busy.setdefault(connection)

    def answered(self, connection: ConnectionT, now: float) -> None:
        """Record the end of an answer."""
        self._reading.pop(connection, None)
        if connection in self._busy:
            del self._busy[connection]
            self._idle[connection] = now

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
        """Return the connection to close for a new one; None if each one is busy.

        It is the oldest half-open connection if more than a quarter of the connections are half-open,
        otherwise the connection idle longest. If all others are busy, it is the new connection.
        """
        has_many = len(self._half_open) > self.limits.max_connections // 4
        return next(iter(self._half_open if has_many else self._idle or self._half_open), None)

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
            *_until(self._half_open, now - limits.idle_seconds),
            *_until(self._idle, now - limits.idle_seconds),
        ]


def _until(times: Mapping[ConnectionT, float], moment: float) -> Iterator[ConnectionT]:
    return (connection for connection, since in times.items() if since <= moment)
