"""Evictions on a real API server: the right pod, after its Event, not against a disruption budget, with fresh consent."""

import asyncio
import contextlib
import io
import json
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.actions.consent import CONSENT_SECONDS
from gpuagent.actions.eviction_rules import Budget
from gpuagent.actions.evictor import ClusterCalls, EvictionTiming, Evictor
from gpuagent.evaluation.status import Evaluation
from gpuagent.pods.inventory import NodePod
from gpuagent.pods.node_pods import read_pod
from gpuagent.sampling.sample import LookupResult, Origin
from gpuagent.verdicts.verdict import Verdict
from kai.kaishare_keys import EVICTED_OWNER, MODE, OVER_SHARE
from kube.client import KubeClient
from kube.eviction import Evicted, EvictionAnswer, evict
from service.log import JsonLog
from tests.support.administrator import Administrator
from tests.support.control_plane import ADMIN_TOKEN, ControlPlane
from tests.support.evaluations import RULES, SHARE, Node, of_pod
from tests.support.gpu_node import (
    AGENT_NAMESPACE,
    EVICT,
    INTERVAL,
    RIGHTS,
    GpuNode,
    counted,
    node_with_consent,
    until,
)
from tests.support.hostile_api_server import Delay, HostileApiServer, SeenRequest
from tests.support.kinds import made, object_path
from tests.support.kube_objects import GROUP_0, NODE, fraction
from tests.support.samples import GIB, pod_share
from tests.support.waiting import until as settled

NAMESPACE = "wants-evictions"
OVER = 11500 + 2000  # MiB: more than half of an A10 as KAI counts it


@pytest.fixture
async def node(plane: ControlPlane, admin: Administrator, tmp_path: Path) -> GpuNode:
    return await node_with_consent(plane, admin, tmp_path, NAMESPACE)


async def stored_pod(admin: Administrator, name: str) -> dict[str, Any]:
    return await admin.read(f"{PODS}/{name}")


