"""States of connections, and which one goes first."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.http.connection_table import ConnectionTable
from service.http.limits import ConnectionLimits, plain_port_limits

LIMITS = replace(plain_port_limits(4), head_seconds=10, answer_seconds=10, answer_bytes_per_second=1000)


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
        pytest.param({"half_open": "abc", "idle": "x"}, "a", id="the oldest half-open connection before an idle one"),
        pytest.param({"half_open": "a", "idle": "xyz"}, "a", id="one half-open connection before any idle one"),
        pytest.param({"idle": "wxyz"}, "w", id="the longest idle connection where the only half-open one is new"),
        pytest.param({"half_open": "a", "busy": "xyz"}, "a", id="a half-open connection before a busy one"),
        pytest.param({"idle": "w", "busy": "xyz"}, "w", id="an idle connection before a busy one"),
        pytest.param({"busy": "wxyz"}, "new", id="the new connection where all others are busy"),
    ],
)  # fmt: skip
def test_one_connection_too_many(states: dict[str, str], goes: str) -> None:
    made = table(**states)
    assert made.surplus(100) is None
    made.opened("new", 100)
    assert made.surplus(100) == goes


def test_a_stalled_answer_goes_before_a_new_connection_and_after_an_idle_one() -> None:
    made = table(busy="wxy", idle="a")
    for second, name in enumerate("xw"):
        made.stalled(name, 1, second)
    for name, goes in zip(("new", "newer"), ("a", "x"), strict=True):
        made.opened(name, 100)
        assert made.surplus(100) == goes
        made.closed(goes)
        made.head_arrived(name)


def test_young_half_open_connections_are_spared_while_few() -> None:
    of = replace(LIMITS, max_connections=8)
    made = table(idle="stuvwxy", of=of)
    for name, goes in zip("abc", [None, "s", "a"], strict=True):
        made.opened(name, 100)
        assert made.surplus(100.5) == goes
        if goes:
            made.closed(goes)


def test_a_head_counts_from_its_first_byte() -> None:
    made = table(half_open="a")
    for second in range(1, 11):
        assert made.overdue(second) == []
        made.head_started("a", second)
    assert made.overdue(11) == ["a"]
    made.head_arrived("a")
    assert made.overdue(1000) == []


def test_an_idle_connection_with_part_of_a_head_is_half_open() -> None:
    made = table(idle="abcd")
    made.head_started("c", 50)
    made.opened("new", 100)
    assert made.surplus(100) == "c"
    assert made.overdue(61) == ["c"]


def test_part_of_the_next_head_makes_a_connection_half_open_after_its_answer() -> None:
    made = table(busy="a")
    made.head_started("a", 1)
    assert (made.busy_count, made.silent_since(100)) == (1, [])
    made.answered("a", 5)
    assert (made.busy_count, made.silent_since(100)) == (0, ["a"])
    assert made.overdue(11.5) == ["a"]


def test_a_large_answer_has_more_time_and_the_time_counts_once() -> None:
    made = table(busy="ab")
    made.stalled("a", 5000, 0)
    made.stalled("b", 0, 0)
    made.stalled("a", 5000, 14)
    assert made.overdue(11) == ["b"]
    assert made.overdue(15.5) == ["b", "a"] or made.overdue(15.5) == ["a", "b"]
    made.answered("a", 16)
    assert made.overdue(100) == ["b"]


def test_stalled_answers_above_their_limit_close_the_one_stalled_longest() -> None:
    made = table(busy="abc", of=replace(LIMITS, max_stalled_bytes=100))
    made.stalled("a", 1000, 0)
    assert made.surplus_answer() is None, "a single answer may be of any size"
    made.stalled("b", 10, 1)
    assert made.surplus_answer() == "a"
    made.closed("a")
    assert made.surplus_answer() is None
    made.stalled("c", 90, 2)
    assert made.surplus_answer() is None
    made.resumed("b")
    made.resumed("c")
    assert made._stalled_bytes == 0


def test_an_unknown_connection_is_ignored() -> None:
    made = table()
    for event in (made.head_started, made.answered):
        event("gone", 1)
    made.stalled("gone", 5, 1)
    made.closed("gone")
    assert (len(made), made.overdue(1e9), made.silent_since(1e9), made.stuck_since(1e9)) == (0, [], [], [])


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["opened", "closed", "head_started", "head_arrived", "answered", "stalled", "resumed"]
        ),
        st.integers(0, 9),
    ),
    max_size=80,
)


@given(EVENTS)
def test_the_table_stays_within_its_limit_whatever_happens(events: list[tuple[str, int]]) -> None:
    made: ConnectionTable[int] = ConnectionTable(replace(LIMITS, max_stalled_bytes=3))
    for now, (event, connection) in enumerate(events):
        busy = made._open - set(made._half_open) - set(made._idle)
        if event == "opened" and connection not in made._open:
            made.opened(connection, now)
            surplus = made.surplus(now)
            assert surplus not in busy - set(made._stalled)
            if surplus is not None:
                made.closed(surplus)
        elif event in ("closed", "head_arrived", "resumed"):
            getattr(made, event)(connection)
        elif event == "head_started":
            made.head_started(connection, now)
        elif event == "answered" and connection in busy:
            made.answered(connection, now)
        elif event == "stalled":
            made.stalled(connection, 1, now)
            while (stalled := made.surplus_answer()) is not None:
                made.closed(stalled)
        assert len(made) <= LIMITS.max_connections
        assert len(made._stalled) == made._stalled_bytes <= 3
        assert not set(made._half_open) & set(made._idle)
        assert set(made._half_open) | set(made._idle) | set(made._heads) | set(made._stalled) <= made._open
    for connection in list(made._open):
        made.closed(connection)
    assert (len(made), made.busy_count, made.overdue(1e9), made.least_needed()) == (0, 0, [], None)
