"""The fair queue: the order of its turns, and the amount of an iteration."""

import asyncio
from collections.abc import Iterator

import pytest

from service.http.fair_queue import FairQueue, peer_of


class Record:
    """Tasks that wait for turns, and the order in which they get them."""

    def __init__(self) -> None:
        self.queue = FairQueue()
        self.order: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def _wait(self, name: str, peer: str, size: int) -> None:
        await self.queue.take(peer, size)
        self.order.append(name)

    def add(self, name: str, peer: str, size: int) -> None:
        self.tasks.append(asyncio.create_task(self._wait(name, peer, size)))

    async def all(self, closed: pytest.MonkeyPatch) -> str:
        await asyncio.sleep(0)
        closed.undo()
        await asyncio.gather(*self.tasks)
        return " ".join(self.order)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No turns are given until this is undone."""
    with monkeypatch.context() as patch:
        patch.setattr("service.http.fair_queue._EACH_ITERATION", 0)
        yield patch


LARGE = 300_000


async def test_a_task_alone_gets_its_turn_at_once() -> None:
    queue = FairQueue()
    assert queue.try_take("a", LARGE)
    assert not queue.try_take("b")
    await asyncio.sleep(0)
    assert queue.try_take("a", LARGE)


async def test_a_backlog_delays_no_other_peer_and_no_small_task(closed: pytest.MonkeyPatch) -> None:
    record = Record()
    for number in range(4):
        record.add(f"large-{number}", "flood", LARGE)
    record.add("small", "flood", 10)
    record.add("other", "other", 6000)
    record.add("other-large", "other", LARGE)
    assert await record.all(closed) == "small other large-0 other-large large-1 large-2 large-3"


async def test_a_large_task_is_not_starved_by_small_ones_of_many_peers(closed: pytest.MonkeyPatch) -> None:
    record = Record()
    record.add("large", "server", LARGE)
    for number in range(5000):
        record.add("small", f"peer-{number % 20}", 6000)
    await record.all(closed)
    assert record.order.index("large") < 20 * LARGE // 6000


async def test_a_small_task_of_another_peer_waits_for_no_iteration(closed: pytest.MonkeyPatch) -> None:
    record = Record()
    for number in range(4):
        record.add(f"large-{number}", "flood", LARGE)
    await asyncio.sleep(0)
    closed.undo()
    await asyncio.sleep(0)
    assert record.queue.try_take("other", 6000)
    assert not record.queue.try_take("other", LARGE)
    assert not record.queue.try_take("flood", 10)
    assert sum(record.queue.try_take(f"other-{number}", 6000) for number in range(100)) < 10
    await record.all(closed)


async def test_an_iteration_of_the_loop_gives_a_bounded_amount() -> None:
    record = Record()
    for number in range(100):
        record.add(str(number), f"peer-{number % 3}", 60_000)
    most = before = 0
    while not all(task.done() for task in record.tasks):
        await asyncio.sleep(0)
        most, before = max(most, len(record.order) - before), len(record.order)
    assert most == 3


async def test_a_task_that_gives_up_leaves_nothing(closed: pytest.MonkeyPatch) -> None:
    record = Record()
    record.add("gone", "a", 10)
    record.add("stays", "a", 10)
    await asyncio.sleep(0)
    record.tasks.pop(0).cancel()
    assert await record.all(closed) == "stays"
    assert (record.queue._waiting, record.queue._used) == ({}, {})


@pytest.mark.parametrize(
    ("host", "same"),
    [
        ("10.1.2.3", "10.1.2.3"), ("fd00:1:2:3::1", "fd00:1:2:3:ffff:ffff:ffff:ffff"),
        ("fe80::1%eth0", "fe80::2%eth1"), ("::1", "::2"),
    ],
)  # fmt: skip
def test_an_ipv6_network_of_64_bits_is_one_peer(host: str, same: str) -> None:
    assert peer_of(host) == peer_of(same)
    assert peer_of(host) not in {peer_of("10.1.2.4"), peer_of("fd00:1:2:4::1")}
