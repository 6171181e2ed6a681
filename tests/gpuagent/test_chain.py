"""From the driver's library to `/metrics`: a real agent over a library that stands in for NVIDIA's."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuagent.verdicts.flag_reasons import FROM_KAI_RECORDS
from kai.kaishare_keys import VCLUSTER
from tests.support import kube_objects
from tests.support.agent_process import ROOT, Agent, agent
from tests.support.kube_objects import bind_request, namespace_object, pod, reservation, uid
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
    (A, 101): {COMPUTE: 5_000 * MIB + 1},
    (A, 102): {COMPUTE: 1_000 * MIB + 2, GRAPHICS: 1_000 * MIB},
    (A, 103): {COMPUTE: 7_500 * MIB + 3},
    (A, 104): {COMPUTE: 6_000 * MIB + 4},
    (A, 105): {GRAPHICS: 64 * MIB + 5},
    (B, 104): {COMPUTE: 200 * MIB + 7},
    (B, 107): {COMPUTE: 1_500 * MIB + 8, MPS: 1_500 * MIB + 9},
    (B, 108): {COMPUTE: 4_000 * MIB + 10},
    (B, 109): {COMPUTE: 600 * MIB + 11},
    (B, 110): {COMPUTE: 257 * MIB},
    (B, 111): {COMPUTE: 2 * MIB},
}
OWNERS = {
    101: TRAIN,
    102: TRAIN,
    103: SERVE,
    104: TWO,
    107: TWO,
    108: LIMITED,
    109: LIMITED,
    110: STRAY,
    111: RESERVE_B,
}
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
    ("train", A): 6_000 * MIB + 3,
    ("serve-x-default-x-vc", A): 7_500 * MIB + 3,
    ("two", A): 6_000 * MIB + 4,
    ("two", B): 1_700 * MIB + 16,
    ("limited", B): 4_600 * MIB + 21,
    ("stray", B): 257 * MIB,
    ("idle", B): 0,
}
SHARES = {
    ("train", A): (11_500 * MIB, "bind-request"),
    ("serve-x-default-x-vc", A): (8_000 * MIB, "annotation"),
    ("two", A): (5_750 * MIB, "bind-request"),
    ("two", B): (5_750 * MIB, "bind-request"),
    ("limited", B): (3_220 * MIB, "bind-request"),
    ("idle", B): (2_070 * MIB, "bind-request"),
}
FLAGGED = {("limited", B, "limit-bypassed"), ("stray", B, "no-share")}
OVER_SHARE = {(*place, "over-share") for place in SHARES if place[0] != "limited"}


@dataclass(frozen=True)
class Node:
    """The files the agent reads."""

    answers: Answers
    proc: ProcTree
    pods: Path

    def drive(self, *more: str, without: tuple[int, ...] = (), **used: int | str) -> None:
        """Write the answers of the driver; `p101=` sets the bytes of process 101, `-` for unknown."""
        lines = ["driver 580.65.06"]
        for index, uuid in enumerate((A, B)):
            lines.append(f"gpu {index} {uuid} {TOTAL} {RESERVED} {USED[uuid]} NVIDIA A10")
            for (gpu, pid), lists in PROCESSES.items():
                if gpu == uuid and pid not in without:
                    lines += [
                        f"process {index} - {which} {pid} {used.get(f'p{pid}', used_bytes)} 4294967295 4294967295"
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
    virtual = named(
        series,
        "kaishare_pod_gpu_memory_used_bytes",
        "pod",
        "queue",
        "vcluster",
        "virtual_namespace",
        "virtual_pod",
    )
    assert ("serve-x-default-x-vc", "queue-serve-x-default-x-vc", "vc", "default", "serve") in virtual
    assert ("train", "queue-train", "", "", "") in virtual
    assert not [text for text in series if "gpu-reservation" in text or "elsewhere" in text]
    assert series["kaishare_agent_attribution_ok"] == 1
    assert problems(series) == set()
    over = named(series, "kaishare_pod_over_share_seconds_total", "pod", "gpu_uuid")
    assert over == dict.fromkeys(set(SHARES) - {("limited", B)}, 0.0)
    assert running.get("/readyz") == (200, "ok\n")


def test_the_utilisation_of_a_pod_is_the_sum_of_its_processes_and_absent_if_one_is_unknown(
    node: Node, running: Agent
) -> None:
    ratios = {
        ("train", A): 0.55,
        ("serve-x-default-x-vc", A): 0.0,
        ("two", A): 1.0,
        ("limited", B): 0.2,
        ("stray", B): 0.0,
        ("idle", B): 0.0,
    }  # and not of `two` on the second GPU, where a process of it is an MPS client without a sample
    percents = (
        (0, 101, 30),
        (0, 102, 25),
        (0, 104, 100),
        (0, 4711, 9),
        (1, 104, 50),
        (1, 108, 20),
        (1, 111, 80),
    )
    node.drive(*(f"sample {gpu} {pid} 0 {percent}" for gpu, pid, percent in percents))
    try:
        comes_to(
            running,
            lambda series: [named(series, "kaishare_pod_gpu_utilization_ratio", "pod", "gpu_uuid")],
            [ratios],
        )
    finally:
        node.drive()


def of_memory(series: dict[str, float]) -> dict[str, float]:
    """The series without verdicts about KAI's records, which no list of processes suspends."""
    return {
        text: value
        for text, value in series.items()
        if not any(f'reason="{reason}"' in text for reason in FROM_KAI_RECORDS)
    }


