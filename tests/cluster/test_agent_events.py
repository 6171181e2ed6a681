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
from tests.support.kube_objects import GPU_0, fraction, reservation

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


async def test_a_pod_that_goes_over_has_one_event_in_time_and_one_more_when_it_clears(
    node: GpuNode,
) -> None:
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


async def test_every_flag_has_its_event_on_the_pod_it_is_about(node: GpuNode) -> None:
    over = await node.pod("over")
    strays = [
        await node.pod("no-share", number=2, group=None, share="", annotations={"gpu-fraction": None}),
        await node.pod("gone-group", number=3, group="no-such-group"),
    ]
    token = await node.admin.token("agent-every", *RIGHTS)
    with node.agent(token) as running, stopped(running):
        node.hold({over: SHARE + 2000, strays[0]: 300})
        await until(lambda: running.log_lines("pod flagged"), running)
        path = "/api/v1/namespaces/research/pods/over"
        await node.admin.merge(path, {"metadata": {"annotations": {"gpu-fraction": "0.9"}}})

        async def all_are_there() -> bool:
            reasons = [await node.reasons(uid) for uid in (over, *strays)]
            return reasons == [
                ["GPUMemoryOverShare", "GPUShareChanged"],
                ["GPUShareMissing"],
                ["GPUReservationMissing"],
            ]

        await until(all_are_there, running)


@pytest.mark.slow
@pytest.mark.kubernetes(1, 34)  # claims
async def test_a_claim_excuses_a_pod_and_an_annotation_unknown_to_kai_does_not(node: GpuNode) -> None:
    """The default scheduler placed all of them, and there is no BindRequest."""
    liar = await node.pod("liar", group=None, share="0.01")
    fields: dict[str, Any] = {"group": None, "annotations": {"gpu-fraction": None}}
    claimed = fraction("claimed", 2, **fields)
    claimed["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "one"}]
    sliced = fraction("sliced", 3, **fields)
    sliced["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu.shared": "1"}}
    excused = [(await node.admin.create(each))["metadata"]["uid"] for each in (claimed, sliced)]
    token = await node.admin.token("agent-placed", *(RIGHTS[:1] + RIGHTS[2:]))
    with node.agent(token) as running, stopped(running):
        node.hold({liar: 4000, **dict.fromkeys(excused, 5000)})
        await until(lambda: node.events(liar), running)
        (event,) = await node.events(liar)
        assert event["reason"] == "GPUShareMissing"
        assert "its share annotation does not count, because KAI did not place the pod" in event["message"]
        assert [await node.events(uid) for uid in excused] == [[], []]
    token = await node.admin.token("agent-asks", *RIGHTS)
    with node.agent(token) as running, stopped(running):
        running.until(lambda: running.log_lines("pod flagged"))
        await asyncio.sleep(2 * GRACE)
        assert [line["uid"] for line in running.log_lines("pod flagged")] == [liar]


async def test_a_restarted_agent_writes_no_second_event(node: GpuNode) -> None:
    uid = await node.pod()
    token = await node.admin.token("agent-again", *RIGHTS)
    node.hold({uid: SHARE + 2000})
    for _ in range(2):
        with node.agent(token) as running, stopped(running):
            await until(lambda: counted(running, "events"), running)
            results = counted(running, "events")
    (event,) = await node.events(uid)
    assert event["count"] == 2
    assert results == {'reason="GPUMemoryOverShare",result="updated"': 1}


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


async def test_with_events_off_nothing_is_written(node: GpuNode) -> None:
    uid = await node.pod()
    token = await node.admin.token("agent-silent", *RIGHTS)
    with node.agent(token, "--events=false") as running, stopped(running):
        node.hold({uid: SHARE + 2000})
        await until(lambda: running.log_lines("pod flagged"), running)
        await asyncio.sleep(2 * INTERVAL)
        assert counted(running, "events") == {}
    assert await node.events(uid) == []


async def test_during_an_outage_of_the_api_server_verdicts_go_on_and_events_wait(
    node: GpuNode, plane: ControlPlane
) -> None:
    uid = await node.pod()
    token = await node.admin.token("agent-alone", *RIGHTS)
    with node.agent(token) as running, stopped(running):
        await asyncio.to_thread(plane.kill)
        try:
            node.hold({uid: SHARE + 2000})
            await until(lambda: running.log_lines("Event writes failing"), running)
            flags = [
                value
                for name, value in running.series().items()
                if "pod_flagged" in name and 'reason="over-share"' in name
            ]
            assert flags == [1]
            assert counted(running, "events") == {}
        finally:
            await asyncio.to_thread(plane.start)
        await until(lambda: counted(running, "events"), running)
        assert counted(running, "events") == {'reason="GPUMemoryOverShare",result="created"': 1}
        assert running.log_lines("Event writes recovered")
    assert await node.reasons(uid) == ["GPUMemoryOverShare"]
