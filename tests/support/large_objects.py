"""The largest objects that an API server accepts, and a probe for the latency of /healthz."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import aiohttp

from kube.answers import ApiError
from kube.client import KubeClient
from tests.support.kinds import made

POD_BYTES = 1_400_000
"""Size of one pod as JSON; etcd refuses requests of more than 1.5 MiB (Kubernetes 1.36.3)."""

MANAGED_NAMESPACE = {"kai.scheduler/queue": "queue-a", "kaishare.dev/gpu-fraction": "0.5"}
_AT_ONCE = 8
_PROBE_EVERY_SECONDS = 0.05


def largest_pods(count: int, *, namespace: str, node: str) -> Iterator[dict[str, Any]]:
    """Yield pods of one node, each of the largest accepted size, of four kinds in turn."""
    kinds = cycle((_with_shell_scripts, _with_many_containers, _with_one_long_argument, _with_annotations))
    for number in range(count):
        metadata: dict[str, Any] = {"name": f"large-{number}", "namespace": namespace}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": node}}
        next(kinds)(pod)
        yield pod


def _with_shell_scripts(pod: dict[str, Any]) -> None:
    """Build 80 containers whose shell scripts consist of quoted words, the most expensive text to split."""
    script = "'a b' " * 2700
    pod["spec"]["containers"] = [
        {"name": f"c{number}", "image": "x", "command": ["sh", "-c", script]} for number in range(80)
    ]


def _with_many_containers(pod: dict[str, Any]) -> None:
    """Build as many containers as fit; the API server adds 200 bytes of defaults to each."""
    pod["spec"]["containers"] = [{"name": f"c{number}", "image": "x"} for number in range(2500)]


def _with_one_long_argument(pod: dict[str, Any]) -> None:
    digits = "--gpu-memory-utilization=" + "1" * (POD_BYTES - 2000)
    pod["spec"]["containers"] = [{"name": "main", "image": "x", "args": ["vllm", "serve", "m", digits]}]


def _with_annotations(pod: dict[str, Any]) -> None:
    """Build annotations of 250 KB, near the API server's limit, and environment variables for the rest."""
    pod["metadata"]["annotations"] = {"note": "-aaaaaaa" * 31_000}
    variables = [{"name": f"V{number}", "value": "v" * 100} for number in range(8000)]
    pod["spec"]["containers"] = [{"name": "main", "image": "x", "env": variables}]


def namespace_with_labels(name: str, labels: int) -> dict[str, Any]:
    """Return a managed namespace with many unknown kaishare labels, each similar to a known one."""
    unknown = {f"kaishare.dev/gpu-fractoin-{number}": "x" for number in range(labels)}
    return made("Namespace", name, labels={**MANAGED_NAMESPACE, **unknown})


def deep_fields(levels: int) -> str:
    """Return fields as in the `fieldsV1` of managedFields, nested to this depth."""
    return '{"f:a":' * levels + "{}" + "}" * levels


def object_with_deep_fields(piece: bytes, levels: int, *, depth: int = 2000, size: int = POD_BYTES) -> bytes:
    """Return an object whose managedFields are deep, and are filled with pieces inside so many lists."""
    pieces = b",".join([piece] * (size // (len(piece) + 1)))
    fields = b'{"a":' + b"[" * depth + b"1" + b"]" * depth + b',"b":' + b"[" * levels + pieces + b"]" * levels
    labels = b'"labels":{"kai.scheduler/queue":"queue-a"}'
    metadata = b'"name":"a","uid":"u","resourceVersion":"7",' + labels
    return b'{"metadata":{' + metadata + b',"managedFields":[{"fieldsV1":' + fields + b'}}]},"kind":"x"}'


async def create_all(client: KubeClient, path: str, items: Iterable[dict[str, Any]]) -> None:
    """Create objects, eight at a time; skip existing objects."""
    left = iter(items)

    async def create_some() -> None:
        for item in left:
            try:
                await client.request("POST", path, body=json.dumps(item).encode(), seconds=60)
            except ApiError as error:
                if error.status != 409:
                    raise

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(create_some())


async def annotate(client: KubeClient, paths: Iterable[str]) -> None:
    for number, path in enumerate(paths):
        body = json.dumps({"metadata": {"annotations": {"changed": str(number)}}}).encode()
        await client.request(
            "PATCH", path, body=body, content_type="application/merge-patch+json", seconds=60
        )


@dataclass
class HealthProbe:
    answers: int = 0
    slowest_seconds: float = 0.0
    failure: str = ""
    """The last answer other than 200, or the last error; empty without one."""


@asynccontextmanager
async def probing(url: str) -> AsyncIterator[HealthProbe]:
    """Request /healthz twenty times a second, each on a new connection, as a kubelet does."""
    probe = HealthProbe()

    async def ask_repeatedly() -> None:
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
            while True:
                began = time.monotonic()
                try:
                    async with session.get(f"{url}/healthz") as response:
                        if response.status != 200:
                            probe.failure = f"{response.status} {await response.text()}"
                except aiohttp.ClientError as error:
                    probe.failure = str(error)
                probe.answers += 1
                probe.slowest_seconds = max(probe.slowest_seconds, time.monotonic() - began)
                await asyncio.sleep(_PROBE_EVERY_SECONDS)

    task = asyncio.create_task(ask_repeatedly())
    try:
        yield probe
    finally:
        task.cancel()
        await asyncio.wait([task])