async def budget(admin: Administrator, allowed: int) -> str:
    """Create a PodDisruptionBudget for every pod of the namespace, with the status that its controller would write."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"kai.scheduler/queue": "team-a"}}}
    stored = await admin.create(made("PodDisruptionBudget", "keep", NAMESPACE, spec=spec))
    where = f"{object_path(stored)}/status"
    status = {
        "observedGeneration": stored["metadata"]["generation"],
        "disruptionsAllowed": allowed,
        "desiredHealthy": 1,
    }
    status |= dict.fromkeys(("currentHealthy", "expectedPods"), 1 + allowed)
    await admin.merge(where, {"status": status})
    return where


async def make_ready(admin: Administrator, name: str) -> None:
    """Mark a pod as Ready, as a kubelet does; a budget does not protect pods that are not Ready (seen on 1.36.3)."""
    conditions = [{"type": "Ready", "status": "True"}]
    await admin.merge(f"{PODS}/{name}/status", {"status": {"conditions": conditions}})


async def test_a_pod_over_its_share_gets_an_event_and_is_then_evicted(node: GpuNode) -> None:
    uid = await node.pod("half", namespace=NAMESPACE)
    other = await node.pod("within", number=2, namespace=NAMESPACE)
    token = await node.admin.token("evictor", *RIGHTS, *EVICT)
    with node.agent(token, "--gpu-sharing-mode=NonMemoryEnforced", "--eviction", "on") as running:
        policies = [{"evict": True, "graceSeconds": None}] * 2
        await until(lambda: [pod["overSharePolicy"] for pod in running.shares()["pods"]] == policies, running)
        node.hold({uid: OVER, other: 100})
        await until(lambda: running.log_lines("pod evicted"), running)
        (line,) = running.log_lines("pod evicted")
        assert (line["uid"], line["result"]) == (uid, "evicted")
        assert counted(running, "evictions") == {'result="evicted"': 1}
        events = {event["reason"]: event for event in await node.events(uid, NAMESPACE)}
        assert set(events) == {"GPUMemoryOverShare", "GPUShareEvicted"}
        assert events["GPUShareEvicted"]["message"].startswith(
            "is evicted by its namespace's over-share policy: uses 13.2 GiB on GPU 0 ("
        )
        pod = await stored_pod(node.admin, "half")
        assert "deletionTimestamp" in pod["metadata"]
        conditions = [each["reason"] for each in pod["status"]["conditions"]]
        assert "EvictionByEvictionAPI" in conditions, "the API server's own word that it was an eviction"
        assert not await is_leaving(node.admin, "within")
        await asyncio.sleep(4 * INTERVAL)
        assert counted(running, "evictions") == {'result="evicted"': 1}
        assert running.stop() == 0


async def test_a_disruption_budget_protects_the_pod_and_is_rarely_retried(node: GpuNode) -> None:
    uid = await node.pod("half", namespace=NAMESPACE)
    await make_ready(node.admin, "half")
    await budget(node.admin, 0)
    token = await node.admin.token("evictor-refused", *RIGHTS, *EVICT)
    with node.agent(token, "--gpu-sharing-mode=NonMemoryEnforced", "--eviction", "on") as running:
        node.hold({uid: OVER})
        await until(lambda: counted(running, "evictions"), running)
        await asyncio.sleep(10 * INTERVAL)
        assert counted(running, "evictions") == {'result="disruption-budget"': 1}
        (line,) = running.log_lines("pod not evicted")
        assert "disruption budget" in line["why"]
        assert not await is_leaving(node.admin, "half")
        assert {event["reason"] for event in await node.events(uid, NAMESPACE)} == {"GPUMemoryOverShare"}
        assert running.stop() == 0


async def test_a_dry_run_changes_nothing_and_needs_no_permission(node: GpuNode) -> None:
    uid = await node.pod("half", namespace=NAMESPACE)
    before = await stored_pod(node.admin, "half")
    token = await node.admin.token("evictor-dry", *RIGHTS)
    with node.agent(token, "--gpu-sharing-mode=NonMemoryEnforced", "--eviction", "dry-run") as running:
        node.hold({uid: OVER})
        await until(lambda: counted(running, "evictions"), running)
        assert counted(running, "evictions") == {'result="dry-run"': 1}
        await asyncio.sleep(2 * INTERVAL)
        assert {event["reason"] for event in await node.events(uid, NAMESPACE)} == {"GPUMemoryOverShare"}
        assert running.stop() == 0
    assert await stored_pod(node.admin, "half") == before


async def test_an_eviction_is_requested_for_one_uid(node: GpuNode) -> None:
    uid = await node.pod("half", namespace=NAMESPACE)
    client: KubeClient = node.admin.client

    async def ask(uid: str, name: str = "half", *, is_trial: bool = False) -> EvictionAnswer:
        return (await evict(client, namespace=NAMESPACE, name=name, uid=uid, is_trial=is_trial)).answer

    assert await ask("11111111-2222-4333-8444-555555555555") is EvictionAnswer.GONE
    assert await ask(uid, "no-such-pod") is EvictionAnswer.GONE
    await make_ready(node.admin, "half")
    where = await budget(node.admin, 0)
    assert await ask(uid, is_trial=True) is EvictionAnswer.DISRUPTION_BUDGET
    assert await ask(uid) is EvictionAnswer.DISRUPTION_BUDGET
    await node.admin.merge(where, {"status": {"observedGeneration": 0}})
    assert await ask(uid) is EvictionAnswer.DISRUPTION_BUDGET, "nothing is known of it yet"
    known = {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "expectedPods": 2}
    await node.admin.merge(where, {"status": known})
    before = await stored_pod(node.admin, "half")
    assert await ask(uid, is_trial=True) is EvictionAnswer.EVICTED
    assert await stored_pod(node.admin, "half") == before, "a trial changes nothing"
    assert await ask(uid) is EvictionAnswer.EVICTED
    assert await is_leaving(node.admin, "half")


CONSENT = {OVER_SHARE: "evict", MODE: None, "kai.scheduler/queue": "team-a"}
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


async def label(admin: Administrator, **labels: str | None) -> None:
    await admin.merge(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"labels": labels}})


async def is_leaving(admin: Administrator, name: str = "half") -> bool:
    return "deletionTimestamp" in json.loads(await admin.client.get(f"{PODS}/{name}"))["metadata"]


WITHDRAWALS: list[dict[str, str | None]] = [
    {OVER_SHARE: "report"},
    {OVER_SHARE: None},
    {MODE: "off"},
    {"kai.scheduler/queue": None},
]
KINDS_OF_WITHDRAWAL = ["report", "no label", "off", "no queue"]


@dataclass
class Live:
    """An evictor with real requests, whose sample shows one pod above its share."""

    client: KubeClient
    evaluation: Evaluation
    on_trial: Callable[[], Awaitable[None]]
    """Called between the dry run and the reads of consent."""
    announced: int = 0
    evictor: Evictor = field(init=False)

    def __post_init__(self) -> None:
        calls = ClusterCalls(
            self.client, node=NODE, rules=RULES, clock=time.monotonic, announce=self.announce
        )
        self.try_eviction = calls.try_eviction
        calls.try_eviction = self.test_eviction  # type: ignore[method-assign]
        self.evictor = Evictor(
            rules=RULES,
            budget=Budget(9, 1),
            calls=calls,
            sample_now=self.sample_soon,
            log=JsonLog(io.BytesIO()),
            clock=time.monotonic,
            timing=EvictionTiming(first_retry=0.2, longest_retry=0.2, first_owner=0.1, longest_owner=0.1),
        )

    def sample_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self.sample)

    def sample(self) -> None:
        snapshot = replace(self.evaluation.snapshot, taken_at=time.monotonic())
        self.evictor.handle(replace(self.evaluation, snapshot=snapshot))

    async def test_eviction(self, pod: NodePod) -> Evicted:
        answer = await self.try_eviction(pod)
        await self.on_trial()
        return answer

    async def announce(self, _verdict: Verdict, _evaluation: Evaluation, _within: float) -> None:
        self.announced += 1

    async def result(self) -> str:
        """Return the result of the next decision."""
        before = self.evictor.results.total()
        for _ in range(300):
            self.sample()
            await asyncio.sleep(0.05)
            if self.evictor.results.total() > before:
                (result,) = self.evictor.results
                self.evictor.results.clear()
                return result
        raise AssertionError("no decision")


@contextlib.asynccontextmanager
async def live(
    node: GpuNode, on_trial: Callable[[], Awaitable[None]], client: KubeClient | None = None
) -> AsyncIterator[Live]:
    await node.pod("half", namespace=NAMESPACE)
    pod = read_pod(await node.admin.client.get(f"{PODS}/half"))
    origins = {"half": Origin(result=LookupResult.CONTAINER, pod_uids=(pod.uid,), container_id="c" * 64)}
    share = of_pod(pod_share("half", SHARE, pod=pod))
    flagged = Node(share).flagged({"half": 12 * GIB}, origins=origins)
    token = await node.admin.token("live-evictor", *RIGHTS, *EVICT)
    in_namespace(node.plane.account(token))
    async with KubeClient(node.plane.access(token)) as own:
        run = Live(client or own, flagged, on_trial)
        task = asyncio.create_task(run.evictor.run())
        try:
            yield run
            assert not task.done(), task.exception()
        finally:
            task.cancel()


def in_namespace(account: Path) -> None:
    """Let a service account live in the agent's namespace."""
    (account / "namespace").write_text(AGENT_NAMESPACE)


