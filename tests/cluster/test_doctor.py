"""The doctor against a real API server: rights as RBAC grants them, pods and KAI as they are stored."""

from pathlib import Path
from typing import Any

from gpuagent.doctor.cluster import Question, cluster_findings
from gpuagent.doctor.look import Look
from gpuagent.gpus.reading import GpuReading
from service.findings import Finding, State
from tests.cluster.administrator import Administrator, right
from tests.cluster.control_plane import ControlPlane
from tests.gpuagent.nodes import gpu
from tests.gpuagent.objects import GPU_0, NODE, bind_request, fraction, node, pod, reservation

AGENT = (
    right("pods", "list", "watch"),
    right("bindrequests", "get", group="scheduling.run.ai"),
    right("events", "create", "patch"),
)
LOOK = Look(reading=GpuReading(gpus=(gpu(uuid=GPU_0),)))


async def found(plane: ControlPlane, token: str) -> dict[str, Finding]:
    asked = Question(
        node=NODE, reservation_namespace="kai-resource-reservation", reads_config_maps=False, kai_version=None
    )
    return {finding.check: finding async for finding in cluster_findings(plane.access(token), asked, LOOK)}


async def test_an_agent_with_the_rights_it_needs(plane: ControlPlane, admin: Administrator) -> None:
    token = await admin.token("doctor", *AGENT)
    await admin.ensure({"kind": "Namespace", "metadata": {"name": "kai-scheduler"}})
    await admin.create(node())
    for item in (fraction(), bind_request(), reservation(), kai("admission", "--gpu-sharing-enabled=true")):
        await admin.create(item)
    seen = await found(plane, token)
    assert [check for check, finding in seen.items() if finding.state is State.PROBLEM] == []
    assert seen["right to watch pods"].what == "granted"
    assert seen["right to get nodes"].what.startswith("not granted, which is optional")
    assert seen["right to create pods/eviction"].what.startswith("not granted, which is optional")
    assert seen["node"].state is State.UNKNOWN
    assert seen["pods"].what == f"2 pods on the node {NODE}, from the cluster"
    assert seen["reservation pods"].what.startswith(f"1: {GPU_0}")
    assert seen["KAI's version"].what == "v0.13.4"
    assert seen["KAI's GPU sharing"].state is State.OK


def kai(name: str, *args: str) -> dict[str, Any]:
    container = {"name": name, "image": f"example.invalid/kai-scheduler/{name}:v0.13.4", "args": list(args)}
    return pod(name, 50, namespace="kai-scheduler", node="gpu-node-9", containers=[container])


async def test_an_agent_without_any_right(plane: ControlPlane, admin: Administrator) -> None:
    token = await admin.token("doctor-nobody")
    seen = await found(plane, token)
    wrong = [check for check, finding in seen.items() if finding.state is State.PROBLEM]
    assert wrong == [
        "right to list pods",
        "right to watch pods",
        "right to get bindrequests.scheduling.run.ai",
        "right to create events",
        "right to patch events",
    ]
    assert seen["pods"].state is State.UNKNOWN
    assert "403" in seen["pods"].what


async def test_an_administrator_may_everything(
    plane: ControlPlane, admin: Administrator, tmp_path: Path
) -> None:
    await admin.create(node())
    seen = {
        finding.check: finding
        async for finding in cluster_findings(
            plane.access(),
            Question(node=NODE, reservation_namespace="x", reads_config_maps=True, kai_version=None),
            LOOK,
        )
    }
    assert {finding.what for check, finding in seen.items() if check.startswith("right to")} == {"granted"}
    assert seen["node"].what == f"the cluster has {NODE}"
    assert seen["pods"].what == f"the cluster has no pod on the node {NODE}"
