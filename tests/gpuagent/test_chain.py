"""From the driver's library to `/metrics`: a real agent over a library that stands in for NVIDIA's."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kai.kaishare_keys import VCLUSTER
from tests.support import kube_objects
from tests.support.agent_process import ROOT, Agent, agent
from tests.support.kube_objects import bind_request, namespace_object, of_tenant, pod, reservation, uid
from tests.support.nvml_stub.build import ANSWERS, Answers, built_library
from tests.support.proc_files import HOST, ProcTree, in_pod
from tests.support.scenarios.loading import parse_scenario

MIB = 1 << 20
A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
TOTAL, RESERVED = 23028 * MIB, 531 * MIB
USED = {A: 20_000 * MIB + 12345, B: 9_000 * MIB + 1}

TRAIN, SERVE, TWO, LIMITED, STRAY, IDLE, RESERVE_A, RESERVE_B = map(uid, range(1, 9))
COMPUTE, GRAPHICS, MPS = 0, 1, 2
# (gpu, pid): list to bytes; and whose they are.
PROCESSES: dict[tuple[str, int], dict[int, int]] = {
    (A, 101): {COMPUTE: 5_000 * MIB + 1}, (A, 102): {COMPUTE: 1_000 * MIB + 2, GRAPHICS: 1_000 * MIB},
    (A, 103): {COMPUTE: 7_500 * MIB + 3}, (A, 104): {COMPUTE: 6_000 * MIB + 4}, (A, 105): {GRAPHICS: 64 * MIB + 5},
    (B, 104): {COMPUTE: 200 * MIB + 7}, (B, 107): {COMPUTE: 1_500 * MIB + 8, MPS: 1_500 * MIB + 9},
    (B, 108): {COMPUTE: 4_000 * MIB + 10}, (B, 109): {COMPUTE: 600 * MIB + 11}, (B, 110): {COMPUTE: 257 * MIB},
    (B, 111): {COMPUTE: 2 * MIB},
}  # fmt: skip
OWNERS = {101: TRAIN, 102: TRAIN, 103: SERVE, 104: TWO, 107: TWO, 108: LIMITED, 109: LIMITED, 110: STRAY, 111: RESERVE_B}  # fmt: skip
HOST_PID = 105


def node_pod(name: str, number: int, namespace: str, **fields: Any) -> dict[str, Any]:
    """Return a pod of node-1 with a queue that is named after the pod."""
    labels = {"kai.scheduler/queue": f"queue-{name}", **fields.pop("labels", {})}
    return pod(
        name, number, namespace=namespace, labels=labels, **{"node": "node-1", "annotations": {}, **fields}
    )


def objects() -> list[dict[str, Any]]:
    """Six pods of two groups, one of them in a vCluster, and what KAI keeps beside them."""
    train = node_pod(
        "train", 1, "team-a", labels={"runai-gpu-group": "ga"}, annotations={"gpu-fraction": "0.5"}
    )
    serve = node_pod(
        "serve-x-default-x-vc", 2, "vc-host",
        labels={"runai-gpu-group": "ga", "vcluster.loft.sh/managed-by": "vc"},
        annotations={
            "gpu-memory": "8000",
            "vcluster.loft.sh/object-name": "serve",
            "vcluster.loft.sh/object-namespace": "default",
            "vcluster.loft.sh/object-host-name": "serve-x-default-x-vc",
            "vcluster.loft.sh/object-host-namespace": "vc-host",
        },
    )  # fmt: skip
    two = node_pod(
        "two", 3, "team-a",
        labels={"runai-gpu-group/ga": "ga", "runai-gpu-group/gb": "gb"},
        annotations={"gpu-fraction": "0.25", "gpu-fraction-num-devices": "2"},
    )  # fmt: skip
    limited = node_pod(
        "limited", 4, "team-b",
        annotations={
            "nvidia.com/container.main.gpu-memory.request": "3Gi",
            "nvidia.com/container.main.gpu-memory.limit": "3Gi",
            "nvidia.com/container.main.gpus.devices": B,
        },
    )  # fmt: skip
    stray = node_pod("stray", 5, "team-b")
    idle = node_pod("idle", 6, "team-b", labels={"runai-gpu-group": "gb"}, annotations={"gpu-memory": "2000"})
    node = kube_objects.node()
    node["metadata"]["name"] = "node-1"
    elsewhere = node_pod("elsewhere", 99, "team-a", node="node-2")
    hosts = [namespace_object(name, {VCLUSTER: "true"}) for name in ("vc-host", "vc-evil")]
    return [
        node, *hosts, train, serve, two, limited, stray, idle, elsewhere,
        bind_request("train", 1, "0.50", groups=("ga",), namespace="team-a"),
        bind_request("two", 3, "0.25", groups=("ga", "gb"), namespace="team-a"),
        bind_request("idle", 6, "0.09", groups=("gb",), namespace="team-b"),
        bind_request("limited", 4, "0.14", groups=(), namespace="team-b"),
        reservation("ga", A, 7, node="node-1"),
        reservation("gb", B, 8, node="node-1"),
    ]  # fmt: skip


USED_BY = {  # (pod, gpu)
    ("train", A): 6_000 * MIB + 3, ("serve-x-default-x-vc", A): 7_500 * MIB + 3, ("two", A): 6_000 * MIB + 4,
    ("two", B): 1_700 * MIB + 16, ("limited", B): 4_600 * MIB + 21, ("stray", B): 257 * MIB, ("idle", B): 0,
}  # fmt: skip
SHARES = {
    ("train", A): (11_500 * MIB, "bind-request"), ("serve-x-default-x-vc", A): (8_000 * MIB, "annotation"),
    ("two", A): (5_750 * MIB, "bind-request"), ("two", B): (5_750 * MIB, "bind-request"),
    ("limited", B): (3_220 * MIB, "bind-request"), ("idle", B): (2_070 * MIB, "bind-request"),
}  # fmt: skip
FLAGGED = {("limited", B, "limit-bypassed"), ("stray", B, "no-share")}


@dataclass(frozen=True)
class Node:
    """The files the agent reads."""

    answers: Answers
    proc: ProcTree
    pods: Path

    def drive(self, *more: str) -> None:
        """Write the answers of the driver."""
        lines = ["driver 580.65.06"]
        for index, uuid in enumerate((A, B)):
            lines.append(f"gpu {index} {uuid} {TOTAL} {RESERVED} {USED[uuid]} NVIDIA A10")
            for (gpu, pid), lists in PROCESSES.items():
                if gpu == uuid:
                    lines += [
                        f"process {index} - {which} {pid} {used_bytes} 4294967295 4294967295"
                        for which, used_bytes in lists.items()
                    ]
        self.answers.write([*lines, *more])

    def write_pods(self, items: list[dict[str, Any]]) -> None:
        making = self.pods.with_suffix(".making")
        making.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        making.replace(self.pods)


def new_node(folder: Path) -> Node:
    proc = ProcTree(folder / "proc")
    proc.add(2, "0::/", name="kthreadd")
    proc.add(HOST_PID, HOST, name="Xorg")
    for pid, owner in OWNERS.items():
        proc.add(pid, in_pod(owner))
    empty = parse_scenario({"gpus": [{"uuid": A, "memory": "1Gi"}]}, "test")
    made = Node(Answers(folder / "answers", empty), proc, folder / "pods.json")
    made.drive()
    made.write_pods(objects())
    return made


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return new_node(tmp_path_factory.mktemp("node"))


@pytest.fixture(scope="module")
def running(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    with start(node, tmp_path_factory.mktemp("log") / "log", tmp_path_factory) as made:
        yield made
        assert made.stop() == 0


def start(node: Node, log: Path, factory: pytest.TempPathFactory) -> Any:
    library = built_library(factory.getbasetemp())
    return agent(
        log, "--gpus", "nvml", "--node", "node-1", "--pods", str(node.pods), "--proc-root", str(node.proc.root),
        "--interval", "300ms", "--grace", "1s",
        LD_LIBRARY_PATH=str(library.parent), **{ANSWERS: str(node.answers.path)},
    )  # fmt: skip


def named(series: dict[str, float], name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Series of one metric by some of their labels."""
    values_by_label = {}
    for text, value in series.items():
        if text.startswith(f"{name}{{"):
            values = dict(re.findall(r'(\w+)="([^"]*)"', text))
            values_by_label[tuple(values[label] for label in labels)] = value
    return values_by_label


