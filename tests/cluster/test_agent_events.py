"""Flags become Events on their pods, which a vCluster can copy to its tenant."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuagent.sampling.sampler import LONGEST_GAP, SHORTEST_GAP
from tests.support.administrator import Administrator
from tests.support.agent_process import Agent
from tests.support.control_plane import ControlPlane
from tests.support.gpu_node import GRACE, INTERVAL, RIGHTS, GpuNode, counted, until
from tests.support.kube_objects import GPU_0, reservation

SHARE = 11500  # MiB: half of an A10 as KAI counts it
SLOW = 5  # what a busy machine may take beside grace and interval
BY_THE_SERVER = {"uid", "resourceVersion", "creationTimestamp", "managedFields"}


@pytest.fixture
async def node(plane: ControlPlane, admin: Administrator, tmp_path: Path) -> GpuNode:
    await admin.create(reservation())
    return GpuNode(folder=tmp_path, plane=plane, admin=admin)


@contextmanager
def stopped(running: Agent) -> Iterator[Agent]:
    yield running
    assert running.stop() == 0


def shape(event: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an Event, and the values that a vCluster and kubectl use."""
    metadata = event["metadata"]
    about = event["involvedObject"]
    return {
        "fields": set(event) - {"kind", "apiVersion"},
        "metadata": set(metadata) - BY_THE_SERVER,
        "about": set(about),
        "kind": (about["apiVersion"], about["kind"]),
        "is about a pod of its namespace": about["namespace"] == metadata["namespace"],
        "begins with the pod's name": metadata["name"].startswith(f"{about['name']}."),
        "source": set(event["source"]),
        "component": (event["source"]["component"], event["reportingComponent"]),
        "one host": event["source"]["host"] == event["reportingInstance"],
        "type": event["type"],
        "eventTime": event["eventTime"],
    }


async def test_a_pod_that_goes_over_has_one_event_in_time_and_one_more_when_it_clears(node: GpuNode) -> None:
    uid = await node.pod()
    token = await node.admin.token("agent-events", *RIGHTS)
    with node.agent(token) as running, stopped(running):
        node.hold({uid: SHARE + 2000})
        took = await until(lambda: node.events(uid), running)
        assert took > (GRACE - INTERVAL) * SHORTEST_GAP  # one sample for each interval of the grace
        assert took < GRACE * LONGEST_GAP + SLOW
        await asyncio.sleep(5 * INTERVAL)
        (event,) = await node.events(uid)
        assert (event["reason"], event["type"], event["count"]) == ("GPUMemoryOverShare", "Warning", 1)
        assert event["message"].startswith(
            f"uses 13.2 GiB on GPU 0 ({GPU_0}), above its share of 11.2 GiB, for "
        )
        node.hold({uid: SHARE - 500})

        async def both() -> bool:
            return await node.reasons(uid) == ["GPUMemoryOverShare", "GPUMemoryWithinShare"]

        await until(both, running)
        within = next(each for each in await node.events(uid) if each["type"] == "Normal")
        assert within["message"] == f"uses 10.7 GiB on GPU 0 ({GPU_0}), within its share of 11.2 GiB again"
        assert counted(running, "events") == {
            'reason="GPUMemoryOverShare",result="created"': 1,
            'reason="GPUMemoryWithinShare",result="created"': 1,
        }


async def test_the_event_has_the_form_that_a_vcluster_copied(node: GpuNode) -> None:
    folder = os.environ.get("KAISHARE_FIXTURES")
    if not folder:
        pytest.skip("NOT VERIFIED: KAISHARE_FIXTURES must name a folder with recorded objects")
    copied = json.loads((Path(folder) / "vcluster-live-v0.36.1" / "event.host.json").read_text())
    uid = await node.pod()
    token = await node.admin.token("agent-form", *RIGHTS)
    with node.agent(token) as running, stopped(running):
        node.hold({uid: SHARE + 2000})
        await until(lambda: node.events(uid), running)
    (event,) = await node.events(uid)
    assert shape(event) == shape(copied)


async def test_without_permission_flags_are_in_the_metrics_and_the_log_has_the_reason(node: GpuNode) -> None:
    uid = await node.pod()
    token = await node.admin.token("agent-no-events", *RIGHTS[:-1])
    with node.agent(token) as running, stopped(running):
        node.hold({uid: SHARE + 2000})
        await until(lambda: running.log_lines("Event writes failing"), running)
        (line,) = running.log_lines("Event writes failing")
        assert 'cannot create resource "events"' in line["error"]
        flags = [
            value
            for name, value in running.series().items()
            if "pod_flagged" in name and 'reason="over-share"' in name
        ]
        assert flags == [1]
    assert await node.events(uid) == []
