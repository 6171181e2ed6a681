"""The states of one port's connections, and the order in which surplus connections are closed."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from service.http.limits import ConnectionLimits

ConnectionT = TypeVar("ConnectionT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _StalledAnswer:
    """An answer that the client has not read completely."""

    since: float
    size: int
    """Bytes of the whole answer."""


class ConnectionTable(Generic[ConnectionT]):
    """The states of one port's connections. All times are passed in, as seconds of one monotonic clock.

    A connection is half-open before its first complete request head, and while a later head is incomplete. A
    connection is busy while a request is being answered, and idle otherwise.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._open: set[ConnectionT] = set()
        self._half_open: OrderedDict[ConnectionT, float] = OrderedDict()
        """Half-open connections and the start of that state; the oldest first."""
        self._idle: OrderedDict[ConnectionT, float] = OrderedDict()
        """Idle connections and the start of that state; the oldest first."""
        self._heads: OrderedDict[ConnectionT, float] = OrderedDict()
        """Connections with an incomplete head and the time of its first byte; the oldest first."""
        self._stalled: dict[ConnectionT, _StalledAnswer] = {}
        self._stalled_bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def busy_count(self) -> int:
        """Number of connections with a request that is being answered."""
        return len(self._open) - len(self._half_open) - len(self._idle)

    def opened(self, connection: ConnectionT, now: float) -> None:
        """Add a new connection."""
        self._open.add(connection)
        self._half_open[connection] = now

    def closed(self, connection: ConnectionT) -> None:
        """Remove a connection; ignore an unknown one."""
        self._open.discard(connection)
        self.head_arrived(connection)
        self.resumed(connection)

    def head_started(self, connection: ConnectionT, now: float) -> None:
        """Record bytes of an incomplete head; the first call for a head sets its time."""
        if connection not in self._open:
            return
        self._heads.setdefault(connection, now)
        if self._idle.pop(connection, None) is not None:
            self._half_open[connection] = now

    def head_arrived(self, connection: ConnectionT) -> None:
        """Record a complete head: the connection is busy."""
        self._half_open.pop(connection, None)
        self._idle.pop(connection, None)
        self._heads.pop(connection, None)

    def answered(self, connection: ConnectionT, now: float) -> None:
        """Record that the last pending answer is written."""
        if connection not in self._open:
            return
        self.resumed(connection)
        (self._half_open if connection in self._heads else self._idle)[connection] = now

    def stalled(self, connection: ConnectionT, size: int, now: float) -> None:
        """Record that an answer fills the write buffer; the first call for an answer sets its time."""
        if connection in self._open and connection not in self._stalled:
            self._stalled[connection] = _StalledAnswer(now, size)
            self._stalled_bytes += size

    def resumed(self, connection: ConnectionT) -> None:
        """Record that the write buffer has room again."""
        answer = self._stalled.pop(connection, None)
        if answer is not None:
            self._stalled_bytes -= answer.size

    def surplus(self, now: float) -> ConnectionT | None:
        """Return the connection to close when there is one too many; None within the limit.

        The order is: the oldest half-open connection, the connection idle longest, the connection stalled
        longest. Other busy connections are never closed; the new connection is closed instead. A young
        half-open connection is closed last while there are few of them; otherwise idle connections could fill
        the table, and no new client could send a request.
        """
        if len(self._open) <= self._limits.max_connections:
            return None
        oldest, since = next(iter(self._half_open.items()))  # the new connection is half-open
        is_young = since > now - self._limits.young_seconds
        if is_young and len(self._half_open) <= self._limits.max_half_open:
            return next(iter(self._idle or self._stalled), oldest)
        return oldest

    def least_needed(self) -> ConnectionT | None:
        """Return the connection to close when no descriptor is free; None if each one is being answered."""
        return next(iter(self._half_open or self._idle or self._stalled), None)

    def surplus_answer(self) -> ConnectionT | None:
        """Return the connection stalled longest if several stalled answers exceed their limit of bytes."""
        if self._stalled_bytes <= self._limits.max_stalled_bytes or len(self._stalled) == 1:
            return None
        return next(iter(self._stalled))

    def overdue(self, now: float) -> list[ConnectionT]:
        """Return the connections that exceed the time limit of a head or of an answer."""
        limits = self._limits
        late_heads = list(_until(self._heads, now - limits.head_seconds))
        late_answers = [
            connection
            for connection, answer in self._stalled.items()
            if now - answer.since > limits.answer_seconds + answer.size / limits.answer_bytes_per_second
        ]
        return late_heads + late_answers

    def stuck_since(self, before: float) -> list[ConnectionT]:
        """Return the connections with an incomplete head or a stalled answer since `before` or longer."""
        stalled = [connection for connection, answer in self._stalled.items() if answer.since <= before]
        return [*_until(self._heads, before), *stalled]

    def silent_since(self, before: float) -> list[ConnectionT]:
        """Return the connections that are idle or half-open since `before` or longer."""
        return [*_until(self._half_open, before), *_until(self._idle, before)]


def _until(since: OrderedDict[ConnectionT, float], before: float) -> Iterator[ConnectionT]:
    for connection, moment in since.items():
        if moment > before:
            return
        yield connection
