"""The states of one port's connections, and the order in which surplus connections are closed."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from service.http.limits import ConnectionLimits

ConnectionT = TypeVar("ConnectionT", bound=Hashable)


@dataclass(slots=True)
class _StalledAnswer:
    """An answer that the client has not read completely."""

    since: float
    written: int
    """Bytes of the connection's answers that had been written at that time."""
    read: int = 0
    """Bytes that the client has read since then."""


class ConnectionTable(Generic[ConnectionT]):
    """The states of one port's connections. All times are passed in, as seconds of one monotonic clock.

    A connection is half-open before its first complete request head, and while a later head is incomplete. A
    connection is busy while a request is being answered, and idle otherwise. A busy connection is closed only
    if its client exceeds a time limit.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._half_open: OrderedDict[ConnectionT, float] = OrderedDict()
        """Half-open connections and the start of that state; the oldest first."""
        self._idle: OrderedDict[ConnectionT, float] = OrderedDict()
        """Idle connections and the start of that state; the oldest first."""
        self._busy: OrderedDict[ConnectionT, None] = OrderedDict()
        """Busy connections in the order of their requests."""
        self._heads: OrderedDict[ConnectionT, float] = OrderedDict()
        """Connections with an incomplete head and the time of its first byte; the oldest first."""
        self._stalled: dict[ConnectionT, _StalledAnswer] = {}

    def __len__(self) -> int:
        return len(self._half_open) + len(self._idle) + len(self._busy)

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
        for connections in (self._half_open, self._idle, self._busy, self._heads, self._stalled):
            connections.pop(connection, None)

    def head_started(self, connection: ConnectionT, now: float) -> None:
        """Record bytes of an incomplete head; the first call for a head sets its time."""
        if connection not in self:
            return
        self._heads.setdefault(connection, now)
        if self._idle.pop(connection, None) is not None:
            self._half_open[connection] = now

    def head_arrived(self, connection: ConnectionT) -> None:
        """Record a complete head: the connection is busy."""
        if connection not in self:
            return
        for connections in (self._half_open, self._idle, self._heads):
            connections.pop(connection, None)
        self._busy.setdefault(connection)

    def answered(self, connection: ConnectionT, now: float) -> None:
        """Record that the last pending answer is written."""
        if connection not in self._busy:
            return
        del self._busy[connection]
        self.resumed(connection)
        (self._half_open if connection in self._heads else self._idle)[connection] = now

    def stalled(self, connection: ConnectionT, written: int, now: float) -> None:
        """Record that an answer fills the write buffer; the first call for an answer sets its time.

        Args:
            connection: the connection.
            written: bytes of the connection's answers so far.
            now: the time.
        """
        if connection in self:
            answer = self._stalled.setdefault(connection, _StalledAnswer(now, written))
            answer.read = written - answer.written

    def resumed(self, connection: ConnectionT) -> None:
        """Record that the write buffer has room again."""
        self._stalled.pop(connection, None)

    def has_place(self, connection: ConnectionT) -> bool:
        """Whether a busy connection is one of the first `max_busy`."""
        places = self._limits.max_busy
        return len(self._busy) <= places or connection in islice(self._busy, places)

    def surplus(self) -> ConnectionT | None:
        """Return the connection to close when there is one too many; None within the limit.

        It is the oldest half-open connection if more than a quarter of the connections are half-open,
        otherwise the connection idle longest. If all others are busy, it is the new connection.
        """
        if len(self) <= self._limits.max_connections:
            return None
        has_many = len(self._half_open) > self._limits.max_connections // 4
        return next(iter(self._half_open if has_many else self._idle or self._half_open))

    def least_needed(self) -> ConnectionT | None:
        """Return the connection to close when no descriptor is free; None if each one is busy."""
        return next(iter(self._half_open or self._idle), None)

    def overdue(self, now: float) -> list[ConnectionT]:
        """Return the connections that exceed the time limit of a head or of reading an answer."""
        limits = self._limits
        seconds = limits.seconds_for_reading(len(self._stalled))
        late_answers = [
            connection
            for connection, answer in self._stalled.items()
            if now - answer.since > seconds + answer.read / limits.answer_bytes_per_second
        ]
        return [*_until(self._heads, now - limits.head_seconds), *late_answers]

    def settled(self, before: float) -> tuple[list[ConnectionT], list[ConnectionT]]:
        """Return the connections whose state has not changed since a time: stuck ones, and silent ones.

        A stuck connection has an incomplete head or a stalled answer; a silent one is idle or half-open.
        """
        stalled = [connection for connection, answer in self._stalled.items() if answer.since <= before]
        stuck = [*_until(self._heads, before), *stalled]
        return stuck, [*_until(self._half_open, before), *_until(self._idle, before)]


def _until(since: OrderedDict[ConnectionT, float], before: float) -> Iterator[ConnectionT]:
    for connection, moment in since.items():
        if moment > before:
            return
        yield connection
