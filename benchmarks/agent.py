"""CPU per sample and per scrape, and resident memory, of an agent by number of processes.

A real process of `kaishare-agent serve` uses NVIDIA's Python binding with the simulated driver library of the
tests (needs gcc), and a matching /proc and pod list. CPU is the kernel's count for all threads, so the cost
of a scrape includes HTTP. About 6 s per row. Run: `python -m benchmarks.agent`.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
from asyncio.subprocess import Process
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.nvml_stub.build import ANSWERS, built_library
from tests.support.proc_files import ProcTree, in_pod

MIB = 1 << 20
TOTAL_MIB = 81_559
INTERVAL_MS = 100
MOST = {"sample_ms": 10.0, "scrape_ms": 10.0, "resident_mib": 56.0}
"""Limits for a node with 8 GPUs, 64 processes on each, and 64 pods."""


@dataclass(frozen=True)
class Load:
    """A node: number of GPUs, processes and pods."""

    gpus: int
    pods: int
    processes: int
    everywhere: bool = False
    """Whether every pod has processes on every GPU; this gives the largest number of series."""

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Yield PID, GPU and pod of every process."""
        for n in range(self.processes):
            gpu = n % self.gpus
            pods = range(self.pods) if self.everywhere else range(gpu % self.pods, self.pods, self.gpus)
            yield 1000 + n, gpu, pods[n // self.gpus % len(pods)]


@dataclass(frozen=True)
class Cost:
    """Measured cost of one load."""

    sample_ms: float
    scrape_ms: float
    resident_mib: float
    series: int


def gpu_uuid(index: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-{uuid.UUID(int=index)}"


def pod_uid(number: int) -> str:
    """Return the UID of a pod."""
    return str(uuid.UUID(int=(1 << 64) + number))


def pods_of(load: Load) -> Iterator[dict[str, Any]]:
    """Build pods of realistic size with their BindRequests, and the reservation pods."""
    for number in range(load.pods):
        meta = {
            "namespace": f"team-{number % 8}",
            "name": f"train-{number}-7d9c5b8f4-x2x7k",
            "uid": pod_uid(number),
        }
        group = f"group-{number % load.gpus}"
        labels = {"kai.scheduler/queue": f"team-{number % 8}", "runai-gpu-group": group, "app": "train"}
        status = {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "containerID": f"containerd://{number:064x}"}],
        }
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**meta, "labels": labels, "annotations": {"gpu-fraction": "0.1"}},
            "spec": {"nodeName": "node-1", "containers": [{"name": "main", "args": ["x" * 2000]}]},
            "status": status,
        }
        yield {
            "apiVersion": "scheduling.run.ai/v1alpha2",
            "kind": "BindRequest",
            "metadata": {
                **{key: meta[key] for key in ("namespace", "name")},
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
                ],
            },
            "spec": {"receivedGPU": {"count": 1, "portion": "0.10"}, "selectedGPUGroups": [group]},
        }
    for index in range(load.gpus):
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "namespace": "kai-resource-reservation",
                "name": f"gpu-reservation-{index}",
                "uid": pod_uid(100_000 + index),
                "labels": {"app": "kai-resource-reservation", "runai-gpu-group": f"group-{index}"},
                "annotations": {"run.ai/reserve_for_gpu_index": gpu_uuid(index)},
            },
            "spec": {"nodeName": "node-1", "containers": [{"name": "resource-reservation"}]},
            "status": {"phase": "Running"},
        }


