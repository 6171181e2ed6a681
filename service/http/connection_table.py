"""The connections of one port by state, and which of them to close first."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from service.http.limits import ConnectionLimits

ConnectionT = TypeVar("ConnectionT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class _StalledAnswer:
    """An answer that the client has not read so far."""

    since: float
    size: int
    """Bytes of the whole answer."""


class ConnectionTable(Generic[ConnectionT]):
    """States of connections. All times are seconds of one monotonic clock, given by the caller.

    A connection is half-open until its first whole request head, and while it has sent part of a later one.
    It is busy while a request is being answered, and idle otherwise.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._open: set[ConnectionT] = set()
        self._half_open: OrderedDict[ConnectionT, float] = OrderedDict()
        """Half-open connections and since when; the oldest first."""
        self._idle: OrderedDict[ConnectionT, float] = OrderedDict()
        """Idle connections and since when; the longest idle first."""
        self._heads: OrderedDict[ConnectionT, float] = OrderedDict()
        """Connections with an incomplete head and when its first byte came; the oldest first."""
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
        """Remove a connection; an unknown one is ignored."""
        self._open.discard(connection)
        self.head_arrived(connection)
        self.resumed(connection)

    def head_started(self, connection: ConnectionT, now: float) -> None:
        """Record a byte of an incomplete head; only the first one counts."""
        if connection not in self._open:
            return
        self._heads.setdefault(connection, now)
        if self._idle.pop(connection, None) is not None:
            self._half_open[connection] = now

    def head_arrived(self, connection: ConnectionT) -> None:
        """Record a whole head: the connection is busy."""
        self._half_open.pop(connection, None)
        self._idle.pop(connection, None)
        self._heads.pop(connection, None)

    def answered(self, connection: ConnectionT, now: float) -> None:
        """Record the end of the last answer that is due."""
        if connection not in self._open:
            return
        self.resumed(connection)
        (self._half_open if connection in self._heads else self._idle)[connection] = now

    def stalled(self, connection: ConnectionT, size: int, now: float) -> None:
        """Record that an answer fills the write buffer; only the first time counts."""
        if connection in self._open and connection not in self._stalled:
            self._stalled[connection] = _StalledAnswer(now, size)
            self._stalled_bytes += size

    def resumed(self, connection: ConnectionT) -> None:
        """Record that an answer has been handed to the kernel."""
        answer = self._stalled.pop(connection, None)
        if answer is not None:
            self._stalled_bytes -= answer.size

    def surplus(self, now: float) -> ConnectionT | None:
        """Return the connection to close because there is one too many; None within the limit.

        The oldest half-open connection goes first, then the longest idle one, then the one whose answer has
        been stalled longest. Any other busy connection never goes, so the new one does.
        A young half-open connection is spared while there are few of them and another one can go instead:
        otherwise idle connections could fill the table, and no new client could send a request.
        """
        if len(self._open) <= self._limits.max_connections:
            return None
        oldest, since = next(iter(self._half_open.items()))  # the new connection is half-open
        is_young = since > now - self._limits.young_seconds
        if is_young and len(self._half_open) <= self._limits.max_half_open:
            return next(iter(self._idle or self._stalled), oldest)
        return oldest

    def least_needed(self) -> ConnectionT | None:
        """Return the connection to close for want of descriptors; None if a request is answered on each."""
        return next(iter(self._half_open or self._idle or self._stalled), None)

    def surplus_answer(self) -> ConnectionT | None:
        """Return the connection stalled longest if several stalled answers exceed their limit of bytes."""
        if self._stalled_bytes <= self._limits.max_stalled_bytes or len(self._stalled) == 1:
            return None
        return next(iter(self._stalled))

    def overdue(self, now: float) -> list[ConnectionT]:
        """Return the connections that exceed the time for a head or for an answer."""
        limits = self._limits
        late_heads = list(_until(self._heads, now - limits.head_seconds))
        late_answers = [
            connection
            for connection, answer in self._stalled.items()
            if now - answer.since > limits.answer_seconds + answer.size / limits.answer_bytes_per_second
        ]
        return late_heads + late_answers

    def stuck_since(self, before: float) -> list[ConnectionT]:
        """Return connections with an incomplete head or a stalled answer since a time or longer."""
        stalled = [connection for connection, answer in self._stalled.items() if answer.since <= before]
        return [*_until(self._heads, before), *stalled]

    def silent_since(self, before: float) -> list[ConnectionT]:
        """Return connections that are idle, or have sent nothing yet, since a time or longer."""
        return [*_until(self._half_open, before), *_until(self._idle, before)]


def _until(since: OrderedDict[ConnectionT, float], before: float) -> Iterator[ConnectionT]:
    for connection, moment in since.items():
        if moment > before:
            return
        yield connection
