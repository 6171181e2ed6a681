"""Two workers share the tests: by file, and tests/cluster as a whole."""

import socket

import pytest

from tests.support.free_ports import free_port, free_ports
from tests.support.workers import scheduler, unit_of


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/kai/test_memory.py::test_a[x::y]", "tests/kai/test_memory.py"),
        ("tests/gpuagent/verdicts/test_judge.py::TestA::test_b", "tests/gpuagent/verdicts/test_judge.py"),
        ("tests/cluster/test_kube.py::test_a", "tests/cluster/"),
        ("tests/cluster/test_guard.py::test_b[1]", "tests/cluster/"),
        ("tests/gpuagent/pods/cluster/test_lists.py::test_a", "tests/gpuagent/pods/cluster/test_lists.py"),
    ],
)
def test_a_file_is_a_unit_and_so_is_the_cluster(nodeid: str, unit: str) -> None:
    assert unit_of(nodeid) == unit


@pytest.mark.parametrize("mode", ["no", "loadfile", "worksteal"])
def test_another_mode_of_the_command_line_counts(
    mode: str, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "dist", mode)
    assert scheduler(pytestconfig, None) is None


def test_free_ports_differ_and_can_be_listened_on() -> None:
    ports = [*free_ports(20), free_port()]
    assert len(set(ports)) == len(ports)
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_port_in_use_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, other = free_ports(2)
    monkeypatch.setattr("tests.support.free_ports._ports", iter([taken, other]))
    with socket.create_server(("127.0.0.1", taken)):
        assert free_port() == other
