"""Time, memory and latency of reading what runs in a large cluster.

A simulated API server on loopback lists Deployments with their ReplicaSets, and pods of about 7 kB each. A
second process reads and explains them, without the collector of reference cycles. Run: `python -m
benchmarks.explain_live`. The benchmark fails if it takes more than `MOST_MIB`, or if the event loop is
blocked for longer than `MOST_BLOCKED_SECONDS`.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from certs.authority import Authority
from console.explain.explainer import ExplainedPod, Explainer
from console.explain.live_workloads import live_workloads
from kube.access import InCluster
from kube.client import KubeClient
from tests.support.api_server import ApiServer, says
from tests.support.certificates import serving_context
from tests.support.credentials import write_service_account
from tests.support.live_objects import Json, live_pod, reference, template, workload
from tests.support.memory import peak_resident_mib
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy

MOST_MIB = 100.0
"""Maximum memory for up to 5,000 workloads with any number of pods."""
MOST_BLOCKED_SECONDS = 0.25
_NAMESPACES = 50
_PROBE_SECONDS = 0.005
_FIELDS = [{"manager": "kubelet", "fieldsV1": {"f:status": {f"f:{number}": {} for number in range(150)}}}]


def namespace_of(number: int) -> str:
    """Return the namespace of an object."""
    return f"team-{number % _NAMESPACES}"


def deployment(number: int) -> Json:
    """Build a Deployment with a template of about 3 kB."""
    return large_workload("Deployment", f"web-{number}", namespace=namespace_of(number))


def replica_set(number: int) -> Json:
    """Build the ReplicaSet of a Deployment."""
    owner = reference("Deployment", f"web-{number}")
    return large_workload("ReplicaSet", f"web-{number}-1", owner, namespace=namespace_of(number))


def large_workload(kind: str, name: str, *owners: Json, namespace: str) -> Json:
    """Build a workload with a template of about 3 kB."""
    pod = template(labels={"app": "web"})
    pod["spec"]["containers"][0]["args"] = ["x" * 3000]
    made = workload(kind, name, *owners, namespace=namespace, template=pod)
    made["metadata"]["managedFields"] = _FIELDS
    return made


def pod_of(number: int, workloads: int) -> Json:
    """Build a pod of one of the ReplicaSets; without workloads, a pod without an owner."""
    parent = number % workloads if workloads else number
    owners = [reference("ReplicaSet", f"web-{parent}-1")] if workloads else []
    made = live_pod(f"web-{parent}-{number}", *owners, namespace=namespace_of(parent))
    made["metadata"]["managedFields"] = _FIELDS
    made["spec"]["containers"][0]["args"] = ["x" * 4000]
    return made


def list_of(kind: str, items: list[bytes]) -> bytes:
    """Return a list of objects."""
    head = json.dumps({"kind": f"{kind}List", "metadata": {"resourceVersion": "1"}})
    return head[:-1].encode() + b', "items": [' + b",".join(items) + b"]}"


async def serve_and_measure(arguments: argparse.Namespace, folder: Path) -> int:
    """Serve the lists, and measure with a second process."""
    count = arguments.workloads
    lists = {
        "/apis": b'{"items": []}',
        "/apis/apps/v1/deployments": list_of("Deployment", [encoded(deployment(n)) for n in range(count)]),
        "/apis/apps/v1/replicasets": list_of("ReplicaSet", [encoded(replica_set(n)) for n in range(count)]),
        "/api/v1/pods": list_of("Pod", [encoded(pod_of(n, count)) for n in range(arguments.pods)]),
    }

    async def answer(request: web.Request) -> web.StreamResponse:
        body = lists.get(request.path)
        return await says(body or b"{}", status=200 if body else 404)(request)

    authority = Authority.create(now=datetime.now(UTC))
    server = ApiServer(trust=serving_context(authority, folder), always=answer)
    await server.start()
    account = write_service_account(folder / "account", token="any", ca=authority.pair.certificate_pem)
    environment = json.dumps(server.environment)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.explain_live", "--account", str(account), environment)
        )
        return await process.wait()
    finally:
        await server.stop()


def encoded(item: Json) -> bytes:
    """Return an object as JSON."""
    return json.dumps(item).encode()


async def measure(account: Path, environment: dict[str, str]) -> int:
    """Read the cluster, and print what it takes."""
    policies = {}
    for number in range(_NAMESPACES):
        labels = {"kai.scheduler/queue": "queue-a", "kaishare.dev/gpu-fraction": "0.5"}
        policy = NamespacePolicy.from_labels(namespace_of(number), labels)
        assert policy is not None
        policies[namespace_of(number)] = policy
    gc.disable()
    probe = asyncio.create_task(longest_pause())
    before = peak_resident_mib(pid())
    started = time.perf_counter()
    async with KubeClient(InCluster(folder=account, environment=environment)) as client:
        result = await live_workloads(
            client, Explainer("default", policies, DecisionSettings()), namespaces=None
        )
    seconds = time.perf_counter() - started
    probe.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await probe
    pods = [item for item in result.items if isinstance(item, ExplainedPod)]
    running = sum(item.running.pods for item in pods if item.running)
    mib = peak_resident_mib(pid()) - before
    print(f"{len(pods)} workloads, {running} pods: {seconds:.1f} s, {mib:.0f} MiB beyond the start,")
    print(f"event loop blocked for {1000 * max(pauses):.0f} ms at most; notes: {list(result.notes)}")
    is_good = max(pauses) <= MOST_BLOCKED_SECONDS and (len(pods) > 5000 or mib <= MOST_MIB)
    return 0 if is_good else 1


pauses: list[float] = [0.0]


async def longest_pause() -> None:
    """Record how much later than requested a timer fires."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(_PROBE_SECONDS)
        pauses[0] = max(pauses[0], time.perf_counter() - before - _PROBE_SECONDS)


def pid() -> int:
    """Return the number of this process."""
    return int(Path("/proc/self").readlink().name)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=5000, help="number of Deployments")
    parser.add_argument("--pods", type=int, default=20_000, help="number of pods")
    parser.add_argument("--account", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.account:
        folder, environment = arguments.account
        sys.exit(asyncio.run(measure(Path(folder), json.loads(environment))))
    with tempfile.TemporaryDirectory(prefix="kaishare-benchmark-") as name:
        sys.exit(asyncio.run(serve_and_measure(arguments, Path(name))))


if __name__ == "__main__":
    main()
