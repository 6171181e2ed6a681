"""The pods of a node from a real API server."""

import asyncio
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from gpuagent.pods import lookups
from gpuagent.pods.cluster_pods import WATCH_TIMING
from gpuagent.pods.lookups import FetchTiming
from gpuagent.pods.node_pods import read_pod
from kube.client import KubeClient
from kube.watch import WatchTiming
from tests.support.administrator import Administrator, right
from tests.support.cluster_pods import running
from tests.support.control_plane import AUDITED, ControlPlane
from tests.support.kube_objects import fraction, node, pod
from tests.support.large_objects import deep_fields
from tests.support.waiting import seconds_until, until

USUAL: dict[str, Any] = {"timing": None, "fetch_timing": FetchTiming(gap=0.0)}
POD = "/api/v1/namespaces/research/pods/half"
PODS = right("pods", "list", "watch")
BIND_REQUESTS = right("bindrequests", "list", "watch", group="scheduling.run.ai")


async def test_pods_of_other_nodes_are_not_followed(admin: Administrator) -> None:
    await admin.create(pod("elsewhere", node="gpu-node-1"))
    await admin.create(pod("nowhere", node=None, phase="Pending"))
    await admin.create(fraction())
    async with running(admin.client, **USUAL) as run:
        await until(lambda: run.names == {"half"})


async def test_managed_fields_nested_too_deep_for_a_decoder_hide_no_pod(admin: Administrator) -> None:
    """Any user who may create or edit a pod can write them."""
    entry = (
        '{"manager":"kubectl","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z",'
        f'"fieldsType":"FieldsV1","fieldsV1":{deep_fields(2000)}}}'
    )
    await admin.create(fraction())
    async with running(admin.client) as run:
        await until(lambda: run.names == {"half"})
        patch = f'{{"metadata":{{"annotations":{{"gpu-fraction":"0.9"}},"managedFields":[{entry}]}}}}'
        await admin.client.request(
            "PATCH", POD, body=patch.encode(), content_type="application/merge-patch+json"
        )
        assert deep_fields(2000).encode() in await admin.client.get(POD)
        await until(lambda: next(iter(run.inventory.pods.values())).annotations["gpu-fraction"] == "0.9")
        assert run.pods.watch.restarts.keys() <= {"closed"}
    async with running(admin.client) as run:
        assert await seconds_until(lambda: run.names == {"half"}) < 5
    async with admin.client.list_objects("/api/v1/namespaces/research/pods") as items:
        assert [read_pod(item).name async for item in items] == ["half"]


@pytest.mark.slow
async def test_what_the_agent_asks_at_its_start_and_in_ten_quiet_minutes(
    plane: ControlPlane, admin: Administrator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second stands for a minute, so no bookmark comes between two watches: the worst case."""
    namespaces = [f"quiet-{number}" for number in range(10)]
    for number, namespace in enumerate(namespaces):
        await admin.ensure({"kind": "Namespace", "metadata": {"name": namespace}})
        await admin.create(fraction("half", number, namespace=namespace))
    await admin.create(node())
    for kind in ("NODES", "NAMESPACES"):
        usual = getattr(lookups, kind)
        quick = replace(usual, again_seconds=usual.again_seconds / 60)
        monkeypatch.setattr(f"gpuagent.pods.cluster_pods.{kind}", quick)
    watch, silence = WATCH_TIMING.watch // 60, WATCH_TIMING.silence / 60
    timing = WatchTiming(watch=watch, spread=WATCH_TIMING.spread // 60, silence=silence, healthy_after=0.1)
    token = await admin.token(AUDITED, PODS, BIND_REQUESTS, right("nodes", "get"), right("namespaces", "get"))
    before = len(plane.requests_of_audited())
    async with KubeClient(plane.access(token)) as client:
        async with running(client, timing=timing, fetch_timing=FetchTiming(gap=0.02)) as run:
            await until(lambda: run.pods.inventory and len(run.inventory.namespaces) == 10)
            start = plane.requests_of_audited()[before:]
            began = time.monotonic()
            await asyncio.sleep(10)
            minutes = time.monotonic() - began
        await asyncio.sleep(0.5)
        quiet = plane.requests_of_audited()[before + len(start) :]
    lists = {("list", "pods"), ("list", "bindrequests")}
    expected = dict.fromkeys(lists, 1) | {
        ("watch", "pods"): 1,
        ("watch", "bindrequests"): 1,
        ("get", "nodes"): 1,
        ("get", "namespaces"): 10,
    }
    assert Counter((verb, resource) for verb, resource, _ in start) == expected
    assert len(run.inventory.pods) == 10
    counts = Counter((verb, resource) for verb, resource, _ in quiet)
    assert counts.keys() == {("watch", "pods"), ("watch", "bindrequests"), ("get", "nodes"), *lists}
    for resource in ("pods", "bindrequests"):
        assert 1 <= counts["watch", resource] <= minutes / silence + 1
    assert counts["get", "nodes"] <= minutes / 5 + 1
    versions = [query.get("resourceVersion") for _, _, query in quiet]
    assert None not in versions, "the API server answers from its memory"
