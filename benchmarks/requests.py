"""Requests of one agent to the API server: at its start, and while nothing changes.

The agent's source of pods uses a service account of a real kube-apiserver, whose audit log says what it asks.
The node has 60 pods in 60 namespaces, 40 of them with a share. The figures are then computed for a cluster of
5,000 such agents. Needs KUBEBUILDER_ASSETS (a folder with etcd and kube-apiserver). Run:
`python -m benchmarks.requests`.
"""

import argparse
import asyncio
import re
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Final

from benchmarks.plane import on_a_control_plane
from gpuagent.pods.cluster import WATCH_TIMING, ClusterPods
from gpuagent.pods.related import NAMESPACES, NODES
from kube.client import KubeClient
from service.backoff import JITTER_UP
from service.log import JsonLog
from tests.support.administrator import Administrator, right
from tests.support.control_plane import AUDITED, ControlPlane
from tests.support.kube_objects import NODE, RESERVATIONS, bind_request, fraction, node, pod, reservation

RIGHTS: Final = (
    right("pods", "list", "watch"),
    right("bindrequests", "list", "watch", group="scheduling.run.ai"),
    right("nodes", "get"),
    right("namespaces", "get"),
)
PODS: Final = 60
SHARES: Final = 40
START_SECONDS: Final = 90.0
"""Time after which the namespaces have been read."""
IDLE_SECONDS: Final = 60.0
"""Time before the start, in which the API server's own reads of etcd are counted."""
AGENTS: Final = 5000


async def make_node(admin: Administrator) -> None:
    """Create the node's pods, each in a namespace of its own, and their BindRequests."""
    await admin.create(node())
    await admin.create(reservation())
    for number in range(PODS):
        namespace = f"namespace-{number}"
        await admin.ensure({"kind": "Namespace", "metadata": {"name": namespace}})
        if number < SHARES:
            await admin.create(fraction("train", number, namespace=namespace))
            await admin.create(bind_request("train", number, namespace=namespace))
        else:
            await admin.create(pod("train", number, namespace=namespace))


async def etcd_reads(client: KubeClient) -> int:
    """Return how often the API server has read pods, BindRequests, nodes and namespaces from etcd."""
    text = (await client.get("/metrics", accept="text/plain")).decode()
    pattern = (
        r"^etcd_request_duration_seconds_count\{(?=.*operation=\"(?:get|list|listOnlyKeys)\")"
        r"(?=.*resource=\"(?:pods|bindrequests|nodes|namespaces)\").*\} (\S+)$"
    )
    return int(sum(map(float, re.findall(pattern, text, flags=re.MULTILINE))))


def counted(requests: list[tuple[str, str, dict[str, str]]]) -> Counter[str]:
    """Count requests by verb and resource; a watch that reads the whole state first is counted apart."""
    return Counter(
        f"{verb} {resource}{', whole state first' if 'sendInitialEvents' in query else ''}"
        for verb, resource, query in requests
    )


def fleet() -> None:
    """Print the requests of many agents, from the intervals that the agent keeps."""
    watch = WATCH_TIMING.watch + WATCH_TIMING.spread / 2
    later = sum(JITTER_UP) / 2
    rates = {
        "watches with bookmarks": 2 / watch,
        "watches without bookmarks": 2 / WATCH_TIMING.silence,
        "Node": 1 / (later * NODES.again_seconds),
        "namespaces": (PODS + 1) / (later * NAMESPACES.again_seconds),
    }
    print(f"\n{AGENTS} such agents, requests a second on average:")
    for name, rate in rates.items():
        print(f"{name:28} {AGENTS * rate:7.1f}")
    fixed = rates["Node"] + rates["namespaces"]
    for name in ("watches with bookmarks", "watches without bookmarks"):
        print(f"{'in all, ' + name:36} {AGENTS * (fixed + rates[name]):7.1f}")


async def measure(seconds: float, plane: ControlPlane) -> int:
    """Run the agent's source of pods and print what it asks."""
    async with KubeClient(plane.access()) as client:
        admin = Administrator(client)
        await admin.prepare()
        await make_node(admin)
        token = await admin.token(AUDITED, *RIGHTS)
        async with KubeClient(plane.access(token)) as own:
            pods = ClusterPods(
                client=own, node=NODE, reservation_namespace=RESERVATIONS, log=JsonLog(BytesIO())
            )
            idle = await etcd_reads(client)
            await asyncio.sleep(IDLE_SECONDS)
            before = await etcd_reads(client)
            print(
                f"{'reads of etcd a minute without the agent':44} {(before - idle) * 60 / IDLE_SECONDS:5.1f}"
            )
            running = asyncio.create_task(pods.run())
            await asyncio.sleep(START_SECONDS)
            start = plane.requests_of_audited()
            middle = await etcd_reads(client)
            print(f"{'in the first ' + format(START_SECONDS, 'g') + ' s':44} {len(start):5}")
            for name, count in sorted(counted(start).items()):
                print(f"  {name:42} {count:5}")
            print(f"  {'reads of etcd':42} {middle - before:5}", flush=True)
            await asyncio.sleep(seconds)
            quiet = plane.requests_of_audited()[len(start) :]
            after = await etcd_reads(client)
            print(f"{'in the next ' + format(seconds, 'g') + ' s, without any change':44} {len(quiet):5}")
            for name, count in sorted(counted(quiet).items()):
                print(f"  {name:42} {count:5}")
            print(f"  {'reads of etcd':42} {after - middle:5}")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    fleet()
    return 0


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="seconds without any change")
    options = parser.parse_args()

    async def run(plane: ControlPlane, _folder: Path) -> int:
        return await measure(options.seconds, plane)

    on_a_control_plane(parser, run)


if __name__ == "__main__":
    main()