async def nothing() -> None:
    pass


@pytest.mark.parametrize("labels", WITHDRAWALS, ids=KINDS_OF_WITHDRAWAL)
async def test_consent_that_is_withdrawn_after_the_dry_run_is_noticed(
    node: GpuNode, labels: dict[str, str | None]
) -> None:
    async def withdraw() -> None:
        await label(node.admin, **labels)

    async with live(node, withdraw) as run:
        assert await run.result() == "consent-withdrawn"
        assert run.announced == 0
        assert not await is_leaving(node.admin)
        await label(node.admin, **CONSENT)
        run.on_trial = nothing
        assert await run.result() == "evicted"
    assert await is_leaving(node.admin)


async def test_a_pod_that_was_recreated_under_its_name_is_not_evicted(node: GpuNode) -> None:
    async def recreate() -> None:
        await node.admin.delete(f"{PODS}/half")
        await node.pod("half", namespace=NAMESPACE)

    async with live(node, recreate) as run:
        assert await run.result() == "gone"
    assert not await is_leaving(node.admin)


@pytest.mark.slow
async def test_an_eviction_that_stalls_is_not_carried_out_later(
    node: GpuNode, hostile: HostileApiServer
) -> None:
    """The request stalls between agent and API server, and meanwhile consent is withdrawn."""
    evictions: list[SeenRequest] = []

    def is_second_eviction(request: SeenRequest) -> bool:
        if request.path.endswith("/eviction"):
            evictions.append(request)
        return request.path.endswith("/eviction") and len(evictions) == 2

    in_namespace(hostile.account(ADMIN_TOKEN))
    async with KubeClient(hostile.access(ADMIN_TOKEN)) as client, live(node, nothing, client) as run:
        hostile.inject(Delay(seconds=6.0), is_second_eviction)
        decision = asyncio.create_task(run.result())
        await settled(lambda: len(evictions) == 2)
        began = time.monotonic()
        await label(node.admin, **{MODE: "off"})
        assert await decision == "failed"
        assert time.monotonic() - began < CONSENT_SECONDS + 1
        await asyncio.sleep(7 - (time.monotonic() - began))
        assert not await is_leaving(node.admin)


