"""Memory and CPU of an agent with `--pods cluster` in a large cluster.

A real process of `kaishare-agent serve` uses a service account of a real kube-apiserver with many pods, few
of them on the agent's node. Its GPUs are those of `benchmarks.agent`. Needs gcc, KUBEBUILDER_ASSETS (a folder
with etcd and kube-apiserver), about 3 GB of memory and, for 30,000 pods, two minutes. Run: `python -m
benchmarks.cluster_pods`.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.agent import MIB, TOTAL_MIB, cpu_ms, gpu_uuid
from benchmarks.agent_cluster import PROGRAM
from benchmarks.plane import on_a_control_plane
from kube.client import KubeClient
from tests.support.administrator import Administrator, right
from tests.support.control_plane import ControlPlane
from tests.support.kube_objects import bind_request, fraction, reservation
from tests.support.nvml_stub.build import ANSWERS, built_library
from tests.support.proc_files import ProcTree, in_pod

MOST_MIB = 50.0
NODE = "node-1"
GPUS = 8
PROCESSES = 64  # on each GPU
AT_ONCE = 16


def pods_elsewhere(count: int) -> Iterable[dict[str, Any]]:
    """Build pods of other nodes, about 7 KB each as the API server stores them."""
    for number in range(count):
        made = fraction(f"other-{number}", number, namespace="team-a", node=f"other-node-{number % 500}")
        made["spec"]["containers"][0] |= {"image": "example.invalid/image", "args": ["x" * 5000]}
        yield {**made, "metadata": {key: value for key, value in made["metadata"].items() if key != "uid"}}


async def create_all(client: KubeClient, path: str, items: Iterable[dict[str, Any]]) -> None:
    """Create objects, a few at a time."""
    left = iter(items)

    async def create_some() -> None:
        for item in left:
            await client.request("POST", path, body=json.dumps(item).encode(), seconds=60)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(create_some())


async def make_node(admin: Administrator, count: int) -> list[str]:
    """Create the pods of the agent's node and their related objects; return the pods' UIDs."""
    groups = [f"group-{index}" for index in range(GPUS)]
    for index, group in enumerate(groups):
        await admin.create(reservation(group, gpu_uuid(index), 900 + index, node=NODE))
    uids = []
    for number in range(count):
        name, group = f"train-{number}", groups[number % GPUS]
        made = await admin.create(fraction(name, number, "0.1", group, node=NODE))
        uids.append(made["metadata"]["uid"])
        request = bind_request(name, number, "0.10", groups=(group,))
        request["metadata"]["ownerReferences"][0]["uid"] = uids[-1]
        await admin.create(request)
    return uids


def write_node(uids: list[str], folder: Path) -> None:
    """Write the files of the simulated driver and kernel."""
    each = TOTAL_MIB * 9 // 10 * MIB // PROCESSES
    lines = ["driver 580.65.06"]
    lines += [
        f"gpu {index} {gpu_uuid(index)} {TOTAL_MIB * MIB} {500 * MIB} {TOTAL_MIB * 9 // 10 * MIB} NVIDIA H100"
        for index in range(GPUS)
    ]
    proc = ProcTree(folder / "proc")
    proc.add(2, "0::/", name="kthreadd")
    for number in range(GPUS * PROCESSES):
        gpu = number % GPUS
        pod = range(gpu, len(uids), GPUS)[number // GPUS % len(range(gpu, len(uids), GPUS))]
        lines.append(f"process {gpu} - 0 {1000 + number} {each} 4294967295 4294967295")
        proc.add(1000 + number, in_pod(uids[pod], f"{pod:064x}"))
    (folder / "answers").write_text("".join(f"{line}\n" for line in lines))


@asynccontextmanager
async def agent(
    plane: ControlPlane, account: Path, folder: Path, library: Path
) -> AsyncIterator[tuple[Process, str]]:
    """Start an agent with a service account; yield its process and address."""
    options = f"--node {NODE} --proc-root {folder}/proc --interval 1s --listen 127.0.0.1:0"
    with (folder / "log").open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, str(account), "serve", *options.split()),
            stderr=stream,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(library.parent),
                ANSWERS: f"{folder}/answers",
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(plane.port),
            },
        )
    try:
        for _ in range(400):
            await asyncio.sleep(0.05)
            log = (folder / "log").read_text()
            match = re.search(r'"url":"([^"]+)"', log)
            if match and "pods listed" in log:
                break
        else:
            raise SystemExit(f"the agent did not start: {(folder / 'log').read_text()}")
        yield process, match[1]
    finally:
        process.terminate()
        await process.wait()


def memory_mib(pid: int, figure: str) -> float:
    """Return `VmRSS` (current memory) or `VmHWM` (peak memory) of a process in MiB."""
    match = re.search(rf"{figure}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) / 1024 if match else float("nan")


async def change_labels(client: KubeClient, paths: Iterable[str]) -> None:
    """Change labels of pods one after another, as fast as possible."""
    for number, path in enumerate(paths):
        await client.request(
            "PATCH",
            path,
            body=json.dumps({"metadata": {"labels": {"edited": str(number)}}}).encode(),
            content_type="application/merge-patch+json",
        )


async def measure(pods: int, on_node: int, seconds: float, plane: ControlPlane, folder: Path) -> int:
    """Fill the cluster, run the agent, print the results; return 1 if the agent exceeds its memory limit."""
    library = built_library(folder)
    async with KubeClient(plane.access()) as client:
        admin = Administrator(client)
        await admin.prepare()
        began = time.monotonic()
        await create_all(client, "/api/v1/namespaces/team-a/pods", pods_elsewhere(pods - on_node))
        write_node(await make_node(admin, on_node), folder)
        print(
            f"{pods} pods in the cluster, {on_node} on the node, created in {time.monotonic() - began:.0f} s"
        )
        rights = [
            right("pods", "list", "watch"),
            right("bindrequests", "list", "watch", group="scheduling.run.ai"),
            right("nodes", "get"),
            right("namespaces", "get"),
        ]
        token = await admin.token("agent", *rights)
        plane.access(token)
        async with agent(plane, plane.account(token), folder, library) as (process, url):

            async def show(what: str, load: Callable[[], Coroutine[Any, Any, None]]) -> None:
                before, began = cpu_ms(process), time.monotonic()
                await load()
                spent, took = cpu_ms(process) - before, time.monotonic() - began
                now, most = (memory_mib(process.pid, figure) for figure in ("VmRSS", "VmHWM"))
                print(f"{what:44}   {spent / took:8.1f}   {now:8.1f}   {most:8.1f}", flush=True)

            own = [f"/api/v1/namespaces/research/pods/train-{number % on_node}" for number in range(600)]
            others = [
                f"/api/v1/namespaces/team-a/pods/other-{number}" for number in range(min(600, pods - on_node))
            ]
            print(f"{'':44}   CPU ms/s   resident       peak (MiB)")
            await show("at rest, a sample a second", lambda: asyncio.sleep(seconds))
            await show("600 changes of pods of other nodes", lambda: change_labels(client, others))
            await show("600 changes of its own pods", lambda: change_labels(client, own))
            await show("at rest again", lambda: asyncio.sleep(seconds))
            async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
                text = await response.text()
            shares = text.count('source="bind-request"')
            if shares != on_node:
                raise SystemExit(f"{shares} shares instead of {on_node}: {(folder / 'log').read_text()}")
            most = memory_mib(process.pid, "VmHWM")
        verdict = "within" if most <= MOST_MIB else "OVER"
        print(f"peak resident memory {most:.1f} MiB, {verdict} {MOST_MIB:g}")
        return int(most > MOST_MIB)


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=30_000, help="pods in the cluster")
    parser.add_argument("--on-node", type=int, default=60, help="pods on the agent's node")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of each of two idle phases")
    options = parser.parse_args()
    on_a_control_plane(
        parser, lambda plane, folder: measure(options.pods, options.on_node, options.seconds, plane, folder)
    )


if __name__ == "__main__":
    main()