def write_node(load: Load, folder: Path) -> None:
    """Write the data of driver, kernel and API server."""
    each = TOTAL_MIB * 9 // 10 * MIB // max(1, load.processes // load.gpus)
    lines = ["driver 580.65.06"]
    lines += [
        f"gpu {index} {gpu_uuid(index)} {TOTAL_MIB * MIB} {500 * MIB} {TOTAL_MIB * 9 // 10 * MIB} NVIDIA H100"
        for index in range(load.gpus)
    ]
    proc = ProcTree(folder / "proc")
    proc.add(2, "0::/", name="kthreadd")
    for pid, gpu, pod in load.places():
        lines.append(f"process {gpu} - 0 {pid} {each} 4294967295 4294967295")
        proc.add(pid, in_pod(pod_uid(pod), f"{pod:064x}"))
    (folder / "answers").write_text("".join(f"{line}\n" for line in lines))
    items = list(pods_of(load))
    (folder / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


@asynccontextmanager
async def agent(folder: Path, library: Path) -> Any:
    """Start an agent on a node; yield its process and address."""
    options = f"--node node-1 --pods {folder}/pods.json --proc-root {folder}/proc --interval {INTERVAL_MS}ms"
    with (folder / "log").open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gpuagent", "serve", "--listen", "127.0.0.1:0", *options.split()),
            stderr=stream,
            env={**os.environ, "LD_LIBRARY_PATH": str(library.parent), ANSWERS: f"{folder}/answers"},
        )
    try:
        for _ in range(200):
            await asyncio.sleep(0.05)
            match = re.search(r'"url":"([^"]+)"', (folder / "log").read_text())
            if match:
                break
        else:
            raise SystemExit(f"the agent did not start: {(folder / 'log').read_text()}")
        yield process, match[1]
    finally:
        process.terminate()
        await process.wait()


def cpu_ms(process: "Process | subprocess.Popen[bytes]") -> float:
    """Return the CPU time of all threads in milliseconds."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


def resident_mib(process: Process) -> float:
    """Return the peak resident memory in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(match[1]) / 1024 if match else float("nan")


async def samples_so_far(session: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    """Return the number of samples and the text of /metrics."""
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    match = re.search(r"sample_duration_seconds_count (\d+)", text)
    return (int(match[1]) if match else 0), text


async def measure(load: Load, library: Path, *, seconds: float, scrapes: int) -> Cost:
    """Measure one agent on one node."""
    with tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name:
        folder = Path(name)
        write_node(load, folder)
        async with agent(folder, library) as (process, url), aiohttp.ClientSession() as session:
            await asyncio.sleep(1)  # the first samples and scrapes are more expensive
            await samples_so_far(session, url)
            first, _ = await samples_so_far(session, url)
            before = cpu_ms(process)
            await asyncio.sleep(seconds)
            sampling = cpu_ms(process) - before
            last, text = await samples_so_far(session, url)
            per_sample = sampling / (last - first)
            before = cpu_ms(process)
            for _ in range(scrapes):
                last_before, last = last, (await samples_so_far(session, url))[0]
                before += (last - last_before) * per_sample
            per_scrape = (cpu_ms(process) - before) / scrapes
            if load.processes > 1 and "kaishare_agent_attribution_ok 1" not in text:
                raise SystemExit(f"the simulated node has a problem: {(folder / 'log').read_text()}")
            series = sum(line.startswith("kaishare_") for line in text.splitlines())
            return Cost(per_sample, per_scrape, resident_mib(process), series)


async def run(seconds: float, scrapes: int) -> int:
    """Measure every load and print the results; return 1 if the largest node exceeds a limit of `MOST`."""
    loads = [Load(8, 64, processes) for processes in (1, 64, 512, 1024, 2048, 4096)]
    loads.insert(3, Load(8, 64, 512, everywhere=True))
    print(f"8 GPUs, 64 pods, interval {INTERVAL_MS} ms; CPU in ms, peak resident memory in MiB")
    print("processes   series   sample   per process   scrape   resident")
    worst = dict.fromkeys(MOST, 0.0)
    with tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name:
        library = built_library(Path(name))
        for load in loads:
            cost = await measure(load, library, seconds=seconds, scrapes=scrapes)
            each = cost.sample_ms / load.processes * 1000
            print(
                f"{load.processes:9}   {cost.series:6}   {cost.sample_ms:6.2f}   {each:8.1f} µs"
                f"   {cost.scrape_ms:6.2f}   {cost.resident_mib:8.1f}"
                f"{'   every pod on every GPU' if load.everywhere else ''}",
                flush=True,
            )
            if load.processes == 512:
                worst = {figure: max(most, getattr(cost, figure)) for figure, most in worst.items()}
    for figure, most in MOST.items():
        verdict = "within" if worst[figure] <= most else "OVER"
        print(f"8 GPUs × 64 processes × 64 pods: {figure} {worst[figure]:.2f}, {verdict} {most:g}")
    return int(any(worst[figure] > most for figure, most in MOST.items()))


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of sampling per row")
    parser.add_argument("--scrapes", type=int, default=40, help="scrapes per row")
    options = parser.parse_args()
    sys.exit(asyncio.run(run(options.seconds, options.scrapes)))


if __name__ == "__main__":
    main()
