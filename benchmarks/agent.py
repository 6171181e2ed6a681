"""CPU per sample and per scrape, and resident memory, of an agent by number of processes.

A real process of `kaishare-agent serve` uses NVIDIA's Python binding with the simulated driver library of the
tests (needs gcc), and a matching /proc and pod list. CPU is the kernel's count for all threads, so the cost
of a scrape includes HTTP. Between samples the agent looks for changed files and old connections; that CPU is
measured first, on an agent that takes no samples, and is not part of a row. About 6 s per row. Run:
`python -m benchmarks.agent`.

The agent of the rows "by a service account" reads its pods from a real kube-apiserver, as in a pod; that
of the rows "by a kubeconfig" does so with a token in a kubeconfig. They need KUBEBUILDER_ASSETS, a folder
with etcd and kube-apiserver. The audit log of that API server has the requests of an agent with 64 pods
in 60 namespaces: from the start until 15 s after the pods are listed, and then in `--quiet-minutes` in
which nothing changes. The figures for more nodes are multiples of these.

Every process uses its GPU. The agent asks for utilisation every 2 s at most, so only the last rows, with an
interval of 2.5 s, have it in every sample. Beside them stand rows with a driver that does not report it.
"""

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.agent_cluster import (
    PROGRAM,
    RIGHTS,
    AgentRequest,
    audit_log,
    audit_options,
    audited,
    counted,
    counting_link,
    fill,
)
from gpuagent.gpus.driver import Sensor
from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.control_plane import ControlPlane, assets_folder, control_plane
from tests.support.forked_python import ForkedPython
from tests.support.nvml_stub.build import ANSWERS, built_library
from tests.support.proc_files import ProcTree, in_pod

MIB = 1 << 20
TOTAL_MIB = 81_559
INTERVAL_MS = 100
UTILIZATION_INTERVAL_MS = 2500
"""Interval at which every sample includes the utilisation."""
DEFAULT_INTERVAL_MS = 5000
SCRAPE_SECONDS = 30.0
"""Usual interval of a Prometheus' scrapes."""
STARTS = 5
"""Starts of which the shortest counts: the others waited for a busy machine."""
IDLE_INTERVAL_MS = 3_600_000
"""Interval of an agent that takes no sample after its first."""
LARGE_INTERVAL_MS = 1000
"""Interval for 512 pods with 4,096 processes, whose sample takes more than `INTERVAL_MS`."""
SETTLED_SECONDS = 15.0
"""Time after the pods are listed that belongs to the start."""
PODS_OF_A_GPU = 8
"""Pods that share a GPU of a node with 64 pods; each has 0.12 of it."""
NODES = (1, 500, 5000)
"""Numbers of agents for which the load of the API server is computed."""
MOST = {
    "sample_ms": 10.0,
    "scrape_ms": 10.0,
    "resident_mib": 56.0,
    "percent_of_a_core": 0.3,
    "first_seconds": 1.0,
}
"""Limits for a node with 8 GPUs, 64 processes on each, and 64 pods.

The memory holds for every `Spread` with pods from a file. By a service account it holds for `Spread.OWN`;
the others need 2 MiB more. The CPU is that of pods that use the GPU of their share: with 64 pods on each GPU
there are 512 shares, not 64.
"""


_MOST_GROUPS = 64
"""Pods with limits; the simulated library knows 512 lines about cgroups."""


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
    namespaces: int = 8

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
    scrape_bytes: int
    api_ms: float
    """CPU of a request for `/api/v1/shares`."""
    api_bytes: int


@dataclass(frozen=True)
class Start:
    """How an agent starts: its program, where it finds the pods, and the files of its node."""

    folder: Path
    """Has the driver's answers and `proc`, and gets the log."""
    pods: str
    """Value of `--pods`."""
    program: Sequence[str] = ("-m", "gpuagent")
    environment: Mapping[str, str] = field(default_factory=dict)


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
            "namespace": f"team-{number % load.namespaces}",
            "name": f"train-{number}-7d9c5b8f4-x2x7k",
            "uid": pod_uid(number),
        }
        labels = {"kai.scheduler/queue": f"team-{number % load.namespaces}", "app": "train"}
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
                "labels": {"selected-node": "node-1"},
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


