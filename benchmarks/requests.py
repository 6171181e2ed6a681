"""Requests of agents to the API server: at their start, and while nothing changes.

The agents' sources of pods use a service account of a real kube-apiserver, whose audit log says what they
ask; a link counts the bytes (of TLS). Each agent has a client and a node of its own. By default one node has
60 pods in 60 namespaces, 40 of them with a share; `--agents 200 --pods 10` starts 200 agents at the same
moment, with 10 pods in 10 namespaces on each node, all with a share. The figures are then computed for a
cluster of 5,000 such agents. Needs KUBEBUILDER_ASSETS (a folder with etcd and kube-apiserver). Run:
`python -m benchmarks.requests`.
"""

import argparse
import asyncio
import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

from benchmarks.agent import cpu_ms
from benchmarks.agent_cluster import CountingLink, counting_link
from benchmarks.plane import on_a_control_plane
from benchmarks.processes import resident_mib
from gpuagent.pods.cluster_pods import WATCH_TIMING, ClusterPods
from gpuagent.pods.lookups import NAMESPACES, NODES
from kube.access import InCluster
from kube.client import KubeClient
from service.backoff import JITTER_UP
from service.log import JsonLog
from tests.support.administrator import Administrator, right
from tests.support.control_plane import AUDITED, ControlPlane
from tests.support.credentials import in_cluster_environment
from tests.support.kube_objects import NODE, RESERVATIONS, bind_request, fraction, node, pod, reservation

RIGHTS: Final = (
    right("pods", "list", "watch"),
    right("bindrequests", "list", "watch", group="scheduling.run.ai"),
    right("nodes", "get"),
    right("namespaces", "get"),
)
PODS: Final = 60
SHARES: Final = 40
"""Most pods of a node with a share."""
START_SECONDS: Final = 90.0
"""Time after which the namespaces have been read."""
IDLE_SECONDS: Final = 20.0
"""Time before the start, in which what the API server does by itself is counted."""
AGENTS: Final = 5000


def name_of(number: int) -> str:
    """Return the name of a node; the first is that of the tests' objects."""
    return NODE if number == 0 else f"{NODE}-{number}"


async def make_node(admin: Administrator, number: int, pods: int) -> None:
    """Create a node's pods, each in a namespace of its own, and their BindRequests."""
    place = name_of(number)
    made = node()
    made["metadata"]["name"] = place
    await admin.create(made)
    await admin.create(reservation(number=10_000 + number, node=place))
    for index in range(pods):
        namespace, name = f"namespace-{index}", f"train-{number}"
        if index >= SHARES:
            await admin.create(pod(name, index, namespace=namespace, node=place))
            continue
        await admin.create(fraction(name, index, namespace=namespace, node=place))
        request = bind_request(name, index, namespace=namespace)
        request["metadata"]["labels"]["selected-node"] = place
        await admin.create(request)


async def make_nodes(admin: Administrator, count: int, pods: int) -> None:
    """Create nodes with their pods, some at once."""
    for index in range(pods):
        await admin.ensure({"kind": "Namespace", "metadata": {"name": f"namespace-{index}"}})
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await make_node(admin, number, pods)

    await asyncio.gather(*(work() for _ in range(8)))


async def etcd_reads(client: KubeClient) -> int:
    """Return how often the API server has read pods, BindRequests, nodes and namespaces from etcd."""
    text = (await client.get("/metrics", accept="text/plain")).decode()
    pattern = (
        r"^etcd_request_duration_seconds_count\{(?=.*operation=\"(?:get|list|listOnlyKeys)\")"
        r"(?=.*resource=\"(?:pods|bindrequests|nodes|namespaces)\").*\} (\S+)$"
    )
    return int(sum(map(float, re.findall(pattern, text, flags=re.MULTILINE))))


def counted(requests: list[tuple[str, str, dict[str, str]]]) -> Counter[str]:
    """Count requests by verb and resource."""
    return Counter(f"{verb} {resource}" for verb, resource, _ in requests)


