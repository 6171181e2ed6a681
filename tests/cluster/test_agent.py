"""A whole agent in a cluster: its pods, its rights, and its flags as Events, which a vCluster can copy to its tenant."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuagent.own_pod import EVENT_RIGHTS, EVICTION_RIGHTS, POD_RIGHTS, OwnRights
from gpuagent.sampling.sampler import LONGEST_GAP, SHORTEST_GAP
from kube.client import KubeClient
from tests.support.administrator import Administrator, right
from tests.support.agent_process import Agent, agent
from tests.support.control_plane import ControlPlane
from tests.support.gpu_node import GRACE, RIGHTS, GpuNode, counted
from tests.support.gpu_node import INTERVAL as SAMPLES
from tests.support.gpu_node import until as until_agent
from tests.support.kube_objects import GPU_0, NODE, bind_request, fraction, reservation
from tests.support.memory import peak_resident_mib
from tests.support.nvml_stub.build import ANSWERS, built_library
from tests.support.proc_files import ProcTree
from tests.support.waiting import until

MIB = 1 << 20
INTERVAL = 0.5
# As in a pod, but for the folder where the kubelet would mount the credentials; says at its end what it loaded.
PROGRAM = """
import atexit, sys
from pathlib import Path
from kube.access import InCluster
folder, loaded = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
InCluster.__init__.__kwdefaults__["folder"] = folder
atexit.register(lambda: loaded.write_text(" ".join(sys.modules)))
from gpuagent.cli import main
sys.exit(main(sys.argv[1:]))
"""


async def until_pods(running: Agent, holds: Callable[[list[dict[str, Any]]], object]) -> float:
    """Wait until the agent's pods satisfy a condition; return the seconds that it took."""
    return await until_agent(lambda: holds(running.shares()["pods"]), running)


