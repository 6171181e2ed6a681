"""The agent on a real GPU with real CUDA processes, beside nvitop's Python API on the same driver.

The processes run in cgroups of pods, which needs root, and each holds a context. The command prints the time
from the agent's start to its first figures of pods, CPU and resident memory of both programs, which sample at
the same time, and the counts of a churn: processes end and start, and one pod exceeds its share and returns
a known number of times. It exits with 1 if the agent counts another number of flags, flags another pod, has
other figures of a pod than the driver has of its processes, or grows by more than 2 MiB. nvitop is optional:
`python -m benchmarks.nvitop` says how to get it. Run: `python -m benchmarks.real_gpu`.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from benchmarks.agent import cpu_ms, machine
from benchmarks.nvitop import nvitop
from benchmarks.processes import resident_mib
from gpuagent.gpus.gpu_reader import NvmlGpus
from tests.support.agent_process import Agent
from tests.support.real_gpu_node import RealGpuNode, real_gpu_node

MIB: Final = 1 << 20
STARTS: Final = 5
PROCESSES_OF_A_POD: Final = 4
GREEDY: Final = "greedy"
MOST_GROWTH_MIB: Final = 2.0
MOST_START_SECONDS: Final = 30.0


def first_figures(node: RealGpuNode) -> float:
    """Return the seconds from the start of an agent to its first figures of pods."""
    began = time.monotonic()
    with node.agent() as running:
        while time.monotonic() - began < MOST_START_SECONDS:
            if "\nkaishare_pod_gpu_memory_used_bytes{" in running.get("/metrics")[1]:
                return time.monotonic() - began
            time.sleep(0.005)
    raise SystemExit(f"the agent has no figures of pods after {MOST_START_SECONDS:g} s")


def samples(running: Agent) -> int:
    """Return the number of samples so far."""
    return int(running.series()["kaishare_agent_sample_duration_seconds_count"])


def memory_in_words(pid: int) -> str:
    """Return the resident memory of a process, and the parts that belong to it alone."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in text.splitlines()[1:]}
    own = kib["Private_Clean"] + kib["Private_Dirty"]
    return (
        f"resident {kib['Rss'] / 1024:.1f} MiB, {kib['Anonymous'] / 1024:.1f} of them anonymous,"
        f" {own / 1024:.1f} of this process alone"
    )


