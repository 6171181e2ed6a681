"""Pods created while replicas are replaced, killed, or switched to another mode, and while the CA rotates.

A real kube-apiserver creates real pods at a steady rate in a managed namespace. Two processes of
`kaishare-webhook serve` run behind a load balancer that works like kube-proxy (`benchmarks.balancer`).

Phase A replaces the replicas one after another, like a Deployment with maxSurge 1: the new replica is ready,
the old one gets SIGTERM, and its endpoint is removed only `--lag` later. Phase B adds a new CA to the Secret
repeatedly; the replicas rotate their certificates as they do for an expiring CA, with a shorter wait. Phase C
kills one replica with SIGKILL; its endpoint also remains for `--lag`. Phase D replaces all replicas by ones
with --default-mode=observe, and those by ones with the mode default.

At the end the pods are read from etcd. The benchmark exits with 1 if a creation failed, if a pod of phase A
or B lacks a change that its namespace requires, or if phase C lost more pods than connections were aborted or
refused, or another number than the API server counts. In phase D every pod has all changes or none.
Needs KUBEBUILDER_ASSETS (a folder with etcd and
kube-apiserver). Run: `python -m benchmarks.rollout`; about two minutes.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.balancer import Balancer
from benchmarks.plane import on_a_control_plane
from certs.authority import Authority
from kai import keys
from kube.access import Access
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from service.http.limits import Address
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import (
    WEBHOOK_RIGHTS,
    Canary,
    Serving,
    bare_pod,
    configured,
    ensure_namespaces,
    failed_open,
    managed_namespace,
    our_configurations,
    start_serving,
)
from tests.support.control_plane import ControlPlane
from tests.support.registration import UrlTarget
from tests.support.waiting import until
from webhook.policy.labels import Mode

NAMESPACE = "rollout"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
OWN_NAMESPACE = "team-a"
SECRETS = f"/api/v1/namespaces/{OWN_NAMESPACE}/secrets"
SECRET = "kaishare-webhook-ca"
CONNECTIONS = 16
"""Connections of one client."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Parameters of a run."""

    creations: int = 10_000
    rate: float = 100.0
    """Creations per second."""
    drain: str = "5s"
    lag: float = 1.0
    """Seconds for which the endpoint of a stopped replica remains."""
    burst: int = 1
    """Concurrent creations. An API server keeps 25 idle connections; a larger burst needs new ones."""


@dataclass(kw_only=True)
class Phase:
    """Results of one phase."""

    title: str
    creations: int = 0
    failed: list[str] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    observes: bool = False
    """Whether replicas with --default-mode=observe take part, which change no pod."""
    unmutated: int = 0
    """Pods in etcd without the changes that their namespace requires."""
    partly_mutated: int = 0
    """Those of them with a part of the changes."""
    missing: int = 0
    """Created pods that are not in etcd."""
    failed_open: float = 0
    """Reviews that the API server skipped, by its own count."""
    lost_connections: int = 0
    """Connections that were refused, or aborted with an answer pending."""
    events: int = 0
    """Number of replaced replicas, rotated CAs, or killed replicas."""


class Replicas:
    """The webhook processes behind the balancer."""

    def __init__(self, balancer: Balancer, *, kubeconfig: Path, folder: Path, plan: Plan) -> None:
        self._balancer = balancer
        self._kubeconfig = kubeconfig
        self._folder = folder
        self._plan = plan
        self._count = 0
        self._default_mode = Mode.DEFAULT
        self.running: list[Serving] = []

    async def add(self) -> None:
        """Start a replica; the balancer uses it once it is ready."""
        self._count += 1
        certificates = f"--certs self --namespace {OWN_NAMESPACE} --host-name 127.0.0.1 --bundle-wait 2s"
        policy = f"--default-mode {self._default_mode}"
        options = f"--kubeconfig {self._kubeconfig} {certificates} --drain {self._plan.drain} {policy}"
        replica = await start_serving(self._folder / f"log-{self._count}", *options.split())
        self.running.append(replica)

        async def is_ready() -> bool:
            return (await replica.get("/readyz"))[0] == 200

        await until(is_ready, "the replica is ready")
        self._balancer.add(replica.admission)

    async def replace(self) -> None:
        """Start a new replica and stop the oldest."""
        await self.add()
        old = self.running.pop(0)
        old.terminate()
        await self._forget_later(old.admission)
        if status := await old.ended():
            raise SystemExit(f"a replica ended with {status}: {old.log}")

    async def switch(self) -> None:
        """Replace every replica by one with the other default mode, as an upgrade of the chart does."""
        self._default_mode = Mode.OBSERVE if self._default_mode is Mode.DEFAULT else Mode.DEFAULT
        for _ in range(len(self.running)):
            await self.replace()

    async def kill(self) -> None:
        """Kill the oldest replica with SIGKILL, and start another."""
        old = self.running.pop(0)
        await old.kill()
        await self._forget_later(old.admission)
        await self.add()

    async def stop(self) -> None:
        """Stop all replicas."""
        for replica in self.running:
            await replica.kill()

    async def _forget_later(self, endpoint: Address) -> None:
        await asyncio.sleep(self._plan.lag)
        self._balancer.remove(endpoint)


