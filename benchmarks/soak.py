"""Webhook and agent together on a real API server, at twenty times the usual speed.

Pods come and go in namespaces whose labels change; some use more GPU memory than their share and less again,
some are deleted while they are flagged. The CA of the webhook and the certificate of the agent are replaced
again and again. Clients scrape and load pages over new and kept connections, and some leave before the answer
has arrived. The agent takes samples with NVIDIA's binding on the tests' stand-in for the driver (needs gcc),
20 times as often as usual and with a twentieth of the grace.

The command keeps a ledger of what it did, and compares it with the counters of both services. It exits with
1 if a counter differs, a pod was flagged or changed that must not be (or the reverse), the API server
admitted a pod without an answer, a request failed, memory grew after the first half by more than `--growth`
MiB, or more threads, descriptors or tasks than before remain at the end.

Needs KUBEBUILDER_ASSETS (a folder with etcd and kube-apiserver). Run:
`python -m benchmarks.soak --minutes 60`.
"""

import argparse
import asyncio
import contextlib
import json
import random
import ssl
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import aiohttp

from benchmarks.plane import on_a_control_plane
from benchmarks.processes import ProcessState, growth, process_state, tasks_on_signal
from benchmarks.rollout import OWN_NAMESPACE, SECRET, SECRETS, rotate
from certs.authority import Authority
from kai import kaishare_keys, keys
from kube.answers import ApiError
from kube.client import KubeClient
from tests.support.administrator import Administrator
from tests.support.agent_process import Agent
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
    serving,
)
from tests.support.control_plane import ControlPlane
from tests.support.gpu_node import MIB, RIGHTS, TOTAL, GpuNode
from tests.support.kube_objects import GPU_0, GROUP_0, bind_request, node, reservation
from tests.support.proc_files import ProcTree, in_pod
from webhook.policy.labels import Mode

CHANGED, ENFORCED, UNMANAGED = NAMESPACES = ("soak-changed", "soak-enforced", "soak-unmanaged")
FRACTIONS: Final = ("0.1", "0.05")
CHURNED: Final = 20
"""Further namespaces, which become managed and unmanaged again."""
CARD_MIB: Final = 23000
"""Memory of the node's GPU as KAI counts it."""
WEBHOOK: Final = "import sys\nfrom webhook.cli import main\nsys.exit(main(sys.argv[1:]))"
PATIENCE: Final = 60.0
TORN: Final = "negative-unattributed"
"""The agent's problem for a sample in which a process took memory between two calls of the driver."""
MOST_TORN: Final = 0.01
"""Part of the agent's answers that may have a torn sample."""
POOL: Final = 6
"""Threads of asyncio's pool on two CPUs; they are started on demand and stay."""
FREE: Final = 4
"""Descriptors and tasks of kept connections to the API server, which are opened on demand."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Parameters of a run."""

    minutes: float = 15.0
    seed: int = 1
    pods: int = 5
    """Pods at once."""
    speed: float = 20.0
    """Quotient of the usual interval and grace, and those of this run."""
    rotate_seconds: float = 60.0
    """Time between two rotations of the certificates."""
    growth: float = 2.0
    """Bound for the memory of a service that the second half adds, in MiB."""
    is_forked: bool = False
    """Whether the services are forks of this process, which start sooner."""

    @property
    def options(self) -> list[str]:
        """Return the agent's options."""
        return f"--interval {5000 / self.speed:.0f}ms --grace {120_000 / self.speed:.0f}ms".split()


@dataclass(kw_only=True)
class Ledger:
    """What the run did, and what it found wrong."""

    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    milliseconds: dict[str, list[float]] = field(default_factory=dict)

    def timed(self, what: str, began: float) -> None:
        """Record how long something took."""
        self.milliseconds.setdefault(what, []).append((time.monotonic() - began) * 1000)

    def expect(self, what: str, actual: object, expected: object) -> None:
        """Record a difference."""
        if actual != expected:
            self.wrong.append(f"{what}: {actual}, and the ledger has {expected}")