async def test_pods_of_the_api_server_are_in_the_agent_within_a_gap_and_the_memory_is_small(
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    library = built_library(tmp_path)
    gpu = f"gpu 0 {GPU_0} {23028 * MIB} {500 * MIB} {1000 * MIB} NVIDIA A10"
    (tmp_path / "answers").write_text(f"driver 580.65.06\n{gpu}\n")
    ProcTree(tmp_path / "proc").add(2, "0::/", name="kthreadd")
    await admin.create(reservation())
    token = await admin.token("agent", *RIGHTS)
    plane.access(token)
    options = f"--node {NODE} --proc-root {tmp_path}/proc --interval {INTERVAL * 1000:.0f}ms"
    environment = {
        "LD_LIBRARY_PATH": str(library.parent),
        ANSWERS: str(tmp_path / "answers"),
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(plane.port),
    }
    program = ("-c", PROGRAM, str(plane.account(token)), str(tmp_path / "loaded"))
    with agent(tmp_path / "log", *options.split(), program=program, **environment) as running:
        await asyncio.to_thread(running.until, lambda: running.log_lines("pods listed"))
        await admin.create({**fraction(node=None), "status": {}})
        uid = (await admin.merge("/api/v1/namespaces/research/pods/half", {}))["metadata"]["uid"]
        request = bind_request()
        request["metadata"]["ownerReferences"][0]["uid"] = uid
        await admin.create(request)
        await admin.bind("research", "half")
        a_gap = LONGEST_GAP * INTERVAL + 0.4
        assert await until_pods(running, lambda pods: [pod["name"] for pod in pods] == ["half"]) < a_gap
        await admin.set_status("/api/v1/namespaces/research/pods/half", {"phase": "Running"})
        assert await until_pods(running, lambda pods: [pod["phase"] for pod in pods] == ["Running"]) < a_gap
        series = await asyncio.to_thread(running.series)
        (share,) = (value for name, value in series.items() if 'source="bind-request"' in name)
        assert share == 11500 * MIB
        assert time.time() - series['kaishare_watch_last_contact_timestamp_seconds{resource="pods"}'] < 10
        await admin.delete("/api/v1/namespaces/research/pods/half")
        assert await until_pods(running, lambda pods: not pods) < a_gap
        assert peak_resident_mib(running.process.pid) <= 54
        assert await asyncio.to_thread(running.stop) == 0
    loaded = (tmp_path / "loaded").read_text().split()
    assert "kube.watch" in loaded


PODS = right("pods", "list", "watch")
EVENTS = right("events", "create", "patch")
MORE = (
    right("pods", "list", "watch", "get"),
    right("pods/eviction", "create"),
    right("events", "create", "patch", "list"),
)
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


@pytest.mark.parametrize(
    ("rules", "rights", "denied"),
    [
        ((PODS, EVENTS), POD_RIGHTS + EVENT_RIGHTS, ()),
        ((PODS,), POD_RIGHTS, ()),
        ((PODS,), POD_RIGHTS + EVENT_RIGHTS, EVENT_RIGHTS),
        ((PODS,), POD_RIGHTS + EVICTION_RIGHTS, EVICTION_RIGHTS),
    ],
)
async def test_each_right_that_is_missing_is_told_until_it_is_granted(
    plane: ControlPlane, admin: Administrator, rules: tuple[dict[str, Any], ...], rights: tuple[str, ...], denied: tuple[str, ...]
) -> None:  # fmt: skip
    async with KubeClient(plane.access(await admin.token("own-rights", *rules))) as client:
        own = OwnRights(client, *rights, first_pause=0.1)
        reviewing = asyncio.create_task(own.run())
        try:
            await until(lambda: own.denied if denied else reviewing.done())
            assert own.denied == denied
            if denied:
                # As an administrator does who follows the text: the account gets another role.
                await admin.grant("own-rights-rest", *MORE)
                subjects = [{"kind": "ServiceAccount", "name": "own-rights", "namespace": "team-a"}]
                await admin.merge(f"{BINDINGS}/own-rights-rest", {"subjects": subjects})
                await until(reviewing.done)
                assert own.denied == ()
        finally:
            reviewing.cancel()


SHARE = 11500  # MiB: half of an A10 as KAI counts it
SLOW = 5  # what a busy machine may take beside grace and interval


@pytest.fixture
async def node(plane: ControlPlane, admin: Administrator, tmp_path: Path) -> GpuNode:
    await admin.create(reservation())
    return GpuNode(folder=tmp_path, plane=plane, admin=admin)


@contextmanager
def stopped(running: Agent) -> Iterator[Agent]:
    yield running
    assert running.stop() == 0


async def test_a_pod_that_goes_over_has_one_event_in_time_and_one_more_when_it_clears(node: GpuNode) -> None:
    uid = await node.pod()
    token = await node.admin.token("agent-events", *RIGHTS)
    with node.agent(token) as running, stopped(running):
        node.hold({uid: SHARE + 2000})
        took = await until_agent(lambda: node.events(uid), running)
        assert took > (GRACE - SAMPLES) * SHORTEST_GAP  # one sample for each interval of the grace
        assert took < GRACE * LONGEST_GAP + SLOW
        await asyncio.sleep(5 * SAMPLES)
        (event,) = await node.events(uid)
        assert (event["reason"], event["type"], event["count"]) == ("GPUMemoryOverShare", "Warning", 1)
        assert event["message"].startswith(
            f"uses 13.2 GiB on GPU 0 ({GPU_0}), above its share of 11.2 GiB, for "
        )
        node.hold({uid: SHARE - 500})

        async def both() -> bool:
            return await node.reasons(uid) == ["GPUMemoryOverShare", "GPUMemoryWithinShare"]

        await until_agent(both, running)
        within = next(each for each in await node.events(uid) if each["type"] == "Normal")
        assert within["message"] == f"uses 10.7 GiB on GPU 0 ({GPU_0}), within its share of 11.2 GiB again"
        assert counted(running, "events") == {
            'reason="GPUMemoryOverShare",result="created"': 1,
            'reason="GPUMemoryWithinShare",result="created"': 1,
        }


BY_THE_SERVER = {"uid", "resourceVersion", "creationTimestamp", "managedFields"}


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


async def test_the_event_has_the_form_that_a_vcluster_copied(node: GpuNode) -> None:
    folder = os.environ.get("KAISHARE_FIXTURES")
    if not folder:
        pytest.skip("NOT VERIFIED: KAISHARE_FIXTURES must name a folder with recorded objects")
    copied = json.loads((Path(folder) / "vcluster-live-v0.36.1" / "event.host.json").read_text())
    uid = await node.pod()
    token = await node.admin.token("agent-form", *RIGHTS)
    with node.agent(token) as running, stopped(running):
        node.hold({uid: SHARE + 2000})
        await until_agent(lambda: node.events(uid), running)
    (event,) = await node.events(uid)
    assert shape(event) == shape(copied)