MINE = [f"process 0 - 0 {pid} {MIB} 4294967295 4294967295" for pid in range(5000, 5950)]


@pytest.mark.parametrize(
    ("lines", "used", "problem", "absent", "others"),
    [
        pytest.param(["fail * 0 15"], {}, ("nvml", A), {"gpu", "used", "share", "flagged"}, True, id="GPU lost"),
        pytest.param(["fail * 0 16"], {}, ("nvml", A), {"gpu", "used", "share", "flagged"}, True, id="reset required"),
        pytest.param(["fail * 0 999"], {}, ("nvml", A), {"gpu", "used", "share", "flagged"}, True, id="device access revoked"),
        pytest.param(["fail * - 9"], {}, ("nvml", ""), {"gpu", "used", "share", "flagged"}, False, id="driver unloaded"),
        pytest.param([f"fail nvmlDeviceGetComputeRunningProcesses{version} 0 3" for version in ("", "_v2", "_v3")], {}, ("nvml", A), {"used", "flagged", "host", "unattributed"}, True, id="no process lists on this GPU"),
        pytest.param([f"process 0 - 0 4999 {TOTAL + 1} 4294967295 4294967295"], {}, ("garbage", A), {"used", "flagged", "host", "unattributed"}, True, id="garbage"),
        pytest.param(MINE, {}, ("truncated", A), {"used", "flagged", "host", "unattributed"}, True, id="truncated"),
        pytest.param([], {f"p{pid}": 8_000 * MIB for pid in range(101, 104)}, ("negative-unattributed", A), {"flagged"}, True, id="more than there is"),
    ],
)  # fmt: skip
def test_a_fault_of_a_gpu_or_the_driver_gives_a_reason_and_no_figure_until_it_ends(
    node: Node, running: Agent, lines: list[str], used: dict[str, int], problem: tuple[str, str],
    absent: set[str], others: bool,
) -> None:  # fmt: skip
    names = {
        "gpu": "kaishare_gpu_memory_used_bytes",
        "used": "kaishare_pod_gpu_memory_used_bytes",
        "share": "kaishare_pod_gpu_memory_share_bytes",
        "flagged": "kaishare_pod_flagged",
        "host": "kaishare_gpu_memory_host_bytes",
        "unattributed": "kaishare_gpu_memory_unattributed_bytes",
    }
    left = set(names) - absent - ({"host", "unattributed"} if "gpu" in absent else set())

    def seen(series: dict[str, float]) -> list[object]:
        return [
            problem in problems(series),
            {short for short, name in names.items() if (A,) in named(of_memory(series), name, "gpu_uuid")},
            (B,) in named(series, "kaishare_pod_gpu_memory_used_bytes", "gpu_uuid"),
            series["kaishare_agent_attribution_ok"],
        ]

    running.until(lambda: everything_is_known(running.series()))
    node.drive(*lines, **used)
    try:
        comes_to(running, seen, [True, left, others, 1 if others else 0])
    finally:
        node.drive()
    running.until(lambda: everything_is_known(running.series()) and not problems(running.series()))