def everything_is_known(series: dict[str, float]) -> bool:
    return named(series, "kaishare_pod_gpu_memory_used_bytes", "pod", "gpu_uuid") == USED_BY and (
        flagged(series) == FLAGGED
    )


def flagged(series: dict[str, float]) -> set[tuple[str, ...]]:
    flags = named(series, "kaishare_pod_flagged", "pod", "gpu_uuid", "reason")
    return {key for key, value in flags.items() if value}


def problems(series: dict[str, float]) -> set[tuple[str, ...]]:
    return set(named(series, "kaishare_agent_attribution_problem", "reason", "gpu_uuid"))


def test_two_gpus_six_pods_and_eleven_processes_are_exact_to_the_byte(node: Node, running: Agent) -> None:
    assert len(PROCESSES) == 11
    running.until(lambda: everything_is_known(running.series()))
    series = running.series()
    shares = named(series, "kaishare_pod_gpu_memory_share_bytes", "pod", "gpu_uuid", "source")
    assert shares == {(*place, source): value for place, (value, source) in SHARES.items()}
    assert named(series, "kaishare_pod_gpu_memory_limit_bytes", "pod", "gpu_uuid", "source") == {
        ("limited", B, "annotation"): 3 << 30
    }
    for name, expected in {
        "total": {A: TOTAL, B: TOTAL},
        "used": USED,
        "reserved": {A: RESERVED, B: RESERVED},
        "promised": {A: 25_250 * MIB, B: 11_040 * MIB},
        "host": {A: 64 * MIB + 5, B: 2 * MIB},
        "unattributed": {A: USED[A] - (19_564 * MIB + 15), B: USED[B] - (6_559 * MIB + 37)},
    }.items():
        figures = named(series, f"kaishare_gpu_memory_{name}_bytes", "gpu_uuid", "gpu", "model", "node")
        assert figures == {
            (uuid, str(i), "NVIDIA A10", "node-1"): expected[uuid] for i, uuid in enumerate((A, B))
        }
    names = ("pod", "queue", "vcluster", "virtual_namespace", "virtual_pod")
    virtual = named(series, "kaishare_pod_gpu_memory_used_bytes", *names)
    assert ("serve-x-default-x-vc", "queue-serve-x-default-x-vc", "vc", "default", "serve") in virtual
    assert ("train", "queue-train", "", "", "") in virtual
    assert not [text for text in series if "gpu-reservation" in text or "elsewhere" in text]
    assert series["kaishare_agent_attribution_ok"] == 1
    assert problems(series) == set()
    over = named(series, "kaishare_pod_over_share_seconds_total", "pod", "gpu_uuid")
    assert over == dict.fromkeys(set(SHARES) - {("limited", B)}, 0.0)
    assert running.get("/readyz") == (200, "ok\n")