class Processes:
    """The processes of the node's GPU; a PID is not used again."""

    def __init__(self, gpu_node: GpuNode) -> None:
        self._node = gpu_node
        self._tree = ProcTree(gpu_node.folder / "proc")
        self._used: dict[str, tuple[int, int]] = {}
        self._next_pid = 1000

    def use(self, uid: str, mib: int) -> None:
        """Let the process of a pod use this much memory; start it at the first call."""
        if uid not in self._used:
            self._next_pid += 1
            self._tree.add(self._next_pid, in_pod(uid), start=self._next_pid)
            self._used[uid] = self._next_pid, mib
        self._used[uid] = self._used[uid][0], mib
        self._write()

    def end(self, uid: str) -> None:
        """End the process of a pod."""
        pid, _ = self._used.pop(uid)
        self._write()
        self._tree.end(pid)

    def used_mib(self) -> dict[str, int]:
        """Return the memory by pod UID."""
        return {uid: mib for uid, (_, mib) in self._used.items()}

    def _write(self) -> None:
        used = sum(mib for _, mib in self._used.values())
        lines = ["driver 580.65.06", f"gpu 0 {GPU_0} {TOTAL} {500 * MIB} {used * MIB} NVIDIA A10"]
        lines += [
            f"process 0 - 0 {pid} {mib * MIB} 4294967295 4294967295" for pid, mib in self._used.values()
        ]
        making = self._node.folder / "answers.making"
        making.write_text("".join(f"{line}\n" for line in lines))
        making.replace(self._node.folder / "answers")