def write_node(load: Load, folder: Path, uids: Sequence[str] = ()) -> None:
    """Write the data of driver and kernel.

    Args:
        load: the node.
        folder: where.
        uids: UIDs of the pods, if an API server assigned them. Without them, the pods are written to a file,
            with the UIDs of `pod_uid`.
    """
    most = max(PODS_OF_A_GPU, load.processes // load.gpus)  # no pod with a process exceeds its share
    each = TOTAL_MIB * 9 // 10 * MIB // most
    lines = ["driver 580.65.06"]
    lines += [
        f"gpu {index} {gpu_uuid(index)} {TOTAL_MIB * MIB} {500 * MIB} {TOTAL_MIB * 9 // 10 * MIB} NVIDIA H100"
        for index in range(load.gpus)
    ]
    lines += [f"sensor {index} {sensor.value} 60" for index in range(load.gpus) for sensor in Sensor]
    if not load.utilization:
        lines += [f"samples {index} 0 0 3" for index in range(load.gpus)]
    proc = ProcTree(folder / "proc")
    proc.add(2, "0::/", name="kthreadd")
    for pid, gpu, pod in load.places():
        lines.append(f"process {gpu} - 0 {pid} {each} 4294967295 4294967295")
        if load.utilization:
            lines.append(f"sample {gpu} {pid} 0 {10 + pid % 90}")
        proc.add(pid, in_pod(uids[pod] if uids else pod_uid(pod), f"{pod:064x}"))
    # The driver limits the containers: it is asked for each one's cgroup and for its pod's.
    root = folder / "cgroup"
    root.mkdir()
    (root / "cgroup.controllers").touch()
    lines += [f"backend {index} misc" for index in range(load.gpus)]
    for pod in range(min(load.pods, _MOST_GROUPS)):
        path = root / in_pod(uids[pod] if uids else pod_uid(pod), f"{pod:064x}").removeprefix("0::/")
        lines += [
            f"group {path} misc",
            f"group {path.parent} misc",
            f"limit {pod % load.gpus} 0 {each} 0 {path}",
        ]
    (folder / "answers").write_text("".join(f"{line}\n" for line in lines))
    if not uids:
        items = list(pods_of(load))
        (folder / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


@asynccontextmanager
async def with_pods_file(load: Load) -> AsyncIterator[Start]:
    """Write a node with its pods in a file."""
    with tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name:
        write_node(load, Path(name))
        yield Start(Path(name), f"{name}/pods.json")


@dataclass(frozen=True)
class Cluster:
    """A control plane with a service account for agents."""

    plane: ControlPlane
    token: str

    @asynccontextmanager
    async def node(self, load: Load) -> AsyncIterator[Path]:
        """Create the pods of a node, and write its files; delete the pods in the end."""
        async with KubeClient(self.plane.access()) as client:
            admin = Administrator(client)
            with tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name:
                try:
                    write_node(load, Path(name), await fill(admin, pods_of(load)))
                    yield Path(name)
                finally:
                    await admin.clean_up()

    def by_account(self, folder: Path, port: int | None = None) -> Start:
        """Return the start of an agent as in a pod; `port` is that of a link to the API server."""
        environment = {**self.plane.environment, "KUBERNETES_SERVICE_PORT": str(port or self.plane.port)}
        return Start(folder, "cluster", ("-c", PROGRAM, str(self.plane.account(self.token))), environment)

    def by_kubeconfig(self, folder: Path) -> Start:
        """Return the start of an agent with a token in a kubeconfig."""
        kubeconfig = str(self.plane.kubeconfig(token=self.token))
        return Start(folder, "cluster", environment={"KUBECONFIG": kubeconfig, "KUBERNETES_SERVICE_HOST": ""})


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    """Run a control plane whose audit log has the agents' requests."""
    assets = assets_folder()
    if assets is None:
        raise SystemExit("KUBEBUILDER_ASSETS must name a folder with the programs etcd and kube-apiserver")
    with (
        tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name,
        control_plane(assets, Path(name), *audit_options(Path(name))) as plane,
    ):
        async with KubeClient(plane.access()) as client:
            admin = Administrator(client)
            await admin.prepare()
            yield Cluster(plane, await admin.token("agent", *RIGHTS))


@asynccontextmanager
async def agent(start: Start, library: Path, interval_ms: int) -> AsyncIterator[tuple[Process, str]]:
    """Start an agent, and wait until it has listed its pods; yield its process and address."""
    options = (
        f"--node node-1 --pods {start.pods} --proc-root {start.folder}/proc"
        f" --cgroup-root {start.folder}/cgroup --interval {interval_ms}ms --grace 100ms"
    )
    log = start.folder / "log"
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *start.program, "serve", "--listen", "127.0.0.1:0", *options.split()),
            stderr=stream,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(library.parent),
                ANSWERS: f"{start.folder}/answers",
                **start.environment,
            },
        )
    try:
        for _ in range(2000):
            await asyncio.sleep(0.01)
            text = log.read_text()
            match = re.search(r'"url":"([^"]+)"', text)
            if match and (start.pods != "cluster" or "pods listed" in text):
                break
        else:
            raise SystemExit(f"the agent did not start: {log.read_text()}")
        yield process, match[1]
    finally:
        process.terminate()
        await process.wait()