def test_a_tenant_with_own_reservation_pods_is_a_problem_and_flags_no_pod(node: Node, running: Agent) -> None:
    """One pod names the GPU of another tenant, a hundred name none; a pod of the tenant declares a share itself."""
    evil = []
    for number in range(101):
        made = reservation("gx", "-1" if number else A, 1000 + number, node="node-1")
        made["metadata"]["name"] = f"mine-{number}"
        evil.append(of_tenant(made, "vc-evil", "kai-resource-reservation"))
    liar = objects()
    stray = next(item for item in liar if item["metadata"]["name"] == "stray")
    stray["metadata"]["annotations"] = {"gpu-fraction": "0.01"}
    running.until(lambda: everything_is_known(running.series()))
    node.write_pods([*liar, *evil])
    expected = {("reservation-conflict", A), ("reservation-unresolved", "")}
    running.until(lambda: problems(running.series()) == expected)
    running.until(lambda: everything_is_known(running.series()))
    series = running.series()
    assert series["kaishare_agent_attribution_ok"] == 1
    promised = named(series, "kaishare_gpu_memory_promised_bytes", "gpu_uuid")
    assert promised == {(A,): 25_250 * MIB, (B,): 11_040 * MIB}
    read = running.log_lines("pods file read")[-1]
    assert (read["reservation_pods"], read["tenant_reservation_pods"]) == (103, 101)
    by_reason = {problem["reason"]: problem["detail"] for problem in running.shares()["problems"]}
    logged = "".join(line["problem"] for line in running.log_lines("problem appeared")[-2:])
    for where in (by_reason["reservation-conflict"], top(running), logged):
        assert "kai-resource-reservation/gpu-reservation-7" in where
        assert "vc-evil/mine-" in where
    assert "vc-evil/mine-1 and 99 more there" in by_reason["reservation-unresolved"]
    appeared = [line["reason"] for line in running.log_lines("problem appeared")]
    assert appeared.count("reservation-conflict") == appeared.count("reservation-unresolved") == 1
    node.write_pods(objects())
    running.until(lambda: not problems(running.series()))
    gone = [line["reason"] for line in running.log_lines("problem gone")]
    assert sorted(gone[-2:]) == ["reservation-conflict", "reservation-unresolved"]
    running.until(lambda: everything_is_known(running.series()))


