"""Memory, CPU and delay of the webhook in a cluster with many managed namespaces.

A real process of `kaishare-webhook serve` uses a service account of a real kube-apiserver with many
namespaces that have a policy. Needs KUBEBUILDER_ASSETS (a folder with etcd and kube-apiserver). Run: `python
-m benchmarks.cluster_policies`.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.agent import cpu_ms
from benchmarks.cluster_pods import create_all, memory_mib
from benchmarks.plane import on_a_control_plane
from kube.client import KubeClient
from tests.support.administrator import Administrator, right
from tests.support.cluster_webhook import Serving, managed_namespace, serving
from tests.support.control_plane import ControlPlane
from tests.support.webhook_in_a_pod import in_a_pod

MOST_MIB = 90.0
PATH = "/api/v1/namespaces"
CHANGES = 100


def namespaces(count: int) -> Iterable[dict[str, Any]]:
    """Build namespaces with a few different policies, one in a hundred invalid."""
    for number in range(count):
        made = managed_namespace(
            f"team-{number}",
            queue=f"queue-{number % 7}",
            gpu_fraction="2" if number % 100 == 99 else f"0.{1 + number % 5}",
            priority="train",
        )
        yield {**made, "metadata": {**made["metadata"], "annotations": {"description": "x" * 2000}}}


async def until(what: str, holds: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> float:
    """Wait for a condition; return the seconds it took."""
    began = time.monotonic()
    while not await holds():
        if time.monotonic() - began > seconds:
            raise SystemExit(f"timeout after {seconds:g} s: {what}")
        await asyncio.sleep(0.002)
    return time.monotonic() - began


async def policies(webhook: Serving) -> dict[str, dict[str, Any]]:
    """Return the policies that the webhook uses."""
    return {each["namespace"]: each for each in json.loads((await webhook.get("/policies"))[1])}


async def label(client: KubeClient, name: str, value: str) -> None:
    """Change a namespace's default share."""
    change = {"metadata": {"labels": {"kaishare.dev/gpu-fraction": value}}}
    await client.request(
        "PATCH",
        f"{PATH}/{name}",
        body=json.dumps(change).encode(),
        content_type="application/merge-patch+json",
    )


async def measure(count: int, seconds: float, plane: ControlPlane, folder: Path) -> int:
    """Fill the cluster, run the webhook, print the results; return 1 if it exceeds its memory limit."""
    async with KubeClient(plane.access()) as client:
        admin = Administrator(client)
        await admin.prepare()
        await create_all(client, PATH, namespaces(count))
        rights = [right("namespaces", "get", "list", "watch"), right("events", "create", "patch")]
        pod = in_a_pod(plane, await admin.token("webhook", *rights), folder)
        options = ("--policies", "cluster", "--certs", f"{folder}/tls")
        async with serving(
            folder / "log", *options, program=pod.program, environment=pod.environment, is_forked=False
        ) as webhook:

            async def is_ready() -> bool:
                return (await webhook.get("/readyz"))[0] == 200

            def show(what: str, spent_ms: float, took: float) -> None:
                now, most = (memory_mib(webhook.process.pid, figure) for figure in ("VmRSS", "VmHWM"))
                print(f"{what:36} {spent_ms / took:10.1f} {now:10.1f} {most:10.1f}", flush=True)

            took = await until("ready", is_ready)
            known = len(await policies(webhook))
            if known != count:
                raise SystemExit(f"{known} policies instead of {count}")
            print(f"{count} managed namespaces; ready {1000 * took:.0f} ms after the port was open")
            print(f"{'':36} {'CPU ms/s':>10} {'resident':>10} {'peak (MiB)':>10}")
            before, began = cpu_ms(webhook.process), time.monotonic()
            await asyncio.sleep(seconds)
            show("at rest", cpu_ms(webhook.process) - before, time.monotonic() - began)
            before, began = cpu_ms(webhook.process), time.monotonic()
            for number in range(CHANGES):
                await label(client, f"team-{number}", "0.9")
            show(f"{CHANGES} changed policies", cpu_ms(webhook.process) - before, time.monotonic() - began)
            behind = [await lag(client, webhook, number) for number in range(20)]
            print(f"a changed label is active after {1000 * statistics.median(behind):.0f} ms (median),")
            print(f"{1000 * max(behind):.0f} ms (maximum), including the time of a request to /policies")
            most = memory_mib(webhook.process.pid, "VmHWM")
    print(f"peak resident memory {most:.1f} MiB, {'within' if most <= MOST_MIB else 'OVER'} {MOST_MIB:g}")
    return int(most > MOST_MIB)


async def lag(client: KubeClient, webhook: Serving, number: int) -> float:
    """Return the seconds between the API server's answer to a change and its use by the webhook."""
    name, value = f"team-{number}", f"0.{10 + number}"
    await label(client, name, value)

    async def is_taken_up() -> bool:
        share: dict[str, str] = (await policies(webhook))[name]["share"]
        return share.get("gpu-fraction") == value

    return await until("a changed label", is_taken_up)


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespaces", type=int, default=1000, help="managed namespaces")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of the idle phase")
    options = parser.parse_args()
    if options.namespaces < CHANGES:
        parser.error(f"--namespaces {options.namespaces}: allowed: {CHANGES} or more")
    on_a_control_plane(
        parser, lambda plane, folder: measure(options.namespaces, options.seconds, plane, folder)
    )


if __name__ == "__main__":
    main()
