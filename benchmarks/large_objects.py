"""Memory of both services, and latency of /healthz, with the largest objects that a tenant can create.

A real API server has 200 pods of 1.4 MB on the agent's node, and 10,000 namespaces of which one has 12,000
labels. A real agent and a real webhook start with these objects. Each must stay below the chart's memory
limit and answer /healthz within a second, from its start and while the objects change. Needs gcc,
KUBEBUILDER_ASSETS (a folder with etcd and kube-apiserver), 4 GB of memory and three minutes. Run: `python -m
benchmarks.large_objects`; the exit status is 1 if a limit is exceeded.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.agent_cluster import PROGRAM
from benchmarks.cluster_pods import NODE
from benchmarks.cluster_policies import until
from benchmarks.plane import on_a_control_plane
from kube.client import KubeClient
from tests.support.administrator import Administrator, right
from tests.support.cluster_webhook import WEBHOOK_RIGHTS, serving
from tests.support.control_plane import ControlPlane
from tests.support.kube_objects import GPU_0
from tests.support.large_objects import (
    HealthProbe,
    annotate,
    create_all,
    largest_pods,
    namespace_with_labels,
    probing,
)
from tests.support.memory import memory_limit_mib, peak_resident_mib
from tests.support.nvml_stub.build import ANSWERS, built_library
from tests.support.proc_files import ProcTree
from tests.support.webhook_in_a_pod import in_a_pod

MAX_HEALTHZ_SECONDS: Final = 1.0
AGENT_RIGHTS: Final = (
    right("pods", "list", "watch"),
    right("bindrequests", "list", "watch", group="scheduling.run.ai"),
    right("nodes", "get"),
    right("namespaces", "get"),
    right("events", "create", "patch"),
)
CHANGES: Final = 60
_MIB: Final = 1 << 20


@asynccontextmanager
async def agent(plane: ControlPlane, token: str, folder: Path) -> AsyncIterator[tuple[Process, str, Path]]:
    """Start an agent over the simulated driver; yield its process, address and log once it serves."""
    gpu = f"gpu 0 {GPU_0} {23028 * _MIB} {500 * _MIB} {1000 * _MIB} NVIDIA A10"
    (folder / "answers").write_text(f"driver 580.65.06\n{gpu}\n")
    ProcTree(folder / "proc").add(2, "0::/", name="kthreadd")
    plane.access(token)
    options = f"--node {NODE} --proc-root {folder}/proc --interval 1s --listen 127.0.0.1:0"
    log = folder / "agent.log"
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, str(plane.accounts[token]), "serve", *options.split()),
            stderr=stream,
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(built_library(folder).parent),
                ANSWERS: f"{folder}/answers",
                "KUBERNETES_SERVICE_HOST": "127.0.0.1",
                "KUBERNETES_SERVICE_PORT": str(plane.port),
            },
        )
    try:
        await _until(lambda: '"url":"' in log.read_text(), log)
        address = re.search(r'"url":"([^"]+)"', log.read_text())
        assert address is not None
        yield process, address[1], log
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _until(holds: Callable[[], bool], log: Path, seconds: float = 120.0) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            raise SystemExit(f"timeout after {seconds:g} s: {log.read_text()[-2000:]}")
        await asyncio.sleep(0.05)


async def measure_agent(plane: ControlPlane, client: KubeClient, pods: int, folder: Path) -> bool:
    """Run an agent on a node with large pods and change them; return whether the limits held."""
    admin = Administrator(client)
    await admin.prepare()
    path = "/api/v1/namespaces/team-a/pods"
    await create_all(client, path, largest_pods(pods, namespace="team-a", node=NODE))
    token = await admin.token("agent", *AGENT_RIGHTS)
    async with agent(plane, token, folder) as (process, url, log), probing(url) as probe:
        began = time.monotonic()
        await _until(lambda: "pods listed" in log.read_text(), log)
        took = time.monotonic() - began
        listed_mib = peak_resident_mib(process.pid)
        await annotate(client, (f"{path}/large-{number % pods}" for number in range(CHANGES)))
        print(f"agent: {pods} pods listed after {took:.1f} s, peak memory by then {listed_mib:.1f} MiB")
        return report("agent", peak_resident_mib(process.pid), probe)


async def measure_webhook(
    plane: ControlPlane, client: KubeClient, namespaces: int, labels: int, folder: Path
) -> bool:
    """Run a webhook with many namespaces and change them; return whether the limits held."""
    admin = Administrator(client)
    await admin.prepare()
    path = "/api/v1/namespaces"
    await create_all(client, path, (namespace_with_labels(f"team-{n}", 0) for n in range(namespaces - 1)))
    await create_all(client, path, [namespace_with_labels("many-labels", labels)])
    pod = in_a_pod(plane, await admin.token("webhook", *WEBHOOK_RIGHTS), folder)
    options = ("--policies", "cluster", "--certs", f"{folder}/tls")
    log = folder / "webhook.log"
    async with (
        serving(log, *options, program=pod.program, environment=pod.environment, is_forked=False) as webhook,
        probing(f"http://{webhook.ops}") as probe,
    ):

        async def is_ready() -> bool:
            return (await webhook.get("/readyz"))[0] == 200

        took = await until("ready", is_ready)
        known = len(json.loads((await webhook.get("/policies"))[1]))
        await annotate(client, (f"{path}/many-labels" for _ in range(CHANGES)))
        print(f"webhook: {known} policies, ready after {took:.1f} s")
        is_within = report("webhook", peak_resident_mib(webhook.process.pid), probe)
    return is_within and known >= namespaces


def report(service: str, most_mib: float, probe: HealthProbe) -> bool:
    """Print the cost of a service; return whether it is within the limits."""
    limit = memory_limit_mib(service)
    is_within = most_mib < limit and probe.slowest_seconds < MAX_HEALTHZ_SECONDS and not probe.failure
    memory = f"{most_mib:.1f} MiB at most (limit {limit})"
    health = (
        f"/healthz {1000 * probe.slowest_seconds:.0f} ms at most in {probe.answers} answers {probe.failure}"
    )
    print(f"{service}: {memory}, {health}: {'within' if is_within else 'OVER'}", flush=True)
    return is_within


async def measure(options: argparse.Namespace, plane: ControlPlane, folder: Path) -> int:
    """Measure both services; return 1 if one exceeds a limit."""
    async with KubeClient(plane.access()) as client:
        is_agent_within = await measure_agent(plane, client, options.pods, folder)
        is_webhook_within = await measure_webhook(plane, client, options.namespaces, options.labels, folder)
    return int(not (is_agent_within and is_webhook_within))


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=200, help="pods of 1.4 MB on the agent's node")
    parser.add_argument("--namespaces", type=int, default=10_000, help="namespaces in the cluster")
    parser.add_argument("--labels", type=int, default=12_000, help="labels of one namespace")
    options = parser.parse_args()
    on_a_control_plane(parser, lambda plane, folder: measure(options, plane, folder))


if __name__ == "__main__":
    main()
