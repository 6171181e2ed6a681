"""A running agent on a real GPU: CUDA processes in cgroups of pods, which the kernel tells of and not a stand-in."""

import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuagent.gpus.gpu_reader import NvmlGpus
from kai.frameworks import PYTORCH, VLLM, Framework, largest_value
from tests.support.agent_process import Agent
from tests.support.kube_objects import uid
from tests.support.real_gpu_node import RealGpuNode, real_gpu_node

MIB = 1 << 20
PORTION = "0.05"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RealGpuNode]:
    source = NvmlGpus()
    reading = source.read()
    source.close()
    if not reading.gpus:
        pytest.skip(f"no NVIDIA driver here: {'; '.join(problem.detail for problem in reading.problems)}")
    if reading.gpus[0].mig:
        pytest.skip("the first GPU is partitioned (MIG)")
    with real_gpu_node(tmp_path, reading.gpus[0].uuid) as made:
        if not made.cgroups.are_possible:
            pytest.skip("no hierarchy of cgroups is writable here: run the test as root")
        made.portions.update({"within": PORTION, "over": PORTION, "idle": PORTION})
        (process,) = made.start("idle")
        source = NvmlGpus()
        pids = {process.pid for process in source.read().gpus[0].processes}
        source.close()
        if process.pid not in pids:
            pytest.skip("the driver names PIDs of another PID namespace; the agent itself runs with hostPID")
        yield made


def has_sensors(running: Agent) -> bool:
    return any(gpu["powerWatts"] is not None for gpu in running.shares()["gpus"])


def nvidia_smi(*options: str) -> str:
    command = ["nvidia-smi", "--format=csv,noheader,nounits", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def memory_of_pods(node: RealGpuNode) -> Counter[str]:
    """Memory of each pod in MiB, as nvidia-smi prints its processes."""
    output = nvidia_smi("--query-compute-apps=pid,used_gpu_memory")
    by_pid = {int(pid): int(mib) for pid, mib in (line.split(",") for line in output.splitlines())}
    pods: Counter[str] = Counter()
    for process, pod in node.processes.items():
        pods[pod] += by_pid[process.pid]
    return pods


def test_pods_have_the_memory_of_their_processes_and_only_the_greedy_one_a_flag(node: RealGpuNode) -> None:
    with node.agent("--interval", "500ms", "--grace", "2s") as running:
        total = running.shares()["gpus"][0]["totalBytes"] // MIB
        first, _ = node.start("within", 2)
        first.hold(200)
        (greedy,) = node.start("over")
        greedy.hold(int(total * 0.06))

        def mib() -> dict[str, int]:
            pods = running.shares()["pods"]
            return {pod["name"]: pod["gpus"][0]["usedBytes"] // MIB for pod in pods if pod["gpus"]}

        def flagged() -> set[str]:
            pods = running.shares()["pods"]
            return {pod["name"] for pod in pods if any(verdict["flagged"] for verdict in pod["verdicts"])}

        expected = memory_of_pods(node)
        assert set(expected) == {"within", "over", "idle"}
        running.until(
            lambda: (
                mib().keys() == expected.keys()
                and all(abs(mib()[name] - expected[name]) <= 2 for name in expected)
            )
        )
        running.until(lambda: flagged() == {"over"})
        node.end(greedy)
        running.until(lambda: flagged() == set())
        running.until(lambda: not mib().get("over"))
        transitions = running.shares()["flagTransitions"]["over-share"]
        assert transitions["raised"] == 1
        assert transitions["cleared"] + transitions["dropped"] == 1
        assert running.stop() == 0


@pytest.mark.parametrize("framework", [VLLM, PYTORCH], ids=lambda framework: framework.name)
def test_a_program_that_obeys_its_option_is_within_its_share(node: RealGpuNode, framework: Framework) -> None:
    """The program stands for a framework: it holds the part of the card that the webhook sets, or a default.
    vLLM counts the context as a part of what it takes, and PyTorch does not."""
    node.portions.update({"set": "0.3", "default": "0.3"})
    with node.agent("--interval", "500ms", "--grace", "2s", "--slack", "64Mi,0%") as running:

        def flagged() -> set[str]:
            pods = running.shares()["pods"]
            return {pod["name"] for pod in pods if any(verdict["flagged"] for verdict in pod["verdicts"])}

        total = running.shares()["gpus"][0]["totalBytes"] // MIB
        (process,) = node.start("set")
        context = memory_of_pods(node)["set"] if framework.counts_context else 0
        process.hold(int(total * largest_value(framework, 0.3) / 100) - context)
        (greedy,) = node.start("default")
        greedy.hold(int(total * 0.6))  # as with 0.9, and as much as the card has left
        running.until(lambda: flagged() == {"default"})
        assert memory_of_pods(node)["set"] <= total * 0.3


def test_a_process_that_moves_to_a_child_cgroup_stays_in_its_pod(node: RealGpuNode) -> None:
    """A tenant with a writable cgroup can make children of any name; the outermost pod counts."""
    (process,) = node.start("within")
    process.hold(300)
    node.move_to_child(process, f"pod{uid(3)}")
    with node.agent("--interval", "500ms") as running:
        running.until(
            lambda: any(pod["name"] == "within" and pod["gpus"] for pod in running.shares()["pods"])
        )
        pods = {pod["name"]: pod["gpus"] for pod in running.shares()["pods"]}
        assert [entry["processes"] for entry in pods["within"]] == [1]
        assert [entry["processes"] for entry in pods["idle"]] == [1]


def test_sensors_are_those_of_nvidia_smi(node: RealGpuNode) -> None:
    fields = "temperature.gpu,power.draw,enforced.power.limit,memory.total"
    output = nvidia_smi(f"--query-gpu={fields}", "--id=0")
    temperature, power, limit, total = (float(word) for word in output.split(","))
    with node.agent("--interval", "500ms") as running:
        running.until(lambda: has_sensors(running))
        gpu = running.shares()["gpus"][0]
    assert gpu["temperatureCelsius"] == pytest.approx(temperature, abs=5)
    assert gpu["powerWatts"] == pytest.approx(power, rel=0.3)
    assert gpu["powerLimitWatts"] == pytest.approx(limit, abs=1)
    assert gpu["totalBytes"] // MIB == total


def test_the_error_of_a_program_is_reported_and_its_memory_is_free_again(node: RealGpuNode) -> None:
    with node.agent("--interval", "500ms") as running:
        running.until(lambda: has_sensors(running))  # the driver records errors now
        (broken,) = node.start("within")
        broken.hold(500)
        error = broken.fault()
        assert error.startswith("cuCtxSynchronize failed with CUDA error 7"), error
        node.end(broken)
        running.until(lambda: running.shares()["gpus"][0]["xid"] is not None)
        assert running.shares()["gpus"][0]["xid"]["code"] in {13, 31}
        pods = {pod["name"]: pod["gpus"] for pod in running.shares()["pods"]}
        assert [entry["processes"] for entry in pods["idle"]] == [1]
        running.until(
            lambda: all(
                not pod["gpus"] or not pod["gpus"][0]["usedBytes"]
                for pod in running.shares()["pods"]
                if pod["name"] == "within"
            )
        )
        assert running.shares()["problems"] == []