def comes_to(
    running: Agent, look: Callable[[dict[str, float]], list[object]], expected: list[object]
) -> None:
    """Wait until one scrape shows all that is expected: a busy machine may be late with a sample."""
    deadline = time.monotonic() + 20
    while (current := look(running.series())) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    assert current == expected


def test_one_process_of_unknown_memory_suspends_its_pod_on_that_gpu_alone(node: Node, running: Agent) -> None:
    running.until(lambda: everything_is_known(running.series()))
    node.drive(p107="-")
    try:
        comes_to(
            running,
            lambda series: [
                problems(series),
                named(series, "kaishare_pod_gpu_memory_used_bytes", "pod", "gpu_uuid"),
                set(named(series, "kaishare_pod_flagged", "pod", "gpu_uuid", "reason")) & OVER_SHARE,
                set(named(series, "kaishare_gpu_memory_unattributed_bytes", "gpu_uuid")),
                set(named(series, "kaishare_gpu_memory_host_bytes", "gpu_uuid")),
                series["kaishare_agent_attribution_ok"],
            ],
            [
                {("memory-unknown", B)},
                {place: value for place, value in USED_BY.items() if place != ("two", B)},
                OVER_SHARE - {("two", B, "over-share")},
                {(A,)},
                {(A,), (B,)},
                1,
            ],
        )
    finally:
        node.drive()
    running.until(lambda: everything_is_known(running.series()) and not problems(running.series()))


def test_a_process_that_may_not_be_looked_up_may_belong_to_any_pod(node: Node, running: Agent) -> None:
    running.until(lambda: everything_is_known(running.series()))
    # Not by its mode: root reads that. The PID is new, since what was found of one counts until it ends.
    node.proc.add(112, "")
    (node.proc.root / "112" / "cgroup").unlink()
    (node.proc.root / "112" / "cgroup").mkdir()
    node.drive(f"process 0 - 0 112 {MIB} 4294967295 4294967295")
    try:
        comes_to(
            running,
            lambda series: [
                problems(series),
                named(series, "kaishare_pod_gpu_memory_used_bytes", "pod", "gpu_uuid"),
                named(series, "kaishare_gpu_memory_unattributed_bytes", "gpu_uuid").get((A,)),
                set(named(series, "kaishare_gpu_memory_host_bytes", "gpu_uuid")),
            ],
            [
                {("proc-denied", A)},
                {place: value for place, value in USED_BY.items() if place[1] == B},
                USED[A] - (19_565 * MIB + 15),
                {(B,)},
            ],
        )
    finally:
        node.drive()
        node.proc.end(112)
    running.until(lambda: everything_is_known(running.series()) and not problems(running.series()))


def test_gpus_of_unknown_memory_are_watched(node: Node, running: Agent) -> None:
    """No GPU reports its memory, as on GB10: the node label sizes the shares, and the agent stays ready."""
    running.until(lambda: everything_is_known(running.series()))
    shares = named(running.series(), "kaishare_pod_gpu_memory_share_bytes", "pod", "gpu_uuid")
    node.drive("fail nvmlDeviceGetMemoryInfo - 3")
    gone = [f"kaishare_gpu_memory_{name}_bytes" for name in ("total", "used", "reserved", "unattributed")]
    try:
        comes_to(
            running,
            lambda series: [
                problems(series),
                [named(series, name, "gpu_uuid") for name in gone],
                named(series, "kaishare_pod_gpu_memory_used_bytes", "pod", "gpu_uuid"),
                named(series, "kaishare_pod_gpu_memory_share_bytes", "pod", "gpu_uuid"),
                named(series, "kaishare_gpu_memory_host_bytes", "gpu_uuid"),
                flagged(series),
                series["kaishare_agent_attribution_ok"],
            ],
            [set(), [{}, {}, {}, {}], USED_BY, shares, {(A,): 64 * MIB + 5, (B,): 2 * MIB}, FLAGGED, 1],
        )
        assert running.get("/readyz") == (200, "ok\n")
        assert {gpu["usedBytes"] for gpu in running.shares()["gpus"]} == {None}
        assert all(gpu["memoryUnknown"] for gpu in running.shares()["gpus"])
    finally:
        # A refused figure is requested again after a minute; a new initialisation requests it at once.
        node.drive("fail * - 9")
        running.until(lambda: running.series()["kaishare_agent_attribution_ok"] == 0)
        node.drive()
    running.until(lambda: everything_is_known(running.series()) and not problems(running.series()))