def _issued(replicas: Sequence[Serving]) -> list[int]:
    """Return the number of certificates that each replica has issued."""
    return [len(replica.logged("certificate issued")) for replica in replicas]


async def rotate(client: KubeClient, replicas: Sequence[Serving]) -> None:
    """Replace the CA in the Secret; wait until every replica serves a certificate of the new CA."""
    following = Authority.create(now=datetime.now(UTC)).pair
    pems = {"next.crt": following.certificate_pem, "next.key": following.key_pem}
    data = {key: base64.b64encode(pem).decode() for key, pem in pems.items()}
    before = _issued(replicas)
    await client.request(
        "PATCH",
        f"{SECRETS}/{SECRET}",
        body=json.dumps({"data": data}).encode(),
        content_type="application/merge-patch+json",
    )
    await until(
        lambda: all(now > then for now, then in zip(_issued(replicas), before, strict=True)),
        "every replica serves a certificate of the new CA",
    )


class Rollout:
    """A webhook in a cluster, and the phases of the benchmark."""

    def __init__(
        self,
        client: KubeClient,
        *,
        access: Access,
        balancer: Balancer,
        replicas: Replicas,
        plan: Plan,
    ) -> None:
        self._client = client
        self._access = access
        self._balancer = balancer
        self._replicas = replicas
        self._plan = plan

    async def run(self) -> list[Phase]:
        """Run all phases."""
        part = self._plan.creations // 5
        rest = self._plan.creations - 4 * part
        return [
            await self._phase("A: replicas replaced", rest, self._replicas.replace, least=2),
            await self._phase(
                "B: CA rotated", 2 * part, lambda: rotate(self._client, self._replicas.running)
            ),
            await self._phase("C: replica killed", part, self._replicas.kill, most=1),
            await self._phase(
                "D: default mode switched", part, self._replicas.switch, least=2, observes=True
            ),
        ]

    async def _phase(
        self,
        title: str,
        creations: int,
        event: Callable[[], Awaitable[None]],
        *,
        least: int = 1,
        most: int | None = None,
        observes: bool = False,
    ) -> Phase:
        """Create pods while an action repeats; then count the results.

        The phase continues beyond the planned number of creations until the action has run often enough.
        """
        phase = Phase(title=title, observes=observes)
        open_before, lost_before = await failed_open(self._client), self._lost()
        async with asyncio.TaskGroup() as group:
            creating = group.create_task(self._create(phase, creations, least))
            await asyncio.sleep(1)
            while not creating.done() and phase.events != most:
                await event()
                phase.events += 1
        phase.failed_open = await failed_open(self._client) - open_before
        phase.lost_connections = self._lost() - lost_before
        await self._read_back(phase)
        await self._client.request("DELETE", PODS, params={"gracePeriodSeconds": "0"}, seconds=300)
        return phase

    def _lost(self) -> int:
        return self._balancer.cut_off + self._balancer.refused

    async def _create(self, phase: Phase, creations: int, least_events: int) -> None:
        """Create pods at a steady rate."""
        at_once, began = max(CONNECTIONS, self._plan.burst), time.monotonic()
        turns = asyncio.Semaphore(at_once)

        async def create(number: int) -> None:
            body, client = json.dumps(bare_pod(f"pod-{number}")).encode(), clients[number % len(clients)]
            try:
                started = time.perf_counter()
                await client.request("POST", PODS, body=body)
                phase.milliseconds.append((time.perf_counter() - started) * 1000)
            except (ApiError, Unreachable) as error:
                phase.failed.append(str(error))
            finally:
                turns.release()

        async with contextlib.AsyncExitStack() as stack:
            made = [KubeClient(self._access) for _ in range(-(-at_once // CONNECTIONS))]
            clients = [await stack.enter_async_context(client) for client in made]
            async with asyncio.TaskGroup() as group:
                while phase.creations < creations or phase.events < least_events:
                    if phase.creations % self._plan.burst == 0:
                        due = began + phase.creations / self._plan.rate
                        await asyncio.sleep(max(0, due - time.monotonic()))
                    await turns.acquire()
                    group.create_task(create(phase.creations))
                    phase.creations += 1

    async def _read_back(self, phase: Phase) -> None:
        kept = mutated = 0
        async with self._client.list_objects(PODS) as pods:
            async for pod in pods:
                kept += 1
                document = json.loads(pod)
                mutated += is_mutated(document)
                phase.partly_mutated += not is_mutated(document) and not is_unchanged(document)
        phase.unmutated = kept - mutated
        phase.missing = max(0, phase.creations - len(phase.failed) - kept)


def is_mutated(pod: dict[str, dict[str, object]]) -> bool:
    """Whether a pod has all changes that its namespace requires."""
    is_ours = pod["spec"]["schedulerName"] == keys.SCHEDULER_NAME
    annotations = pod["metadata"].get("annotations")
    return is_ours and isinstance(annotations, dict) and annotations.get(keys.GPU_FRACTION) == "0.5"


def is_unchanged(pod: dict[str, dict[str, object]]) -> bool:
    """Whether a pod is stored as its author wrote it."""
    is_default = pod["spec"]["schedulerName"] == keys.DEFAULT_SCHEDULER
    return is_default and pod["metadata"].keys().isdisjoint({"labels", "annotations"})


def problems(phase: Phase) -> list[str]:
    """Return the unexpected results of a phase."""
    problems_found = [f"{len(phase.failed)} creations failed: {phase.failed[0]}"] if phase.failed else []
    if phase.partly_mutated:
        problems_found.append(f"{phase.partly_mutated} pods with a part of the changes")
    if phase.observes:
        if phase.failed_open:
            problems_found.append(f"no answer for {phase.failed_open:.0f} reviews")
        if phase.unmutated in (0, phase.creations):
            problems_found.append(f"{phase.unmutated} of {phase.creations} pods unmutated: one mode only")
        return problems_found + _missing(phase)
    if phase.unmutated != phase.failed_open:
        problems_found.append(
            f"{phase.unmutated} pods unmutated, but the API server counts {phase.failed_open:.0f} failures"
        )
    if phase.unmutated > (phase.lost_connections if phase.title.startswith("C") else 0):
        problems_found.append(
            f"{phase.unmutated} pods unmutated, with {phase.lost_connections} connections lost"
        )
    return problems_found + _missing(phase)


def _missing(phase: Phase) -> list[str]:
    return [f"{phase.missing} pods that were created are not in etcd"] if phase.missing else []


@contextlib.asynccontextmanager
async def prepared(plane: ControlPlane, folder: Path, plan: Plan) -> AsyncIterator[Rollout]:
    """Start two replicas behind a balancer, and configure them for the pods of one namespace."""
    balancer = Balancer()
    async with KubeClient(plane.access()) as client:
        admin = Administrator(client)
        await admin.ensure({"kind": "Namespace", "metadata": {"name": OWN_NAMESPACE}})
        await ensure_namespaces(client, managed_namespace(NAMESPACE, gpu_fraction="0.5"))
        token = await admin.token("rollout", *WEBHOOK_RIGHTS)
        await admin.post(SECRETS, {"kind": "Secret", "metadata": {"name": SECRET}})
        kubeconfig = plane.kubeconfig(token=token)
        replicas = Replicas(balancer, kubeconfig=kubeconfig, folder=folder, plan=plan)
        target = UrlTarget(f"https://{await balancer.start()}")
        try:
            async with configured(client, *our_configurations(target, b"")):
                for _ in range(2):
                    await replicas.add()
                await Canary(client, NAMESPACE).until_mutated()
                yield Rollout(client, access=plane.access(), balancer=balancer, replicas=replicas, plan=plan)
            await Canary(client, NAMESPACE).until_unchanged()
        finally:
            await replicas.stop()
            await balancer.stop()
            await admin.delete(f"{SECRETS}/{SECRET}")
            await admin.clean_up()


async def measure(plan: Plan, plane: ControlPlane, folder: Path) -> int:
    """Run the benchmark, print the report, and return the exit status."""
    async with prepared(plane, folder, plan) as rollout:
        phases = await rollout.run()
    print(f"{plan.rate:g} creations per second, {plan.burst} at once")
    print(f"drain {plan.drain}, endpoints of stopped replicas remain for {plan.lag:g} s")
    print(
        f"{'phase':24} {'creations':>9} {'failed':>6} {'unmutated':>9} {'failed open':>11} {'lost':>5}"
        f" {'times':>5}  {'p50':>6} {'p99':>6} {'longest':>7} ms"
    )
    problems_found = []
    for phase in phases:
        took = sorted(phase.milliseconds)
        print(
            f"{phase.title:24} {phase.creations:9} {len(phase.failed):6} {phase.unmutated:9}"
            f" {phase.failed_open:11.0f} {phase.lost_connections:5} {phase.events:5}"
            f"  {statistics.median(took):6.1f} {took[int(len(took) * 0.99)]:6.1f} {took[-1]:7.1f}"
        )
        problems_found += [f"{phase.title}: {problem}" for problem in problems(phase)]
    for problem in problems_found:
        print(problem)
    print("no unexpected loss" if not problems_found else "LOST")
    return int(bool(problems_found))


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--creations", type=int, default=Plan.creations, help="creations in all phases together"
    )
    parser.add_argument("--rate", type=float, default=Plan.rate, help="creations per second")
    parser.add_argument("--drain", default=Plan.drain, help="the replicas' --drain")
    parser.add_argument(
        "--lag", type=float, default=Plan.lag, help="seconds for which endpoints of stopped replicas remain"
    )
    parser.add_argument("--burst", type=int, default=Plan.burst, help="concurrent creations")
    options = parser.parse_args()
    plan = Plan(**vars(options))
    on_a_control_plane(parser, lambda plane, folder: measure(plan, plane, folder))


if __name__ == "__main__":
    main()