def measure_beside_nvitop(node: RealGpuNode, python: Path | None, interval: float, seconds: float) -> None:
    """Print CPU of a sample and memory of both programs."""
    library = next(
        Path(line.split()[-1])
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "libnvidia-ml" in line
    )
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(node.agent("--interval", f"{int(interval * 1000)}ms"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kaishare-benchmark-")))
        kinds = ("lists", "snapshots") if python else ()
        others = {
            kind: stack.enter_context(nvitop(python, kind, library, folder)) for kind in kinds if python
        }
        time.sleep(3)

        def so_far() -> dict[str, tuple[int, float]]:
            counts = {"kaishare-agent": (samples(running), cpu_ms(running.process))}
            for kind, other in others.items():
                counts[f"nvitop, {kind}"] = len((folder / kind).read_text().splitlines()), cpu_ms(other)
            return counts

        before = so_far()
        time.sleep(seconds)
        after = so_far()
        pids = {"kaishare-agent": running.process.pid}
        pids |= {f"nvitop, {kind}": other.pid for kind, other in others.items()}
        for name, (count, cpu) in after.items():
            taken = count - before[name][0]
            each = (cpu - before[name][1]) / taken if taken else float("nan")
            print(f"{name:18} {taken:5} samples, CPU {each:7.2f} ms a sample, {memory_in_words(pids[name])}")
        series = running.series()
        mean = (
            series["kaishare_agent_sample_duration_seconds_sum"]
            / series["kaishare_agent_sample_duration_seconds_count"]
        )
        print(f"a sample takes {mean * 1000:.1f} ms from its start to its end, on average")


def churn(node: RealGpuNode, seconds: float, excess_mib: int) -> list[str]:
    """Let processes end and start, and one pod exceed its share; return what the agent told wrongly."""
    wrong = []
    expected = replaced = 0
    with node.agent("--interval", "250ms", "--grace", "1s") as running:
        time.sleep(3)
        before = resident_mib(running.process.pid)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            (greedy,) = node.start(GREEDY)
            greedy.hold(excess_mib)
            if not comes_true(running, lambda: flagged(running) == {GREEDY}):
                wrong.append(f"flagged above the share: {sorted(flagged(running))} in place of {GREEDY}")
                break
            expected += 1
            for pod in [name for name in node.portions if name != GREEDY][:4]:
                node.end(next(process for process, owner in node.processes.items() if owner == pod))
                node.start(pod)
                replaced += 1
            node.end(greedy)
            if not comes_true(running, lambda: flagged(running) == set()):
                wrong.append(f"still flagged: {sorted(flagged(running))}")
                break
        if not comes_true(running, lambda: differences(node, running) == []):
            wrong += differences(node, running)
        raised = running.shares()["flagTransitions"]["over-share"]["raised"]
        growth = resident_mib(running.process.pid) - before
        print(
            f"churn of {seconds:.0f} s: {replaced} processes replaced, {expected} times above the share,"
            f" {raised} flags, resident memory {before:.1f} MiB {growth:+.1f}, {samples(running)} samples"
        )
        if raised != expected:
            wrong.append(f"{raised} flags in place of {expected}")
        if growth > MOST_GROWTH_MIB:
            wrong.append(f"resident memory grew by {growth:.1f} MiB")
        if running.stop() != 0:
            wrong.append("the agent did not end with 0")
    return wrong


def comes_true(running: Agent, condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; return False if it does not within the time of `Agent.until`."""
    try:
        running.until(condition)
    except AssertionError:
        return False
    return True


def flagged(running: Agent) -> set[str]:
    """Return the names of the flagged pods."""
    pods = running.shares()["pods"]
    return {pod["name"] for pod in pods if any(verdict["flagged"] for verdict in pod["verdicts"])}


def differences(node: RealGpuNode, running: Agent) -> list[str]:
    """Compare the agent's figures of each pod with those of the driver for its processes."""
    source = NvmlGpus()
    by_pid = {process.pid: process.used_bytes for process in source.read().gpus[0].processes or ()}
    source.close()
    lines = []
    for entry in running.shares()["pods"]:
        own = [process for process, owner in node.processes.items() if owner == entry["name"]]
        expected = total(by_pid.get(process.pid) for process in own)
        figure = total(gpu["usedBytes"] for gpu in entry["gpus"])
        if figure != expected:
            lines.append(f"{entry['name']}: {figure} bytes in place of {expected}")
    return lines


def total(figures: Iterable[int | None]) -> int | None:
    """Return the sum; None if a figure is unknown."""
    known = list(figures)
    return None if None in known else sum(figure or 0 for figure in known)


def run(python: Path | None, processes: int, seconds: float, churn_seconds: float) -> int:
    """Measure, print, and return the exit status."""
    print(machine())
    source = NvmlGpus()
    reading = source.read()
    source.close()
    if not reading.gpus:
        print(f"no NVIDIA driver here: {'; '.join(problem.detail for problem in reading.problems)}")
        return 1
    gpu = reading.gpus[0]
    print(f"{gpu.model}, driver {reading.driver_version}, {processes} processes")
    with (
        tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name,
        real_gpu_node(Path(name), gpu.uuid) as node,
    ):
        if not node.cgroups.are_possible:
            print("no hierarchy of cgroups is writable here: run as root")
            return 1
        pods = max(1, processes // PROCESSES_OF_A_POD)
        portion = 0.9 / (pods + 1)
        node.portions.update({f"pod-{number}": f"{portion:.2f}" for number in range(pods)})
        node.portions[GREEDY] = "0.03"
        for pod in node.portions:
            if pod != GREEDY:
                node.start(pod, PROCESSES_OF_A_POD)
        starts = [first_figures(node) for _ in range(STARTS)]
        print(
            f"first figures of pods after {statistics.median(starts):.2f} s"
            f" (median of {STARTS}, {min(starts):.2f} to {max(starts):.2f})"
        )
        measure_beside_nvitop(node, python, 0.5, seconds)
        wrong = churn(node, churn_seconds, (gpu.total_bytes or 0) // MIB // 25 + 256)
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


def main() -> int:
    """Parse the options and measure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nvitop", type=Path, metavar="PYTHON", help="a Python that has nvitop")
    parser.add_argument("--processes", type=int, default=32, help="CUDA processes (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="of sampling (default %(default)s)")
    parser.add_argument("--churn-seconds", type=float, default=60, help="of churn (default %(default)s)")
    options = parser.parse_args()
    return run(options.nvitop, options.processes, options.seconds, options.churn_seconds)


if __name__ == "__main__":
    sys.exit(main())
