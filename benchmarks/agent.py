"""CPU per sample and per scrape, and resident memory, of an agent by number of processes.

A real process of `kaishare-agent serve` uses NVIDIA's Python binding with the simulated driver library of the
tests (needs gcc), and a matching /proc and pod list. CPU is the kernel's count for all threads, so the cost
of a scrape includes HTTP. Between samples the agent looks for changed files and old connections; that CPU is
measured first, on an agent that takes no samples, and is not part of a row. About 6 s per row. Run:
`python -m benchmarks.agent`.

Every process uses its GPU. The agent asks for utilisation every 2 s at most, so only the last rows, with an
interval of 2.5 s, have it in every sample. Beside them stand rows with a driver that does not report it.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from asyncio.subprocess import Process
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.nvml_stub.build import ANSWERS, built_library
from tests.support.proc_files import ProcTree, in_pod

MIB = 1 << 20
TOTAL_MIB = 81_559
INTERVAL_MS = 100
UTILIZATION_INTERVAL_MS = 2500
"""Interval at which every sample includes the utilisation."""
IDLE_INTERVAL_MS = 3_600_000
"""Interval of an agent that takes no sample after its first."""
MOST = {"sample_ms": 10.0, "scrape_ms": 10.0, "resident_mib": 56.0}
"""Limits for a node with 8 GPUs, 64 processes on each, and 64 pods. The memory holds for every `Spread`, the
CPU for pods that use the GPU of their share: with 64 pods on each GPU there are 512 shares, not 64."""


class Spread(StrEnum):
    """Which GPUs the pods use, as the end of a printed row."""

    OWN = ""
    """Each pod uses the GPU of its share."""
    EVERYWHERE = ", every pod with a share of every GPU"
    """This gives the largest number of series."""
    FOREIGN = ", every pod on every GPU, with a share of one"
    """Seven of eight pods on a GPU are flagged there: the worst that tenants can do."""


@dataclass(frozen=True)
class Load:
    """A node: number of GPUs, processes and pods."""

    gpus: int
    pods: int
    processes: int
    spread: Spread = Spread.OWN
    utilization: bool = True
    """Whether the driver reports utilisation."""
    interval_ms: int = INTERVAL_MS

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Yield PID, GPU and pod of every process."""
        for n in range(self.processes):
            gpu = n % self.gpus
            own = range(gpu % self.pods, self.pods, self.gpus)
            pods = own if self.spread is Spread.OWN else range(self.pods)
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
        labels = {"kai.scheduler/queue": f"team-{number % 8}", "app": "train"}
        annotations = {"gpu-fraction": "0.12" if load.spread is Spread.OWN else "0.02"}
        if load.spread is Spread.EVERYWHERE:
            groups = [f"group-{index}" for index in range(load.gpus)]
            labels |= {f"runai-gpu-group/{group}": group for group in groups}
            annotations["gpu-fraction-num-devices"] = str(load.gpus)
        else:
            groups = [f"group-{number % load.gpus}"]
            labels["runai-gpu-group"] = groups[0]
        status = {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "containerID": f"containerd://{number:064x}"}],
        }
        yield {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**meta, "labels": labels, "annotations": annotations},
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
            "spec": {
                "receivedGPU": {"count": len(groups), "portion": annotations["gpu-fraction"]},
                "selectedGPUGroups": groups,
            },
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
            "spec": {
                "nodeName": "node-1",
                "containers": [
                    {"name": "resource-reservation", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
                ],
            },
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
    if not load.utilization:
        lines += [f"samples {index} 0 0 3" for index in range(load.gpus)]
    proc = ProcTree(folder / "proc")
    proc.add(2, "0::/", name="kthreadd")
    for pid, gpu, pod in load.places():
        lines.append(f"process {gpu} - 0 {pid} {each} 4294967295 4294967295")
        if load.utilization:
            lines.append(f"sample {gpu} {pid} 0 {10 + pid % 90}")
        proc.add(pid, in_pod(pod_uid(pod), f"{pod:064x}"))
    (folder / "answers").write_text("".join(f"{line}\n" for line in lines))
    items = list(pods_of(load))
    (folder / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


@asynccontextmanager
async def agent(folder: Path, library: Path, interval_ms: int) -> Any:
    """Start an agent on a node; yield its process and address."""
    options = (
        f"--node node-1 --pods {folder}/pods.json --proc-root {folder}/proc"
        f" --interval {interval_ms}ms --grace 100ms"
    )
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


async def measure_idle(library: Path, *, seconds: float) -> float:
    """Return the CPU of an agent between samples, in milliseconds per second."""
    with tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name:
        folder = Path(name)
        write_node(Load(8, 64, 512), folder)
        async with agent(folder, library, IDLE_INTERVAL_MS) as (process, _):
            await asyncio.sleep(2)
            before = cpu_ms(process)
            await asyncio.sleep(seconds)
            return (cpu_ms(process) - before) / seconds


async def measure(load: Load, library: Path, *, idle: float, seconds: float, scrapes: int) -> Cost:
    """Measure one agent on one node; `idle` is its CPU between samples, in milliseconds per second."""
    with tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name:
        folder = Path(name)
        write_node(load, folder)
        async with (
            agent(folder, library, load.interval_ms) as (process, url),
            aiohttp.ClientSession() as session,
        ):
            await asyncio.sleep(1 + 2 * load.interval_ms / 1000)  # the first samples and scrapes are dearer
            await samples_so_far(session, url)
            first, _ = await samples_so_far(session, url)
            before, began = cpu_ms(process), time.monotonic()
            await asyncio.sleep(seconds)
            sampling = cpu_ms(process) - before - idle * (time.monotonic() - began)
            last, text = await samples_so_far(session, url)
            per_sample = sampling / (last - first)
            before, began = cpu_ms(process), time.monotonic()
            for _ in range(scrapes):
                last_before, last = last, (await samples_so_far(session, url))[0]
                before += (last - last_before) * per_sample
            before += idle * (time.monotonic() - began)
            per_scrape = (cpu_ms(process) - before) / scrapes
            if load.utilization is not bool(re.search(r"utilization_ratio\{.*\} (0\.[1-9]|1\.0)", text)):
                raise SystemExit("the agent's utilisation is not that of the simulated node")
            if load.processes > 1:
                if "kaishare_agent_attribution_ok 1" not in text:
                    raise SystemExit(f"the simulated node has a problem: {(folder / 'log').read_text()}")
                if (load.spread is Spread.FOREIGN) is not bool(re.search(r"pod_flagged\{.*\} 1", text)):
                    raise SystemExit("the agent's flags are not those of the simulated node")
            series = sum(line.startswith("kaishare_") for line in text.splitlines())
            return Cost(per_sample, per_scrape, resident_mib(process), series)


async def run(seconds: float, scrapes: int) -> int:
    """Measure every load and print the results; return 1 if the largest node exceeds a limit of `MOST`."""
    loads = [Load(8, 64, processes) for processes in (1, 64, 512, 1024, 2048, 4096)]
    loads[3:3] = [Load(8, 64, 512, spread) for spread in (Spread.EVERYWHERE, Spread.FOREIGN)]
    loads += [
        Load(8, 64, 512, spread, utilization, UTILIZATION_INTERVAL_MS)
        for spread in (Spread.OWN, Spread.EVERYWHERE)
        for utilization in (False, True)
    ]
    print("8 GPUs, 64 pods; CPU in ms, peak resident memory in MiB")
    print("processes   series   sample   per process   scrape   resident")
    worst = dict.fromkeys(MOST, 0.0)
    limited = {Spread.OWN: set(MOST), Spread.EVERYWHERE: {"resident_mib"}, Spread.FOREIGN: {"resident_mib"}}
    with tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name:
        library = built_library(Path(name))
        idle = await measure_idle(library, seconds=2 * seconds)
        print(f"between samples: {idle:.2f} ms a second, not included below")
        for load in loads:
            at_least = 8 * load.interval_ms / 1000
            cost = await measure(load, library, idle=idle, seconds=max(seconds, at_least), scrapes=scrapes)
            each = cost.sample_ms / load.processes * 1000
            print(
                f"{load.processes:9}   {cost.series:6}   {cost.sample_ms:6.2f}   {each:8.1f} µs"
                f"   {cost.scrape_ms:6.2f}   {cost.resident_mib:8.1f}"
                f"   every {load.interval_ms} ms{'' if load.utilization else ', no utilisation'}"
                f"{load.spread}",
                flush=True,
            )
            if load.processes == 512 and load.utilization:
                for figure in limited[load.spread]:
                    worst[figure] = max(worst[figure], getattr(cost, figure))
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
