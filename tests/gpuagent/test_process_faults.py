"""Faults of time and of processes under the real agent, as in tests/faults/process.py."""

from pathlib import Path

import pytest

from tests.faults.process import Node, run
from tests.support.nvml_stub.build import built_library


@pytest.mark.slow
def test_no_jump_suspension_reused_pid_or_restart_flags_an_innocent_pod(tmp_path: Path) -> None:
    node = Node(tmp_path, built_library(tmp_path))
    run(node)
    assert node.wrong == []
