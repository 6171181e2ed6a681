"""Workers share the tests by file; every other worker begins with tests/cluster."""

import socket

import pytest

from tests.support.free_ports import free_port, free_ports
from tests.support.workers import begin_elsewhere, file_of, next_file, scheduler


@pytest.mark.parametrize(
    ("nodeid", "file"),
    [
        ("tests/kai/test_share_bytes.py::test_a[x::y]", "tests/kai/test_share_bytes.py"),
        (
            "tests/gpuagent/verdicts/test_flagging.py::TestA::test_b",
            "tests/gpuagent/verdicts/test_flagging.py",
        ),
    ],
)
def test_a_worker_gets_whole_files(nodeid: str, file: str) -> None:
    assert file_of(nodeid) == file


@pytest.mark.parametrize(
    ("files", "prefers_cluster", "file"),
    [
        (["tests/kai/a.py", "tests/cluster/b.py", "tests/cluster/c.py"], True, "tests/cluster/b.py"),
        (
            ["tests/cluster/b.py", "tests/gpuagent/pods/cluster/a.py"],
            False,
            "tests/gpuagent/pods/cluster/a.py",
        ),
        (["tests/kai/a.py", "tests/kube/b.py"], True, "tests/kai/a.py"),
        (["tests/cluster/b.py", "tests/cluster/c.py"], False, "tests/cluster/b.py"),
    ],
)
def test_every_other_worker_begins_with_the_cluster(
    files: list[str], prefers_cluster: bool, file: str
) -> None:
    assert next_file(files, prefers_cluster=prefers_cluster) == file


@pytest.mark.parametrize(("worker", "first"), [("gw0", "a"), ("gw1", "b"), ("gw2", "d"), ("gw3", "e")])
def test_each_worker_collects_all_entries_and_begins_with_another(worker: str, first: str) -> None:
    entries = begin_elsewhere("abcdef", {"workerid": worker, "workercount": 4})
    assert entries[0] == first
    assert sorted(entries) == list("abcdef")


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
