"""Replicas of the webhook in a large and busy cluster: `python -m benchmarks.busy_webhook`.

A real API server has 10,000 namespaces, of which 1,000 are managed. Two replicas with the chart's rights
start as in a pod. Then reviews of pods in the managed namespaces arrive at a steady rate, 1,000 a second for
both replicas together, over kept connections as from two API servers, while namespaces get other labels.
Prints the time until each replica is ready, its memory, its CPU for a review, the latencies, and how long a
changed label takes to be in force.

Exits with 1 if a replica needs more than 90 MiB, a review is not answered with a patch, or a label is not in
force within a second. The client (benchmarks/go_load) shares the machine with the replicas; where it cannot
keep the rate, the line says so, and the CPU is the better figure. Needs KUBEBUILDER_ASSETS (a folder with
etcd and kube-apiserver), go, and taskset for `--cores`.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import os
import random
import ssl
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.agent import cpu_ms
from benchmarks.go_programs import build
from benchmarks.plane import on_a_control_plane
from benchmarks.reviews import pod_review_body
from kai import keys
from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import WEBHOOK_RIGHTS, Serving, ca_of, serving
from tests.support.control_plane import ControlPlane
from tests.support.memory import peak_resident_mib
from tests.support.waiting import until
from tests.support.webhook_in_a_pod import in_a_pod

MOST_MIB: Final = 90.0
MOST_SECONDS_TO_FORCE: Final = 1.0
CONNECTIONS: Final = 50
"""Connections to one replica: two API servers keep about 25 each."""
_PATH: Final = "/api/v1/namespaces"


def namespace(number: int, managed: int) -> dict[str, Any]:
    """Return a namespace with the labels of a platform; the first ones are managed."""
    labels = {"team": f"team-{number % 200}", "pod-security.kubernetes.io/enforce": "baseline"}
    if number < managed:
        labels |= {
            keys.QUEUE_LABEL: f"queue-{number % 50}",
            "kaishare.dev/gpu-fraction": "0.5",
            "kaishare.dev/priority": "train",
            "kaishare.dev/max-gpu-fraction": "1",
            "size.kaishare.dev/small": "0.25",
        }
    metadata = {"name": f"team-{number:05}", "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


@dataclass(frozen=True, kw_only=True)
class Load:
    """Reviews at a steady rate, from a client in Go."""

    program: Path
    reviews: Path
    """File with a review on each line."""
    authorities: Sequence[Path]
    urls: Sequence[str]

    async def run(self, rate: float, seconds: float, core: int | None = None) -> dict[str, Any]:
        """Send each review at its time, even if earlier ones wait; return the client's result."""
        client = await asyncio.create_subprocess_exec(
            *([] if core is None else ["taskset", "-c", str(core)]),
            self.program,
            f"-reviews={self.reviews}",
            f"-ca={','.join(map(str, self.authorities))}",
            f"-rate={rate}",
            f"-seconds={seconds}",
            f"-connections={CONNECTIONS}",
            *self.urls,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await client.communicate()
        if client.returncode:
            raise SystemExit("the client ended")
        result: dict[str, Any] = json.loads(output)
        return result


async def change_labels(
    client: KubeClient, sessions: Sequence[tuple[aiohttp.ClientSession, str]], managed: int
) -> list[float]:
    """Change labels until cancelled; return the seconds until each was in force in every replica."""
    taken: list[float] = []
    chance = random.Random(2)
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            name, fraction = (
                f"team-{chance.randrange(managed):05}",
                f"0.{chance.randrange(1, 10)}{chance.randrange(1, 10)}",
            )
            patch = {"metadata": {"labels": {"kaishare.dev/gpu-fraction": fraction}}}
            began = time.monotonic()
            await client.request(
                "PATCH",
                f"{_PATH}/{name}",
                body=json.dumps(patch).encode(),
                content_type="application/merge-patch+json",
            )
            review = pod_review_body(name)
            for session, url in sessions:
                while True:
                    async with session.post(f"{url}/mutate?timeout=5s", data=review) as answer:
                        response = json.loads(await answer.read())["response"]
                    if f'"{fraction}"'.encode() in base64.b64decode(response["patch"]):
                        break
            taken.append(time.monotonic() - began)
            await asyncio.sleep(2)
    return taken


async def at_rate(
    load: Load, replicas: Sequence[Serving], rate: float, seconds: float, core: int | None
) -> dict[str, int]:
    """Send reviews at one rate, and print the figures; return the number of answers by kind."""
    before = [cpu_ms(replica.process) for replica in replicas]
    result = await load.run(rate, seconds, core)
    cpu = sum(cpu_ms(replica.process) for replica in replicas) - sum(before)
    answers: dict[str, int] = result["answers"]
    print(
        f"{rate:5.0f} reviews a second ({result['rate']:.0f} kept):"
        f" CPU {cpu / sum(answers.values()) * 1000:.0f} µs a review,"
        f" {cpu / seconds / 10 / len(replicas):.0f} % of a core for each replica;"
        f" p50 {result['p50']:.1f}, p99 {result['p99']:.1f}, longest {result['longest']:.0f} ms;"
        f" sent late, p99: {result['late_send_p99']:.1f} ms; {answers}",
        flush=True,
    )
    return answers


async def measure(options: argparse.Namespace, plane: ControlPlane, folder: Path) -> int:
    """Measure, print, and return the exit status."""
    problems: list[str] = []
    async with KubeClient(plane.access()) as client, AsyncExitStack() as stack:
        admin = Administrator(client)
        await admin.prepare()
        began = time.monotonic()
        numbers = range(options.namespaces)
        for some in (numbers[at : at + 8] for at in range(0, len(numbers), 8)):
            created = (json.dumps(namespace(number, options.managed)).encode() for number in some)
            await asyncio.gather(*(client.request("POST", _PATH, body=body, seconds=60) for body in created))
        print(f"{options.namespaces} namespaces created in {time.monotonic() - began:.0f} s", flush=True)
        token = await admin.token("webhook", *WEBHOOK_RIGHTS)
        replicas, sessions, authorities = [], [], []
        for number in range(options.replicas):
            own = folder / f"replica-{number}"
            own.mkdir()
            pod = in_a_pod(plane, token, own)
            settings = {"program": pod.program, "environment": pod.environment, "is_forked": False}
            certificates = ("--certs", f"{own}/tls", "--host-name", "127.0.0.1")
            began = time.monotonic()
            replica = await stack.enter_async_context(
                serving(own / "log", "--policies", "cluster", *certificates, **settings)
            )
            await until(partial(is_ready, replica), "the replica is ready")
            print(
                f"replica {number}: ready after {time.monotonic() - began:.1f} s,"
                f" peak memory {peak_resident_mib(replica.process.pid):.1f} MiB",
                flush=True,
            )
            if options.cores:
                pin(replica.process.pid, options.cores[0])
            replicas.append(replica)
            authorities.append(own / "tls" / "ca.crt")
            trust = ssl.create_default_context(cadata=ca_of(own).decode())
            connector = aiohttp.TCPConnector(ssl=trust)
            session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
            sessions.append((session, replica.target.url))
        bodies = [pod_review_body(f"team-{number:05}") for number in range(options.managed)]
        random.Random(1).shuffle(bodies)
        (folder / "reviews").write_bytes(b"".join(body + b"\n" for body in bodies))
        load = Load(
            program=build("go_load", folder),
            reviews=folder / "reviews",
            authorities=authorities,
            urls=[f"{url}/mutate?timeout=5s" for _, url in sessions],
        )
        core = options.cores[1] if options.cores else None
        await load.run(100, 2, core)  # warms up
        changing = asyncio.create_task(change_labels(client, sessions, options.managed))
        for rate in options.rate:
            answers = await at_rate(load, replicas, rate, options.seconds, core)
            problems += [f"{number} answers: {kind}" for kind, number in answers.items() if kind != "patched"]
        changing.cancel()
        taken = await changing
        print(
            f"{len(taken)} labels in force after {statistics.median(taken):.2f} s, at most {max(taken):.2f} s"
        )
        if max(taken) > MOST_SECONDS_TO_FORCE:
            problems.append(f"a label was in force only after {max(taken):.2f} s")
        for number, replica in enumerate(replicas):
            peak = peak_resident_mib(replica.process.pid)
            print(f"replica {number}: peak memory {peak:.1f} MiB, bound {MOST_MIB:g}")
            if peak > MOST_MIB:
                problems.append(f"replica {number} needs {peak:.1f} MiB")
    print("\n".join(problems) or "within the bounds")
    return int(bool(problems))


def pin(pid: int, core: int) -> None:
    """Let all threads of a process run on one core."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


async def is_ready(replica: Serving) -> bool:
    """Whether a replica answers reviews with the cluster's policies."""
    return (await replica.get("/readyz"))[0] == 200


def main() -> None:
    """Parse the options and measure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.busy_webhook",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--namespaces", type=int, default=10_000, help="namespaces (default %(default)s)")
    parser.add_argument("--managed", type=int, default=1000, help="managed ones (default %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=20, help="seconds at each rate (default %(default)s)"
    )
    parser.add_argument(
        "--rate", type=float, nargs="+", default=[100, 1000], help="reviews a second (default %(default)s)"
    )
    parser.add_argument("--replicas", type=int, default=2, help="replicas (default %(default)s)")
    parser.add_argument(
        "--cores",
        type=int,
        nargs=2,
        metavar=("REPLICAS", "CLIENT"),
        help="the core of all replicas, and that of the client (default: any)",
    )
    options = parser.parse_args()
    on_a_control_plane(parser, lambda plane, folder: measure(options, plane, folder))


if __name__ == "__main__":
    main()
