"""The agent as a process of its own under clients that hold connections: it answers, samples, and ends in time."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from service.http.limits import Address, raise_descriptor_limit
from tests.support.agent_process import Agent, agent
from tests.support.hostile_clients import half_open, not_reading

Result = TypeVar("Result")

SCENARIO = "--gpus=simulated:tests/support/scenarios/node.yaml"


@pytest.fixture(autouse=True)
def _many_files() -> None:
    if raise_descriptor_limit() < 2000:
        pytest.skip("this process may not open enough files for so many clients")


def assert_well(running: Agent) -> None:
    """Probe as a kubelet does, which takes a pod for unhealthy after three failures in a row, and scrape.

    A new connection may be closed for an older one while hundreds arrive at the same moment. Pages are refused
    while clients that do not read have all places, which ends after little more than a second.
    """
    assert retried(lambda: running.get("/healthz")) == (200, "ok\n")
    end = time.monotonic() + 5
    while (refused := retried(lambda: running.get("/metrics")))[0] != 200:
        assert refused == (503, "too many readers now\n")
        assert time.monotonic() < end
        assert running.get("/healthz") == (200, "ok\n")
        time.sleep(0.2)
    series = running.series()
    assert series["kaishare_agent_attribution_ok"] == 1
    assert not [name for name in series if name.startswith("kaishare_agent_attribution_problem{")]


def retried(get: Callable[[], Result]) -> Result:
    for _ in range(2):
        try:
            return get()
        except OSError:
            time.sleep(0.5)  # a kubelet waits for 10 s
    return get()


@pytest.mark.parametrize(("files", "opened", "unread"), [(1024, 1100, 400), (64, 200, 50)])
def test_1100_half_open_connections_and_clients_that_do_not_read(
    tmp_path: Path, files: int, opened: int, unread: int
) -> None:
    """Also where the agent may open few files."""
    program = ("-m", "tests.support.limited_files", str(files), "tests.support.scenarios.agent")
    with agent(tmp_path / "log", SCENARIO, program=program) as running:
        running.until(lambda: "kaishare_agent_attribution_ok" in running.series())
        address = Address.parse(running.url.removeprefix("http://"))
        with half_open(address, opened), not_reading(address, unread):
            for _ in range(5):
                assert_well(running)
            began = time.monotonic()
            assert running.stop(signal.SIGTERM) == 0
            assert time.monotonic() - began < 10
    assert "traceback" not in running.log.read_text().lower()
    assert running.log.stat().st_size < 20_000