def cpu_ms(process: "Process | subprocess.Popen[bytes] | ForkedPython") -> float:
    """Return the CPU time of all threads in milliseconds."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


def resident_mib(process: Process) -> float:
    """Return the peak resident memory in MiB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(match[1]) / 1024 if match else float("nan")


async def first_figures(start: Start, library: Path) -> tuple[float, float]:
    """Start an agent; return the seconds and the CPU milliseconds until `/metrics` has figures of pods."""
    began = time.monotonic()
    async with (
        agent(start, library, DEFAULT_INTERVAL_MS) as (process, url),
        aiohttp.ClientSession() as session,
    ):
        while "\nkaishare_pod_gpu_memory_used_bytes{" not in (await samples_so_far(session, url))[1]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return time.monotonic() - began, cpu_ms(process)


async def samples_so_far(session: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    """Return the number of samples and the text of /metrics."""
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    match = re.search(r"sample_duration_seconds_count (\d+)", text)
    return (int(match[1]) if match else 0), text


async def measure_idle(start: Start, library: Path, *, seconds: float) -> float:
    """Return the CPU of an agent between samples, in milliseconds per second."""
    async with agent(start, library, IDLE_INTERVAL_MS) as (process, _):
        await asyncio.sleep(2)
        before = cpu_ms(process)
        await asyncio.sleep(seconds)
        return (cpu_ms(process) - before) / seconds


async def measure(
    load: Load, start: Start, library: Path, *, idle: float, seconds: float, scrapes: int
) -> Cost:
    """Measure one agent on one node; `idle` is its CPU between samples, in milliseconds per second."""
    async with (
        agent(start, library, load.interval_ms) as (process, url),
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
        first, before, began = last, cpu_ms(process), time.monotonic()
        for _ in range(scrapes):
            async with session.get(f"{url}/api/v1/shares") as response:
                body = await response.read()
        last, _ = await samples_so_far(session, url)
        before += (last - first) * per_sample + idle * (time.monotonic() - began) + per_scrape
        per_request = (cpu_ms(process) - before) / scrapes
        check(load, text, start.folder / "log")
        return Cost(
            sample_ms=per_sample,
            scrape_ms=per_scrape,
            resident_mib=resident_mib(process),
            series=sum(line.startswith("kaishare_") for line in text.splitlines()),
            scrape_bytes=len(text.encode()),
            api_ms=per_request,
            api_bytes=len(body),
        )


def check(load: Load, text: str, log: Path) -> None:
    """Check that the agent judges the simulated node as it is.

    Raises:
        SystemExit: /metrics says otherwise.
    """
    if load.utilization is not bool(re.search(r"utilization_ratio\{.*\} (0\.[1-9]|1\.0)", text)):
        raise SystemExit("the agent's utilisation is not that of the simulated node")
    if load.processes > 1:
        if "kaishare_agent_attribution_ok 1" not in text:
            raise SystemExit(f"the simulated node has a problem: {log.read_text()}")
        if (load.spread is Spread.FOREIGN) is not bool(re.search(r"pod_flagged\{.*\} 1", text)):
            raise SystemExit("the agent's flags are not those of the simulated node")
    if load.processes >= load.pods and text.count('source="bind-request"') < load.pods:
        raise SystemExit(f"the agent does not know every pod's share: {log.read_text()}")


def row(load: Load, cost: Cost, pods: str) -> str:
    """Return a line with the results."""
    each = cost.sample_ms / load.processes * 1000
    scrape, api = cost.scrape_bytes / 1000, cost.api_bytes / 1000
    unreported = "" if load.utilization else ", no utilisation"
    return (
        f"{load.pods:4} {load.processes:9}   {cost.series:6}   {cost.sample_ms:6.2f}   {each:8.1f} µs"
        f"   {cost.scrape_ms:6.2f} {scrape:7.0f}   {cost.api_ms:6.2f} {api:7.0f}"
        f"   {cost.resident_mib:8.1f}   every {load.interval_ms} ms{pods}{unreported}"
        f"{load.spread}"
    )


def machine() -> str:
    """Return the machine and the date, for comparisons."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {model[1] if model else platform.machine()}, {os.cpu_count()} cores,"
        f" Python {platform.python_version()}"
    )


async def run(seconds: float, scrapes: int, quiet_minutes: float, *, has_all_rows: bool) -> int:
    """Measure every load and print the results; return 1 if the node of `MOST` exceeds a limit."""
    loads = [Load(8, 64, processes) for processes in (1, 64, 512, 1024, 2048, 4096)]
    loads[3:3] = [Load(8, 64, 512, spread) for spread in (Spread.EVERYWHERE, Spread.FOREIGN)]
    loads += [
        Load(8, 64, 512, spread, utilization, UTILIZATION_INTERVAL_MS)
        for spread in (Spread.OWN, Spread.EVERYWHERE)
        for utilization in (False, True)
    ]
    large = Load(8, 512, 4096, interval_ms=LARGE_INTERVAL_MS)
    loads += [Load(8, 10, 10), large]
    if not has_all_rows:
        loads = [Load(8, 64, 512), Load(8, 64, 512, interval_ms=UTILIZATION_INTERVAL_MS)]
    print(machine())
    print("8 GPUs; CPU in ms, sizes in kB, peak resident memory in MiB")
    print("pods processes   series   sample   per process   scrape    size   /api/…    size   resident")
    worst = dict.fromkeys(MOST, 0.0)
    memory = {"resident_mib"}
    limited = {
        Spread.OWN: {"sample_ms", "scrape_ms", *memory},
        Spread.EVERYWHERE: memory,
        Spread.FOREIGN: memory,
    }

    async def add(load: Load, start: Start, pods: str = "") -> None:
        at_least = 8 * load.interval_ms / 1000
        cost = await measure(load, start, library, idle=idle, seconds=max(seconds, at_least), scrapes=scrapes)
        print(row(load, cost, pods), flush=True)
        is_limited = load.pods == 64 and load.processes == 512 and load.utilization
        if is_limited and not (pods and load.spread is not Spread.OWN):
            for figure in limited[load.spread]:
                worst[figure] = max(worst[figure], getattr(cost, figure))
        if is_limited and load.spread is Spread.OWN and load.interval_ms == UTILIZATION_INTERVAL_MS:
            milliseconds = (
                idle + cost.sample_ms / DEFAULT_INTERVAL_MS * 1000 + cost.scrape_ms / SCRAPE_SECONDS
            )
            worst["percent_of_a_core"] = milliseconds / 10

    async with AsyncExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="kaishare-benchmark-"))
        library = built_library(Path(name))
        async with with_pods_file(Load(8, 64, 512)) as start:
            idle = await measure_idle(start, library, seconds=2 * seconds)
            starts = [await first_figures(start, library) for _ in range(STARTS)]
        worst["first_seconds"] = min(took for took, _ in starts)
        took, cpu = (statistics.median(column) for column in zip(*starts, strict=True))
        print(f"between samples: {idle:.2f} ms a second, not included below")
        print(f"first figures of pods {took:.2f} s after the start (median), with {cpu:.0f} ms of CPU")
        for load in loads:
            async with with_pods_file(load) as start:
                await add(load, start)
        if assets_folder() is None:
            print("no rows by a service account: KUBEBUILDER_ASSETS names no folder with kube-apiserver")
        else:
            made = await stack.enter_async_context(cluster())
            spreads = tuple(Spread) if has_all_rows else (Spread.OWN,)
            for load in (*(Load(8, 64, 512, spread) for spread in spreads), *([large] * has_all_rows)):
                async with made.node(load) as folder:
                    idle = await measure_idle(made.by_account(folder), library, seconds=2 * seconds)
                    await add(load, made.by_account(folder), ", by a service account")
                    if load.spread is Spread.OWN and has_all_rows:
                        await add(load, made.by_kubeconfig(folder), ", by a kubeconfig")
            await count_requests(made, library, quiet_minutes)
    for figure, most in MOST.items():
        verdict = "within" if worst[figure] <= most else "OVER"
        print(f"8 GPUs × 64 processes × 64 pods: {figure} {worst[figure]:.2f}, {verdict} {most:g}")
    return int(any(worst[figure] > most for figure, most in MOST.items()))


async def count_requests(made: Cluster, library: Path, quiet_minutes: float) -> None:
    """Print what an agent asks of the API server at its start, and in minutes in which nothing changes."""
    log = audit_log(made.plane.folder)
    async with (
        made.node(Load(8, 64, 512, namespaces=60)) as folder,
        counting_link(made.plane.port) as link,
    ):
        earlier = len(audited(log))
        async with agent(made.by_account(folder, link.port), library, 5000) as (process, _):
            await asyncio.sleep(SETTLED_SECONDS)
            at_start = audited(log)[earlier:]
            cpu, sent, received = cpu_ms(process), link.sent, link.received
            print(
                f"start, 64 pods in 60 namespaces: {len(at_start)} requests, {cpu / 1000:.1f} s CPU,"
                f" {sent / 1000:.0f} kB from the API server, {received / 1000:.0f} kB to it,"
                f" {link.connections} connections"
            )
            print(listed(at_start))
            began = time.monotonic()
            await asyncio.sleep(quiet_minutes * 60)
            passed = time.monotonic() - began
            quiet = audited(log)[earlier + len(at_start) :]
            print(
                f"{quiet_minutes:g} quiet minutes, a sample every 5 s: {len(quiet)} requests,"
                f" {(cpu_ms(process) - cpu) / 1000:.1f} s CPU,"
                f" {(link.sent - sent) / 1000:.0f} kB from the API server,"
                f" {(link.received - received) / 1000:.0f} kB to it"
            )
            print(listed(quiet))
            print_multiples(at_start, quiet, passed, link.sent - sent)


def listed(requests: Sequence[AgentRequest]) -> str:
    """Return the number of requests by kind, one line each."""
    return "\n".join(f"  {count:5} {name}" for name, count in counted(requests).most_common()) or "  none"


def print_multiples(
    at_start: Sequence[AgentRequest], quiet: Sequence[AgentRequest], seconds: float, sent: int
) -> None:
    """Print the load of the API server by many agents, as multiples of one."""
    watches = len({request.resource for request in at_start if request.verb == "watch"})
    from_etcd = sum(request.is_quorum_read for request in quiet)
    print("agents   open watches   requests/s   of these from etcd   kB/s   requests of a start at once")
    for nodes in NODES:
        print(
            f"{nodes:6}   {nodes * watches:12}   {nodes * len(quiet) / seconds:10.2f}"
            f"   {nodes * from_etcd / seconds:18.2f}   {nodes * sent / seconds / 1000:4.1f}"
            f"   {nodes * len(at_start):27}"
        )


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of sampling per row")
    parser.add_argument("--scrapes", type=int, default=40, help="scrapes per row")
    parser.add_argument(
        "--quiet-minutes",
        type=float,
        default=2.0,
        help="minutes in which requests to the API server are counted",
    )
    parser.add_argument(
        "--bounds", action="store_true", help="measure only the rows of the node that has limits"
    )
    options = parser.parse_args()
    minutes = options.quiet_minutes
    sys.exit(asyncio.run(run(options.seconds, options.scrapes, minutes, has_all_rows=not options.bounds)))


if __name__ == "__main__":
    main()
