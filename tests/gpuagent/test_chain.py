"""A real agent, whose library stands in for NVIDIA's, ends while calls of the driver hang."""

import time
from pathlib import Path

import pytest

from tests.faults.process import Node, flags
from tests.support.nvml_stub.build import built_library
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    "faults", [("hang",), ("delay 0 -", "serial")], ids=["all calls", "a serial library"]
)
@pytest.mark.parametrize("is_first", [True, False], ids=["in the first sample", "later"])
def test_a_signal_ends_the_agent_while_calls_hang(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, faults: tuple[str, ...], is_first: bool
) -> None:
    node = Node(tmp_path, built_library(tmp_path_factory.getbasetemp()))
    if is_first:
        node.drive(*faults)
    with node.agent("log") as running:
        if not is_first:
            wait_until(lambda: flags(running))
            node.drive(*faults)
            running.until(lambda: running.log_lines("problem appeared"))
            tasks = Path(f"/proc/{running.process.pid}/task")
            threads = len(list(tasks.iterdir()))
            time.sleep(1)  # some samples
            assert len(list(tasks.iterdir())) <= threads
        began = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - began < 5
        assert is_first or [line["hung"] for line in running.log_lines("stopped")] == [True]