def test_a_process_without_its_main_thread_belongs_to_its_pod(node: Node, running: Agent) -> None:
    """On cgroup v1 its own cgroup reads as the root; its living threads' does not."""
    running.until(lambda: everything_is_known(running.series()))
    node.proc.add(113, "5:devices:/\n1:name=systemd:/", state="Z")
    node.proc.add_thread(113, 114, f"5:devices:/kubepods/pod{TRAIN}/{'0f' * 32}")
    node.drive(f"process 0 - 0 113 {900 * MIB} 4294967295 4294967295")
    try:
        comes_to(
            running,
            lambda series: [
                problems(series),
                named(series, "kaishare_pod_gpu_memory_used_bytes", "pod", "gpu_uuid")[("train", A)],
            ],
            [set(), USED_BY[("train", A)] + 900 * MIB],
        )
    finally:
        node.drive()
        node.proc.end(113)


def test_a_process_that_is_nowhere_in_proc_is_of_unknown_owner(node: Node, running: Agent) -> None:
    running.until(lambda: everything_is_known(running.series()))
    node.drive(f"process 0 - 0 3999 {60 * MIB} 4294967295 4294967295")
    try:
        comes_to(
            running,
            lambda series: [
                problems(series),
                set(named(series, "kaishare_pod_gpu_memory_used_bytes", "gpu_uuid")),
                set(named(series, "kaishare_gpu_memory_host_bytes", "gpu_uuid")),
            ],
            [{("proc-denied", A)}, {(B,)}, {(B,)}],
        )
    finally:
        node.drive()
    running.until(lambda: everything_is_known(running.series()) and not problems(running.series()))


def test_outside_the_hosts_pid_namespace_figures_are_absent_and_not_zero(node: Node, running: Agent) -> None:
    running.until(lambda: everything_is_known(running.series()))
    node.proc.add(2, "0::/", name="sh")
    node.drive(without=tuple(pid for _, pid in PROCESSES))
    gone = ("pod_gpu_memory_used", "gpu_memory_host", "gpu_memory_unattributed")
    try:
        comes_to(
            running,
            lambda series: [
                problems(series),
                [named(series, f"kaishare_{name}_bytes", "gpu_uuid") for name in gone],
                named(of_memory(series), "kaishare_pod_flagged", "gpu_uuid"),
                series["kaishare_agent_attribution_ok"],
            ],
            [{("pid-namespace", "")}, [{}, {}, {}], {}, 0],
        )
    finally:
        node.proc.add(2, "0::/", name="kthreadd")
        node.drive()
    running.until(lambda: everything_is_known(running.series()) and not problems(running.series()))


def test_a_broken_pods_file_is_one_line_and_the_last_good_file_counts(node: Node, running: Agent) -> None:
    running.until(lambda: everything_is_known(running.series()))
    before = len(running.log_lines("pods file invalid, keeping the last valid one"))
    node.pods.write_text('{"apiVersion": "v1", "kind": "List", "items": [')
    running.until(lambda: len(running.log_lines("pods file invalid, keeping the last valid one")) > before)
    assert everything_is_known(running.series())
    node.write_pods(objects())
    running.until(lambda: len(running.log_lines("pods file read")) > 1)
    (line,) = running.log_lines("pods file invalid, keeping the last valid one")[before:]
    assert str(node.pods) in line["error"]


