"""States of connections, and which one goes first."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.http.bounded_server import ConnectionTable
from service.http.limits import ConnectionLimits, plain_port_limits

LIMITS = replace(plain_port_limits(4), head_seconds=10, answer_seconds=10, idle_seconds=1000)


def table(
    *, idle: str = "", half_open: str = "", busy: str = "", of: ConnectionLimits = LIMITS
) -> ConnectionTable[str]:
    """A table in which each letter is a connection; within a state each is one second younger than the last."""
    made: ConnectionTable[str] = ConnectionTable(of)
    for state in (idle, half_open, busy):
        for second, name in enumerate(state):
            made.opened(name, second)
            if state is not half_open:
                made.head_arrived(name)
            if state is idle:
                made.answered(name, second)
    return made


@pytest.mark.parametrize(
    ("states", "goes"),
    [
        pytest.param({"idle": "wxyz"}, "w", id="the connection that is quiet longest"),
        pytest.param({"half_open": "a", "busy": "xyz"}, "a", id="a half-open connection before a busy one"),
        pytest.param({"idle": "w", "busy": "xyz"}, "w", id="an idle connection before a busy one"),
        pytest.param({"busy": "wxyz"}, "new", id="the new connection where all others are busy"),
    ],
)  # fmt: skip
def test_one_connection_too_many(states: dict[str, str], goes: str) -> None:
    made = table(**states)
    made.opened("new", 100)
    assert made.connection_to_drop() == goes


def of_peers(**peers: str) -> ConnectionTable[str]:
    """A table with the quiet (lower case) and busy (upper case) connections of peers, in turn by age."""
    made: ConnectionTable[str] = ConnectionTable(LIMITS)
    for peer, names in peers.items():
        for second, name in enumerate(names):
            made.opened(name, second, peer)
            if name.isupper():
                made.head_arrived(name)
    return made


@pytest.mark.parametrize(
    ("peers", "goes"),
    [
        pytest.param({"one": "ab", "other": "xyz"}, "x", id="the longest quiet one of the peer with most"),
        pytest.param({"one": "ab", "other": "XYZ"}, "a", id="a quiet one before any busy one"),
        pytest.param({"one": "AB", "other": "xYZ"}, "x", id="a quiet one of the peer with most"),
        pytest.param({"one": "AB", "other": "XYZ"}, "Z", id="the last busy one where all are busy"),
        pytest.param({"one": "A", "new": "B"}, "new", id="the new one where no peer has more"),
    ],
)
def test_one_connection_too_many_beside_other_peers(peers: dict[str, str], goes: str) -> None:
    made = of_peers(**peers)
    made.opened("new", 100, "new")
    assert made.connection_to_drop() == goes


def test_a_flood_of_one_peer_closes_its_own_connections_alone() -> None:
    made = of_peers(server="abC", flood="wxyz")
    for number in range(100):
        made.opened(f"new-{number}", 100 + number, "flood")
        gone = made.connection_to_drop()
        assert gone is not None
        made.closed(gone)
    assert set("abC") <= set(made)


def test_places_go_to_the_requests_that_came_first() -> None:
    made = table(idle="a", busy="wxy")
    assert LIMITS.max_busy == 3
    assert all(made.is_within_busy_limit(name) for name in "wxy")
    made.head_arrived("a")
    assert [made.is_within_busy_limit(name) for name in "wxya"] == [True, True, True, False]
    made.answered("w", 1)
    assert made.is_within_busy_limit("a")
    made.head_arrived("w")
    assert not made.is_within_busy_limit("w"), "the next request of a connection is behind those that wait"


def test_the_time_for_reading_starts_again_when_the_client_has_read() -> None:
    made = table(busy="ab", of=replace(LIMITS, max_connections=400))
    made.stalled("a", 0)
    made.stalled("b", 0)
    made.resumed("a")
    made.stalled("a", 9)
    assert made.overdue(9.5) == []
    assert made.overdue(10.5) == ["b"]
    assert made.overdue(19.5) == ["b", "a"]
    made.resumed("a")
    assert made.overdue(100) == ["b"]


def test_an_answer_that_is_read_a_little_at_a_time_ends_after_six_times_for_reading() -> None:
    made = table(busy="a", of=replace(LIMITS, max_connections=400))
    for second in range(0, 60, 5):
        made.stalled("a", second)
        assert made.overdue(second + 4) == []
        made.resumed("a")
    assert made.overdue(61) == []
    made.stalled("a", 61)
    assert made.overdue(61) == ["a"]
    made.answered("a", 62)
    made.head_arrived("a")
    made.stalled("a", 63)
    assert made.overdue(64) == []


def test_all_times_are_short_while_the_server_stops() -> None:
    made = table(half_open="ad", idle="b", busy="ce")
    made.head_started("d", 2)
    made.stalled("e", 2)
    made.limits = replace(LIMITS, stopping_seconds=3).stopping()
    assert made.overdue(2.5) == []
    assert set(made.overdue(5)) == {"a", "b", "d", "e"}
    calm = table(half_open="a", idle="b", busy="c")
    assert (calm.overdue(999), set(calm.overdue(1000))) == ([], {"a", "b"}), (
        "a connection without a request ends"
    )


@pytest.mark.parametrize(
    ("stalled", "late", "left"),
    [(1, 10, 9), (30, 7.5, 7), (60, 5, 4.5), (90, 2.5, 2), (108, 1, 0.5), (120, 1, 0.5), (160, 1, 0.5)],
)
def test_the_time_without_reading_shrinks_with_the_places(stalled: int, late: float, left: float) -> None:
    made: ConnectionTable[int] = ConnectionTable(replace(LIMITS, max_connections=160))
    for connection in range(stalled):
        made.opened(connection, 0)
        made.head_arrived(connection)
        made.stalled(connection, 0)
    assert made.overdue(left) == []
    assert made.overdue(late + 0.1) == list(range(stalled))


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [*["opened"] * 5, "closed", "head_started", "head_arrived", "answered", "stalled", "resumed"]
        ),
        st.integers(0, 9),
    ),
    max_size=80,
)


@given(EVENTS)
def test_the_table_stays_within_its_limit_whatever_happens(events: list[tuple[str, int]]) -> None:
    made: ConnectionTable[int] = ConnectionTable(LIMITS)
    for now, (event, connection) in enumerate(events):
        busy = set(made._busy)
        if event == "opened" and connection not in made:
            made.opened(connection, now)
            if len(made) > LIMITS.max_connections:
                surplus = made.connection_to_drop()
                assert surplus is not None
                assert surplus not in busy
                made.closed(surplus)
        elif event in ("closed", "head_arrived", "resumed"):
            getattr(made, event)(connection)
        elif event != "opened":
            getattr(made, event)(connection, now)
        for unknown in (made.head_arrived, made.resumed, made.closed):
            unknown(99)
        known = list(made)
        assert len(made) == len(known) == len(set(known)) <= LIMITS.max_connections
        assert set(made._heads) | set(made._stalled) <= set(known)
        assert sum(map(made.is_within_busy_limit, made._busy)) <= LIMITS.max_busy
    for connection in list(range(10)):
        made.closed(connection)
    assert (len(made), made.busy_count, made.overdue(1e9), made.connection_to_drop()) == (0, 0, [], None)