def fleet(pods: int) -> None:
    """Print the requests of many agents, from the intervals that the agent keeps."""
    watch = WATCH_TIMING.watch + WATCH_TIMING.spread / 2
    later = sum(JITTER_UP) / 2
    rates = {
        "watches with bookmarks": 2 / watch,
        "watches without bookmarks": 2 / WATCH_TIMING.silence,
        "Node": 1 / (later * NODES.again_seconds),
        "namespaces": (pods + 1) / (later * NAMESPACES.again_seconds),
    }
    print(f"\n{AGENTS} such agents, requests a second on average:")
    for name, rate in rates.items():
        print(f"{name:28} {AGENTS * rate:7.1f}")
    fixed = rates["Node"] + rates["namespaces"]
    for name in ("watches with bookmarks", "watches without bookmarks"):
        print(f"{'in all, ' + name:36} {AGENTS * (fixed + rates[name]):7.1f}")


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Figures of the API server and the links at one time."""

    requests: int
    cpu: float
    """CPU of the API server in seconds."""
    resident_kb: float
    """Resident memory of the API server in kB."""
    etcd: int
    sent: int
    received: int


class Agents:
    """Sources of pods of agents, each with a client of its own through a counting link."""

    def __init__(
        self, plane: ControlPlane, admin: Administrator, token: str, count: int, *, counts_bytes: bool = True
    ) -> None:
        self.count = count
        self._counts_bytes = counts_bytes
        self._plane = plane
        self._admin = admin
        self._token = token
        self._pods: list[ClusterPods] = []
        self._running: list[asyncio.Task[None]] = []
        self._stack = AsyncExitStack()
        self._link = CountingLink(target=plane.port)

    async def __aenter__(self) -> "Agents":
        self._link = await self._stack.enter_async_context(counting_link(self._plane.port))
        environment = in_cluster_environment(self._link.port if self._counts_bytes else self._plane.port)
        for number in range(self.count):
            own = InCluster(folder=self._plane.account(self._token), environment=environment)
            client = await self._stack.enter_async_context(KubeClient(own))
            self._pods.append(
                ClusterPods(
                    client=client,
                    node=name_of(number),
                    reservation_namespace=RESERVATIONS,
                    log=JsonLog(BytesIO()),
                )
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._stack.aclose()

    async def start(self, pods: int, spread: float = 0.0) -> float:
        """Start all agents, evenly within `spread` seconds; return the seconds until each has its pods."""
        began = time.monotonic()
        for number, each in enumerate(self._pods):
            await asyncio.sleep(began + spread * number / self.count - time.monotonic())
            self._running.append(asyncio.create_task(each.run()))
        while any(each.inventory is None for each in self._pods):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.02)
        listed = time.monotonic() - began
        counts = {len(each.inventory.pods) for each in self._pods if each.inventory is not None}
        if counts != {pods}:
            raise SystemExit(f"agents have {sorted(counts)} pods instead of {pods}")
        return listed

    async def now(self) -> Totals:
        """Return the figures so far."""
        process = self._plane.apiserver.process
        assert process is not None
        return Totals(
            cpu=cpu_ms(process) / 1000,
            resident_kb=resident_mib(process.pid) * 1024,
            requests=len(self._plane.requests_of_audited()),
            etcd=await etcd_reads(self._admin.client),
            sent=self._link.sent,
            received=self._link.received,
        )

    def report(self, title: str, before: Totals, after: Totals) -> None:
        """Print what was asked between two moments, in all and for each agent."""
        requests = self._plane.requests_of_audited()[before.requests : after.requests]
        print(f"{title:44} {len(requests):6}   {len(requests) / self.count:8.2f} an agent")
        for name, count in sorted(counted(requests).items()):
            print(f"  {name:42} {count:6}   {count / self.count:8.2f}")
        for name, figure in (
            ("reads of etcd", after.etcd - before.etcd),
            ("ms of CPU of the API server", (after.cpu - before.cpu) * 1000),
            ("kB of resident memory of the API server", after.resident_kb - before.resident_kb),
            ("kB from the API server", (after.sent - before.sent) / 1000),
            ("kB to the API server", (after.received - before.received) / 1000),
        ):
            print(f"  {name:42} {figure:6.0f}   {figure / self.count:8.2f}", flush=True)


def busiest(times: Sequence[float]) -> int:
    """Return the largest number of requests within one second."""
    most, first = 0, 0
    for last, at in enumerate(times):
        while at - times[first] > 1:
            first += 1
        most = max(most, last - first + 1)
    return most


async def measure(options: argparse.Namespace, plane: ControlPlane) -> int:
    """Run the agents' sources of pods and print what they ask."""
    seconds, count, pods = options.seconds, options.agents, options.pods
    async with KubeClient(plane.access()) as client:
        admin = Administrator(client)
        await admin.prepare()
        await make_nodes(admin, count, pods)
        token = await admin.token(AUDITED, *RIGHTS)
        async with Agents(plane, admin, token, count, counts_bytes=not options.spread) as agents:
            idle = await agents.now()
            await asyncio.sleep(IDLE_SECONDS)
            before = await agents.now()
            agents.report(f"in {IDLE_SECONDS:g} s before the start", idle, before)
            listed = await agents.start(pods, options.spread)
            first = START_SECONDS + options.spread
            await asyncio.sleep(first - listed)
            started = await agents.now()
            agents.report(f"in the first {first:g} s", before, started)
            arrivals = plane.arrivals_of_audited()
            print(f"  every agent has its pods after {listed:.1f} s")
            print(f"  requests in the busiest second: {busiest(arrivals)};", end=" ")
            print(f"after the first 10 s: {busiest([at for at in arrivals if at > arrivals[0] + 10])}")
            await asyncio.sleep(seconds)
            title = f"in the next {seconds:g} s, without any change"
            agents.report(title, started, await agents.now())
    fleet(pods)
    return 0


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="seconds without any change")
    parser.add_argument("--agents", type=int, default=1, help="agents (default %(default)s)")
    parser.add_argument(
        "--spread",
        type=float,
        default=0.0,
        help="seconds within which the agents start; above 0, the bytes are not counted, because the link"
        " that counts them bounds how many agents this process can run",
    )
    parser.add_argument("--pods", type=int, default=PODS, help="pods of each node")
    options = parser.parse_args()

    async def run(plane: ControlPlane, _folder: Path) -> int:
        return await measure(options, plane)

    on_a_control_plane(parser, run)


if __name__ == "__main__":
    main()
