"""Faults of the driver in any order, as in tests/faults/driver.py."""

from pathlib import Path

import pytest

from tests.faults.driver import EVERY_CALL, GPU_CALLS, Tally, run, serve, sweep
from tests.faults.process import Node
from tests.support.markers import scaled
from tests.support.nvml_stub.build import built_library


@pytest.mark.slow
def test_no_faults_flag_innocent_pods_or_show_wrong_figures(tmp_path_factory: pytest.TempPathFactory) -> None:
    tally = Tally()
    sweep(built_library(tmp_path_factory.getbasetemp()), tally, step=1 if scaled(1) > 1 else 11)
    run(built_library(tmp_path_factory.getbasetemp()), examples=scaled(8), steps=15, tally=tally)
    assert tally.counts["sample"] > 500
    assert len(tally.calls) > 15


@pytest.mark.slow
@pytest.mark.parametrize(
    "calls",
    [
        ("nvmlDeviceGetPowerUsage", "nvmlEventSetWait", "nvmlDeviceGetMemoryInfo"),
        pytest.param((EVERY_CALL, *GPU_CALLS), marks=[pytest.mark.nightly, pytest.mark.timeout(600)]),
    ],
    ids=["some", "all"],
)
def test_the_agent_serves_while_calls_hang_and_ends_when_the_driver_is_replaced(
    tmp_path: Path, calls: tuple[str, ...]
) -> None:
    node = Node(tmp_path, built_library(tmp_path))
    taken_out = serve(node, calls)
    assert node.wrong == []
    assert "nvmlDeviceGetMemoryInfo" in taken_out