def of_replica_set(name: str, number: int) -> dict[str, Any]:
    pod = fraction(name, number, share="0.3", group=GROUP_0, namespace=NAMESPACE)
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "train", "controller": True}
    pod["metadata"]["ownerReferences"] = [{**owner, "uid": "3f1d1c1e-0000-4000-8000-000000000001"}]
    return pod


async def leaving(admin: Administrator, names: str) -> list[str]:
    return [name for name in names if await is_leaving(admin, name)]


@pytest.mark.slow
async def test_budget_and_back_off_hold_across_kills(node: GpuNode) -> None:
    """The agent is killed as soon as the API server has carried out an eviction, and again and again."""
    uids = {}
    for number, name in enumerate("abc", 1):
        uids[name] = (await node.admin.create(of_replica_set(name, number)))["metadata"]["uid"]
    token = await node.admin.token("evictor-killed", *RIGHTS, *EVICT)
    node.hold(dict.fromkeys(uids.values(), 7500))
    with node.agent(token, "--gpu-sharing-mode=NonMemoryEnforced", "--eviction", "on") as running:
        await until(lambda: leaving(node.admin, "abc"), running)
        assert running.stop(signal.SIGKILL) == -signal.SIGKILL
    evicted = await leaving(node.admin, "abc")
    assert len(evicted) == 1
    for budget in ("1/10m", "1/10m", "9/10m"):
        with node.agent(
            token, "--gpu-sharing-mode=NonMemoryEnforced", "--eviction", "on", "--eviction-budget", budget
        ) as running:
            await until(lambda: 'result="owner-backoff"' in counted(running, "evictions"), running)
            await asyncio.sleep(1)
            assert running.log_lines("past evictions read")[0]["evictions"] == 1
            assert running.stop(signal.SIGKILL) == -signal.SIGKILL
        assert await leaving(node.admin, "abc") == evicted


async def test_events_that_a_tenant_invents_or_deletes_change_no_budget(node: GpuNode) -> None:
    """The role `edit` may create and delete Events; the agent reads those of its own namespace only."""
    uid = await node.pod("half", namespace=NAMESPACE)
    path = f"/api/v1/namespaces/{NAMESPACE}/events"
    for number in range(5):
        await node.admin.post(
            path,
            {
                "kind": "Event",
                "metadata": {"name": f"forged-{number}-{uid}", "annotations": {EVICTED_OWNER: "0" * 64}},
                "involvedObject": {"kind": "Node", "namespace": NAMESPACE, "name": NODE, "uid": NODE},
                "reason": "GPUShareEvicted",
                "source": {"component": "kaishare-agent", "host": NODE},
                "reportingComponent": "kaishare-agent",
                "reportingInstance": NODE,
            },
        )
    token = await node.admin.token("evictor-deceived", *RIGHTS, *EVICT)
    with node.agent(token, "--gpu-sharing-mode=NonMemoryEnforced", "--eviction", "on") as running:
        node.hold({uid: OVER})
        await until(lambda: counted(running, "evictions"), running)
        assert counted(running, "evictions") == {'result="evicted"': 1}
        assert running.stop() == 0
    await node.admin.client.request("DELETE", path)
    records = await node.admin.read(
        f"/api/v1/namespaces/{AGENT_NAMESPACE}/events?fieldSelector=reason%3DGPUShareEvicted"
    )
    (record,) = records["items"]
    assert record["related"]["uid"] == uid
    node.hold({})
    again = await node.pod("again", number=2, namespace=NAMESPACE)
    with node.agent(token, "--gpu-sharing-mode=NonMemoryEnforced", "--eviction", "on") as running:
        node.hold({again: OVER})
        await until(lambda: counted(running, "evictions"), running)
        assert counted(running, "evictions") == {'result="budget"': 1}
        assert running.stop() == 0
