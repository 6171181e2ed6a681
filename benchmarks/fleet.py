"""Cost of `kaishare top --once` and `kaishare doctor` on a large cluster: `python -m benchmarks.fleet`.

A stand-in for an API server has 5,000 nodes with GPUs, each with an agent's pod, and answers for the agents:
5 GPUs with 2 pods each, which makes 50,000 pods. Objects and answers have the size of real ones. Each command
is a process of its own. Prints its time, CPU, peak memory, output and requests; exits with 1 if a command
fails or needs more memory than its bound. The time contains that of the stand-in, which runs on the same
machine.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from benchmarks.top import response
from certs.authority import Authority
from tests.support.agent_fleet import agent_pod, gpu_node, node_name, pod_status
from tests.support.api_server import object_server
from tests.support.certificates import serving_context
from tests.support.kube_objects import fraction, listed
from tests.support.memory import peak_resident_mib

NODES: Final = 5000
GPUS: Final = 5
PODS: Final = 2
MOST: Final = {"doctor": 450.0, "top --once": 400.0, "top --once -o json": 400.0}
"""Bounds of the peak memory with 5,000 agents, in MiB."""
PLACED_PODS: Final = 25_000
"""Pods of the cluster in the list that `doctor` reads: more than the 20,000 that it keeps of one kind."""

_NODE_KB: Final = 12
"""Size of a Node as a kubelet reports it, most of it the images that it has."""
_POD_KB: Final = 8
_PLACED: Final = r"^/api/v1/pods\?fieldSelector=spec.nodeName"
_AGENT: Final = re.compile(r"/pods/kaishare-agent-(\d+):9445/proxy(/api/v1/shares|/readyz)$")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one command took."""

    status: int
    seconds: float
    cpu_seconds: float
    mib: float
    output_kb: float
    last_lines: Sequence[str]


def _padded(item: dict[str, Any], kilobytes: int) -> dict[str, Any]:
    item["metadata"]["managedFields"] = [
        {"manager": "kubelet", "operation": "Update", "fieldsV1": {f"f:{number}": "x" * 90}}
        for number in range(kilobytes * 1000 // 150)
    ]
    return item


def objects(count: int) -> list[dict[str, Any]]:
    """Return nodes and agents' pods."""
    items = []
    for number in range(count):
        items.append(_padded(gpu_node(number), _NODE_KB))
        pod = agent_pod(number)
        pod["status"] = pod_status(0)
        pod["metadata"] |= {"uid": f"uid-{number}", "creationTimestamp": "2026-01-01T00:00:00Z"}
        items.append(_padded(pod, _POD_KB))
    return items


def pod_list(count: int) -> bytes:
    """Return a list of running pods of other people."""
    names = (f"train-{number}" for number in range(count))
    pods = (_padded(fraction(name, number), 3) for number, name in enumerate(names))
    return json.dumps(listed(*pods, kind="PodList")).encode()


def answers(count: int) -> list[bytes]:
    """Return the response of each agent."""
    rng = random.Random(1)
    now = str(int(time.time()) + 3600).encode()  # never old, however long the benchmark takes
    bodies = (response(node_name(number), gpus=GPUS, pods=PODS, rng=rng) for number in range(count))
    return [body.replace(b"1800000000", now) for body in bodies]


def run(kubeconfig: Path, *arguments: str) -> Cost:
    """Run one command as a process; it blocks."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "console", *arguments, "--kubeconfig", str(kubeconfig)],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "COLUMNS": "160"},
        )
        peak = 0.0  # not ru_maxrss, which begins with the memory of this process
        while (used := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            with contextlib.suppress(ValueError):  # it ends
                peak = peak_resident_mib(process.pid)
            time.sleep(0.02)
        process.returncode = os.waitstatus_to_exitcode(used[1])
        out.seek(0)
        text = out.read()
    return Cost(
        status=process.returncode,
        seconds=time.monotonic() - began,
        cpu_seconds=used[2].ru_utime + used[2].ru_stime,
        mib=peak,
        output_kb=len(text) / 1000,
        last_lines=text.decode(errors="replace").splitlines()[-3:],
    )


async def measure(count: int) -> int:
    """Measure every command, and print; return the exit status."""
    bodies = answers(count)

    async def agent(request: web.Request) -> web.StreamResponse:
        match = _AGENT.search(request.path)
        assert match is not None
        body = bodies[int(match[1])] if match[2] == "/api/v1/shares" else b"ok\n"
        return web.Response(body=body, content_type="application/json")

    pods = pod_list(PLACED_PODS * count // NODES)

    async def placed_pods(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=pods, content_type="application/json")

    authority = Authority.create(now=datetime.now(UTC))
    is_within = True
    with tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name:
        folder = Path(name)
        trust = serving_context(authority, folder)
        async with object_server(folder, authority, trust, *objects(count)) as server:
            server.refusals = {_AGENT.pattern: agent, _PLACED: placed_pods}
            print(f"{count} agents, {count * GPUS * PODS} pods, {len(bodies[0]) / 1000:.1f} kB an agent")
            for command, bound in MOST.items():
                server.requests.clear()
                cost = await asyncio.to_thread(run, server.kubeconfig, *command.split())
                is_within = is_within and cost.status in (0, 1) and (count > NODES or cost.mib <= bound)
                print(
                    f"kaishare {command}: {cost.seconds:.1f} s, {cost.cpu_seconds:.1f} s CPU,"
                    f" {cost.mib:.0f} MiB, {cost.output_kb:.0f} kB of output, exit status {cost.status}"
                )
                kinds = Counter(re.sub(r"-\d+", "-N", request) for request in server.urls)
                for request, times in kinds.most_common():
                    print(f"  {times:6} {request}")
                for line in cost.last_lines:
                    print(f"    {line[:150]}")
    return 0 if is_within else 1


def main() -> int:
    """Parse the options and measure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, default=NODES, help="agents (default %(default)s)")
    return asyncio.run(measure(parser.parse_args().nodes))


if __name__ == "__main__":
    sys.exit(main())