@dataclass(kw_only=True)
class Soak:
    """Both services, and all that happens around them."""

    plan: Plan
    admin: Administrator
    webhook: Serving
    agent: Agent
    processes: Processes
    authority: Authority
    folder: Path
    ledger: Ledger
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    shares: dict[str, Any] = field(default_factory=dict)
    """Pods of the agent's newest `/api/v1/shares`, by UID."""
    fractions: dict[str, str] = field(default_factory=lambda: {CHANGED: FRACTIONS[0], ENFORCED: "0.05"})
    points: dict[str, list[tuple[float, ProcessState]]] = field(default_factory=dict)
    """What each service process_state, over time."""
    numbers: Counter[str] = field(default_factory=Counter)
    _chance: random.Random = field(init=False)
    _label_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.plan.seed)

    async def until_judged(self) -> None:
        """Wait until the agent has evaluated a sample with its pods."""
        async with self._session() as session:
            for _ in range(int(PATIENCE / 0.1)):
                async with session.get(f"{self.agent.url}/api/v1/shares") as response:
                    if not json.loads(await response.read())["problems"]:
                        return
                await asyncio.sleep(0.1)
        raise AssertionError(f"the agent still has a problem after {PATIENCE:g} s")

    async def run(self) -> None:
        """Run until the time is over, and until every pod in progress has ended."""
        actors: list[Callable[[], Coroutine[Any, Any, None]]] = [
            *[self._pods] * self.plan.pods,
            self._labels,
            self._churn,
            self._certificates,
            self._look,
            *[self._scrapes] * 2,
            self._measure,
        ]
        async with asyncio.TaskGroup() as group:
            for actor in actors:
                group.create_task(self._repeat(actor))
            await asyncio.sleep(self.plan.minutes * 60)
            self.is_over.set()

    async def _repeat(self, actor: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while not self.is_over.is_set() and len(self.ledger.wrong) < 20:
            try:
                await actor()
            except (ApiError, AssertionError, OSError, aiohttp.ClientError, TimeoutError) as error:
                self.ledger.wrong.append(f"{actor.__name__}: {type(error).__name__}: {error}"[:500])
                await asyncio.sleep(1)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.is_over.wait()

    async def _pods(self) -> None:
        """Create one pod, let it live, and delete it."""
        namespace = self._chance.choice(NAMESPACES)
        self.numbers["pod"] += 1
        name, path = f"pod-{self.numbers['pod']}", f"/api/v1/namespaces/{namespace}/pods"
        if namespace == ENFORCED and self._chance.random() < 0.3:
            await self._refused(path, name)
            return
        async with self._label_lock:  # the namespace has the same labels until the pod is there
            began, fraction = time.monotonic(), self.fractions.get(namespace)
            made = await self.admin.post(path, bare_pod(name))
            self.ledger.timed("create a pod", began)
        self.ledger.done["pods"] += 1
        self.ledger.done["validate-pods"] += namespace == ENFORCED
        self.ledger.done["mutate"] += fraction is not None
        given = made["metadata"].get("annotations", {}).get(keys.GPU_FRACTION)
        self.ledger.expect(f"share of a pod in {namespace}", given, fraction)
        if given is None:
            await self.admin.delete(f"{path}/{name}")
            return
        self.numbers["living"] += 1
        try:
            await self._live(namespace, name, made["metadata"]["uid"], given)
        finally:
            self.numbers["living"] -= 1

    async def _refused(self, path: str, name: str) -> None:
        self.ledger.done["mutate"] += 1
        self.ledger.done["validate-pods"] += 1
        self.ledger.done["refused"] += 1
        too_large = bare_pod(name, gpus=0, annotations={keys.GPU_FRACTION: "0.9"})
        try:
            await self.admin.post(path, too_large)
        except ApiError as error:
            self.ledger.expect("status of a refused pod", error.status, 403)
        else:
            self.ledger.wrong.append(f"{path}/{name} was admitted above the cap of its namespace")

    async def _live(self, namespace: str, name: str, uid: str, fraction: str) -> None:
        """Place a pod as KAI does, let it use memory, and delete it."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        await self.admin.merge(path, {"metadata": {"labels": {keys.GPU_GROUP: GROUP_0}}})
        request = bind_request(name, portion=fraction, namespace=namespace)
        request["metadata"]["ownerReferences"][0]["uid"] = uid
        posted = f"/apis/scheduling.run.ai/v1alpha2/namespaces/{namespace}/bindrequests"
        await self.admin.post(posted, request)
        await self.admin.bind(namespace, name)
        await self.admin.set_status(path, {"phase": "Running"})
        share = int(float(fraction) * CARD_MIB)
        self.processes.use(uid, share // 2)
        await self._until(lambda: uid in self.shares, f"{name} is in the agent's answer")
        kind = self._chance.choice(("calm", "over", "over", "short", "deleted"))
        if kind == "calm":
            await asyncio.sleep(self._chance.uniform(0, 3))
        elif kind == "short":
            self.processes.use(uid, share * 3 // 2)
            await asyncio.sleep(30 / self.plan.speed)  # a quarter of the grace
            self.processes.use(uid, share // 2)
        else:
            await self._over(uid, share, name, is_cleared=kind == "over")
        is_process_last = kind == "deleted" or self._chance.random() < 0.5
        if not is_process_last:
            self.processes.end(uid)
        await self.admin.delete(path)
        await self.admin.delete(f"{posted}/{name}")
        if (
            kind == "deleted"
        ):  # the flag is cleared, not dropped, if the process ends before the agent sees that
            await self._until(lambda: not self._is_flagged(uid), f"the flag of {name} is dropped")
        if is_process_last:
            await asyncio.sleep(self._chance.uniform(0, 0.5))
            self.processes.end(uid)
        await self._until(lambda: uid not in self.shares, f"{name} is gone from the agent's answer")

    async def _over(self, uid: str, share: int, name: str, *, is_cleared: bool) -> None:
        """Use more than the share until the pod is flagged, and less until it no longer is, some times."""
        for _ in range(self._chance.randint(1, 3) if is_cleared else 1):
            began = time.monotonic()
            self.processes.use(uid, share * 3 // 2)
            await self._until(lambda: self._is_flagged(uid), f"{name} is flagged")
            self.ledger.timed("flag a pod", began)
            self.ledger.done["raised"] += 1
            if is_cleared:
                began = time.monotonic()
                self.processes.use(uid, share // 2)
                await self._until(lambda: not self._is_flagged(uid), f"{name} is no longer flagged")
                self.ledger.timed("clear a flag", began)
                self.ledger.done["cleared"] += 1
        if not is_cleared:
            self.ledger.done["dropped"] += 1

    def _is_flagged(self, uid: str) -> bool:
        pod = self.shares.get(uid)
        return pod is not None and any(verdict["flagged"] for verdict in pod["verdicts"])

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > end:
                raise AssertionError(f"still not after {PATIENCE:g} s: {what}")
            await asyncio.sleep(0.05)

    async def _labels(self) -> None:
        """Change the share of a namespace, and try one that is invalid."""
        await self._pause(self._chance.uniform(1, 4))
        path = f"/api/v1/namespaces/{CHANGED}"
        fraction = self._chance.choice(FRACTIONS)
        async with self._label_lock:
            began = time.monotonic()
            self.ledger.done["validate-namespaces"] += 1
            await self.admin.merge(path, _labelled(fraction))
            end = began + PATIENCE
            while (await self._policies())[CHANGED]["share"] != {keys.GPU_FRACTION: fraction}:
                if time.monotonic() > end:
                    raise AssertionError(f"a label is not in force after {PATIENCE:g} s")
                await asyncio.sleep(0.02)
            self.ledger.timed("a label in force", began)
            self.fractions[CHANGED] = fraction
        self.ledger.done["validate-namespaces"] += 1
        self.ledger.done["labels refused"] += 1
        try:
            await self.admin.merge(path, _labelled("2"))
        except ApiError as error:
            self.ledger.expect("status of a refused label", error.status, 403)
        else:
            self.ledger.wrong.append("an invalid label was admitted")

    async def _policies(self) -> dict[str, Any]:
        status, text = await self.webhook.get("/policies")
        self.ledger.expect("status of /policies", status, 200)
        return {policy["namespace"]: policy for policy in json.loads(text)}

    async def _churn(self) -> None:
        """Make a namespace managed and unmanaged again."""
        await self._pause(0.5)
        name = f"soak-churned-{self._chance.randrange(CHURNED)}"
        path = f"/api/v1/namespaces/{name}"
        self.ledger.done["validate-namespaces"] += 1
        await self.admin.merge(path, {"metadata": {"labels": {keys.QUEUE_LABEL: "queue-b"}}})
        await self.admin.merge(path, {"metadata": {"labels": {keys.QUEUE_LABEL: None}}})

    async def _certificates(self) -> None:
        """Replace the CA of the webhook and the certificate of the agent."""
        await self._pause(self.plan.rotate_seconds)
        if self.is_over.is_set():
            return
        began = time.monotonic()
        reloaded = len(self.agent.log_lines("certificate reloaded"))
        write_certificate(self.authority, self.folder)
        await rotate(self.admin.client, [self.webhook])
        await self._until(
            lambda: len(self.agent.log_lines("certificate reloaded")) > reloaded,
            "the agent serves its new certificate",
        )
        self.ledger.done["rotations"] += 1
        self.ledger.timed("rotate certificates", began)

    async def _look(self) -> None:
        """Keep the agent's newest answer, over one connection."""
        async with self._session() as session:
            while not self.is_over.is_set() or self.numbers["living"]:
                async with session.get(f"{self.agent.url}/api/v1/shares") as response:
                    answer = json.loads(await response.read())
                self.numbers["answers"] += 1
                problems = answer["problems"]
                if any(each["reason"] == TORN for each in problems):  # which may tell of no flag that is set
                    self.ledger.done["torn samples"] += 1
                else:
                    self.shares = {pod["uid"]: pod for pod in answer["pods"]}
                    self.ledger.wrong += [f"the agent has a problem: {each}"[:300] for each in problems]
                await asyncio.sleep(2.5 / self.plan.speed)

    async def _scrapes(self) -> None:
        """Scrape both services and load their pages; sometimes leave before the answer has arrived."""
        async with self._session() as session:
            for _ in range(self._chance.randint(1, 10)):
                host, path = self._chance.choice(
                    (
                        (self.agent.url, "/metrics"),
                        (self.agent.url, "/"),
                        (self.agent.url, "/healthz"),
                        (f"http://{self.webhook.ops}", "/metrics"),
                        (f"http://{self.webhook.ops}", "/policies"),
                    )
                )
                leaves = self._chance.random() < 0.1
                async with session.get(host + path) as response:
                    self.ledger.expect(f"status of {path}", response.status, 200)
                    if leaves:
                        response.close()
                    else:
                        await response.read()
                self.ledger.done["pages"] += 1
                await asyncio.sleep(self._chance.uniform(0, 0.3))

    def _session(self) -> aiohttp.ClientSession:
        trust = ssl.create_default_context(cadata=self.authority.pair.certificate_pem.decode())
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust))

    async def _measure(self) -> None:
        await self.note()
        await self._pause(min(5.0, self.plan.minutes * 2))

    async def note(self) -> None:
        """Note what each service holds now."""
        ports = {self.webhook.admission.port, self.webhook.ops.port, int(self.agent.url.rpartition(":")[2])}
        for name, process in (("webhook", self.webhook.process), ("agent", self.agent.process)):
            figures = await process_state(process.pid, ports, self.folder / f"tasks-{name}")
            self.points.setdefault(name, []).append((time.monotonic(), figures))

    async def compare(self, counted: dict[str, float]) -> None:
        """Compare the counters of both services with the ledger; `counted` are those of the start."""
        ledger, now = self.ledger, await self.counters()
        counters = Counter(now)
        counters.subtract(counted)
        for name in ("mutate", "validate-pods", "validate-namespaces", "refused", "labels refused"):
            ledger.expect(f"webhook, {name}", counters[name], ledger.done[name])
        for name in ("raised", "cleared", "dropped"):
            ledger.expect(f"agent, flags {name}", counters[name], ledger.done[name])
        for name in ("webhook errors", "shed", "nvml errors", "lost lines", "failed open", "watch errors"):
            ledger.expect(name, counters[name], 0)
        if ledger.done["torn samples"] > MOST_TORN * self.numbers["answers"]:
            ledger.wrong.append(
                f"{ledger.done['torn samples']} of {self.numbers['answers']} answers are torn"
            )
        ledger.expect("Events in the cluster", await self._events(), counters["events"])
        ledger.expect("failed or dropped Events", counters["events failed"], 0)

    async def counters(self) -> dict[str, float]:
        """Return the counters of both services by the ledger's names."""
        webhook = await self.webhook.series()
        async with self._session() as session, session.get(f"{self.agent.url}/metrics") as response:
            text = await response.text()
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        agent = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

        def total(series: dict[str, float], name: str, *labels: str) -> float:
            return sum(
                value
                for key, value in series.items()
                if key.startswith(f"kaishare_{name}") and all(label in key for label in labels)
            )

        def restarts(series: dict[str, float]) -> float:
            name = "watch_restarts_total"
            return total(series, name) - total(series, name, 'cause="closed"')

        requests, flags = "webhook_requests_total", "agent_flag_transitions_total"
        return {
            "mutate": total(webhook, requests, 'webhook="mutate"'),
            "validate-pods": total(webhook, requests, 'webhook="validate-pods"'),
            "validate-namespaces": total(webhook, requests, 'webhook="validate-namespaces"'),
            "refused": total(webhook, requests, 'webhook="validate-pods"', 'action="denied"'),
            "labels refused": total(webhook, requests, 'webhook="validate-namespaces"', 'action="denied"'),
            "webhook errors": total(webhook, "webhook_errors_total"),
            "shed": total(webhook, "webhook_shed_total"),
            "raised": total(agent, flags, 'change="raised"'),
            "cleared": total(agent, flags, 'change="cleared"'),
            "dropped": total(agent, flags, 'change="dropped"'),
            "nvml errors": total(agent, "agent_nvml_errors_total"),
            "lost lines": total(webhook, "log_lines_lost_total") + total(agent, "log_lines_lost_total"),
            "events": total(agent, "agent_events_total", 'result="created"'),
            "events failed": total(agent, "agent_events_total", 'result="failed"')
            + total(agent, "agent_events_total", 'result="dropped"'),
            "watch errors": restarts(webhook) + restarts(agent),
            "failed open": await failed_open(self.admin.client),
        }

    async def _events(self) -> int:
        count = 0
        for namespace in NAMESPACES:
            selector = {"fieldSelector": "reportingComponent=kaishare-agent"}
            answer = await self.admin.client.get(f"/api/v1/namespaces/{namespace}/events", params=selector)
            count += len(json.loads(answer)["items"])
        return count

    def judge_resources(self, name: str) -> float:
        """Compare what a service holds at the end with its beginning; return the growth in MiB."""
        points = self.points[name]
        (_, first), (_, last) = points[0], points[-1]
        later = points[len(points) // 2 :]
        grown = growth([(at, each.mib) for at, each in later]) if len(later) > 1 else 0.0
        if grown > self.plan.growth:
            self.ledger.wrong.append(f"{name}: memory grew by {grown:.1f} MiB in the second half")
        for what, before, after, allowed in (
            ("threads", first.threads, last.threads, POOL),
            ("descriptors", first.descriptors, last.descriptors, FREE),
            ("tasks", first.tasks, last.tasks, FREE),
        ):
            if after > before + allowed:
                self.ledger.wrong.append(f"{name}: {before} {what} at the start, {after} at the end")
        return grown


def _labelled(fraction: str) -> dict[str, Any]:
    return {"metadata": {"labels": {kaishare_keys.FRACTION: fraction}}}


def write_certificate(authority: Authority, folder: Path) -> None:
    """Write a new certificate of the agent's port."""
    now = datetime.now(UTC)
    pair = authority.issue(["127.0.0.1", "localhost"], now=now, lifetime=timedelta(days=1))
    for name, pem in (("tls.key", pair.key_pem), ("tls.crt", pair.certificate_pem)):
        making = folder / "tls" / f"{name}.making"
        making.write_bytes(pem)
        making.replace(folder / "tls" / name)


@contextlib.asynccontextmanager
async def prepared(plane: ControlPlane, folder: Path, plan: Plan) -> AsyncIterator[Soak]:
    """Start both services on a cluster with the namespaces of the run."""
    async with KubeClient(plane.access()) as client:
        admin = Administrator(client)
        await admin.prepare()
        churned = [managed_namespace(f"soak-churned-{number}") for number in range(CHURNED)]
        for each in churned:
            each["metadata"]["labels"] = {}
        await ensure_namespaces(
            client,
            managed_namespace(CHANGED, gpu_fraction=FRACTIONS[0]),
            managed_namespace(ENFORCED, gpu_fraction="0.05", max_gpu_fraction="0.5", mode=Mode.ENFORCE.value),
            {"kind": "Namespace", "metadata": {"name": UNMANAGED}},
            *churned,
        )
        await admin.create(node())
        await admin.create(reservation())
        await admin.post(SECRETS, {"kind": "Secret", "metadata": {"name": SECRET}})
        agent_folder = folder / "agent"
        (agent_folder / "tls").mkdir(parents=True)
        authority = Authority.create(now=datetime.now(UTC))
        write_certificate(authority, agent_folder)
        gpu_node = GpuNode(folder=agent_folder, plane=plane, admin=admin)
        kubeconfig = plane.kubeconfig(token=await admin.token("soak-webhook", *WEBHOOK_RIGHTS))
        options = f"--kubeconfig {kubeconfig} --certs self --namespace {OWN_NAMESPACE} --bundle-wait 2s"
        program = ("-c", tasks_on_signal(agent_folder / "tasks-webhook") + WEBHOOK)
        agent_options = [*plan.options, "--certs", f"{agent_folder}/tls"]
        token = await admin.token("soak-agent", *RIGHTS)
        try:
            async with serving(
                folder / "webhook-log",
                *options.split(),
                *("--host-name", "127.0.0.1"),
                program=program,
                is_forked=plan.is_forked,
            ) as webhook:
                with gpu_node.agent(
                    token,
                    *agent_options,
                    prelude=tasks_on_signal(agent_folder / "tasks-agent"),
                    is_forked=plan.is_forked,
                ) as agent:
                    async with configured(client, *our_configurations(webhook.target, b"")):
                        await Canary(client, CHANGED).until_mutated()
                        yield Soak(
                            plan=plan,
                            admin=admin,
                            webhook=webhook,
                            agent=agent,
                            processes=Processes(gpu_node),
                            authority=authority,
                            folder=agent_folder,
                            ledger=Ledger(),
                        )
        finally:
            await admin.delete(f"{SECRETS}/{SECRET}")
            await admin.clean_up()


async def soak(plane: ControlPlane, folder: Path, plan: Plan) -> tuple[Ledger, list[str]]:
    """Run; return the ledger and the lines of a report."""
    async with prepared(plane, folder, plan) as run:
        await run.until_judged()
        await run.note()
        counted = await run.counters()
        await run.run()
        await asyncio.sleep(3)  # connections of the clients end, and the last Events are written
        await run.note()
        await run.compare(counted)
        lines = []
        for name in run.points:
            grown = run.judge_resources(name)
            (_, first), (_, last) = run.points[name][0], run.points[name][-1]
            lines += [
                f"{name} at the start: {first.text}",
                f"{name} at the end:   {last.text}",
                f"{name}: memory grew by {grown:+.2f} MiB in the second half, {len(run.points[name])} points",
            ]
        run.webhook.terminate()
        run.ledger.expect("exit status of the webhook", await run.webhook.ended(), 0)
        run.ledger.expect("exit status of the agent", await asyncio.to_thread(run.agent.stop), 0)
    lines += [f"{name:20} {number:7.0f}" for name, number in sorted(run.ledger.done.items())]
    for what, values in run.ledger.milliseconds.items():
        median, longest = statistics.median(values), max(values)
        lines.append(f"{what:20} {len(values):7} times, median {median:.0f} ms, longest {longest:.0f} ms")
    return run.ledger, lines


async def measure(plan: Plan, plane: ControlPlane, folder: Path) -> int:
    """Run, print the report, and return the exit status."""
    ledger, lines = await soak(plane, folder, plan)
    print(f"{plan.minutes:g} minutes at {plan.speed:g} times the usual speed, seed {plan.seed}")
    print("\n".join(lines))
    print("\n".join(ledger.wrong))
    print("nothing lost, nothing leaked, the counters agree" if not ledger.wrong else "WRONG")
    return int(bool(ledger.wrong))


def main() -> None:
    """Parse the options and run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=Plan.minutes, help="duration (default %(default)s)")
    parser.add_argument("--seed", type=int, default=Plan.seed, help="seed of the run (default %(default)s)")
    parser.add_argument("--pods", type=int, default=Plan.pods, help="pods at once (default %(default)s)")
    parser.add_argument(
        "--growth",
        type=float,
        default=Plan.growth,
        help="bound for the growth of memory in MiB (default %(default)s)",
    )
    plan = Plan(**vars(parser.parse_args()))
    on_a_control_plane(parser, lambda plane, folder: measure(plan, plane, folder))


if __name__ == "__main__":
    main()