def top(running: Agent) -> str:
    """Return the output of `kaishare top --once`."""
    command = [sys.executable, "-m", "console", "top", "--once", "--url", running.url]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_while_the_driver_hangs_figures_are_absent(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node = new_node(tmp_path)
    with start(node, tmp_path / "log", tmp_path_factory) as running:
        running.until(lambda: everything_is_known(running.series()))
        node.drive("hang")
        running.until(lambda: problems(running.series()) == {("nvml", ""), ("sample-stale", "")})
        series = running.series()
        assert not [text for text in series if text.startswith(("kaishare_pod", "kaishare_gpu"))]
        assert running.get("/readyz") == (200, "ok\n")
        assert running.get("/healthz") == (200, "ok\n")
        running.until(lambda: len(running.log_lines("problem appeared")) == 2)
        node.drive()
        running.until(lambda: everything_is_known(running.series()) and not problems(running.series()))
        assert running.stop() == 0


@pytest.mark.parametrize(
    "faults", [("hang",), ("delay 0 -", "serial")], ids=["all calls", "a serial library"]
)
@pytest.mark.parametrize("is_first", [True, False], ids=["in the first sample", "later"])
def test_a_signal_ends_the_agent_while_calls_hang(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, faults: tuple[str, ...], is_first: bool
) -> None:
    node = new_node(tmp_path)
    node.drive(*faults)
    with start(node, tmp_path / "log", tmp_path_factory) as running:
        if not is_first:
            running.until(lambda: running.log_lines("problem appeared"))
            tasks = Path(f"/proc/{running.process.pid}/task")
            threads = len(list(tasks.iterdir()))
            time.sleep(1)  # some samples
            assert len(list(tasks.iterdir())) <= threads
        began = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - began < 5
        assert is_first or [line["hung"] for line in running.log_lines("stopped")] == [True]


def test_a_replaced_driver_ends_the_agent_with_3_and_one_line(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node = new_node(tmp_path)
    with start(node, tmp_path / "log", tmp_path_factory) as running:
        running.until(lambda: everything_is_known(running.series()))
        node.drive("fail * - 18")
        assert running.process.wait(20) == 3
        errors = [json.loads(line) for line in running.log.read_text().splitlines() if '"error"' in line]
        assert len(errors) == 1
        assert "version" in errors[0]["message"]
