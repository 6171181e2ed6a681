"""Rounds of `kaishare top`: bounded concurrency, hanging agents, pause, a list that fails."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from console.cluster.agents import MOST_AT_ONCE
from console.top import fleet as fleet_module
from console.top.fleet import Fleet, ListFailed, Rounds
from tests.support.top_agents import FakeAgents, document, pod
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "EVERY_SECONDS", 0.05)


@contextlib.asynccontextmanager
async def running(rounds: Rounds) -> AsyncIterator[None]:
    task = asyncio.create_task(rounds.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_once_reads_every_agent_or_that_of_one_node_and_names_failures() -> None:
    agents, fleet = FakeAgents({"a": document("a", pod("p", "a")), "b": "Connection refused"}), Fleet()
    await Rounds(agents, fleet).once()
    assert [row.cells["pod"] for row in fleet.agents["agent-of-a"].table.rows] == ["p"]
    assert fleet.agents["agent-of-b"].failure == "Connection refused"
    await Rounds(agents, fleet, node="b").once()
    assert (list(fleet.agents), agents.reads) == (["agent-of-b"], 3)


async def test_hanging_agents_do_not_delay_the_others() -> None:
    hanging = {f"h{number}": None for number in range(MOST_AT_ONCE - 1)}
    agents, fleet = FakeAgents({**hanging, "good": document("good")}), Fleet()
    async with running(Rounds(agents, fleet)):
        await until(lambda: agents.reads >= len(hanging) + 5)
        assert agents.in_flight <= MOST_AT_ONCE
    assert fleet.agents["agent-of-good"].received is not None


async def test_failing_agents_get_few_of_the_slots() -> None:
    agents = FakeAgents({**{f"f{number}": "refused" for number in range(40)}, "good": document("good")})
    fleet = Fleet()
    rounds = Rounds(agents, fleet)
    await rounds.once()
    agents.answers = dict.fromkeys(agents.answers, None) | {"good": document("good")}
    agents.most_in_flight = 0
    async with running(rounds):
        reads = agents.reads
        await until(lambda: agents.reads >= reads + 8)
    assert agents.most_in_flight <= 5
    assert fleet.agents["agent-of-good"].failure == ""


async def test_agents_are_asked_again_at_a_bounded_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "MOST_A_SECOND", 100)
    agents = FakeAgents({f"n{number}": document(f"n{number}") for number in range(60)} | {"bad": "refused"})
    rounds = Rounds(agents, Fleet())
    await rounds.once()
    reads, began = agents.reads, time.monotonic()
    async with running(rounds):
        await until(lambda: agents.reads >= reads + 30)
    assert agents.reads - reads <= (time.monotonic() - began) * 100 + 1


async def test_many_agents_are_listed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "LIST_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(fleet_module, "_LISTED_IN_A_TURN", 1)
    agents = FakeAgents({f"n{number}": document(f"n{number}") for number in range(4)})
    began = time.monotonic()
    async with running(Rounds(agents, Fleet())):
        await until(lambda: agents.lists >= 3)
    assert time.monotonic() - began >= 2 * 0.2


async def test_a_paused_view_asks_nothing_and_resumes() -> None:
    agents = FakeAgents({"a": document("a")})
    rounds = Rounds(agents, Fleet())
    rounds.is_paused = True
    async with running(rounds):
        await asyncio.sleep(0.3)
        assert agents.reads == 0
        rounds.is_paused = False
        await until(lambda: agents.reads >= 2)


async def test_a_list_that_fails_is_named_and_tried_again() -> None:
    agents, fleet = FakeAgents({"a": document("a")}), Fleet()
    agents.list_failure = "403 Forbidden"
    with pytest.raises(ListFailed):
        await Rounds(agents, fleet).once()
    async with running(Rounds(agents, fleet)):
        await until(lambda: fleet.list_failure == "403 Forbidden")
        agents.list_failure = ""
        await until(lambda: fleet.list_failure == "" and agents.reads > 0)
