"""Evictions on a real API server: the right pod, after its Event, and not against a disruption budget."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kube.client import KubeClient
from kube.eviction import EvictionAnswer, evict
from tests.support.administrator import Administrator
from tests.support.control_plane import ControlPlane
from tests.support.gpu_node import EVICT, INTERVAL, RIGHTS, GpuNode, counted, node_with_consent, until

NAMESPACE = "wants-evictions"
SHARE = 11500  # MiB: half of an A10 as KAI counts it
OVER = SHARE + 2000


@pytest.fixture
async def node(plane: ControlPlane, admin: Administrator, tmp_path: Path) -> GpuNode:
    return await node_with_consent(plane, admin, tmp_path, NAMESPACE)


def path(name: str) -> str:
    return f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"


async def read_pod(admin: Administrator, name: str) -> dict[str, Any]:
    pod: dict[str, Any] = json.loads(await admin.client.get(path(name)))
    return pod


async def budget(admin: Administrator, allowed: int) -> str:
    """Create a PodDisruptionBudget for every pod of the namespace, with the status that its controller would write."""
    selector = {"matchLabels": {"kai.scheduler/queue": "team-a"}}
    item = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    metadata = {"name": "keep", "namespace": NAMESPACE}
    spec = {"minAvailable": 1, "selector": selector}
    made = await admin.create({**item, "metadata": metadata, "spec": spec})
    where = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/keep/status"
    status = {
        "observedGeneration": made["metadata"]["generation"],
        "disruptionsAllowed": allowed,
        "currentHealthy": 1 + allowed,
        "desiredHealthy": 1,
        "expectedPods": 1 + allowed,
    }
    await admin.merge(where, {"status": status})
    return where


async def make_ready(admin: Administrator, name: str) -> None:
    """Mark a pod as Ready, as a kubelet does; a budget does not protect pods that are not Ready (seen on 1.36.3)."""
    conditions = [{"type": "Ready", "status": "True"}]
    await admin.merge(f"{path(name)}/status", {"status": {"conditions": conditions}})


async def test_a_pod_over_its_share_gets_an_event_and_is_then_evicted(node: GpuNode) -> None:
    uid = await node.pod("half", namespace=NAMESPACE)
    other = await node.pod("within", number=2, namespace=NAMESPACE)
    token = await node.admin.token("evictor", *RIGHTS, *EVICT)
    with node.agent(token, "--eviction", "on") as running:
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
        pod = await read_pod(node.admin, "half")
        assert "deletionTimestamp" in pod["metadata"]
        conditions = [each["reason"] for each in pod["status"]["conditions"]]
        assert "EvictionByEvictionAPI" in conditions, "the API server's own word that it was an eviction"
        assert "deletionTimestamp" not in (await read_pod(node.admin, "within"))["metadata"]
        await asyncio.sleep(4 * INTERVAL)
        assert counted(running, "evictions") == {'result="evicted"': 1}
        assert running.stop() == 0


async def test_a_disruption_budget_protects_the_pod_and_is_rarely_retried(node: GpuNode) -> None:
    uid = await node.pod("half", namespace=NAMESPACE)
    await make_ready(node.admin, "half")
    await budget(node.admin, 0)
    token = await node.admin.token("evictor-refused", *RIGHTS, *EVICT)
    with node.agent(token, "--eviction", "on") as running:
        node.hold({uid: OVER})
        await until(lambda: counted(running, "evictions"), running)
        await asyncio.sleep(10 * INTERVAL)
        assert counted(running, "evictions") == {'result="disruption-budget"': 1}
        (line,) = running.log_lines("pod not evicted")
        assert "disruption budget" in line["why"]
        assert "deletionTimestamp" not in (await read_pod(node.admin, "half"))["metadata"]
        assert {event["reason"] for event in await node.events(uid, NAMESPACE)} == {"GPUMemoryOverShare"}
        assert running.stop() == 0


async def test_a_dry_run_changes_nothing_and_needs_no_permission(node: GpuNode) -> None:
    uid = await node.pod("half", namespace=NAMESPACE)
    before = await read_pod(node.admin, "half")
    token = await node.admin.token("evictor-dry", *RIGHTS)
    with node.agent(token, "--eviction", "dry-run") as running:
        node.hold({uid: OVER})
        await until(lambda: counted(running, "evictions"), running)
        assert counted(running, "evictions") == {'result="dry-run"': 1}
        await asyncio.sleep(2 * INTERVAL)
        assert {event["reason"] for event in await node.events(uid, NAMESPACE)} == {"GPUMemoryOverShare"}
        assert running.stop() == 0
    assert await read_pod(node.admin, "half") == before


@pytest.mark.parametrize(
    ("missing", "line"), [(0, 'cannot create resource "pods/eviction"'), (1, 'cannot get resource "pods"')]
)
async def test_an_eviction_without_permission_is_logged(node: GpuNode, missing: int, line: str) -> None:
    uid = await node.pod("half", namespace=NAMESPACE)
    rights = [right for number, right in enumerate(EVICT) if number != missing]
    token = await node.admin.token(f"evictor-forbidden-{missing}", *RIGHTS, *rights)
    with node.agent(token, "--eviction", "on") as running:
        node.hold({uid: OVER})
        await until(lambda: counted(running, "evictions"), running)
        assert counted(running, "evictions") == {'result="forbidden"': 1}
        assert line in running.log_lines("pod not evicted")[0]["why"]
        assert "deletionTimestamp" not in (await read_pod(node.admin, "half"))["metadata"]
        assert running.stop() == 0


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
    before = await read_pod(node.admin, "half")
    assert await ask(uid, is_trial=True) is EvictionAnswer.EVICTED
    assert await read_pod(node.admin, "half") == before, "a trial changes nothing"
    assert await ask(uid) is EvictionAnswer.EVICTED
    assert "deletionTimestamp" in (await read_pod(node.admin, "half"))["metadata"]


async def test_a_pod_in_an_init_container_is_evicted_though_its_phase_is_pending(node: GpuNode) -> None:
    """No disruption budget protects a pod that is Pending, not even a Ready one (seen on 1.36.3)."""
    init = {"name": "warm-up", "state": {"running": {"startedAt": "2026-11-22T00:00:00Z"}}}
    waiting = {"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}
    status = {
        each["name"]: {**each, "image": "i", "imageID": "", "ready": False, "restartCount": 0}
        for each in (init, waiting)
    }
    uid = await node.pod(
        "half",
        namespace=NAMESPACE,
        phase="Pending",
        init=[{"name": "warm-up", "image": "i"}],
        initContainerStatuses=[status["warm-up"]],
        containerStatuses=[status["main"]],
    )
    await make_ready(node.admin, "half")
    await budget(node.admin, 0)
    token = await node.admin.token("evictor-init", *RIGHTS, *EVICT)
    with node.agent(token, "--eviction", "on") as running:
        node.hold({uid: OVER})
        await until(lambda: running.log_lines("pod evicted"), running)
        assert {event["reason"] for event in await node.events(uid, NAMESPACE)} == {
            "GPUMemoryOverShare",
            "GPUShareEvicted",
        }
        assert "deletionTimestamp" in (await read_pod(node.admin, "half"))["metadata"]
        assert running.stop() == 0
