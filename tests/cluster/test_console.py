"""`kaishare` on a separate real API server, with 40 agents in one process and one that never answers.

The API server reaches the agents through its proxy to pods; see tests/support/pod_network.py.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from gpuagent.evaluation.status import Evaluation
from kube.answers import ApiError
from tests.support.administrator import Administrator
from tests.support.agent_fleet import (
    NAMESPACE,
    AgentFleet,
    agent_fleet,
    agent_pod,
    gpu_node,
    node_name,
    pod_name,
    pod_status,
)
from tests.support.control_plane import ControlPlane
from tests.support.kube_objects import namespace_object
from tests.support.pod_network import pod_network
from tests.support.samples import GIB, in_pod, pod_share, sample, snapshot_of
from tests.support.samples import gpu as sampled_gpu

AGENTS = 40
HANGING = AGENTS
ADVICE = "check that networkPolicies.apiServerCIDRs lets the API server reach the agents"


@pytest.fixture(scope="module")
def plane(own_proxied_plane: ControlPlane) -> ControlPlane:
    return own_proxied_plane


def served_status() -> Evaluation:
    """Return what an agent with one GPU and one pod serves."""
    taken = sample(sampled_gpu((7, 5 * GIB)), origins={7: in_pod("train")})
    snapshot = snapshot_of(taken, pod_share("train", 6 * GIB))
    return Evaluation(snapshot=snapshot, attribution_ok=True, good_wall_time=snapshot.wall_time)


@pytest.fixture
async def fleet(plane: ControlPlane, admin: Administrator) -> AsyncIterator[AgentFleet]:
    """Run the agents, with their nodes and pods in the cluster."""
    await admin.ensure(namespace_object(NAMESPACE))
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    for number in range(AGENTS + 1):
        with contextlib.suppress(ApiError):
            await admin.client.get(f"/api/v1/nodes/{node_name(number)}")
            continue
        await admin.post("/api/v1/nodes", gpu_node(number))
        await admin.post(pods, agent_pod(number))
        await admin.merge(f"{pods}/{pod_name(number)}/status", {"status": pod_status(number)})
    async with (
        agent_fleet(AGENTS, served_status()) as fleet,
        pod_network(plane.folder / "egress.sock", fleet.addresses),
    ):
        yield fleet


async def test_ui_serves_all_agents_and_the_past_of_one_until_it_is_interrupted(
    plane: ControlPlane, fleet: AgentFleet
) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "console", "ui", "--port", "0", "--kubeconfig", str(plane.kubeconfig()),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert program.stdout is not None
    async with asyncio.timeout(90), aiohttp.ClientSession() as session:
        url = (await program.stdout.readline()).decode().strip()

        async def get(path: str) -> Any:
            async with session.get(f"{url}{path}") as answer:
                assert answer.status == 200
                return await answer.json()

        while len(nodes := (await get("api/v1/shares"))["nodes"]) <= AGENTS:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)
        by_node = {entry["node"]: entry for entry in nodes}
        hanging = by_node.pop(node_name(HANGING))
        assert (hanging["answer"], hanging["failure"]) == (None, f"no answer within 5 s; {ADVICE}")
        names = {pod["name"] for entry in by_node.values() for pod in entry["answer"]["pods"]}
        assert (len(by_node), names) == (AGENTS, {"train"})
        assert (await get(f"api/v1/history?node={node_name(0)}"))["node"] == node_name(0)
    program.send_signal(signal.SIGINT)
    _, err = await program.communicate()
    assert err == b""