def spoofs() -> dict[str, Callable[[dict[str, Any]], None]]:
    """Return changes that a tenant may make to its own pod, by description."""

    def annotate(**annotations: str) -> Callable[[dict[str, Any]], None]:
        return lambda pod: pod["metadata"]["annotations"].update(annotations)

    def label(**labels: str) -> Callable[[dict[str, Any]], None]:
        return lambda pod: pod["metadata"]["labels"].update(labels)

    identity = {
        "vcluster.loft.sh/object-name": "serve",
        "vcluster.loft.sh/object-namespace": "default",
        "vcluster.loft.sh/object-host-name": "serve-x-default-x-vc",
        "vcluster.loft.sh/object-host-namespace": "vc-host",
        "kubernetes.io/config.hash": TRAIN,
        "kubernetes.io/config.mirror": TRAIN,
    }
    return {
        "another pod's identity": annotate(**identity),
        "a changed share": annotate(**{"gpu-fraction": "0.99", "gpu-memory": "1"}),
        "a preset group": label(**{"runai-gpu-group": "ga"}),
        "another pod's ConfigMap": annotate(**{"runai/shared-gpu-configmap": "train-shared-gpu"}),
        "a device of others": annotate(**{"nvidia.com/container.main.gpu-memory.request": "20Gi", "nvidia.com/container.main.gpus.devices": A}),
        "values that cannot be read": annotate(**{"gpu-fraction": "\u0000half", "gpu-memory": "-1"}),
    }  # fmt: skip


def test_annotations_of_a_tenant_change_no_figure_of_another_pod(node: Node, running: Agent) -> None:
    def of_others() -> dict[str, float]:
        ours = ("over_share_seconds", "agent_sample", "agent_last", "promised_bytes")
        series = running.series().items()
        return {
            text: v for text, v in series if 'pod="stray"' not in text and not any(x in text for x in ours)
        }

    running.until(lambda: everything_is_known(running.series()))
    before = of_others()
    for what, spoof in spoofs().items():
        read = len(running.log_lines("pods file read"))
        items = objects()
        spoof(next(item for item in items if item["metadata"]["name"] == "stray"))
        node.write_pods(items)
        running.until(lambda read=read: len(running.log_lines("pods file read")) > read)
        samples = running.series()["kaishare_agent_sample_duration_seconds_count"]
        running.until(
            lambda samples=samples: (
                running.series()["kaishare_agent_sample_duration_seconds_count"] >= samples + 2
            )
        )
        assert of_others() == before, what
        used = named(running.series(), "kaishare_pod_gpu_memory_used_bytes", "pod", "gpu_uuid")
        assert used[("stray", B)] == 257 * MIB
    node.write_pods(objects())


def test_a_tenant_with_own_reservation_pods_is_a_problem_and_flags_no_pod(node: Node, running: Agent) -> None:
    """One pod names the GPU of another tenant, a hundred name none; a pod of the tenant declares a share itself."""
    vcluster = {"vcluster.loft.sh/managed-by": "evil"}
    evil = []
    for number in range(101):
        made = reservation("gx", "-1" if number else A, 1000 + number, namespace="vc-evil", node="node-1")
        name = made["metadata"]["name"] = f"mine-{number}"
        made["metadata"]["labels"] |= vcluster
        made["metadata"]["annotations"] |= {
            "vcluster.loft.sh/object-name": name,
            "vcluster.loft.sh/object-namespace": "kai-resource-reservation",
            "vcluster.loft.sh/object-host-name": name,
            "vcluster.loft.sh/object-host-namespace": "vc-evil",
        }
        evil.append(made)
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
    for where in (
        by_reason["reservation-conflict"],
        top(running),
        running.log_lines("problem appeared")[-2]["problem"]
        + running.log_lines("problem appeared")[-1]["problem"],
    ):
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
def test_while_the_driver_hangs_figures_are_absent_and_sigterm_ends_the_agent(
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
        node.drive("hang")
        running.until(lambda: len(running.log_lines("problem appeared")) == 4)
        began = time.monotonic()
        assert running.stop(signal.SIGTERM) == 0
        assert time.monotonic() - began < 15, "a kubelet waits for 30 s"
        assert [line["hung"] for line in running.log_lines("stopped")] == [True]
        reasons = [line["reason"] for line in running.log_lines("problem appeared")]
        assert reasons == ["nvml", "sample-stale"] * 2


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
