"""Evictions on a real API server: the right pod, after its Event, not against a disruption budget, with fresh consent."""

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from kai.kaishare_keys import EVICTED_OWNER
from kube.client import KubeClient
from kube.eviction import EvictionAnswer, evict
from tests.support.administrator import Administrator
from tests.support.control_plane import ADMIN_TOKEN, ControlPlane
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
from tests.support.hostile_api_server import Delay, HostileApiServer
from tests.support.kinds import made, object_path
from tests.support.kube_objects import GROUP_0, NODE, fraction

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


PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


async def is_leaving(admin: Administrator, name: str = "half") -> bool:
    return "deletionTimestamp" in json.loads(await admin.client.get(f"{PODS}/{name}"))["metadata"]


@pytest.mark.slow
async def test_an_eviction_that_stalls_is_not_carried_out_later(
    node: GpuNode, hostile: HostileApiServer
) -> None:
    """The request stalls between agent and API server."""
    uid = await node.pod("half", namespace=NAMESPACE)
    async with KubeClient(hostile.access(ADMIN_TOKEN)) as client:
        hostile.inject(Delay(seconds=3.0), lambda request: request.path.endswith("/eviction"))
        began = time.monotonic()
        evicted = await evict(client, namespace=NAMESPACE, name="half", uid=uid, within=1.0)
        assert evicted.answer is EvictionAnswer.FAILED
        assert time.monotonic() - began < 2
        await asyncio.sleep(4)
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
